"""A nine-layer MobileNetV2 with BatchNorm for demonstrations and tests."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain import models
from fltrain.core.lazy import nn
from fltrain.models.base import Model


class MobileNetTiny(Model):
    """A MobileNetV2 in miniature: stem, a residual and a strided inverted block, head, classifier.

    Nine layers with BatchNorm, made for demonstrations and tests: it has every kind of convolution that
    the large networks have (strided, depthwise, pointwise, residual) under the same block names.
    """

    name: Literal["mobilenet_tiny"] = "mobilenet_tiny"
    citation: ClassVar[str] = "after Sandler et al., MobileNetV2, CVPR 2018"
    min_side: ClassVar[int] = 4

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        return {
            "stem": nn.Sequential(stem, nn.BatchNorm2d(16), nn.ReLU6()),
            "stage1": models.parts.InvertedResidual(16, 16, expansion=2, stride=1),
            "stage2": models.parts.InvertedResidual(16, 24, expansion=2, stride=2),
            "head_conv1": nn.Sequential(nn.Conv2d(24, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()),
            "pool": models.parts.mean_pool(),
            "classifier": nn.Linear(64, classes),
        }
