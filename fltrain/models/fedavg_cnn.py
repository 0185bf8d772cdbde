"""The small convolutional network of the FedAvg paper, as personalised-FL benchmarks use it."""

from __future__ import annotations

from torch import nn

from fltrain.models.network import Network


def fedavg_cnn(channels: int, side: int, classes: int, padding: int) -> Network:
    """Conv 5x5 (32), pool, conv 5x5 (64), pool, 512, classes; ReLU throughout, no norm."""
    for _ in range(2):
        side = (side + 2 * padding - 4) // 2
    return Network(
        conv1=nn.Sequential(nn.Conv2d(channels, 32, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        conv2=nn.Sequential(nn.Conv2d(32, 64, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        flatten=nn.Flatten(),
        fc1=nn.Sequential(nn.Linear(64 * side**2, 512), nn.ReLU()),
        classifier=nn.Linear(512, classes),
    )
