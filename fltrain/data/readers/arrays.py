"""Files of arrays: IDX (MNIST, Fashion-MNIST), MATLAB (SVHN), numpy (your own, MedMNIST, CIFAR-10.1)."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError, count
from fltrain.data.readers.base import (
    Facts,
    LabelledImages,
    RawSplits,
    Reader,
    as_images,
    as_labels,
    locate,
    readable,
)


class Idx(Reader):
    """Four files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, each plain or with ``.gz``."""

    name: Literal["idx"] = "idx"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        def split(name: str) -> LabelledImages:
            files = [f"{name}-images-idx3-ubyte", f"{name}-labels-idx1-ubyte"]
            images_file, labels_file = (locate(source, f"{file}.gz", file) for file in files)
            images = as_images(_read_idx(images_file, 3), str(images_file), facts)
            labels = _read_idx(labels_file, 1)
            return images, as_labels(labels, str(labels_file), len(images), facts.classes)

        return RawSplits(*split("train"), *split("t10k"))


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array: two zero bytes, its type, its dimensions, their sizes, then the values."""
    with (
        readable(path, "an IDX file"),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        magic, expected = file.read(4), bytes([0, 0, 8, dimensions])  # 8: unsigned bytes
        if magic != expected:
            raise FltrainError(f"{path}: found the header {magic.hex(' ')}, expected {expected.hex(' ')}")
        shape = np.frombuffer(file.read(4 * dimensions), ">u4")
        return np.frombuffer(file.read(), np.uint8).reshape(shape).copy()


class Svhn(Reader):
    """``train_32x32.mat`` and ``test_32x32.mat``; the extra training images are not used.

    The files label the digit 0 with 10.
    """

    name: Literal["svhn"] = "svhn"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        from scipy.io import loadmat

        def split(name: str) -> LabelledImages:
            path = locate(source, f"{name}_32x32.mat")
            with readable(path, "a MATLAB file"):
                variables = loadmat(path, variable_names=["X", "y"])
                images = as_images(variables["X"].transpose(3, 0, 1, 2), f"{path}, X", facts)
                labels = as_labels(variables["y"], f"{path}, y", len(images), classes=10, first=1)
                return images, labels % 10

        return RawSplits(*split("train"), *split("test"))


class Npz(Reader):
    """One file with ``{train,test}_images`` (n, h, w) or (n, h, w, c) in uint8 and ``{train,test}_labels``.

    Your own arrays, or a set of MedMNIST. The source is the file, or a folder with exactly one such file. A
    validation split is not used.
    """

    name: Literal["npz"] = "npz"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        path = source if source.is_file() else locate(source, "*.npz")
        with readable(path, "a numpy archive"), path.open("rb") as file:
            if (start := file.read(20))[:2] != b"PK":  # numpy would take it for a pickle
                raise ValueError(f"it begins with {start!r}; replace it")
        with readable(path, "a numpy archive"), np.load(path, allow_pickle=False) as archive:

            def split(name: str) -> LabelledImages:
                images = as_images(archive[f"{name}_images"], f"{path}, {name}_images", facts)
                where = f"{path}, {name}_labels"
                return images, as_labels(archive[f"{name}_labels"], where, len(images), facts.classes)

            unused = count(len(archive["val_labels"]), "image") if "val_labels" in archive else None
            notes = (f"the validation split ({unused}) is not used",) if unused else ()
            return RawSplits(*split("train"), *split("test"), notes=notes)


class Cifar101(Reader):
    """CIFAR-10.1, a second test set of CIFAR-10: ``cifar10.1_<version>_{data,labels}.npy``."""

    name: Literal["cifar10_1"] = "cifar10_1"
    version: Literal["v4", "v6"]

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        def array(kind: str) -> tuple[NDArray[Any], str]:
            path = locate(source, f"cifar10.1_{self.version}_{kind}.npy")
            with readable(path, "a numpy array"):
                return np.load(path, allow_pickle=False), str(path)

        images = as_images(*array("data"), facts)
        labels = as_labels(*array("labels"), len(images), facts.classes)
        return RawSplits(images[:0], labels[:0], images, labels)
