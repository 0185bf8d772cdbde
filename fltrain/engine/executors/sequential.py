"""The local step, and the ``sequential`` executor: one client after the other, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrain.core.errors import noting
from fltrain.core.rng import Purpose, seeded_torch, stream
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, ClientState, Round
from fltrain.engine.trajectory import Trajectory, record
from fltrain.engine.workers import ALONE
from fltrain.methods.composition import LocalHooks
from fltrain.methods.ops.vectors import clip_norm
from fltrain.methods.types import Local, Loss, Outputs, Phase, Place, Step, Update
from fltrain.models.base import Part
from fltrain.models.flat import FlatModel
from fltrain.runtime.determinism import tf32_products
from fltrain.runtime.devices import uploaded


@dataclass(frozen=True)
class Trained:
    """A client's update, and its new client state."""

    update: Update
    client_state: ClientState


@dataclass(frozen=True)
class Cohort:
    """Clients of a run that are due for local training.

    Attributes:
        executor: the run's executor; cohorts of several runs can share their steps.
        round: the round that begins.
        clients: numbers of the clients.
        client_states: states of those that have taken part before.
        timed: returns a context that adds its time, divided by a number of runs, to the costs of the run.
    """

    executor: SequentialExecutor
    round: Round
    clients: Sequence[int]
    client_states: Mapping[int, ClientState]
    timed: Callable[[int], AbstractContextManager[None]] = lambda runs: nullcontext()


@dataclass(frozen=True)
class Visits:
    """The images of a client's local steps in a round, in the order in which the steps visit them.

    Attributes:
        steps: phase and number of images of each step.
        chosen: indices of the images, ``[n]``.
        changes: their augmentation parameters, ``[n, 5]``.
    """

    steps: Sequence[tuple[int, int]]
    chosen: Tensor
    changes: Tensor

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield phase, image indices and augmentation parameters of every step."""
        phases, sizes = zip(*self.steps, strict=True)
        return zip(phases, self.chosen.split(sizes), self.changes.split(sizes), strict=True)


class SequentialExecutor:
    """The reference: one client after the other, one step after the other.

    Subclasses run the steps in different ways and compute the same.

    Attributes:
        name: name of the executor, also in the record of a run.
        exact: True if it computes the same bits as this executor.
        poll: called before each client is trained; it may raise to end the round.
        workers: processes that divide the clients of a round.
    """

    name: ClassVar[str] = "sequential"
    exact: ClassVar[bool] = True

    def __init__(self, clients: Clients, recordings: Place = "device") -> None:
        """Prepare for the clients of a run.

        Raises:
            FltrainError: if the executor cannot train on their device or with their network.
        """
        self.clients = clients
        self.model = clients.model
        self.composition = clients.composition
        self.recordings = recordings
        self.frozen = FrozenModels(self.model, self.composition.needs.frozen_models)
        self.optimisers = [Sgd(phase, self.model) for phase in self.composition.schedule.phases]
        self.poll: Callable[[], None] = lambda: None
        self.workers = ALONE
        self._images: Augmented | None = None

    def images(self, round: Round) -> Augmented:
        """Return the training images with the run's augmentation."""
        if self._images is None:
            self._images = Augmented(self.clients.data.train, round.training.augmentation)
        return self._images

    def train(
        self, round: Round, clients: Sequence[int], client_states: Mapping[int, ClientState]
    ) -> list[Trained]:
        """Train clients, given the state of those that have taken part before; return them in their order."""

        def trained(client: int) -> Trained:
            # Only dropout is random in a local step; it has its own stream.
            with (
                noting(self._inputs(round, client)),
                seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client),
            ):
                return self._train(round, client, client_states.get(client))

        return self.workers.map(trained, clients, self.clients.images, self.poll)

    @staticmethod
    def train_all(cohorts: Sequence[Cohort]) -> list[list[Trained]]:
        """Train cohorts of the same round, whose runs differ only in their seed."""
        return [
            cohort.executor.train(cohort.round, cohort.clients, cohort.client_states) for cohort in cohorts
        ]

    def _inputs(self, round: Round, client: int) -> str:
        data = self.clients.data
        shape = " x ".join(map(str, data.train.images.shape[1:]))
        images = f"{len(data.clients[client])} images of {shape}"
        return f"training client {client} with {images} in batches of {round.training.batch_size}"

    def gradients(
        self, round: Round, clients: Sequence[int], client_states: Mapping[int, ClientState]
    ) -> Tensor:
        """Return gradients ``[m, P]`` of the clients' mean losses at their start weights of the round."""

        def gradient(client: int) -> Tensor:
            local, _ = self.clients.arrive(round, client, client_states.get(client))
            with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
                return local.examples.mean_gradient(local.start)

        return torch.stack(self.workers.map(gradient, clients, self.clients.images))

    def _train(self, round: Round, client: int, client_state: ClientState | None) -> Trained:
        local, hooks = self._arrive(round, client, client_state)
        images = self.images(round)
        trajectory = self._trajectory(local)
        loss_sum = self.model.weights.new_zeros(())
        for phase, chosen, changes in self._visits(round, images, client):
            loss, gradient = self._step(images, chosen, changes, hooks, self.optimisers[phase])
            loss_sum += loss
            if trajectory:
                record([trajectory], [gradient], [self.model.weights])
        return self._trained(local, self._finished(hooks), loss_sum, trajectory)

    def _arrive(
        self, round: Round, client: int, client_state: ClientState | None
    ) -> tuple[Local, LocalHooks]:
        """Load a client's model, reset the optimisers; return the client and the hooks for its steps."""
        local, client_state = self.clients.arrive(round, client, client_state)
        self.model.network.train()
        for optimiser in self.optimisers:
            optimiser.reset(round)
        return local, self.composition.client_init(local, round.payloads, client_state)

    def _visits(self, round: Round, images: Augmented, client: int) -> Visits:
        """Draw the order in which a client visits its images in a round."""
        schedule = self.composition.schedule
        indices = self.clients.data.clients[client]
        sizes = round.training.batch_sizes(len(indices), schedule.batches)
        epochs = round.training.epochs * schedule.passes
        drawn = batch_orders(round.task.seed, round.number, client, epochs, len(indices))
        orders = uploaded(drawn, indices.device)
        changes = images.parameters(round.task.seed, round.number, client, epochs, len(indices))
        places = torch.arange(sum(sizes), device=indices.device).split(sizes)
        phases, visited = zip(*schedule.visits(places), strict=True)
        steps = [(phase, len(batch)) for phase, batch in zip(phases, visited, strict=True)]
        epoch = torch.cat(visited)
        return Visits(steps * epochs, indices[orders[:, epoch].flatten()], changes[:, epoch].flatten(0, 1))

    def _trajectory(self, local: Local) -> Trajectory | None:
        """Return the recording of a client's steps, if a method needs one."""
        recording = self.composition.needs.recording
        if recording is None:
            return None
        return Trajectory(recording, local.steps, local.start, self.recordings)

    def _trained(
        self, local: Local, hooks: LocalHooks, loss_sum: Tensor, trajectory: Trajectory | None
    ) -> Trained:
        """Return the result of the client whose model is loaded."""
        steps = trajectory.finished() if trajectory else None
        update = self.clients.update(local, local.steps, loss_sum / local.steps, steps)
        update, states = hooks.client_final(update)
        ownership, layout = self.clients.ownership, self.model.layout
        return Trained(ownership.sent(update, layout), {**states, **ownership.client_state(update, layout)})

    def _finished(self, hooks: LocalHooks) -> LocalHooks:
        """Return the hooks that finish a client's training, from the hooks of its steps."""
        return hooks

    def _step(
        self, images: Augmented, chosen: Tensor, changes: Tensor, hooks: LocalHooks, optimiser: Sgd
    ) -> tuple[Tensor, Tensor]:
        """Take a local step on some images with their augmentation; return loss and gradient ``[P]``."""
        batch = images.batch(chosen, changes)
        step = InPlaceStep(*batch, optimiser.part, self.model, hooks, self.frozen)
        return step.take(self.model.weights, optimiser, optimiser.velocity)


@dataclass(frozen=True)
class LocalStep(Step):
    """A local step as an executor differentiates it.

    Attributes:
        hooks: hooks of the client's methods.
        outputs: observed passes of the step, each with the (part of the) step that it ran on.
    """

    model: FlatModel
    hooks: LocalHooks
    outputs: list[tuple[Outputs, Step]] = field(default_factory=list, kw_only=True)

    def take(self, weights: Tensor, optimiser: Sgd, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Move ``weights`` and ``velocity`` in place, renew the step state; return loss and gradient ``[P]``.

        All executors run this function: ``sequential`` calls it, ``cuda_graph`` captures it, ``vectorized``
        maps it over clients. Only differentiation has two forms, ``InPlaceStep`` and ``FunctionalStep``.
        """
        hooks = self.hooks
        gradient, loss = hooks.gradient(self, weights)
        gradient = hooks.correct(gradient, weights)
        optimiser.step(gradient, weights, velocity)
        recording = hooks.composition.needs.recording
        if recording and recording.what == "gradient":
            gradient = gradient.clone()  # a pass in next_state would overwrite it
        hooks.post_step(weights)
        hooks.next_state(self.outputs, weights)
        self.outputs.clear()  # they refer to the step, and this circle would keep its tensors in memory
        return loss, gradient

    def _outputs(self, loss: Loss | None) -> tuple[Outputs, Tensor]:
        """Return the outputs of a forward pass and the value of a loss, by default the client's own."""
        outputs = self.hooks.forward(self.model.network, self)
        return outputs, loss(outputs) if loss else self.hooks.loss(outputs, self)


@dataclass(frozen=True)
class InPlaceStep(LocalStep):
    """A local step on the loaded model.

    Gradients go into one flat vector. For a single client on the CPU (batches of 32, CPU time) this
    takes 0.78 of the time of the functional step with LeNet-5, 0.97 with ECGR's CNN.
    """

    others: FrozenModels

    def _gradient(
        self, loss: Loss | None, at: Tensor | None, part: Part, track: bool, route: bool, observe: bool
    ) -> tuple[Tensor, Tensor]:
        model, network = self.model, self.model.network
        # Written through `data`, which leaves the version of the weights as it is: hooks may not write.
        if at is not None:
            current = model.weights.clone()
            model.weights.data.copy_(at)
        with (
            # Training the classifier alone does not change the running statistics.
            nullcontext() if track and self.part != "head" else model.untracked(),
            self.hooks.route(network) if route else nullcontext(),
        ):
            outputs, value = self._outputs(loss)
            with tf32_products(network.tf32):
                model.differentiate(value, part)
        if observe and not loss:
            self.outputs.append((outputs, self))
        if at is not None:
            model.weights.data.copy_(current)
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
    """Copies of the trained network for methods that evaluate other weights on a batch.

    A copy keeps its weights and buffers, so that using them again in the next step copies nothing.
    """

    def __init__(self, model: FlatModel, count: int) -> None:
        self.model = model
        # Made before any plug-in changes the network's computation. The least recently used comes first.
        self.twins: list[tuple[tuple[Tensor, Tensor] | None, FlatModel]] = [
            (None, model.twin()) for _ in range(count)
        ]

    def holding(self, weights: Tensor, buffers: Tensor) -> FlatModel:
        """Return a copy with these tensors, which must not change during their use."""
        same = [held and held[0] is weights and held[1] is buffers for held, _ in self.twins]
        _, twin = self.twins.pop(same.index(True) if True in same else 0)
        if True not in same:
            twin.load(weights, buffers, self.model.counters)
        self.twins.append(((weights, buffers), twin))
        return twin

    def renew(self) -> None:
        """Copy weights and buffers again after they have changed."""
        for held, twin in self.twins:
            if held:
                twin.load(*held, self.model.counters)


def batch_orders(seed: int, round: int, client: int, epochs: int, samples: int) -> NDArray[np.int64]:
    """Return the order in which the client visits its images, ``[epochs, samples]``."""
    where = partial(stream, seed, Purpose.BATCH_ORDER, round=round, client=client)
    return np.stack([where(epoch=epoch).permutation(samples) for epoch in range(epochs)])


class Sgd:
    """SGD with momentum and weight decay on flat vectors, equal to ``torch.optim.SGD`` step by step.

    It moves the parameters of one phase of local training.

    Attributes:
        part: parameters of the phase.
        rate: learning rate of the round; on a GPU a tensor of no dimension, so that captured steps read it.
        velocity: momentum of the current client.
    """

    def __init__(self, phase: Phase, model: FlatModel) -> None:
        self.phase = phase
        self.part = phase.part
        self.where = model.layout.part(phase.part)
        self.velocity = torch.zeros_like(model.weights[self.where])
        on_host = model.weights.device.type == "cpu"
        self.rate: float | Tensor = 0.0 if on_host else torch.zeros_like(model.weights[0])

    def reset(self, round: Round) -> None:
        """Set the learning rate of a round, and forget all steps."""
        self.training = round.training
        rate = round.lr_factor * (round.training.lr if self.phase.lr is None else self.phase.lr)
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate
        # After a step from zero, the velocity is the gradient itself, as in PyTorch.
        self.velocity.zero_()

    def step(self, gradient: Tensor, weights: Tensor, velocity: Tensor) -> None:
        """Clip, add weight decay, accumulate momentum, and move the weights ``[P]``, given the gradient."""
        gradient, weights = gradient[self.where], weights[self.where]
        if self.training.clip_norm is not None:
            gradient = clip_norm(gradient, self.training.clip_norm)
        if self.training.weight_decay:
            gradient = torch.add(gradient, weights, alpha=self.training.weight_decay)
        if self.training.momentum:
            gradient = velocity.mul_(self.training.momentum).add_(gradient)
        if isinstance(self.rate, Tensor):
            weights.sub_(gradient * self.rate)  # vmap would run addcmul_ client by client
        else:
            weights.add_(gradient, alpha=-self.rate)
