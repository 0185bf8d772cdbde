"""Local training: one client after the other, one step after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrain.core.errors import noting
from fltrain.core.rng import Purpose, own_streams, seeded_torch, stream
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, ClientState, Round
from fltrain.engine.trajectory import Trajectory
from fltrain.engine.workers import divide
from fltrain.methods.composition import WATCHED_ROUNDS, WATCHED_STEPS, LocalHooks
from fltrain.methods.ops.vectors import clip_norm
from fltrain.methods.types import Loss, Outputs, Phase, Step, Update
from fltrain.models.base import Part
from fltrain.models.flat import FlatModel
from fltrain.models.network import in_mode
from fltrain.runtime.determinism import tf32_products
from fltrain.runtime.devices import to_device

LossAndGradient = tuple[Tensor, Tensor]

TakeStep = Callable[["Sgd", Tensor, Tensor], LossAndGradient]
"""Takes a step, given the optimiser, image indices and augmentation parameters."""


@dataclass(frozen=True)
class Trained:
    """A client's update, and its new client state."""

    update: Update
    client_state: ClientState


class LocalTraining:
    """Local training of the clients of a run, who take turns on one model.

    Attributes:
        name: name in the record of a run.
        workers: processes that divide the clients of a round.
        poll: called before each client is trained; if it raises, the round has no effect.
    """

    name: ClassVar[str] = "sequential"

    def __init__(
        self,
        clients: Clients,
        *,
        workers: int = 1,
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.clients, self.model, self.composition = clients, clients.model, clients.composition
        self.workers, self.poll = workers, poll
        self.optimisers = [Sgd(phase, self.model) for phase in self.composition.schedule.phases]

    def train(
        self, round: Round, clients: Sequence[int], client_states: Mapping[int, ClientState]
    ) -> list[Trained]:
        """Train clients, given the states of earlier participants; return the results in their order."""
        shape = " x ".join(map(str, self.clients.data.train.images.shape[1:]))

        def work(client: int) -> Trained:
            images = f"{self.clients.images(client)} images of {shape}"
            # Only dropout is random in a local step; it has its own stream.
            with (
                noting(f"training client {client} with {images} in batches of {round.training.batch_size}"),
                own_streams("local training"),
                seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client),
            ):
                return self.train_client(round, client, client_states.get(client))

        return divide(self.workers, work, clients, self.clients.images, self.poll)

    # ---------------------------------------------------------------- the algorithm
    def train_client(self, round: Round, client: int, client_state: ClientState | None) -> Trained:
        """Train one client: ClientUpdate of FedAvg (McMahan et al. 2017) with the hooks of the methods."""
        local, client_state = self.clients.receive(round, client, client_state)
        hooks = self.composition.client_init(local, round.payloads, client_state)
        hooks.watch = WATCHED_STEPS if round.number < WATCHED_ROUNDS else 0
        model, recording = self.model, self.composition.needs.recording
        trajectory = Trajectory(recording, local) if recording else None
        model.network.train()
        for optimiser in self.optimisers:
            optimiser.reset(round)
        losses = model.weights.new_zeros(())
        with self.stepping(hooks) as take_step:
            for phase, indices, changes in self.batches(round, client):
                loss, gradient = take_step(self.optimisers[phase], indices, changes)
                losses += loss
                if trajectory:
                    trajectory.add(gradient, model.weights, model.buffers)
        rows = trajectory.rows if trajectory else None
        update = self.clients.update(local, local.steps, losses / local.steps, rows)
        update, states = hooks.client_final(update)
        ownership, layout = self.clients.ownership, model.layout
        return Trained(ownership.sent(update, layout), {**states, **ownership.client_state(update, layout)})

    def step(self, hooks: LocalHooks, optimiser: Sgd, indices: Tensor, changes: Tensor) -> LossAndGradient:
        """Take one local step on a batch of images; return its loss and its gradient ``[P]``."""
        images, labels = self.images.batch(indices, changes)
        weights = self.model.weights
        step = LocalStep(images, labels, optimiser.part, self.model, hooks)
        gradient, loss = hooks.gradient(step, weights) if hooks.defines("gradient") else step.backward()
        gradient = hooks.correct(gradient, weights)
        optimiser.step(gradient, weights)
        recording = self.composition.needs.recording
        if recording and recording.what == "gradient":
            gradient = gradient.clone()  # a pass in next_state would overwrite it
        hooks.post_step(weights)
        hooks.next_state(step.passes, weights)
        step.passes.clear()  # they refer to the step, and this circle would keep its tensors in memory
        return loss, gradient

    @contextmanager
    def stepping(self, hooks: LocalHooks) -> Iterator[TakeStep]:
        """Yield the step of one client's training: the function above, or a captured one in a subclass."""
        yield partial(self.step, hooks)

    def batches(self, round: Round, client: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield phase, image indices and augmentation parameters of every local step of a client."""
        schedule = self.composition.schedule
        indices = self.clients.data.clients[client]
        sizes = round.training.batch_sizes(len(indices), schedule.batches)
        epochs = round.training.epochs * schedule.passes
        drawn = batch_orders(round.task.seed, round.number, client, epochs, len(indices))
        orders = to_device(drawn, indices.device)
        changes = self.images.parameters(round.task.seed, round.number, client, epochs, len(indices))
        places = torch.arange(sum(sizes), device=indices.device).split(sizes)
        steps = list(itertools.product(range(len(schedule.phases)), places))
        if schedule.alternate == "batch":
            steps = [(phase, batch) for batch in places for phase in range(len(schedule.phases))]
        phases, visited = zip(*steps, strict=True)
        epoch, lengths = torch.cat(visited), [len(batch) for batch in visited] * epochs
        return zip(
            phases * epochs,
            indices[orders[:, epoch].flatten()].split(lengths),
            changes[:, epoch].flatten(0, 1).split(lengths),
            strict=True,
        )

    @cached_property
    def images(self) -> Augmented:
        """The training images with the run's augmentation."""
        return Augmented(self.clients.data.train, self.clients.training.augmentation)

    def gradients(
        self, round: Round, clients: Sequence[int], client_states: Mapping[int, ClientState]
    ) -> Tensor:
        """Return gradients ``[m, P]`` of the clients' mean losses at their start weights of the round."""

        def gradient(client: int) -> Tensor:
            local, _ = self.clients.receive(round, client, client_states.get(client))
            with seeded_torch(round.task.seed, Purpose.DROPOUT, round=round.number, client=client):
                return local.examples.mean_gradient(local.start)

        return torch.stack(divide(self.workers, gradient, clients, self.clients.images))


@dataclass(frozen=True)
class LocalStep(Step):
    """A local step on the loaded model, as methods see it.

    Attributes:
        hooks: hooks of the client's methods.
        passes: observed passes of the step: outputs, and the (part of the) step that they belong to.
    """

    model: FlatModel
    hooks: LocalHooks
    passes: list[tuple[Outputs, Step]] = field(default_factory=list)

    def backward(
        self,
        loss: Loss | None = None,
        at: Tensor | None = None,
        part: Part | None = None,
        track: bool = True,
        route: bool = True,
        observe: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return the model's gradient vector ``[P]``, which the next pass overwrites, and the loss.

        Forward pass, loss and backward pass; for the arguments see ``Step.differentiate``.
        """
        model, hooks, network = self.model, self.hooks, self.model.network
        # Written through `data`, which leaves the version of the weights as it is: hooks may not write.
        if at is not None:
            current = model.weights.clone()
            model.weights.data.copy_(at)
        with (
            # Training the classifier alone does not change the running statistics.
            nullcontext() if track and self.part != "head" else model.untracked(),
            hooks.route(network) if route else nullcontext(),
        ):
            outputs = hooks.forward(network, self)
            value = loss(outputs) if loss else hooks.loss(outputs, self)
            with tf32_products(network.tf32):
                model.differentiate(value, part or self.part)
        if observe and not loss:
            self.passes.append((outputs, self))
        if at is not None:
            model.weights.data.copy_(current)
        return model.gradient, value.detach()

    def differentiate(self, loss: Loss | None = None, **options: Any) -> tuple[Tensor, Tensor]:
        gradient, value = self.backward(loss, **options)
        return gradient.clone(), value

    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        model, network = self.model, self.model.network
        current = model.weights.clone(), model.buffers.clone()
        model.weights.data.copy_(weights)
        model.buffers.data.copy_(buffers)
        with torch.no_grad(), model.untracked(), in_mode(network, training=training):
            features = network.features(self.images)
            outputs = Outputs(features, network.classifier(features))
        model.weights.data.copy_(current[0])
        model.buffers.data.copy_(current[1])
        return outputs


def batch_orders(seed: int, round: int, client: int, epochs: int, samples: int) -> NDArray[np.int64]:
    """Return the order in which the client visits its images, ``[epochs, samples]``."""
    random = partial(stream, seed, Purpose.BATCH_ORDER, round=round, client=client)
    return np.stack([random(epoch=epoch).permutation(samples) for epoch in range(epochs)])


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

    def step(self, gradient: Tensor, weights: Tensor) -> None:
        """Clip, add weight decay, accumulate momentum, and move the weights ``[P]``, given the gradient."""
        gradient, weights = gradient[self.where], weights[self.where]
        if self.training.clip_norm is not None:
            gradient = clip_norm(gradient, self.training.clip_norm)
        if self.training.weight_decay:
            gradient = torch.add(gradient, weights, alpha=self.training.weight_decay)
        if self.training.momentum:
            gradient = self.velocity.mul_(self.training.momentum).add_(gradient)
        if isinstance(self.rate, Tensor):
            weights.sub_(gradient * self.rate)
        else:
            weights.add_(gradient, alpha=-self.rate)
