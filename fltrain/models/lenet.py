"""LeNet-5 for small grey or colour images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fltrain.models.network import Network


class LeNet5Network(Network):
    """conv 5x5 (6) - pool - conv 5x5 (16) - pool - 120 - 84 - classes, ReLU throughout, no norm."""

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        pooled = (side // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * pooled**2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.classifier = nn.Linear(84, classes)

    def features(self, images: Tensor) -> Tensor:
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        return functional.relu(self.fc2(functional.relu(self.fc1(hidden.flatten(1)))))
