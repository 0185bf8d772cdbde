"""Testing the global model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.data import Split
from fltrain.models.network import Network

BATCH = 1024


@dataclass(frozen=True)
class TestResult:
    """Accuracy (0 to 1), mean cross entropy, number of images, and features ``[n, d]`` if asked for."""

    accuracy: float
    loss: float
    images: int
    features: Tensor | None

    __test__ = False  # not a test class, whatever its name


def test(network: Network, split: Split, keep_features: bool) -> TestResult:
    """Test the network, in evaluation mode, on all images of the split."""
    correct = torch.zeros((), dtype=torch.int64, device=split.labels.device)
    loss = torch.zeros((), dtype=torch.float64, device=split.labels.device)
    kept: list[Tensor] = []
    training = network.training
    network.eval()
    with torch.no_grad():
        for start in range(0, len(split), BATCH):
            images, labels = split.chunk(start, start + BATCH)
            features = network.features(images)
            logits = network.classifier(features)
            correct += (logits.argmax(1) == labels).sum()
            loss += functional.cross_entropy(logits, labels, reduction="sum")
            if keep_features:
                kept.append(features)
    network.train(training)
    return TestResult(
        accuracy=float(correct) / len(split),
        loss=float(loss) / len(split),
        images=len(split),
        features=torch.cat(kept) if keep_features else None,
    )
