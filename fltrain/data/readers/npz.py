"""Arrays in one ``.npz`` file, in the layout of MedMNIST; and pairs of ``.npy`` files (CIFAR-10.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from fltrain.core.errors import count
from fltrain.data.readers.base import Facts, RawSplits, Reader, Split, as_images, as_labels, locate, readable


class NpzFile(Reader):
    """One file with ``{train,test}_images`` (n, h, w) or (n, h, w, c) in uint8 and ``{train,test}_labels``.

    The source is the file, or a folder with exactly one such file. A validation split is not used.
    """

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        path = source if source.is_file() else locate(source, "*.npz")
        with readable(path, "a numpy archive"), np.load(path, allow_pickle=False) as archive:

            def split(name: str) -> Split:
                images = as_images(archive[f"{name}_images"], f"{path}, {name}_images", facts)
                where = f"{path}, {name}_labels"
                return images, as_labels(archive[f"{name}_labels"], where, len(images), facts.classes)

            unused = count(len(archive["val_labels"]), "image") if "val_labels" in archive else None
            notes = (f"the validation split ({unused}) is not used",) if unused else ()
            return RawSplits(*split("train"), *split("test"), notes=notes)


class Npz(NpzFile):
    """Your own arrays in one file: ``{train,test}_images`` and ``{train,test}_labels``."""

    name: Literal["npz"] = "npz"


class MedMnist(NpzFile):
    """A file of MedMNIST; the package medmnist states its address and facts."""

    name: Literal["medmnist"] = "medmnist"


class Cifar101(Reader):
    """CIFAR-10.1, a second test set of CIFAR-10: ``cifar10.1_<version>_{data,labels}.npy``."""

    name: Literal["cifar10_1"] = "cifar10_1"
    version: Literal["v4", "v6"]

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        data = locate(source, f"cifar10.1_{self.version}_data.npy")
        names = locate(source, f"cifar10.1_{self.version}_labels.npy")
        with readable(data, "a numpy array"):
            images = as_images(np.load(data, allow_pickle=False), str(data), facts)
        with readable(names, "a numpy array"):
            labels = as_labels(np.load(names, allow_pickle=False), str(names), len(images), facts.classes)
        return RawSplits(images[:0], labels[:0], images, labels)
