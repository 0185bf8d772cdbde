"""The convolutional network "3-32-64-128-256" of the ECGR paper."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fltrain.models.network import Network
from fltrain.models.parts import NormLayer


def ecgr_cnn(channels: int, side: int, classes: int, norm: NormLayer) -> Network:
    """Stem 3x3 (32), blocks of one, two and two 3x3 convolutions (64, 128, 256), linear without bias."""

    def block(*widths: int) -> nn.Sequential:
        modules: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            modules += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm(outputs), nn.ReLU()]
        return nn.Sequential(*modules, nn.MaxPool2d(2))

    return Network(
        stem=nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()),
        block1=block(32, 64),
        block2=block(64, 128, 128),
        block3=block(128, 256, 256),
        flatten=nn.Flatten(),
        classifier=nn.Linear(256 * (side // 8) ** 2, classes, bias=False),
    )
