"""The ``stack`` executor: clients side by side, in one step on stacked weights, statistics and images.

The local step is that of the contract, transformed by ``torch.func``: convolutions become grouped ones,
matrix products batched ones. Numbers are added up in another order than in the loop, so results agree up to
rounding. What cannot be transformed is trained by the loop; the log says why.

In a step, the clients whose batches have the same number of images go together. Nothing is padded, so that
BatchNorm sees what it would see; clients that have fewer steps are done earlier.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

# What torch.func.functional_call does for one call of a module, here for all that a method may call.
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_map

from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, Kept, Round
from fltrain.engine.executors.loop import LoopExecutor, Trained, divided
from fltrain.engine.executors.stand_ins import Watched, signature, watched
from fltrain.engine.trajectory import Trajectory
from fltrain.methods.composition import LocalHooks
from fltrain.methods.ops.vectors import clip_norm
from fltrain.methods.training import Training
from fltrain.methods.types import Local, Outputs, Phase, Place, State
from fltrain.models.flat import FlatModel, Slot
from fltrain.models.part import Part

LOG = logging.getLogger("fltrain")

Moving = dict[str, Any]
"""What steps change: weights, buffers, counters, a velocity for each phase, and the step states."""


@dataclass
class _Client:
    """A client that trains beside others, and the steps that it has before it."""

    local: Local
    hooks: LocalHooks
    visits: Iterator[tuple[int, Tensor, Tensor]]
    trajectory: Trajectory | None
    moving: Moving
    losses: Tensor

    def held(self) -> list[Tensor]:
        """The tensors that steps only read, in the order in which methods see them."""
        found: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        for local in self.hooks.locals_.values():
            watched(local, keep)
        return found


class StackExecutor(LoopExecutor):
    """Clients side by side, as far as their methods allow it."""

    name = "stack"
    exact = False

    def __init__(self, clients: Clients, recordings: Place = "auto") -> None:
        super().__init__(clients, recordings)
        self.reads: set[tuple[str, str]] = set()
        drawing = (nn.modules.dropout._DropoutNd, nn.RReLU)
        random = any(isinstance(module, drawing) for module in self.model.network.modules())
        self.refused = "the network draws random numbers" if random else None

    def train(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        if self.refused is None:
            try:
                return self._side_by_side(round, clients, kept)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as error:
                # Whatever torch.func has no rule for; a mistake in a method shows in the loop as well.
                self.refused = " ".join(str(error).split())
            LOG.info("executor stack: clients are trained one by one: %s", self.refused)
        return super().train(round, clients, kept)

    def _side_by_side(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        images = Augmented(self.clients.data.train, round.training.augmentation)
        arrived = [self._arrive(round, images, client, kept.get(client)) for client in clients]
        alike: dict[Any, list[_Client]] = defaultdict(list)
        for client in arrived:
            alike[signature(client.hooks)].append(client)
        for members in alike.values():
            self._steps(round, images, members)
        trained: list[Trained] = []
        for client in arrived:
            self.model.load(*(client.moving[part] for part in ("weights", "buffers", "counters")))
            client.hooks.step_states = client.moving["step_states"]
            trained.append(self._trained(client.local, client.hooks, client.losses, client.trajectory))
        return trained

    def _arrive(self, round: Round, images: Augmented, client: int, kept: Kept | None) -> _Client:
        model = self.model
        arrived = self.clients.arrive(round, client, kept)
        model.network.train()
        hooks = self._begin(arrived.local, round.payloads, arrived.kept)
        parts = [model.layout.part(phase.part) for phase in self.composition.schedule.phases]
        moving = {
            "weights": model.weights.clone(),
            "buffers": model.buffers.clone(),
            "counters": model.counters.clone(),
            "velocities": [torch.zeros_like(model.weights[part]) for part in parts],
            "step_states": hooks.step_states,
        }
        visits = self._visits(round, images, client)
        losses = model.weights.new_zeros(())
        return _Client(arrived.local, hooks, visits, self._trajectory(arrived.local), moving, losses)

    def _steps(self, round: Round, images: Augmented, members: Sequence[_Client]) -> None:
        """All steps of clients that hold tensors of the same names and shapes."""
        stack = _Stack(members)
        while True:
            groups: dict[Any, list[tuple[int, Tensor, Tensor]]] = defaultdict(list)
            for place, client in enumerate(members):
                visit = next(client.visits, None)
                if visit is not None:
                    phase, chosen, how = visit
                    groups[phase, len(chosen)].append((place, chosen, how))
            if not groups:
                break
            for (phase, _), batches in groups.items():
                self._step_together(round, images, stack, phase, batches)
        stack.hand_out()

    def _step_together(
        self,
        round: Round,
        images: Augmented,
        stack: _Stack,
        phase: int,
        batches: Sequence[tuple[int, Tensor, Tensor]],
    ) -> None:
        """A step of some clients, whose batches have the same number of images."""
        for group in self._of_the_same_numbers(stack, batches):
            places = [place for place, _, _ in group]
            chosen = torch.cat([batch[1] for batch in group])
            how = torch.cat([batch[2] for batch in group])
            inputs, labels = (tensor.unflatten(0, (len(group), -1)) for tensor in images.batch(chosen, how))
            step = _Stacked(
                self.model, round.training, round.lr_factor, self.composition.schedule.phases[phase]
            )
            moving, held, dims = stack.rows(places)
            hooks = stack.members[places[0]].hooks
            reads: set[tuple[str, str]] = set()

            def take(
                moving: Moving,
                held: list[Tensor],
                inputs: Tensor,
                labels: Tensor,
                *,
                step: _Stacked = step,
                hooks: LocalHooks = hooks,
                reads: set[tuple[str, str]] = reads,
            ) -> tuple[Moving, Tensor, Tensor]:
                return step.take(hooks, phase, moving, held, inputs, labels, reads)

            with torch.no_grad():
                moved, loss, gradient = torch.vmap(take, in_dims=(0, dims, 0, 0))(
                    moving, held, inputs, labels
                )
            if not reads <= self.reads:  # once; nothing has been written yet
                self.reads |= reads
                self._step_together(round, images, stack, phase, group)
                continue
            stack.write(places, moved)
            for place, row in enumerate(places):
                client = stack.members[row]
                client.losses += loss[place]
                if client.trajectory:
                    client.trajectory.record(gradient[place], moved["weights"][place])

    def _of_the_same_numbers(
        self, stack: _Stack, batches: Sequence[tuple[int, Tensor, Tensor]]
    ) -> list[list[tuple[int, Tensor, Tensor]]]:
        """The clients parted by what steps read of them that is no tensor."""
        groups: dict[Any, list[tuple[int, Tensor, Tensor]]] = defaultdict(list)
        for batch in batches:
            locals_ = stack.members[batch[0]].hooks.locals_
            groups[tuple(getattr(locals_[name], number) for name, number in sorted(self.reads))].append(batch)
        return list(groups.values())


class _Stack:
    """What clients hold, as rows of stacked tensors; a tensor that they have in common is there once."""

    def __init__(self, members: Sequence[_Client]) -> None:
        self.members = members
        self.moving: Moving = tree_map(lambda *rows: torch.stack(rows), *(one.moving for one in members))
        columns = list(zip(*(client.held() for client in members), strict=True))
        known: dict[tuple[int, ...], Tensor] = {}
        self.held: list[Tensor] = []
        self.dims: list[int | None] = []
        for column in columns:
            ids = tuple(map(id, column))
            common = len(set(ids)) == 1
            if ids not in known:
                known[ids] = column[0] if common else torch.stack(column)
            self.held.append(known[ids])
            self.dims.append(None if common else 0)

    def rows(self, places: Sequence[int]) -> tuple[Moving, list[Tensor], list[int | None]]:
        """What some of the clients hold, and along which dimension they are stacked."""
        if len(places) == len(self.members):
            return self.moving, self.held, self.dims
        index = torch.tensor(places, device=self.moving["weights"].device)
        held = [
            tensor if dim is None else tensor.index_select(0, index)
            for tensor, dim in zip(self.held, self.dims, strict=True)
        ]
        return tree_map(lambda tensor: tensor.index_select(0, index), self.moving), held, self.dims

    def write(self, places: Sequence[int], moved: Moving) -> None:
        """Take in what a step of some clients has changed."""
        if len(places) == len(self.members):
            self.moving = moved
            return
        index = torch.tensor(places, device=self.moving["weights"].device)
        tree_map(lambda tensor, rows: tensor.index_copy_(0, index, rows), self.moving, moved)

    def hand_out(self) -> None:
        """Give every client its rows."""
        for place, client in enumerate(self.members):
            client.moving = tree_map(lambda tensor, place=place: tensor[place].clone(), self.moving)


@dataclass(frozen=True)
class _Stacked:
    """A step of one client as a function of what it holds, which ``torch.vmap`` makes one of many clients."""

    model: FlatModel
    training: Training
    lr_factor: float
    phase: Phase

    def take(
        self,
        client: LocalHooks,
        phase: int,
        moving: Moving,
        held: Sequence[Tensor],
        images: Tensor,
        labels: Tensor,
        reads: set[tuple[str, str]],
    ) -> tuple[Moving, Tensor, Tensor]:
        """Return what the step leaves behind, its loss, and the gradient that moved the weights."""
        left = iter(held)
        locals_: dict[str, Watched] = {
            name: watched(local, lambda _: next(left)) for name, local in client.locals_.items()
        }
        step_states = {name: dict(step_state) for name, step_state in moving["step_states"].items()}
        hooks = LocalHooks(client.composition, locals_, step_states)
        weights = moving["weights"]
        statistics = {"buffers": moving["buffers"], "counters": moving["counters"]}
        step = _StackedStep(self.model, hooks, images, labels, self.phase.part, weights, statistics)
        gradient, loss = hooks.gradient(step, weights)
        gradient = hooks.correct(gradient, weights)
        velocities = list(moving["velocities"])
        weights, velocities[phase] = self._descend(gradient, weights, velocities[phase])
        hooks.post_step(weights)
        hooks.next_state(step.outputs, weights)
        reads |= {(name, number) for name, local in locals_.items() for number in local.reads}
        moved = {
            "weights": weights,
            **statistics,
            "velocities": velocities,
            "step_states": hooks.step_states,
        }
        return moved, loss, gradient

    def _descend(self, gradient: Tensor, weights: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """What ``fltrain.engine.executors.loop.Sgd`` does, as a function."""
        training, where = self.training, self.model.layout.part(self.phase.part)
        gradient, own = gradient[where], weights[where]
        if training.clip_norm is not None:
            gradient = clip_norm(gradient, training.clip_norm)
        gradient = gradient + training.weight_decay * own
        velocity = training.momentum * velocity + gradient
        lr = self.lr_factor * (training.lr if self.phase.lr is None else self.phase.lr)
        weights = weights.clone()
        weights[where] = own - lr * velocity
        return weights, velocity


@dataclass
class _StackedStep:
    """A local step on a client's rows; see ``fltrain.methods.base.Step``.

    ``statistics`` (buffers and counters) and ``outputs`` change with it, in all its parts.
    """

    model: FlatModel
    hooks: LocalHooks
    images: Tensor
    labels: Tensor
    part: Part
    weights: Tensor
    statistics: State
    outputs: list[tuple[Outputs, _StackedStep]] = field(default_factory=list)

    def split(self, count: int) -> list[_StackedStep]:
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
        model, network = self.model, self.model.network
        where = model.layout.part(part or self.part)
        tracked = track and self.part != "head"

        def value_of(weights: Tensor, statistics: State) -> tuple[Tensor, tuple[Any, ...]]:
            with (
                nullcontext() if tracked else model.untracked(),
                self._holding(weights, statistics),
                self.hooks.route(network) if route else nullcontext(),
            ):
                outputs = self.hooks.forward(network, self)
                value = loss(outputs) if loss else self.hooks.loss(outputs, self)
            return value, (value, outputs.features, outputs.logits, outputs.extras, statistics)

        with torch.enable_grad():
            whole, (value, features, logits, extras, statistics) = torch.func.grad(value_of, has_aux=True)(
                self.weights if at is None else at, self._named_statistics(**self.statistics)
            )
        if tracked:
            for kind, slots in (("buffers", model.layout.buffers), ("counters", model.layout.counters)):
                if slots:
                    self.statistics[kind] = torch.cat([statistics[slot.name].flatten() for slot in slots])
        if observe and not loss:
            self.outputs.append((Outputs(features, logits, extras), self))
        gradient = torch.zeros_like(whole)
        gradient[where] = whole[where]
        return gradient, value

    def gradient(self) -> tuple[Tensor, Tensor]:
        return self.differentiate()

    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        network = self.model.network
        before = network.training
        statistics = self._named_statistics(buffers, self.statistics["counters"])
        with torch.no_grad(), self.model.untracked(), self._holding(weights, statistics):
            network.train(training)
            features = network.features(self.images)
            outputs = Outputs(features, network.classifier(features))
        network.train(before)
        return outputs

    def _holding(self, weights: Tensor, statistics: State) -> AbstractContextManager[None]:
        """Context in which the network has these parameters and buffers."""
        tensors = {**_named(self.model.layout.parameters, weights), **statistics}
        context: AbstractContextManager[None] = _reparametrize_module(self.model.network, tensors)
        return context

    def _named_statistics(self, buffers: Tensor, counters: Tensor) -> State:
        """Buffers and counters by name, each in memory of its own.

        BatchNorm writes to them in place. What it writes to a part of a larger tensor is lost where several
        clients are trained side by side.
        """
        layout = self.model.layout
        named = {**_named(layout.buffers, buffers), **_named(layout.counters, counters)}
        return {name: tensor.clone() for name, tensor in named.items()}


def _named(slots: Sequence[Slot], vector: Tensor) -> State:
    """The tensors that lie in a flat vector, by name.

    They are split off all at once: cut out alone, each would have a gradient of the vector's length.
    """
    parts = vector.split([slot.shape.numel() for slot in slots])
    return {slot.name: part.view(slot.shape) for slot, part in zip(slots, parts, strict=True)}
