"""The 2NN of the FedAvg paper, a perceptron with two hidden layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.core.lazy import nn
from fltrain.models.base import Model


class TwoNN(Model):
    """Two hidden layers of 200 ReLU units: 199,210 parameters for 28 x 28 grey images and 10 classes.

    Attributes:
        initialisation: PyTorch's (``pytorch``), Glorot's (``glorot``) or a truncated normal (``normal``). The
            paper states none.
    """

    name: Literal["2nn"] = "2nn"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )
    min_side: ClassVar[int] = 1

    initialisation: Literal["pytorch", "glorot", "normal"] = "pytorch"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        return {
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Linear(channels * side**2, 200), nn.ReLU()),
            "fc2": nn.Sequential(nn.Linear(200, 200), nn.ReLU()),
            "classifier": nn.Linear(200, classes),
        }
