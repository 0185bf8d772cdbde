"""GPFL's additions to a network: a conditional valve behind the features, and embeddings of the classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fltrain.models.network import Network


class Branch(nn.Sequential):
    """LayerNorm(ReLU(Linear(v))), of width d."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))


class ConditionalValve(nn.Module):
    """CoV(x, v) = ReLU(x * (gamma(v) + 1) + beta(v)), for features ``[n, d]`` and a condition ``[d]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = Branch(width)
        self.beta = Branch(width)

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        condition = condition[None]  # a batch of one, as layers expect
        return torch.relu(features * (self.gamma(condition) + 1) + self.beta(condition))


class ValveNetwork(Network):
    """A network whose classifier reads its features through a valve; outside GPFL the condition is zero.

    ``features`` are the features before the valve.
    """

    valve: ConditionalValve
    embeddings: nn.Embedding

    @classmethod
    def around(cls, network: Network, classes: int) -> ValveNetwork:
        """Return the network with a new valve and new embeddings, N(0, 1), before its classifier."""
        blocks = dict(network.named_children())
        classifier = blocks.pop("classifier")
        width = next(classifier.parameters()).shape[1]
        additions = {"valve": ConditionalValve(width), "embeddings": nn.Embedding(classes, width)}
        return cls(**blocks, **additions, classifier=classifier)

    def features(self, images: Tensor) -> Tensor:
        others = ("valve", "embeddings", "classifier")
        return self.through((block for name, block in self.named_children() if name not in others), images)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        logits: Tensor = self.classifier(self.valve(features, features.new_zeros(features.shape[1])))
        return logits
