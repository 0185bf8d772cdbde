"""Testing the global model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.data import Split
from fltrain.models.network import Network

BATCH = {"cpu": 64, "cuda": 1024}
"""Images at once: on a CPU, activations should stay in its caches (measured: up to three times faster)."""


@dataclass(frozen=True)
class TestResult:
    """What the network said of some images, in their order.

    Attributes:
        correct: whether each image was classified correctly, 1 or 0 ``[n]``.
        losses: cross entropy of each image ``[n]``.
        features: representation of each image ``[n, d]``, if it was asked for.
    """

    correct: Tensor
    losses: Tensor
    features: Tensor | None

    __test__ = False  # not a test class, whatever its name

    @property
    def accuracy(self) -> float:
        """Share of images that were classified correctly."""
        return float(self.correct.double().mean())

    @property
    def loss(self) -> float:
        """Mean cross entropy."""
        return float(self.losses.double().mean())

    def by_client(self, clients: Sequence[Tensor]) -> Tensor:
        """Accuracy of each client, whose images follow one another ``[clients]``."""
        parts = self.correct.double().split([len(images) for images in clients])
        return torch.stack([part.mean() for part in parts])


def test(
    network: Network, split: Split, indices: Tensor | None = None, keep_features: bool = False
) -> TestResult:
    """Test the network, in evaluation mode, on all images of the split or on those named."""
    order = torch.arange(len(split), device=split.labels.device) if indices is None else indices
    correct: list[Tensor] = []
    losses: list[Tensor] = []
    kept: list[Tensor] = []
    training = network.training
    network.eval()
    with torch.no_grad():
        for chosen in order.split(BATCH[order.device.type]):
            images, labels = split.batch(chosen)
            features = network.features(images)
            logits = network.classifier(features)
            correct.append(logits.argmax(1) == labels)
            losses.append(functional.cross_entropy(logits, labels, reduction="none"))
            if keep_features:
                kept.append(features)
    network.train(training)
    return TestResult(torch.cat(correct), torch.cat(losses), torch.cat(kept) if keep_features else None)
