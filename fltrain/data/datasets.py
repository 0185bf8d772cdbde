"""Data sets: where their images come from. No torch, so that the workflow can name them cheaply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.component import Component, catalogue
from fltrain.randomness import Purpose, stream

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class RawSplits:
    """Images as uint8 ``[n, channels, height, width]`` and labels as int64 ``[n]``, per split."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


class Dataset(Component):
    """A data set and the form in which its images are used.

    ``image_size`` resizes (bilinear, once, at preparation) to that many pixels on each side; without it
    images keep their native size.
    """

    image_size: int | None = Field(default=None, ge=1, le=1024)

    classes: ClassVar[int]
    channels: ClassVar[int]
    native_size: ClassVar[int]
    train_size: ClassVar[int]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    @property
    def id(self) -> str:
        """File name stem of the prepared data set."""
        return self.name if self.image_size is None else f"{self.name}-{self.image_size}px"

    @property
    def side(self) -> int:
        """Height and width of the prepared images, in pixels."""
        return self.image_size or self.native_size

    def load(self) -> RawSplits:
        """Return the images at their native size."""
        raise TypeError(f"data set {self.name!r} does not say how to load its images")


class Digits(Dataset):
    """Handwritten digits that ship inside scikit-learn: 1,797 grey images of 8 x 8 pixels, 10 classes.

    The set has no official test split. A fifth of each class is held out, always the same images, whatever
    the seed of the run.
    """

    name: Literal["digits"] = "digits"
    citation: ClassVar[str] = (
        "Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI repository, 1998"
    )
    classes: ClassVar[int] = 10
    channels: ClassVar[int] = 1
    native_size: ClassVar[int] = 8
    train_size: ClassVar[int] = 1437
    mean: ClassVar[tuple[float, ...]] = (0.3053,)
    std: ClassVar[tuple[float, ...]] = (0.3762,)

    def load(self) -> RawSplits:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        # The bundled values are 0..16 (ink counted in 4 x 4 blocks); spread them over a byte.
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = bunch.target.astype(np.int64)
        test = np.zeros(len(labels), bool)
        random = stream(0, Purpose.TEST_SPLIT)
        for label in range(self.classes):
            members = np.flatnonzero(labels == label)
            test[random.permutation(members)[: round(len(members) / 5)]] = True
        return RawSplits(images[~test], labels[~test], images[test], labels[test])


DATASETS = catalogue(Dataset)
