"""LeNet-5 for small grey or colour images."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.core.lazy import nn
from fltrain.models.base import Model


class LeNet5(Model):
    """LeNet-5 with ReLU and max-pooling: 61,706 parameters for 28 x 28 grey images and 10 classes."""

    name: Literal["lenet5"] = "lenet5"
    citation: ClassVar[str] = "LeCun et al., Gradient-based learning applied to document recognition, 1998"
    min_side: ClassVar[int] = 12

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        pooled = (side // 2 - 4) // 2
        return {
            "conv1": nn.Sequential(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            "conv2": nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Linear(16 * pooled**2, 120), nn.ReLU()),
            "fc2": nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            "classifier": nn.Linear(84, classes),
        }
