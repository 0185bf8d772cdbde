"""Augmentation of training images: what is done to them, and the random numbers for it. No torch here.

In the order of the original codes: pad and crop at random, mirror at random, normalise, cut out a square.
Padding with zeros is therefore black, as with torchvision's ``RandomCrop`` on images, while the square is
filled with zeros after normalisation, which is the mean colour of the data set.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError

Parameters = NDArray[np.int16]
"""By image ``[n, 5]``: top and left of the crop in the padded image, whether it is mirrored (0 or 1), row and
column of the centre of the hole."""


class Augmentation(Settings):
    """Random changes of the training images; as it stands, none.

    ``crop_padding``: pixels added on every side before a crop of the original size, with ``padding_mode``
    ``zeros`` or ``reflect`` (the border pixel is not repeated). ``flip``: mirror left to right with
    probability 1/2. ``cutout``: side of a square hole whose centre is uniform over the pixels, so that it may
    be cut off at the border; from centre - side // 2 on, side pixels long (DeVries and Taylor, Improved
    regularization of convolutional neural networks with cutout, 2017; an odd side loses a pixel in their
    code).
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
        """Whether anything is done to the images."""
        return bool(self.crop_padding or self.flip or self.cutout)

    def check(self, side: int) -> None:
        """Refuse what cannot be done with images of ``side`` x ``side`` pixels.

        Raises:
            FltrainError: with what is possible.
        """
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
        """Parameters of one visit to ``samples`` images of ``side`` x ``side`` pixels, ``[samples, 5]``.

        An image takes the same five numbers from the stream whatever is switched on: with a cutout, images
        are cropped and mirrored as they are without. If nothing is done, nothing is drawn.
        """
        if not self.active:
            return np.zeros((samples, 5), np.int16)
        crops = 2 * self.crop_padding + 1
        centres = side if self.cutout else 1
        choices = [crops, crops, 2 if self.flip else 1, centres, centres]
        return (random.random((samples, 5)) * choices).astype(np.int16)
