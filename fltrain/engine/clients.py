"""A client between two rounds: what it keeps, and what it holds once the server's message has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fltrain.core.rng import Purpose, seeded_torch
from fltrain.engine.data import FederatedData, Split
from fltrain.engine.memory import in_batches
from fltrain.methods.composition import Composition
from fltrain.methods.training import Training
from fltrain.methods.types import Local, Server, State, Task, Update
from fltrain.models.flat import FlatModel, Layout
from fltrain.models.part import Part
from fltrain.runtime.determinism import tf32_products

OWN, TRAINED = "own model", "trained model"
"""Beside the states of the methods, by their names, a client keeps parts of its model under these."""

Kept = Mapping[str, State]
"""What a client keeps between rounds."""


@dataclass(frozen=True)
class Round:
    """What the server has when a round begins, and the settings of local training."""

    number: int
    task: Task
    training: Training
    server: Server
    payloads: Mapping[str, State]

    @property
    def lr_factor(self) -> float:
        """What initial learning rates are multiplied by in this round (after the last: as in the last)."""
        return self.training.lr_schedule.factor(min(self.number, self.task.rounds - 1))


@dataclass(frozen=True)
class Ownership:
    """Which parts of the model clients keep for themselves.

    Attributes:
        private: the parameters that never leave their client.
        buffers: whether BatchNorm statistics never do.
        trained: whether clients also keep the whole model as they trained it, to be tested with it.
    """

    private: Part | None = None
    buffers: bool = False
    trained: bool = False

    def weights(self, layout: Layout) -> slice:
        """Where the private parameters lie in the weight vector."""
        return slice(0, 0) if self.private is None else layout.part(self.private)

    def sent(self, update: Update, layout: Layout) -> Update:
        """The update without what is private: its weights are those that the client started from."""
        if self.private is None:
            return update
        if self.private == "all":
            return replace(update, weights=update.start)
        weights, private = update.weights.clone(), self.weights(layout)
        weights[private] = update.start[private]
        return replace(update, weights=weights)

    def kept(self, update: Update, layout: Layout) -> dict[str, State]:
        """What a client keeps of the model after local training."""
        statistics = {"buffers": update.buffers, "counters": update.counters}
        own: State = dict(statistics) if self.buffers else {}
        if self.private is not None:
            own["weights"] = update.trained[self.weights(layout)].clone()
        kept = {OWN: own} if own else {}
        if self.trained:
            kept[TRAINED] = {"weights": update.trained, **statistics}
        return kept


@dataclass(frozen=True)
class Arrived:
    """A client that has received the server's message: itself, what it keeps, its BatchNorm statistics."""

    local: Local
    kept: Kept
    buffers: Tensor
    counters: Tensor


@dataclass(frozen=True)
class Clients:
    """All clients of a run, who take turns on one model."""

    model: FlatModel
    data: FederatedData
    composition: Composition
    ownership: Ownership = Ownership()

    def arrive(self, round: Round, client: int, kept: Kept | None, *, to_train: bool = True) -> Arrived:
        """Hand the server's message to a client, and put the model it then has into the network.

        Args:
            round: the round that begins.
            client: its number.
            kept: what it kept; None if it has not taken part yet.
            to_train: true for local training, false for a test.
        """
        server, layout, indices = round.server, self.model.layout, self.data.clients[client]
        start, kept = server.weights, kept or {}
        own, private = kept.get(OWN, {}), self.ownership.weights(layout)
        if "weights" in own:
            start = start.clone()
            start[private] = own["weights"]
        buffers, counters = own.get("buffers", server.buffers), own.get("counters", server.counters)
        training, schedule = round.training, self.composition.schedule
        batches = training.batch_sizes(len(indices), schedule.batches)
        local = Local(
            task=round.task,
            client=client,
            round=round.number,
            start=start,
            buffers=buffers,
            lr=training.lr * round.lr_factor,
            steps=training.epochs * schedule.passes * len(batches) * len(schedule.phases),
            samples=len(indices),
            class_counts=self.data.class_counts[client],
            examples=ClientExamples(self.model, self.data.train, indices, training.batch_size),
            payload={},
            state={},
            testing=not to_train,
        )
        local = self.composition.start_weights(local, server, round.payloads, kept)
        self.model.load(local.start, buffers, counters)
        return Arrived(local, kept, buffers, counters)


@dataclass(frozen=True)
class ClientExamples:
    """See ``fltrain.methods.base.Examples``; it works on the model that the client is being trained with."""

    model: FlatModel
    split: Split
    indices: Tensor
    batch: int

    @property
    def labels(self) -> Tensor:
        return self.split.labels.index_select(0, self.indices)

    def mean_gradient(self, weights: Tensor, chosen: NDArray[np.int64] | None = None) -> Tensor:
        model, indices = self.model, self.indices
        if chosen is not None:
            indices = indices.index_select(0, torch.from_numpy(chosen).to(indices.device))
        here, training = model.weights.clone(), model.network.training
        model.weights.copy_(weights)
        model.gradient.zero_()
        model.network.train()
        parts = list(indices.split(self.batch))
        if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm cannot train on a single image
            parts[-2:] = [torch.cat(parts[-2:])]
        with model.untracked():
            for part in parts:
                inputs, labels = self.split.batch(part)
                loss = functional.cross_entropy(model.network(inputs), labels, reduction="sum")
                with tf32_products(model.network.tf32):
                    (loss / len(indices)).backward()
        model.network.train(training)
        model.weights.copy_(here)
        return model.gradient.clone()

    def features(self) -> Tensor:
        network = self.model.network
        training = network.training
        network.eval()
        with torch.no_grad():
            found = in_batches(self.indices, lambda part: network.features(self.split.batch(part)[0]))
        network.train(training)
        return torch.cat(found)


def initial_updates(clients: Clients, round: Round) -> list[Update]:
    """Return the initial uploads of all clients, as updates after no local step."""
    updates: list[Update] = []
    for client in range(len(clients.data.clients)):
        arrived = clients.arrive(round, client, None)
        local = arrived.local
        views = clients.composition.views(local, round.payloads, arrived.kept)
        update = Update(
            client=client,
            samples=local.samples,
            steps=0,
            start=local.start,
            trained=local.start,
            weights=local.start,
            buffers=arrived.buffers,
            counters=arrived.counters,
            loss=local.start.new_zeros(()),
        )
        with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
            updates.append(clients.composition.initial_client(update, views))
    return updates
