"""MobileNetV1 for small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fltrain.models.network import Network
from fltrain.models.parts import NormLayer, mean_pool

BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)
"""Output channels and stride of the blocks."""


def _separable(inputs: int, outputs: int, stride: int, norm: NormLayer) -> nn.Sequential:
    """3x3 depthwise and 1x1 pointwise convolution, a norm and ReLU behind each."""
    return nn.Sequential(
        OrderedDict(
            depthwise=nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
            depthwise_norm=norm(inputs),
            depthwise_relu=nn.ReLU(),
            pointwise=nn.Conv2d(inputs, outputs, 1, bias=False),
            pointwise_norm=norm(outputs),
            pointwise_relu=nn.ReLU(),
        )
    )


def mobilenetv1(channels: int, classes: int, norm: NormLayer) -> Network:
    """Stem 3x3 (32), thirteen depthwise-separable blocks, mean pool, classifier."""
    inputs = (32, *(outputs for outputs, _ in BLOCKS))
    return Network(
        stem=nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1, bias=False), norm(32), nn.ReLU()),
        **{
            f"block{number + 1}": _separable(inputs[number], outputs, stride, norm)
            for number, (outputs, stride) in enumerate(BLOCKS)
        },
        pool=mean_pool(),
        classifier=nn.Linear(1024, classes),
    )
