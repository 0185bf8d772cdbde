"""Local training: what one client does in one round, and the executors that run clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.augment import Augmented
from fltrain.engine.data import FederatedData
from fltrain.engine.flat import FlatModel
from fltrain.engine.trajectory import Trajectory
from fltrain.methods.base import Local, Outputs, Part, Place, State, Task, Update
from fltrain.methods.composition import Composition, LocalHooks
from fltrain.randomness import Purpose, seeded_torch, stream
from fltrain.spec import Training
from fltrain.vectors import clip_norm


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

    def gradients(self, round: Round, clients: Sequence[int]) -> Tensor:
        """Gradients ``[m, P]`` of the clients' mean losses at the weights that the round sends."""


class LoopExecutor:
    """The reference: one client after the other, one step after the other."""

    def __init__(
        self, model: FlatModel, data: FederatedData, composition: Composition, recordings: Place = "auto"
    ) -> None:
        self.model = model
        self.data = data
        self.composition = composition
        self.recordings = recordings
        self.frozen = FrozenModels(model, composition.frozen_models)

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

    def gradients(self, round: Round, clients: Sequence[int]) -> Tensor:
        rows: list[Tensor] = []
        for client in clients:
            self.model.load(round.weights, round.buffers, round.counters)
            self.model.network.train()
            with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
                rows.append(self._mean_gradient(self.data.clients[client], round.training.batch_size))
        return torch.stack(rows)

    def _train(self, round: Round, images: Augmented, client: int, states: Mapping[str, State]) -> Trained:
        training, model = round.training, self.model
        indices = self.data.clients[client]
        sizes = training.batch_sizes(len(indices))
        steps = training.epochs * len(sizes)
        orders = batch_orders(round, client, len(indices), indices.device)
        changes = images.parameters(round.task.seed, round.number, client, training.epochs, len(indices))

        local = Local(
            task=round.task,
            client=client,
            round=round.number,
            start=round.weights,
            buffers=round.buffers,
            lr=round.lr,
            steps=steps,
            samples=len(indices),
            class_counts=self.data.class_counts[client],
            mean_gradient=partial(self._mean_gradient, indices, training.batch_size),
            payload={},
            state={},
        )
        local = self.composition.receive(local, round.payloads, states)
        model.load(local.start, round.buffers, round.counters)
        model.network.train()
        hooks = self.composition.begin(local, round.payloads, states)
        optimiser = Sgd(training, round.lr, model.weights)
        recording = self.composition.recording
        trajectory = recording and Trajectory(recording, steps, local.start, self.recordings)
        loss_sum = model.weights.new_zeros(())

        used = sum(sizes)
        for order, change in zip(orders, changes, strict=True):
            visits = zip(indices[order][:used].split(sizes), change[:used].split(sizes), strict=True)
            for chosen, how in visits:
                loss, gradient = self._step(images, chosen, how, hooks, optimiser)
                loss_sum += loss
                if trajectory:
                    trajectory.record(gradient, model.weights)

        weights = model.weights.clone()
        update = Update(
            client=client,
            samples=len(indices),
            steps=steps,
            start=local.start,
            trained=weights,
            weights=weights,
            buffers=model.buffers.clone(),
            counters=model.counters.clone(),
            loss=loss_sum / steps,
            trajectory=trajectory.finished() if trajectory else None,
        )
        return Trained(*hooks.finish(update))

    def _step(
        self, images: Augmented, chosen: Tensor, how: Tensor, hooks: LocalHooks, optimiser: Sgd
    ) -> tuple[Tensor, Tensor]:
        """One local step on the chosen images, augmented as ``how`` says; returns loss and gradient."""
        weights = self.model.weights
        step = LoopStep(self.model, self.frozen, hooks, *images.batch(chosen, how))
        gradient, loss = hooks.gradient(step, weights)
        if step.outputs:
            hooks.observe(step.outputs[-1], step)
        gradient = hooks.correct(gradient, weights)
        optimiser.step(gradient)
        hooks.settle(weights)
        hooks.after_step(weights)
        return loss, gradient

    def _mean_gradient(self, indices: Tensor, batch: int) -> Tensor:
        """Gradient of the mean cross entropy over a client's images at the model's current weights."""
        model = self.model
        model.gradient.zero_()
        parts = list(indices.split(batch))
        if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm cannot train on a single image
            parts[-2:] = [torch.cat(parts[-2:])]
        with model.untracked():
            for chosen in parts:
                inputs, labels = self.data.train.batch(chosen)
                loss = functional.cross_entropy(model.network(inputs), labels, reduction="sum")
                (loss / len(indices)).backward()
        return model.gradient.clone()


@dataclass(frozen=True)
class LoopStep:
    """A local step on the model as it stands; see ``fltrain.methods.base.Step``."""

    model: FlatModel
    others: FrozenModels
    hooks: LocalHooks
    images: Tensor
    labels: Tensor
    outputs: list[Outputs] = field(default_factory=list)

    def differentiate(
        self,
        loss: Callable[[Outputs], Tensor] | None = None,
        *,
        at: Tensor | None = None,
        part: Part = "all",
        track: bool = True,
        route: bool = True,
    ) -> tuple[Tensor, Tensor]:
        model, network = self.model, self.model.network
        if at is not None:
            here = model.weights.clone()
            model.weights.copy_(at)
        model.gradient.zero_()
        with (
            nullcontext() if track else model.untracked(),
            self.hooks.route(network) if route else nullcontext(),
        ):
            outputs = self.hooks.forward(network, self)
            if part == "head":  # the backward pass ends at the classifier, which saves most of it
                features = outputs.features.detach()
                outputs = replace(outputs, features=features, logits=network.classifier(features))
            value = loss(outputs) if loss else self.hooks.loss(outputs, self)
            value.backward()
        if part == "body":
            model.gradient[model.layout.head :].zero_()
        if not loss:
            self.outputs.append(outputs)
        if at is not None:
            model.weights.copy_(here)
        return model.gradient, value.detach()

    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        model = self.others.holding(weights, buffers)
        with torch.no_grad(), model.untracked():
            network = model.network
            if network.training != training:
                network.train(training)
            features = network.features(self.images)
            return Outputs(features, network.classifier(features))


class FrozenModels:
    """Twins of the trained network for methods that ask what other weights say of a batch.

    A twin keeps what it holds, so that asking again in the next step copies nothing.
    """

    def __init__(self, model: FlatModel, count: int) -> None:
        self.model = model
        # Made before any plug-in changes how the network computes. The least recently used comes first.
        self.twins: list[tuple[Tensor | None, FlatModel]] = [(None, model.twin()) for _ in range(count)]

    def holding(self, weights: Tensor, buffers: Tensor) -> FlatModel:
        """Return a twin with these weights and buffers; the weights' identity tells whether it has them."""
        known = (place for place, (held, _) in enumerate(self.twins) if held is weights)
        held, twin = self.twins.pop(next(known, 0))
        if held is not weights:
            twin.load(weights, buffers, self.model.counters)
        self.twins.append((weights, twin))
        return twin


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
            gradient = clip_norm(gradient, self.training.clip_norm)
        if self.training.weight_decay:
            gradient = torch.add(gradient, self.weights, alpha=self.training.weight_decay, out=self.scratch)
        if self.velocity is not None:
            gradient = self.velocity.mul_(self.training.momentum).add_(gradient)
        self.weights.add_(gradient, alpha=-self.lr)
