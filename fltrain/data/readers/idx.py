"""IDX files, compressed or not: MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError
from fltrain.data.readers.base import Facts, RawSplits, Reader, Split, as_images, as_labels, locate, readable

_UNSIGNED_BYTES = 8


class Idx(Reader):
    """Four files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, each plain or with ``.gz``."""

    name: Literal["idx"] = "idx"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        return RawSplits(*_split(source, "train", facts), *_split(source, "t10k", facts))


def _split(source: Path, split: str, facts: Facts) -> Split:
    images_file = _locate(source, f"{split}-images-idx3-ubyte")
    labels_file = _locate(source, f"{split}-labels-idx1-ubyte")
    images = as_images(_read(images_file, 3), str(images_file), facts)
    return images, as_labels(_read(labels_file, 1), str(labels_file), len(images), facts.classes)


def _locate(source: Path, name: str) -> Path:
    return locate(source, f"{name}.gz", name)


def _read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array: two zero bytes, its type, its dimensions, their sizes, then the values."""
    with (
        readable(path, "an IDX file"),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        magic, expected = file.read(4), bytes([0, 0, _UNSIGNED_BYTES, dimensions])
        if magic != expected:
            raise FltrainError(f"{path}: found the header {magic.hex(' ')}, expected {expected.hex(' ')}")
        shape = np.frombuffer(file.read(4 * dimensions), ">u4")
        return np.frombuffer(file.read(), np.uint8).reshape(shape).copy()
