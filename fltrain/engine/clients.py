"""Clients between two rounds: client state, and the client after it has received the server's message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fltrain.core.rng import Purpose, seeded_torch
from fltrain.engine.data import FederatedData, ImageSet, at_once
from fltrain.engine.workers import divide
from fltrain.methods.composition import Composition
from fltrain.methods.training import Training
from fltrain.methods.types import Local, Server, State, Task, Update
from fltrain.models.base import Private
from fltrain.models.flat import FlatModel, Layout
from fltrain.models.network import in_mode
from fltrain.runtime.determinism import tf32_products
from fltrain.runtime.devices import to_device

OWN, SECOND, TRAINED = "own model", "second model", "trained model"
"""Entries of a client's model in its client state, next to the methods' entries."""

ClientState = Mapping[str, State]
"""Client state between rounds, by method."""


@dataclass(frozen=True)
class Round:
    """The server at the beginning of a round (counted from 0)."""

    number: int
    task: Task
    server: Server
    payloads: Mapping[str, State]

    @property
    def training(self) -> Training:
        """Settings of local training."""
        return self.task.training

    @property
    def lr_factor(self) -> float:
        """Factor on the initial learning rates in this round; after the last round, its last value."""
        return self.training.lr_schedule.factor(min(self.number, self.task.rounds - 1))


@dataclass(frozen=True)
class Ownership:
    """The parts of the model that stay with the clients.

    Attributes:
        private: parameters that never leave their client.
        buffers: BatchNorm statistics never leave their client.
        keeps_trained: clients also keep their whole trained model, to be tested with it.
        name: entry of the private parts in the client state.
    """

    private: Private | None = None
    buffers: bool = False
    keeps_trained: bool = False
    name: str = OWN

    def sent(self, update: Update, layout: Layout) -> Update:
        """Return the update without private parts: their weights are the start weights."""
        if self.private is None:
            return update
        if self.private == "all":
            return replace(update, weights=update.start)
        weights, private = update.weights.clone(), layout.private(self.private)
        weights[private] = update.start[private]
        return replace(update, weights=weights)

    def client_state(self, update: Update, layout: Layout) -> dict[str, State]:
        """Return the parts of the model that a client keeps after local training."""
        statistics = {"buffers": update.buffers, "counters": update.counters}
        model_state: State = dict(statistics) if self.buffers else {}
        if self.private is not None:
            model_state["weights"] = update.trained[layout.private(self.private)].clone()
        states = {self.name: model_state} if model_state else {}
        if self.keeps_trained:
            states[TRAINED] = {"weights": update.trained, **statistics}
        return states


@dataclass(frozen=True)
class Clients:
    """All clients of a run; they take turns on one model."""

    model: FlatModel
    data: FederatedData
    training: Training
    composition: Composition
    ownership: Ownership = Ownership()

    def images(self, client: int) -> int:
        """Return the number of training images of a client."""
        return len(self.data.clients[client])

    def receive(
        self, round: Round, client: int, client_state: ClientState | None, *, to_train: bool = True
    ) -> tuple[Local, ClientState]:
        """Send the server's message to a client, and load the client's model into the network.

        Return the client's view and state.

        Args:
            round: the round that begins.
            client: number of the client.
            client_state: None before its first participation.
            to_train: True for local training, False for a test.
        """
        server, layout, indices = round.server, self.model.layout, self.data.clients[client]
        start, client_state = server.weights, client_state or {}
        model_state = client_state.get(self.ownership.name, {})
        if "weights" in model_state:
            start = start.clone()
            start[layout.private(self.ownership.private)] = model_state["weights"]
        buffers = model_state.get("buffers", server.buffers)
        counters = model_state.get("counters", server.counters)
        local = Local(
            task=round.task,
            client=client,
            round=round.number,
            start=start,
            buffers=buffers,
            lr=self.training.lr * round.lr_factor,
            steps=len(self.step_sizes(len(indices))),
            samples=len(indices),
            class_counts=self.data.class_counts[client],
            examples=ClientExamples(self.model, self.data.train, indices, self.training.batch_size),
            payload={},
            state={},
            testing=not to_train,
        )
        local = self.composition.start_weights(local, server, round.payloads, client_state)
        self.model.load(local.start, buffers, counters)
        return local, client_state

    def step_sizes(self, samples: int) -> list[int]:
        """Return the number of images in each local step of a client with ``samples`` images."""
        schedule, training = self.composition.schedule, self.training
        passes = training.epochs * schedule.passes * len(schedule.phases)
        return training.batch_sizes(samples, schedule.batches) * passes

    def update(self, local: Local, steps: int, loss: Tensor, trajectory: Tensor | None = None) -> Update:
        """Return the update of the client whose model is loaded, before methods change it."""
        weights = self.model.weights.clone()
        return Update(
            client=local.client,
            samples=local.samples,
            steps=steps,
            start=local.start,
            trained=weights,
            weights=weights,
            buffers=self.model.buffers.clone(),
            counters=self.model.counters.clone(),
            loss=loss,
            trajectory=trajectory,
        )


@dataclass(frozen=True)
class ClientExamples:
    """See ``fltrain.methods.base.Examples``; it uses the model that is loaded for the client."""

    model: FlatModel
    split: ImageSet
    indices: Tensor
    batch: int

    @property
    def labels(self) -> Tensor:
        return self.split.labels.index_select(0, self.indices)

    def mean_gradient(self, weights: Tensor, chosen: NDArray[np.int64] | None = None) -> Tensor:
        model, indices = self.model, self.indices
        if chosen is not None:
            indices = indices.index_select(0, to_device(chosen, indices.device))
        current = model.weights.clone()
        model.weights.copy_(weights)
        model.gradient.zero_()
        parts = list(indices.split(self.batch))
        if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm cannot train on a single image
            parts[-2:] = [torch.cat(parts[-2:])]
        with model.untracked(), in_mode(model.network, training=True):
            for part in parts:
                inputs, labels = self.split.batch(part)
                loss = functional.cross_entropy(model.network(inputs), labels, reduction="sum")
                with tf32_products(model.network.tf32):
                    (loss / len(indices)).backward()
        model.weights.copy_(current)
        return model.gradient.clone()

    def features(self) -> Tensor:
        network = self.model.network
        with torch.no_grad(), in_mode(network, training=False):
            parts = self.indices.split(at_once(self.indices.device))
            return torch.cat([network.features(self.split.batch(part)[0]) for part in parts])


def initial_updates(clients: Clients, round: Round, workers: int) -> list[Update]:
    """Return the initial uploads of all clients, as updates after no local step."""

    def initial(client: int) -> Update:
        local, client_state = clients.receive(round, client, None)
        hooks = clients.composition.client_init(local, round.payloads, client_state)
        update = clients.update(local, steps=0, loss=local.start.new_zeros(()))
        with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
            return hooks.client_final(update)[0]

    return divide(workers, initial, range(len(clients.data.clients)), clients.images)
