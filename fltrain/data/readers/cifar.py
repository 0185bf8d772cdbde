"""CIFAR-10 and CIFAR-100 in their Python form: pickles inside a tar archive, read without running them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError
from fltrain.data.readers.base import (
    Facts,
    RawSplits,
    Reader,
    Split,
    as_images,
    as_labels,
    readable,
    tar_members,
)

_SIDE = 32


@dataclass(frozen=True)
class _Layout:
    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: bytes


_LAYOUTS = {
    "cifar-10": _Layout(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        labels=b"labels",
    ),
    "cifar-100": _Layout(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        train=("train",),
        test=("test",),
        labels=b"fine_labels",
    ),
}


class Cifar(Reader):
    """The archive as downloaded, or its folder unpacked. The labels of CIFAR-100 are the 100 fine ones."""

    name: Literal["cifar"] = "cifar"
    version: Literal["cifar-10", "cifar-100"]

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        layout = _LAYOUTS[self.version]
        batches = {
            where.name: _batch(where, content, layout.labels, facts)
            for where, content in _members(source, layout)
        }
        missing = [file for file in (*layout.train, *layout.test) if file not in batches]
        if missing:
            raise FltrainError(f"{source}: found no {', '.join(missing)} in {layout.folder}")
        return RawSplits(*_joined(batches, layout.train), *_joined(batches, layout.test))


def _joined(batches: dict[str, Split], files: tuple[str, ...]) -> Split:
    parts = [batches[file] for file in files]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _members(source: Path, layout: _Layout) -> Iterator[tuple[Path, bytes]]:
    """The batches, by the path that messages name, from a folder or else from the archive."""
    names = {*layout.train, *layout.test}
    for folder in (source, source / layout.folder):
        if folder.is_dir() and all((folder / name).is_file() for name in names):
            yield from ((folder / name, (folder / name).read_bytes()) for name in sorted(names))
            return
    archive = source if source.is_file() else source / layout.archive
    with readable(archive, "the archive of CIFAR"):
        for member, file in tar_members(archive):
            if member.parent.name == layout.folder and member.name in names:
                yield archive / member, file.read()


def _batch(where: Path, content: bytes, key: bytes, facts: Facts) -> Split:
    with readable(where, "a batch of CIFAR"):
        batch = restricted_load(content)
        if not isinstance(batch, dict):
            raise FltrainError(f"{where}: found a {type(batch).__name__}, expected a dictionary")
        data, labels = _entry(where, batch, b"data"), _entry(where, batch, key)
        if not isinstance(data, _Array) or data.value.ndim != 2 or data.value.shape[1] != 3 * _SIDE**2:
            found = data.value.shape if isinstance(data, _Array) else type(data).__name__
            raise FltrainError(f"{where}: found data {found}, expected an array (n, {3 * _SIDE**2})")
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise FltrainError(f"{where}: found labels that are not a list of integers")
        images = as_images(data.value.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1), str(where), facts)
        return images, as_labels(np.array(labels, np.int64), str(where), len(images), facts.classes)


def _entry(where: Path, batch: dict[Any, Any], key: bytes) -> Any:
    if key not in batch:
        raise FltrainError(f"{where}: found no {key.decode()!r} in the batch")
    return batch[key]


class _Array:
    """Stands in for a numpy array while unpickling: numpy's own code to restore one is never called."""

    value: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Bytes) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array of something else than bytes")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Bytes:
    """Stands in for the type ``uint8``."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Knows uint8 arrays, and refuses every other name before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        def array(*arguments: Any) -> _Array:
            return _Array()

        def dtype(code: Any, *arguments: Any) -> _Bytes:
            if code not in (b"u1", "u1"):
                raise pickle.UnpicklingError(f"an array of type {code!r}")
            return _Bytes()

        known = {
            ("numpy.core.multiarray", "_reconstruct"): array,
            ("numpy", "ndarray"): None,  # an argument of the first, which does without
            ("numpy", "dtype"): dtype,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file needs")
        return known[module, name]


def restricted_load(content: bytes) -> Any:
    """Unpickle containers, numbers, texts and uint8 arrays (as ``_Array``), and nothing else.

    Raises:
        pickle.UnpicklingError: if the pickle names anything else; none of it has been run then.
    """
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()
