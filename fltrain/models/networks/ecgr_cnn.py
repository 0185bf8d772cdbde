"""The convolutional network "3-32-64-128-256" of the ECGR paper."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Literal

from fltrain.core.lazy import nn
from fltrain.models.base import NormedModel


class EcgrCnn(NormedModel):
    """CNN "3-32-64-128-256" of the ECGR paper: 7 layers, 1,167,872 parameters for CIFAR-10.

    1,536,512 parameters for CIFAR-100. Stem, blocks of one, two and two 3x3 convolutions, and a classifier
    without bias.
    """

    name: Literal["ecgr_cnn"] = "ecgr_cnn"
    citation: ClassVar[str] = "ECGR, arXiv 2601.03584"
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 64

    norm: Literal["bn", "gn"] = "bn"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        def block(*widths: int) -> nn.Module:
            modules: list[nn.Module] = []
            for inputs, outputs in pairwise(widths):
                layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
                modules += [layer, self.norm_layer(outputs), nn.ReLU()]
            return nn.Sequential(*modules, nn.MaxPool2d(2))

        return {
            "stem": nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()),
            "block1": block(32, 64),
            "block2": block(64, 128, 128),
            "block3": block(128, 256, 256),
            "flatten": nn.Flatten(),
            "classifier": nn.Linear(256 * (side // 8) ** 2, classes, bias=False),
        }
