"""Tests of the global model, or of each client's own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.core.rng import Purpose, seeded_torch
from fltrain.engine.clients import TRAINED, Clients, ClientState, Round
from fltrain.engine.data import ImageSet, at_once
from fltrain.engine.workers import divide
from fltrain.models.network import Network, in_mode

BATCHES = 4
"""Number of batches that a worker takes at once."""

Predict = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Maps images to their logits and, if requested, their features."""


@dataclass(frozen=True)
class Outcome:
    """Result of a test, with one entry per tested image.

    Attributes:
        correct: 1 for images that were classified correctly, else 0, ``[n]``.
        losses: cross entropy of each image ``[n]``.
        features: representation of each image ``[n, d]``, if requested.
    """

    correct: Tensor
    losses: Tensor
    features: Tensor | None

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
    images: ImageSet,
    indices: Tensor | None = None,
    keep_features: bool = False,
    workers: int = 1,
) -> Outcome:
    """Test the network, in evaluation mode, on all images of a set or on the given ones."""

    def predict(batch: Tensor) -> tuple[Tensor, Tensor | None]:
        features = network.features(batch)
        return network.classifier(features), features if keep_features else None

    order = torch.arange(len(images), device=images.labels.device) if indices is None else indices
    parts = order.split(BATCHES * at_once(order.device))
    return _joined(divide(workers, lambda part: _tested(network, images, part, predict), parts))


def test_clients(
    clients: Clients,
    round: Round,
    client_states: Mapping[int, ClientState],
    tests: Sequence[Tensor],
    workers: int = 1,
) -> Outcome:
    """Test all clients on their own images, each with its own model and predictions.

    Args:
        clients: all clients.
        round: the next round.
        client_states: client states of the clients that have taken part.
        tests: images of each client, indices into ``clients.data.train``.
        workers: processes that divide the clients.
    """
    model, composition = clients.model, clients.composition

    def tested(client: int) -> Outcome:
        local, client_state = clients.receive(round, client, client_states.get(client), to_train=False)
        if clients.ownership.keeps_trained and TRAINED in client_state:
            model.load(**client_state[TRAINED])
        views = composition.views(local, round.payloads, client_state)
        with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
            weights = composition.test_weights(views, model.weights.clone())
        model.weights.copy_(weights)

        def predict(batch: Tensor) -> tuple[Tensor, None]:
            return composition.predict(model.network, batch, views), None

        return _tested(model.network, clients.data.train, tests[client], predict)

    return _joined(divide(workers, tested, range(len(tests)), lambda client: len(tests[client])))


def _tested(network: Network, images: ImageSet, indices: Tensor, predict: Predict) -> Outcome:
    """Test on some images, in batches that fit into memory."""
    if indices.device.type == "cpu":
        # Faster for most networks: tests do not need the double precision of training.
        images = replace(images, channels_last=True)
    results = []
    with torch.no_grad(), in_mode(network, training=False):
        for part in indices.split(at_once(indices.device)):
            batch, labels = images.batch(part)
            logits, features = predict(batch)
            losses = functional.cross_entropy(logits, labels, reduction="none")
            results.append(Outcome(logits.argmax(1) == labels, losses, features))
    return _joined(results)


def _joined(results: Sequence[Outcome]) -> Outcome:
    features = [result.features for result in results if result.features is not None]
    return Outcome(
        torch.cat([result.correct for result in results]),
        torch.cat([result.losses for result in results]),
        torch.cat(features) if features else None,
    )
