"""CIFAR-10 and CIFAR-100 in their Python form: pickles in a tar archive, read without executing them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fltrain.data.readers.base import (
    Facts,
    LabelledImages,
    RawSplits,
    Reader,
    as_images,
    as_labels,
    extracted,
    locate,
    readable,
)

_SIDE = 32


class Cifar(Reader):
    """The archive as downloaded, or its unpacked folder. CIFAR-100 has its 100 fine labels."""

    name: Literal["cifar"] = "cifar"
    version: Literal["cifar-10", "cifar-100"]

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        if self.version == "cifar-10":
            parent, key = "cifar-10-batches-py", b"labels"
            train, test = [f"data_batch_{number}" for number in range(1, 6)], ["test_batch"]
        else:
            parent, key = "cifar-100-python", b"fine_labels"
            train, test = ["train"], ["test"]
        with extracted(source, f"{self.version}-python.tar.gz") as folder:

            def split(names: list[str]) -> LabelledImages:
                places = [locate(folder, f"{parent}/{name}", name) for name in names]
                images, labels = zip(*(_batch(path, key, facts) for path in places), strict=True)
                return np.concatenate(images), np.concatenate(labels)

            return RawSplits(*split(train), *split(test))


def _batch(path: Path, key: bytes, facts: Facts) -> LabelledImages:
    with readable(path, "a batch of CIFAR"):
        batch = restricted_load(path.read_bytes())
        planes = array_of(batch[b"data"]).reshape(-1, 3, _SIDE, _SIDE)
        images = as_images(planes.transpose(0, 2, 3, 1), str(path), facts)
        return images, as_labels(np.array(batch[key]), str(path), len(images), facts.classes)


class _StandIn:
    """A numpy array or type as a pickle describes it; numpy's own code to restore it is never called."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Unpickler that refuses every name before looking it up, except three, which become stand-ins."""

    def find_class(self, module: str, name: str) -> type[_StandIn]:
        if f"{module}.{name}" not in ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"):
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no such file needs")
        return _StandIn


def restricted_load(content: bytes) -> Any:
    """Return the content of a pickle of containers, numbers, texts and stand-ins for arrays.

    A pickle that names anything else is refused; nothing of it is executed.
    """
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


def array_of(stand_in: _StandIn) -> NDArray[np.uint8]:
    """Return the array of bytes that a stand-in describes."""
    _, shape, dtype, fortran, content = stand_in.state
    if dtype.arguments[0] not in (b"u1", "u1") or not isinstance(content, bytes):
        raise pickle.UnpicklingError(f"an array of type {dtype.arguments[0]!r}")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
