"""Augmentation of training images: its settings and random numbers. Does not import torch.

The order follows the original codes: random padding and crop, random flip, normalisation, cutout. Padding
with zeros is therefore black, as in torchvision's ``RandomCrop``. After normalisation, the zeros of the
cutout are the mean colour of the dataset.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError

Parameters = NDArray[np.int16]
"""Per image ``[n, 5]``: top and left of the crop in the padded image, flip (0 or 1), row and column of the
centre of the cutout."""


class Augmentation(Settings):
    """Random changes of the training images (default: none).

    Attributes:
        crop_padding: pixels added on every side before a random crop of the original size.
        padding_mode: ``zeros`` or ``reflect``, which does not repeat the border pixel.
        flip: mirror left to right with probability 1/2.
        cutout: side of a square hole in pixels. Its centre is uniform over the pixels, so the border may cut
            it off; it starts at centre - side // 2 (DeVries and Taylor, Improved regularization of
            convolutional neural networks with cutout, 2017; their code loses a pixel of an odd side).
    """

    crop_padding: int = Field(default=0, ge=0)
    padding_mode: Literal["zeros", "reflect"] = "zeros"
    flip: bool = False
    cutout: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _mode_has_padding(self) -> Self:
        if self.padding_mode != "zeros" and not self.crop_padding:
            raise ValueError(
                f"'padding_mode' {self.padding_mode!r} needs 'crop_padding'; set it or leave out the mode"
            )
        return self

    @property
    def active(self) -> bool:
        """True if the settings change images."""
        return bool(self.crop_padding or self.flip or self.cutout)

    def check(self, side: int) -> None:
        """Refuse settings that do not fit images of ``side`` x ``side`` pixels."""
        if self.crop_padding >= side:
            raise FltrainError(
                f"training.augmentation.crop_padding: {self.crop_padding} pixels around images of {side}; "
                f"use at most {side - 1}"
            )
        if self.cutout > side:
            raise FltrainError(
                f"training.augmentation.cutout: a hole of {self.cutout} pixels in images of {side}; "
                f"use at most {side}"
            )

    def draw(self, samples: int, side: int, random: np.random.Generator) -> Parameters:
        """Return parameters for ``samples`` images of ``side`` x ``side`` pixels, ``[samples, 5]``.

        Every image takes five numbers from the stream, so that crops and flips are the same with and without
        cutout.
        """
        crops = 2 * self.crop_padding + 1
        centres = side if self.cutout else 1
        choices = [crops, crops, 2 if self.flip else 1, centres, centres]
        return (random.random((samples, 5)) * choices).astype(np.int16)
