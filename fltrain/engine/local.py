"""Local training: what one client does in one round, and the executors that run clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.augment import Augmented
from fltrain.engine.data import FederatedData
from fltrain.engine.flat import FlatModel
from fltrain.methods.base import Local, State, Task, Update
from fltrain.methods.composition import Composition, LocalHooks
from fltrain.randomness import Purpose, seeded_torch, stream
from fltrain.spec import Training


@dataclass(frozen=True)
class Round:
    """What the server sends to every sampled client, and the settings of local training."""

    number: int
    task: Task
    training: Training
    weights: Tensor
    buffers: Tensor
    counters: Tensor
    payloads: Mapping[str, State]

    @property
    def lr(self) -> float:
        """Learning rate of this round."""
        return self.training.lr * self.training.lr_schedule.factor(self.number)


@dataclass(frozen=True)
class Trained:
    """A client's update and its new states by method name."""

    update: Update
    states: dict[str, State]


class Executor(Protocol):
    """Runs the local training of clients; results come in the order of ``clients``.

    Executors differ in how they run the steps, never in what they compute.
    """

    def train(
        self, round: Round, clients: Sequence[int], states: Sequence[Mapping[str, State]]
    ) -> list[Trained]:
        """Train the clients from what the round sends and the states that they kept, by method name."""


class LoopExecutor:
    """The reference: one client after the other, one step after the other."""

    def __init__(self, model: FlatModel, data: FederatedData, composition: Composition) -> None:
        self.model = model
        self.data = data
        self.composition = composition

    def train(
        self, round: Round, clients: Sequence[int], states: Sequence[Mapping[str, State]]
    ) -> list[Trained]:
        images = Augmented(self.data.train, round.training.augmentation)
        trained: list[Trained] = []
        for client, state in zip(clients, states, strict=True):
            # Dropout is the one thing in a local step that may be random; it has a stream like all else.
            with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
                trained.append(self._train(round, images, client, state))
        return trained

    def _train(self, round: Round, images: Augmented, client: int, states: Mapping[str, State]) -> Trained:
        training, model = round.training, self.model
        indices = self.data.clients[client]
        sizes = training.batch_sizes(len(indices))
        steps = training.epochs * len(sizes)
        orders = batch_orders(round, client, len(indices), indices.device)
        changes = images.parameters(round.task.seed, round.number, client, training.epochs, len(indices))

        model.load(round.weights, round.buffers, round.counters)
        model.network.train()
        model.gradient.zero_()
        local = Local(round.task, client, round.number, round.weights, round.lr, steps, {}, {})
        hooks = self.composition.begin(local, round.payloads, states)
        optimiser = Sgd(training, round.lr, model.weights)
        loss_sum = model.weights.new_zeros(())

        used = sum(sizes)
        for order, change in zip(orders, changes, strict=True):
            visits = zip(indices[order][:used].split(sizes), change[:used].split(sizes), strict=True)
            for chosen, how in visits:
                loss_sum += self._step(images, chosen, how, hooks, optimiser)

        update = Update(
            client=client,
            samples=len(indices),
            steps=steps,
            start=round.weights,
            weights=model.weights.clone(),
            buffers=model.buffers.clone(),
            counters=model.counters.clone(),
            loss=loss_sum / steps,
        )
        return Trained(*hooks.finish(update))

    def _step(
        self, images: Augmented, chosen: Tensor, how: Tensor, hooks: LocalHooks, optimiser: Sgd
    ) -> Tensor:
        """One local step on the chosen images, augmented as ``how`` says; returns their mean loss."""
        model = self.model
        inputs, labels = images.batch(chosen, how)
        with hooks.route(model.network):
            loss = functional.cross_entropy(model.network(inputs), labels)
            loss.backward()
        optimiser.step(hooks.correct(model.gradient, model.weights))
        hooks.after_step(model.weights)
        model.gradient.zero_()
        return loss.detach()


def batch_orders(round: Round, client: int, samples: int, device: torch.device) -> Tensor:
    """Order in which the client visits its images, ``[epochs, samples]``."""
    seed = round.task.seed
    orders = [
        torch.from_numpy(
            stream(seed, Purpose.BATCH_ORDER, round=round.number, client=client, epoch=epoch).permutation(
                samples
            )
        )
        for epoch in range(round.training.epochs)
    ]
    return torch.stack(orders).to(device)


class Sgd:
    """SGD with momentum and weight decay on one flat vector, step for step as ``torch.optim.SGD``."""

    def __init__(self, training: Training, lr: float, weights: Tensor) -> None:
        self.training = training
        self.lr = lr
        self.weights = weights
        # Starting from zero, the first step's velocity is the gradient itself, as PyTorch has it.
        self.velocity = torch.zeros_like(weights) if training.momentum else None
        self.scratch = torch.empty_like(weights)

    def step(self, gradient: Tensor) -> None:
        """Clip, add weight decay, accumulate momentum, and move the weights."""
        if self.training.clip_norm is not None:
            gradient = gradient * (self.training.clip_norm / gradient.norm()).clamp(max=1.0)
        if self.training.weight_decay:
            gradient = torch.add(gradient, self.weights, alpha=self.training.weight_decay, out=self.scratch)
        if self.velocity is not None:
            gradient = self.velocity.mul_(self.training.momentum).add_(gradient)
        self.weights.add_(gradient, alpha=-self.lr)
