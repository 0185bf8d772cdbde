"""What ends a program early, and the exit code that it then has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

_LONGEST = 1000
"""Characters of a message; of a longer one the beginning and the end are shown."""


class FltrainError(ValueError):
    """A mistake in configuration, data or environment.

    The message names the setting, its value, what is allowed and what to do in one line; ``problems`` follow
    in a line each. (A ValueError, so that pydantic reports it like its own findings during validation.)
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        super().__init__("\n  ".join(map(_one_line, (message, *problems))))


class MethodError(FltrainError):
    """A fault in the code of a method (or of fltrain): the log has the traceback."""

    exit_code = 1


class Stopped(BaseException):
    """A signal (SIGTERM, SIGUSR1) asked a run to stop: it goes on from where it was when it is started again.

    Like KeyboardInterrupt no Exception, so that nobody takes it for a fault.
    """

    exit_code: ClassVar[int] = 75


class Interrupted(Stopped):
    """Ctrl-C: a run goes on from where it was when it is started again."""

    exit_code = 130


def as_mistake(error: FltrainError | OSError) -> FltrainError:
    """The error itself, or one that says what the system said, and of which file."""
    if isinstance(error, FltrainError):
        return error
    reason = error.strerror or str(error) or type(error).__name__
    return FltrainError(reason if error.filename is None else f"{error.filename}: {reason}")


def _one_line(message: str) -> str:
    """The message without what a terminal would act on, and of a length that can be read."""
    line = " ".join(map(str.strip, message.splitlines()))
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return printable if len(printable) <= _LONGEST else f"{printable[:700]} ... {printable[-250:]}"


@contextmanager
def noting(where: str) -> Iterator[None]:
    """Let whatever goes wrong in the enclosed work say where that was."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise
