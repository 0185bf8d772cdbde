"""Exceptions that end a program, with their exit codes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

OWN_PACKAGE = "own"
"""Name under which the modules of the user's own folder are imported."""

_LONGEST = 1000
"""Maximum length of a message; longer ones lose their middle."""


def count(number: int, noun: str) -> str:
    """Return, for example, ``1,712 images``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration, for example ``< 1 s``, ``45 s``, ``12 min`` or ``3.4 h``."""
    if 0 < seconds < 0.5:
        return "< 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def listed(names: Iterable[str], most: int) -> str:
    """Return names with commas between them; after the first ``most`` ones, the number of the others."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class FltrainError(ValueError):
    """A mistake in configuration, data or environment.

    The message is one line with the setting, its value, the allowed values and a remedy. ``problems`` follow
    in a line each. (A ValueError, so that pydantic reports it like its own faults during validation.)

    Attributes:
        parts: place and text of each problem, see ``together``.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        super().__init__("\n  ".join(map(_one_line, (message, *problems))))
        self.parts: Sequence[tuple[str, str]] = [("", message)]


class MethodError(FltrainError):
    """A fault in the code of a method or of fltrain; the log has the traceback."""

    exit_code = 1


class Stopped(BaseException):
    """A signal (SIGTERM, SIGUSR1) stopped a run; the next start resumes it.

    Not an Exception, like KeyboardInterrupt: handlers of faults must not catch it.
    """

    exit_code: ClassVar[int] = 75


class Interrupted(Stopped):
    """Ctrl-C stopped a run; the next start resumes it."""

    exit_code = 130


def as_mistake(error: Exception) -> FltrainError:
    """Return an ``FltrainError`` unchanged, or turn another exception into one that it causes.

    The message has file and reason of an ``OSError``, type and text of any other.
    """
    if isinstance(error, FltrainError):
        return error
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or reason
        reason = reason if error.filename is None else f"{error.filename}: {reason}"
    mistake = FltrainError(reason)
    mistake.__cause__ = error
    return mistake


def own_place(error: BaseException) -> str:
    """Return, for example, ``; see methods/mine.py:7``: the innermost frame in the user's own folder.

    It is empty if the traceback has no such frame.
    """
    frames = [
        f"; see {'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(f"{OWN_PACKAGE}.")
    ]
    return frames[-1] if frames else ""


def place_of_class(module: str, name: str) -> str:
    """Return, for example, ``/my/methods/mine.py:7: class Mine``; without a file, module and name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    text = Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""
    before, match, _ = text.partition(f"class {name}(")
    return f"{file}:{1 + before.count(chr(10))}: class {name}" if match else f"{module}.{name}"


def _one_line(message: str) -> str:
    """Return a message in one line of readable length, without control characters."""
    line = " ".join(map(str.strip, message.splitlines()))
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return printable if len(printable) <= _LONGEST else f"{printable[:700]} ... {printable[-250:]}"


MOST_PROBLEMS = 20
"""Number of problems that one message shows."""


def together(where: str, parts: Sequence[tuple[str, str]]) -> FltrainError:
    """Return one error for several problems, one on each line.

    Args:
        where: the whole that is faulty, for example a file.
        parts: place and text of each problem. Equal texts are one problem, shown at its first place.
    """
    first: dict[str, str] = {}
    for place, text in parts:
        first.setdefault(text, place)
    lines = [f"{place}: {text}" if place else text for text, place in first.items()]
    if len(lines) > 1:
        messages = [line.removeprefix(f"{where}: ") for line in lines[:MOST_PROBLEMS]]
        more = [f"and {len(lines) - MOST_PROBLEMS} more"] if len(lines) > MOST_PROBLEMS else []
        error = FltrainError(f"{where}: {len(lines)} problems:", [*messages, *more])
    else:
        error = FltrainError(lines[0])
    error.parts = parts
    return error


def problems(where: str, lines: Iterable[str]) -> FltrainError:
    """Return one error for the problems of one place."""
    return together(where, [(where, line) for line in lines])


class Problems(list[FltrainError]):
    """Mistakes that are reported together."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Add a mistake in the enclosed block instead of raising it."""
        try:
            yield
        except FltrainError as error:
            self.append(error)

    def refuse(self, where: str) -> None:
        """Raise all mistakes as one error, if there are any."""
        if len(self) == 1:
            raise self[0]
        if self:
            raise together(where, [part for error in self for part in error.parts])


@contextmanager
def refusing(problem: str) -> Iterator[None]:
    """Turn any exception of the enclosed block into one line: the problem and the exception.

    The block loads code or data of others, which may even end the program (``sys.exit``).
    """
    try:
        yield
    except (FltrainError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise FltrainError(f"{problem} ({type(error).__name__}: {error}){own_place(error)}") from error


@contextmanager
def noting(where: str) -> Iterator[None]:
    """Add a note on the place to exceptions of the enclosed block."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise
