"""Writing files atomically (under a temporary name, then a rename), and reading arrays with their digest."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import sha256

LOG = logging.getLogger("fltrain")
_METADATA = "fltrain"


def natural(name: str) -> tuple[list[str | int], str]:
    """Return a sorting key that compares numbers within names by value; equal keys compare by spelling."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], name


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it to ``path`` at the end, unless there is an error.

    It deletes older temporary files for ``path`` after an hour without changes: a killed process left them.

    A power loss leaves the old or the new file: the content and the folder are flushed to the disk.

    Raises:
        FltrainError: if the file cannot be written; the old file stays, and no temporary file is left.
    """
    temporary: Path | None = None
    renamed = False
    if path.exists() and not path.is_file():  # root would overwrite /dev/null
        raise FltrainError(f"{path}: is not an ordinary file; choose another place")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(path.parent, f".{escape(path.name)}.*.part", unchanged_for=3600)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        os.umask(mask := os.umask(0))
        temporary.chmod(0o666 & ~mask)  # mkstemp makes files private; results are for everyone
        flush(temporary)  # a full disk may show only now
        temporary.replace(path)
        renamed = True
        flush(path.parent)
    except OSError as error:
        if temporary and error.filename not in (None, str(temporary)):
            raise  # by the caller, about another file
        where = "" if temporary else f"{path.parent}: "
        unchanged = "" if renamed else "; the old file is unchanged"
        raise FltrainError(
            f"{path}: cannot be written ({where}{error.strerror or error}); make room or choose another "
            f"place, then run the same command again{unchanged}"
        ) from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, work: str, timeout: float = -1) -> Iterator[None]:
    """Hold a lock; after a second, warn (shown without logging, too) that another process does this ``work``.

    Raises:
        Timeout: if the other process still holds it after ``timeout`` further seconds (default: wait on).
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        LOG.warning("waiting: another process is %s (lock: %s)", work, path)
        lock.acquire(timeout=timeout)
    try:
        yield
    finally:
        lock.release()


def flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk, so that they survive a power loss."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do it for folders
            raise
    finally:
        os.close(number)


def clear_leftovers(folder: Path, pattern: str = ".*.part", unchanged_for: float = 0) -> None:
    """Delete temporary files whose last change is at least ``unchanged_for`` seconds ago."""
    for leftover in folder.glob(pattern):
        with suppress(OSError):  # of another user, or deleted meanwhile
            if time.time() - leftover.stat().st_mtime >= unchanged_for:
                leftover.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write data as indented JSON, see ``json_text``."""
    write_text(path, json_text(data))


def json_text(data: Any) -> str:
    """Return indented JSON with a final newline; refuse not-a-number and infinity."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FltrainError(f"{path}: cannot be read ({error})") from None


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write named arrays and a description, which gets their ``digest``, to one safetensors file."""
    with replacing(path) as temporary:
        save_arrays(temporary, arrays, about)


def save_arrays(temporary: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write what ``write_arrays`` writes to a temporary path of ``replacing``."""
    text = json.dumps({**about, "digest": digest(arrays)}, allow_nan=False)
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps shape ()
    try:
        save_file(contiguous, temporary, metadata={_METADATA: f"{sha256(text)} {text}"})
    except SafetensorError as error:  # not an OSError, even if the system raised one
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from None


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of the arrays, in the order of their names."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(array.data)
    return state.hexdigest()


def read_arrays(path: Path, noun: str, remedy: str = "") -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays of a ``write_arrays`` file, mapped into memory, and their description.

    Changes to the arrays stay in memory. The digest covers every bit. ``remedy`` makes a missing file.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass  # header and size agree
        with path.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        checksum, _, text = header.pop("__metadata__")[_METADATA].partition(" ")
        content = np.memmap(path, mode="c", offset=8 + length)
        arrays = {name: _mapped(content, **array) for name, array in header.items()}
        if checksum != sha256(text) or digest(arrays) != (about := json.loads(text))["digest"]:
            raise ValueError("its digest is missing, wrong, or of an older version")
        return arrays, about
    except FileNotFoundError:
        raise FltrainError(f"{path}: no such {noun}{remedy and f'; {remedy}'}") from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FltrainError(
            f"{path}: not a readable {noun} ({error}); delete it to have it made again"
        ) from None


def _mapped(
    content: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: tuple[int, int]
) -> NDArray[Any]:
    start, stop = data_offsets
    kind = "?" if dtype == "BOOL" else f"{dtype[0].lower()}{int(dtype[1:]) // 8}"  # U8, I64, F32 ...
    return np.asarray(content[start:stop]).view(kind).reshape(shape)
