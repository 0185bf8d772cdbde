"""Local training: what one client does in one round, and the executors that run clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fltrain.core.errors import noting
from fltrain.core.rng import Purpose, seeded_torch, stream
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, Kept, Round
from fltrain.engine.trajectory import Trajectory
from fltrain.methods.composition import LocalHooks
from fltrain.methods.ops.vectors import clip_norm
from fltrain.methods.training import Training
from fltrain.methods.types import Local, Outputs, Phase, Place, State, Update
from fltrain.models.flat import FlatModel
from fltrain.models.part import Part


@dataclass(frozen=True)
class Trained:
    """A client's update, and what the client keeps."""

    update: Update
    kept: Kept


class Executor(Protocol):
    """Runs the local training of clients; results come in the order of ``clients``.

    Executors differ in how they run the steps, never in what they compute.
    """

    @property
    def name(self) -> str:
        """What the record of a run says of who has trained it."""

    def train(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        """Train the clients from what the round sends and what each kept, if it is not new."""

    def gradients(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> Tensor:
        """Gradients ``[m, P]`` of the clients' mean losses at the weights that they start the round from."""


class LoopExecutor:
    """The reference: one client after the other, one step after the other.

    Attributes:
        name: what the executor is called.
        exact: whether it computes the same bits as this one.
    """

    name: ClassVar[str] = "loop"
    exact: ClassVar[bool] = True

    def __init__(self, clients: Clients, recordings: Place = "auto") -> None:
        self.clients = clients
        self.model = clients.model
        self.composition = clients.composition
        self.recordings = recordings
        self.frozen = FrozenModels(self.model, self.composition.frozen_models)

    def train(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        images = Augmented(self.clients.data.train, round.training.augmentation)
        trained: list[Trained] = []
        for client in clients:
            # Dropout is the one thing in a local step that may be random; it has a stream like all else.
            with (
                noting(self._inputs(round, client)),
                seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client),
            ):
                trained.append(self._train(round, images, client, kept.get(client)))
        return trained

    def _inputs(self, round: Round, client: int) -> str:
        data = self.clients.data
        shape = " x ".join(map(str, data.train.images.shape[1:]))
        images = f"{len(data.clients[client])} images of {shape}"
        return f"training client {client} with {images} in batches of {round.training.batch_size}"

    def gradients(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> Tensor:
        rows: list[Tensor] = []
        for client in clients:
            local = self.clients.arrive(round, client, kept.get(client)).local
            with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
                rows.append(local.examples.mean_gradient(local.start))
        return torch.stack(rows)

    def _train(self, round: Round, images: Augmented, client: int, kept: Kept | None) -> Trained:
        arrived = self.clients.arrive(round, client, kept)
        local = arrived.local
        self.model.network.train()
        hooks = self._begin(local, round.payloads, arrived.kept)
        optimisers = self._optimisers(round)
        trajectory = self._trajectory(local)
        loss_sum = self.model.weights.new_zeros(())
        for phase, chosen, how in self._visits(round, images, client):
            loss, gradient = self._step(images, chosen, how, hooks, optimisers[phase])
            loss_sum += loss
            if trajectory:
                trajectory.record(gradient, self.model.weights)
        return self._trained(local, self._finished(hooks), loss_sum, trajectory)

    def _visits(self, round: Round, images: Augmented, client: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Phase, images, and parameters of their augmentation, of every local step of a client."""
        schedule = self.composition.schedule
        indices = self.clients.data.clients[client]
        sizes = round.training.batch_sizes(len(indices), schedule.batches)
        epochs = round.training.epochs * schedule.passes
        orders = batch_orders(round, client, epochs, len(indices), indices.device)
        changes = images.parameters(round.task.seed, round.number, client, epochs, len(indices))
        used = sum(sizes)
        for order, change in zip(orders, changes, strict=True):
            batches = zip(indices[order][:used].split(sizes), change[:used].split(sizes), strict=True)
            for phase, (chosen, how) in schedule.visits(list(batches)):
                yield phase, chosen, how

    def _trajectory(self, local: Local) -> Trajectory | None:
        """Where a client's steps are recorded, if a method wants it."""
        recording = self.composition.recording
        if recording is None:
            return None
        return Trajectory(recording, local.steps, local.start, self.recordings)

    def _trained(
        self, local: Local, hooks: LocalHooks, loss_sum: Tensor, trajectory: Trajectory | None
    ) -> Trained:
        """What comes of a client, whose model is the one in place."""
        model = self.model
        weights = model.weights.clone()
        update = Update(
            client=local.client,
            samples=local.samples,
            steps=local.steps,
            start=local.start,
            trained=weights,
            weights=weights,
            buffers=model.buffers.clone(),
            counters=model.counters.clone(),
            loss=loss_sum / local.steps,
            trajectory=trajectory.finished() if trajectory else None,
        )
        update, states = hooks.client_final(update)
        ownership = self.clients.ownership
        kept = {**states, **ownership.kept(update, model.layout)}
        return Trained(ownership.sent(update, model.layout), kept)

    def _begin(self, local: Local, payloads: Mapping[str, State], kept: Kept) -> LocalHooks:
        """The hooks that a client's local steps shall use."""
        return self.composition.client_init(local, payloads, kept)

    def _optimisers(self, round: Round) -> list[Sgd]:
        """An optimiser for each phase of a client's local training, which nothing has moved yet."""
        phases = self.composition.schedule.phases
        return [Sgd(round.training, round.lr_factor, phase, self.model) for phase in phases]

    def _finished(self, hooks: LocalHooks) -> LocalHooks:
        """The client's own hooks as they are after its last step, given those that its steps used."""
        return hooks

    def _step(
        self, images: Augmented, chosen: Tensor, how: Tensor, hooks: LocalHooks, optimiser: Sgd
    ) -> tuple[Tensor, Tensor]:
        """One local step on the chosen images, augmented as ``how`` says; returns loss and gradient."""
        weights = self.model.weights
        step = LoopStep(self.model, self.frozen, hooks, *images.batch(chosen, how), optimiser.part)
        gradient, loss = hooks.gradient(step, weights)
        gradient = hooks.correct(gradient, weights)
        optimiser.step(gradient)
        recording = self.composition.recording
        if recording and recording.what == "gradient":
            gradient = gradient.clone()  # a pass in next_state would overwrite it
        hooks.post_step(weights)
        hooks.next_state(step.outputs, weights)
        step.outputs.clear()  # they refer to the step, and this circle would keep its tensors alive
        return loss, gradient


def divided(images: Tensor, labels: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """So many parts of a batch in turn; each is all of it if BatchNorm could not train on less."""
    if len(labels) < 2 * count:
        return [(images, labels)] * count
    return list(zip(images.tensor_split(count), labels.tensor_split(count), strict=True))


@dataclass(frozen=True)
class LoopStep:
    """A local step on the model as it stands; see ``fltrain.methods.base.Step``."""

    model: FlatModel
    others: FrozenModels
    hooks: LocalHooks
    images: Tensor
    labels: Tensor
    part: Part = "all"
    outputs: list[tuple[Outputs, LoopStep]] = field(default_factory=list)

    def split(self, count: int) -> list[LoopStep]:
        parts = divided(self.images, self.labels, count)
        return [replace(self, images=images, labels=labels) for images, labels in parts]

    def differentiate(
        self,
        loss: Callable[[Outputs], Tensor] | None = None,
        *,
        at: Tensor | None = None,
        part: Part | None = None,
        track: bool = True,
        route: bool = True,
        observe: bool = True,
    ) -> tuple[Tensor, Tensor]:
        gradient, value = self.gradient(loss, at=at, part=part, track=track, route=route, observe=observe)
        return gradient.clone(), value

    def gradient(
        self,
        loss: Callable[[Outputs], Tensor] | None = None,
        *,
        at: Tensor | None = None,
        part: Part | None = None,
        track: bool = True,
        route: bool = True,
        observe: bool = True,
    ) -> tuple[Tensor, Tensor]:
        model, network = self.model, self.model.network
        # Written through `data`, which leaves the version of the weights as it is: hooks may not write.
        if at is not None:
            here = model.weights.clone()
            model.weights.data.copy_(at)
        model.gradient.zero_()
        with (
            # Training the classifier alone leaves all else as it is, the running statistics, too.
            nullcontext() if track and self.part != "head" else model.untracked(),
            model.only(part or self.part),
            self.hooks.route(network) if route else nullcontext(),
        ):
            outputs = self.hooks.forward(network, self)
            value = loss(outputs) if loss else self.hooks.loss(outputs, self)
            value.backward()
        if observe and not loss:
            self.outputs.append((outputs, self))
        if at is not None:
            model.weights.data.copy_(here)
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
        self.twins: list[tuple[tuple[Tensor, Tensor] | None, FlatModel]] = [
            (None, model.twin()) for _ in range(count)
        ]

    def holding(self, weights: Tensor, buffers: Tensor) -> FlatModel:
        """Return a twin with these weights and buffers; the weights' identity tells whether it has them."""
        known = (place for place, (held, _) in enumerate(self.twins) if held and held[0] is weights)
        held, twin = self.twins.pop(next(known, 0))
        if not held or held[0] is not weights:
            twin.load(weights, buffers, self.model.counters)
        self.twins.append(((weights, buffers), twin))
        return twin

    def renew(self) -> None:
        """Copy again what the twins hold, after it has been written to."""
        for held, twin in self.twins:
            if held:
                twin.load(*held, self.model.counters)


def batch_orders(round: Round, client: int, epochs: int, samples: int, device: torch.device) -> Tensor:
    """Order in which the client visits its images, ``[epochs, samples]``."""
    seed = round.task.seed
    orders = [
        torch.from_numpy(
            stream(seed, Purpose.BATCH_ORDER, round=round.number, client=client, epoch=epoch).permutation(
                samples
            )
        )
        for epoch in range(epochs)
    ]
    return torch.stack(orders).to(device)


class Sgd:
    """SGD with momentum and weight decay on flat vectors, step for step as ``torch.optim.SGD``.

    It moves the parameters that a phase of local training trains, and no others.
    """

    def __init__(self, training: Training, lr_factor: float, phase: Phase, model: FlatModel) -> None:
        self.training = training
        self.lr = lr_factor * (training.lr if phase.lr is None else phase.lr)
        self.part = phase.part
        self.where = model.layout.part(phase.part)
        self.weights = model.weights[self.where]
        # Starting from zero, the first step's velocity is the gradient itself, as PyTorch has it.
        self.velocity = torch.zeros_like(self.weights) if training.momentum else None
        self.scratch = torch.empty_like(self.weights)

    def reset(self) -> None:
        """Forget the steps so far."""
        if self.velocity is not None:
            self.velocity.zero_()

    def step(self, gradient: Tensor) -> None:
        """Clip, add weight decay, accumulate momentum, and move the weights, given the gradient ``[P]``."""
        gradient = gradient[self.where]
        if self.training.clip_norm is not None:
            gradient = clip_norm(gradient, self.training.clip_norm)
        if self.training.weight_decay:
            gradient = torch.add(gradient, self.weights, alpha=self.training.weight_decay, out=self.scratch)
        if self.velocity is not None:
            gradient = self.velocity.mul_(self.training.momentum).add_(gradient)
        self.weights.add_(gradient, alpha=-self.lr)
