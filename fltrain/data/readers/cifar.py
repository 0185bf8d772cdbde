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
        planes = batch[b"data"].value.reshape(-1, 3, _SIDE, _SIDE)
        images = as_images(planes.transpose(0, 2, 3, 1), str(path), facts)
        return images, as_labels(np.array(batch[key]), str(path), len(images), facts.classes)


class _Array:
    """Stand-in for a numpy array while unpickling; numpy's own code to restore one is never called."""

    value: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Bytes) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array of something else than bytes")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Bytes:
    """Stand-in for the type ``uint8``."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Unpickler that admits uint8 arrays and refuses every other name before looking it up."""

    def find_class(self, module: str, name: str) -> Any:
        def array(*arguments: Any) -> _Array:
            return _Array()

        def dtype(code: Any, *arguments: Any) -> _Bytes:
            if code not in (b"u1", "u1"):
                raise pickle.UnpicklingError(f"an array of type {code!r}")
            return _Bytes()

        known = {
            ("numpy.core.multiarray", "_reconstruct"): array,
            ("numpy", "ndarray"): None,  # an argument of the first, which ignores it
            ("numpy", "dtype"): dtype,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no such file needs")
        return known[module, name]


def restricted_load(content: bytes) -> Any:
    """Return the content of a pickle of containers, numbers, texts and uint8 arrays (as ``_Array``).

    Raises:
        pickle.UnpicklingError: if the pickle names anything else; nothing of it is executed.
    """
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()
