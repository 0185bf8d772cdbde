"""MobileNetV1 for small images."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, Literal

from fltrain import models
from fltrain.core.config import added
from fltrain.core.lazy import nn
from fltrain.models.base import NormedModel

BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)
"""Output channels and stride of the blocks."""


class MobileNetV1(NormedModel):
    """MobileNetV1 for 32 x 32 images: 28 layers, 3,217,226 parameters for 3 channels and 10 classes.

    A stem, then separable blocks ``block1`` to ``block13``. (Fed2)

    Attributes:
        stem_stride: stride of the stem. The total stride is 16 with 1, and 32 with 2, as in the network's
            paper.
    """

    name: Literal["mobilenetv1"] = "mobilenetv1"
    citation: ClassVar[str] = "Howard et al., MobileNets, 2017"
    channels_last: ClassVar[bool] = False
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 32

    norm: Literal["bn", "gn"] = "bn"
    stem_stride: Literal[1, 2] = added(1)

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        stem = nn.Conv2d(channels, 32, 3, self.stem_stride, padding=1, bias=False)
        blocks = {"stem": nn.Sequential(stem, self.norm_layer(32), nn.ReLU())}
        inputs = 32
        for number, (outputs, stride) in enumerate(BLOCKS, start=1):
            blocks[f"block{number}"] = self._separable(inputs, outputs, stride)
            inputs = outputs
        return {**blocks, "pool": models.parts.mean_pool(), "classifier": nn.Linear(inputs, classes)}

    def _separable(self, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        """Return a 3x3 depthwise and a 1x1 pointwise convolution, each with norm and ReLU."""
        return nn.Sequential(
            OrderedDict(
                depthwise=nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
                depthwise_norm=self.norm_layer(inputs),
                depthwise_relu=nn.ReLU(),
                pointwise=nn.Conv2d(inputs, outputs, 1, bias=False),
                pointwise_norm=self.norm_layer(outputs),
                pointwise_relu=nn.ReLU(),
            )
        )
