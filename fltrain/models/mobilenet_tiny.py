"""A nine-layer MobileNetV2 with BatchNorm for demonstrations and tests."""

from __future__ import annotations

from torch import nn

from fltrain.models.mobilenetv2 import InvertedResidual
from fltrain.models.network import Network
from fltrain.models.parts import mean_pool


def mobilenet_tiny(channels: int, classes: int) -> Network:
    """Stem 3x3 (16), residual block (16), strided block (24), head 1x1 (64), mean pool, classifier."""
    return Network(
        stem=nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
        stage1=InvertedResidual(16, 16, expansion=2, stride=1),
        stage2=InvertedResidual(16, 24, expansion=2, stride=2),
        head_conv1=nn.Sequential(nn.Conv2d(24, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()),
        pool=mean_pool(),
        classifier=nn.Linear(64, classes),
    )
