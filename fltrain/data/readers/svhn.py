"""Street View House Numbers: cropped digits in two MATLAB files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fltrain.data.readers.base import Facts, RawSplits, Reader, Split, as_images, as_labels, locate, readable


class Svhn(Reader):
    """``train_32x32.mat`` and ``test_32x32.mat``; the extra training images are not used.

    The files label the digit 0 with 10.
    """

    name: Literal["svhn"] = "svhn"

    def load(self, source: Path, facts: Facts, side: int | None) -> RawSplits:
        return RawSplits(*_split(source, "train", facts), *_split(source, "test", facts))


def _split(source: Path, split: str, facts: Facts) -> Split:
    from scipy.io import loadmat

    path = locate(source, f"{split}_32x32.mat")
    with readable(path, "a MATLAB file"):
        variables = loadmat(path, variable_names=["X", "y"])
        images = as_images(variables["X"].transpose(3, 0, 1, 2), f"{path}, X", facts)
        labels = as_labels(variables["y"], f"{path}, y", len(images), classes=10, first=1)
        return images, labels % 10
