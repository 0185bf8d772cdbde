"""A perceptron with one hidden layer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import nn
from fltrain.models.base import Model


class Mlp(Model):
    """Perceptron with one hidden layer: 79,510 parameters for 28 x 28 grey images and 10 classes (FedFCD).

    Attributes:
        hidden: number of hidden units.
    """

    name: Literal["mlp"] = "mlp"
    citation: ClassVar[str] = (
        "Li, Wang and Wang, Hierarchical optimization method for federated learning with feature alignment "
        "and decision fusion, CMC 81(1), 2024"
    )
    min_side: ClassVar[int] = 1

    hidden: int = Field(default=100, ge=1)

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        return {
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Linear(channels * side**2, self.hidden), nn.ReLU()),
            "classifier": nn.Linear(self.hidden, classes),
        }
