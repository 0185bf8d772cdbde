"""Tests of the global model, or of each client's own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.core.rng import Purpose, seeded_torch
from fltrain.engine.clients import TRAINED, Clients, ClientState, Round
from fltrain.engine.data import Split
from fltrain.engine.memory import BATCH, in_batches
from fltrain.engine.workers import ALONE, Workers
from fltrain.models.network import Network, in_mode

BATCHES = 4
"""Number of batches that a worker tests at once."""


@dataclass(frozen=True)
class TestResult:
    """Result of a test, with one entry per tested image.

    Attributes:
        correct: 1 for images that were classified correctly, else 0, ``[n]``.
        losses: cross entropy of each image ``[n]``.
        features: representation of each image ``[n, d]``, if requested.
    """

    correct: Tensor
    losses: Tensor
    features: Tensor | None

    __test__ = False  # pytest must not collect it

    @property
    def accuracy(self) -> float:
        """Share of images that were classified correctly."""
        return float(self.correct.double().mean())

    @property
    def loss(self) -> float:
        """Mean cross entropy."""
        return float(self.losses.double().mean())

    def by_client(self, clients: Sequence[Tensor]) -> Tensor:
        """Return the accuracy of each client, whose images follow one another, ``[clients]``."""
        parts = self.correct.double().split([len(images) for images in clients])
        return torch.stack([part.mean() for part in parts])


def test(
    network: Network,
    split: Split,
    indices: Tensor | None = None,
    keep_features: bool = False,
    workers: Workers = ALONE,
) -> TestResult:
    """Test the network, in evaluation mode, on all images of the split or on the given ones."""

    def predict(images: Tensor) -> tuple[Tensor, Tensor | None]:
        features = network.features(images)
        return network.classifier(features), features if keep_features else None

    return _test(network, split, indices, predict, workers)


def test_clients(
    clients: Clients,
    round: Round,
    client_states: Mapping[int, ClientState],
    tests: Sequence[Tensor],
    workers: Workers = ALONE,
) -> TestResult:
    """Test all clients on their own images, each with its own model and predictions.

    Args:
        clients: all clients.
        round: the next round.
        client_states: client states of the clients that have taken part.
        tests: images of each client, indices into ``clients.data.train``.
        workers: processes that divide the clients.
    """
    model, composition = clients.model, clients.composition

    def tested(client: int) -> TestResult:
        local, client_state = clients.receive(round, client, client_states.get(client), to_train=False)
        if clients.ownership.trained and TRAINED in client_state:
            model.load(**client_state[TRAINED])
        views = composition.views(local, round.payloads, client_state)
        with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
            weights = composition.test_weights(views, model.weights.clone())
        model.weights.copy_(weights)

        def predict(images: Tensor) -> tuple[Tensor, None]:
            return composition.predict(model.network, images, views), None

        return _test(model.network, clients.data.train, tests[client], predict)

    return _joined(workers.map(tested, range(len(tests)), lambda client: len(tests[client])))


def _test(
    network: Network,
    split: Split,
    indices: Tensor | None,
    predict: Callable[[Tensor], tuple[Tensor, Tensor | None]],
    workers: Workers = ALONE,
) -> TestResult:
    """Test with ``predict``, which maps images to their logits and, if requested, their features."""
    order = torch.arange(len(split), device=split.labels.device) if indices is None else indices
    if order.device.type == "cpu":
        # Faster for most networks: tests do not need the double precision of training.
        split = replace(split, channels_last=True)

    def tested(part: Tensor) -> TestResult:
        images, labels = split.batch(part)
        logits, features = predict(images)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return TestResult(logits.argmax(1) == labels, losses, features)

    with torch.no_grad(), in_mode(network, training=False):
        parts = order.split(BATCHES * BATCH[order.device.type])
        return _joined(workers.map(lambda part: _joined(in_batches(part, tested)), parts))


def _joined(results: Sequence[TestResult]) -> TestResult:
    """Concatenate test results."""
    features = [result.features for result in results if result.features is not None]
    return TestResult(
        torch.cat([result.correct for result in results]),
        torch.cat([result.losses for result in results]),
        torch.cat(features) if features else None,
    )
