"""LeNet-5 for small grey or colour images."""

from __future__ import annotations

from torch import nn

from fltrain.models.network import Network


def lenet5(channels: int, side: int, classes: int) -> Network:
    """Conv 5x5 (6), pool, conv 5x5 (16), pool, 120, 84, classes; ReLU throughout, no norm."""
    pooled = (side // 2 - 4) // 2
    return Network(
        conv1=nn.Sequential(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        flatten=nn.Flatten(),
        fc1=nn.Sequential(nn.Linear(16 * pooled**2, 120), nn.ReLU()),
        fc2=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
        classifier=nn.Linear(84, classes),
    )
