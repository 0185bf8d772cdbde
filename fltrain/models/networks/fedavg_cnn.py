"""The small convolutional network of the FedAvg paper, in the form of personalised-FL benchmarks."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.core.config import added
from fltrain.core.lazy import nn
from fltrain.models.base import Model


class FedAvgCnn(Model):
    """Two 5x5 convolutions and two linear layers: 878,538 parameters for CIFAR-10 (FedFCD).

    Attributes:
        padding: of the convolutions: 0 in PFLlib, 2 in the FedAvg paper. With 2, the network has 2,156,490
            parameters for CIFAR-10 and 1,663,370 for MNIST.
        initialisation: as in the network ``2nn``.
    """

    name: Literal["fedavg_cnn"] = "fedavg_cnn"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )

    padding: Literal[0, 2] = 0
    initialisation: Literal["pytorch", "glorot", "normal"] = added("pytorch")

    @property
    def min_side(self) -> int:
        return 4 if self.padding else 16

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        for _ in range(2):
            side = (side + 2 * self.padding - 4) // 2

        def convolution(inputs: int, outputs: int) -> nn.Module:
            layer = nn.Conv2d(inputs, outputs, 5, padding=self.padding)
            return nn.Sequential(layer, nn.ReLU(), nn.MaxPool2d(2))

        return {
            "conv1": convolution(channels, 32),
            "conv2": convolution(32, 64),
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Linear(64 * side**2, 512), nn.ReLU()),
            "classifier": nn.Linear(512, classes),
        }
