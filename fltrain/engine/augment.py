"""Augmented batches, made on the device from parameters drawn beforehand."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.core.rng import Purpose, stream
from fltrain.data.augmentation import Augmentation
from fltrain.engine.data import ImageSet
from fltrain.runtime.devices import to_device


class Augmented:
    """Training images, augmented and normalised for the local step; images are square.

    One gather of bytes pads, crops and mirrors; its indices come from ``sources``. Without augmentation,
    batches equal ``ImageSet.batch`` bit for bit.
    """

    def __init__(self, split: ImageSet, augmentation: Augmentation) -> None:
        """Prepare for the images of ``split``; refuse images that are too small."""
        self.split = split
        self.augmentation = augmentation
        self.side = split.images.shape[-1]
        augmentation.check(self.side)  # planning does not check datasets of unknown size
        self.moves = augmentation.crop_padding > 0 or augmentation.flip
        self.pads_with_zeros = augmentation.crop_padding > 0 and augmentation.padding_mode == "zeros"
        self.line = torch.arange(self.side, device=split.images.device)
        self.sources = self._sources()

    def parameters(self, seed: int, round: int, client: int, epochs: int, samples: int) -> Tensor:
        """Draw the augmentation of a client's images in a round, ``[epochs, samples, 5]``.

        Row i of an epoch belongs to the i-th image visited. Batch size and other clients have no influence.
        """
        if not self.augmentation.active:
            return torch.zeros(epochs, samples, 5, dtype=torch.int16, device=self.line.device)
        random = partial(stream, seed, Purpose.AUGMENTATION, round=round, client=client)
        drawn = [self.augmentation.draw(samples, self.side, random(epoch=epoch)) for epoch in range(epochs)]
        return to_device(np.stack(drawn), self.line.device)

    def batch(self, indices: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Gather images ``[b]``, augmented by their parameters ``[b, 5]`` and normalised, and labels."""
        if not self.augmentation.active:
            return self.split.batch(indices)
        top, left, flip, row, column = parameters.long().unbind(-1)
        images = self.split.images.index_select(0, indices)
        if self.moves:
            images = self._moved(images, top, left, flip)
        images = self.split.normalised(images)
        if self.augmentation.cutout:
            hole = self._in_hole(row)[:, None, :, None] * self._in_hole(column)[:, None, None, :]
            images.mul_(1 - hole)
        return self.split.laid_out(images), self.split.labels.index_select(0, indices)

    def _moved(self, images: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        """Crop the padded images at ``top`` and ``left``, then mirror images with ``flip``."""
        rows = self.sources.index_select(0, top)
        columns = self.sources.index_select(0, left + flip * (len(self.sources) // 2))
        pixels = torch.add(columns[:, None, :], rows[:, :, None], alpha=self.side).flatten(1)
        source = images.flatten(2)
        if self.pads_with_zeros:
            # One more pixel, which is black; indices outside the image point at it or beyond.
            source = functional.pad(source, (0, 1))
            pixels = pixels.clamp(max=self.side**2)
        channels = images.shape[1]
        return source.gather(2, pixels[:, None].expand(-1, channels, -1)).view(images.shape)

    def _sources(self) -> Tensor:
        """Return the source of each pixel in a line: a row per offset of the crop, then the mirrored rows."""
        padding, side = self.augmentation.crop_padding, self.side
        line = torch.arange(-padding, side + padding, device=self.line.device)
        if self.pads_with_zeros:
            line = line.masked_fill((line < 0) | (line >= side), side**2)
        else:
            line = (side - 1) - ((side - 1) - line.abs()).abs()
        crops = line.unfold(0, side, 1)
        return torch.cat([crops, crops.flip(1)])

    def _in_hole(self, centre: Tensor) -> Tensor:
        """Return a mask ``[b, side]``: 1 for pixels of a line within the hole, else 0."""
        size = self.augmentation.cutout
        offset = self.line - centre[:, None] + size // 2
        return ((offset >= 0) & (offset < size)).to(self.split.scale.dtype)
