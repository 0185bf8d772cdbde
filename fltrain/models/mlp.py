"""A perceptron with one hidden layer."""

from __future__ import annotations

from torch import nn

from fltrain.models.network import Network


def mlp(channels: int, side: int, classes: int, hidden: int) -> Network:
    """Pixels, hidden units with ReLU, classes."""
    return Network(
        flatten=nn.Flatten(),
        fc1=nn.Sequential(nn.Linear(channels * side**2, hidden), nn.ReLU()),
        classifier=nn.Linear(hidden, classes),
    )
