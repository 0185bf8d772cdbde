"""Files that are whole or absent: write under a temporary name, then rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fltrain.errors import FltrainError

_METADATA = "fltrain"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on leaving without an error it becomes ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files private; results are for everyone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON with a final newline; not-a-number and infinity are refused."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        FltrainError: if it is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FltrainError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FltrainError(f"{path}: cannot be read ({error})") from None


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write named arrays and a description to one safetensors file."""
    with replacing(path) as temporary:
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(contiguous, temporary, metadata={_METADATA: json.dumps(about, allow_nan=False)})


def read_arrays(path: Path, what: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Map what ``write_arrays`` wrote into memory: pages are read when they are first looked at.

    Changes to the arrays stay in memory; the file is never written to.

    Raises:
        FltrainError: if the file is missing, damaged, or of another kind.
    """
    try:
        with safe_open(path, framework="numpy") as file:  # checks that header and size agree
            about = json.loads((file.metadata() or {})[_METADATA])
            names = list(file.keys())
        with path.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        content = np.memmap(path, mode="c", offset=8 + length)
        return {name: _mapped(content, **header[name]) for name in names}, about
    except FileNotFoundError:
        raise FltrainError(f"{path}: no such {what}") from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FltrainError(
            f"{path}: not a readable {what} ({error}); delete it to have it made again"
        ) from None


_TYPES = {"U8": np.uint8, "I64": np.int64, "F32": np.float32}


def _mapped(
    content: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: tuple[int, int]
) -> NDArray[Any]:
    start, stop = data_offsets
    return np.asarray(content[start:stop]).view(_TYPES[dtype]).reshape(shape)
