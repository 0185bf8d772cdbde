"""The ``vectorized`` executor: clients side by side, in one step on stacked weights, statistics and images.

``torch.vmap`` maps the local step over clients: convolutions become grouped ones, matrix products batched
ones. Numbers are added up in another order than one client after the other, so results agree up to rounding.

In a step, the clients whose batches have the same number of images go together. Nothing is padded, so
BatchNorm computes the same statistics; clients that have fewer steps finish earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

# torch.func.functional_call does the same for a single call of a module.
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, ClientState, Round
from fltrain.engine.executors.sequential import Cohort, LocalStep, SequentialExecutor, Sgd, Trained
from fltrain.engine.executors.views import PER_CLIENT, signature, tensors_of
from fltrain.engine.trajectory import Trajectory
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, Loss, Outputs, Place, State
from fltrain.models.base import Part
from fltrain.models.flat import FlatModel, Slot
from fltrain.models.network import in_mode
from fltrain.runtime.determinism import tf32_products

Moving = dict[str, Any]
"""Tensors that steps change: weights, buffers, counters, a velocity for each phase, and step states."""


@dataclass
class _Client:
    """A client with the steps that it still has to take."""

    local: Local
    hooks: LocalHooks
    images: Augmented
    visits: Iterator[tuple[int, Tensor, Tensor]]
    trajectory: Trajectory | None
    moving: Moving
    losses: Tensor


class VectorizedExecutor(SequentialExecutor):
    """All clients of a round side by side, also those of several seeds."""

    name = "vectorized"
    exact = False

    def __init__(self, clients: Clients, recordings: Place = "auto") -> None:
        super().__init__(clients, recordings)
        network, drawing = self.model.network, (nn.modules.dropout._DropoutNd, nn.RReLU)
        if any(isinstance(module, drawing) for module in network.modules()):
            raise _refusal("the network draws random numbers in its forward pass (dropout)")
        if network.products and self.model.buffers.is_cpu and len(self.model.buffers):
            raise _refusal("PyTorch cannot map BatchNorm in bfloat16 over clients on a CPU")

    def train(
        self, round: Round, clients: Sequence[int], client_states: Mapping[int, ClientState]
    ) -> list[Trained]:
        return self.train_all([Cohort(self, round, clients, client_states)])[0]

    @staticmethod
    def train_all(cohorts: Sequence[Cohort]) -> list[list[Trained]]:
        alike: dict[Any, tuple[VectorizedExecutor, list[_Client]]] = {}
        arrived: list[tuple[VectorizedExecutor, list[_Client]]] = []
        for cohort in cohorts:
            executor = cohort.executor
            assert isinstance(executor, VectorizedExecutor)
            function = executor._function() if len(cohorts) > 1 else b""
            members = [
                executor._client(cohort.round, one, cohort.client_states.get(one)) for one in cohort.clients
            ]
            arrived.append((executor, members))
            for client in members:
                key = function, client.local.task.samples, signature(client.hooks)
                alike.setdefault(key, (executor, []))[1].append(client)
        for executor, members in alike.values():
            executor._steps(members)
        return [executor._finish(members) for executor, members in arrived]

    def _function(self) -> bytes:
        """Return the logits of an image at fixed weights; runs share steps if these agree.

        A method may draw other parts of the network than its weights (the classes of Fed2's groups).
        """
        model, shape = self.model, self.clients.data.train.images.shape[1:]
        random = torch.Generator().manual_seed(0)
        weights, image = (torch.randn(size, generator=random) for size in (len(model.weights), shape.numel()))
        model.load(0.1 * weights, torch.ones_like(model.buffers), model.counters)
        with torch.no_grad(), in_mode(model.network, training=False):
            logits = model.network(image.view(1, *shape).to(model.weights.device))
        return bytes(logits.cpu().numpy())

    def _finish(self, cohort: Sequence[_Client]) -> list[Trained]:
        """Return the results of clients after their last step."""
        trained: list[Trained] = []
        for client in cohort:
            self.model.load(*(client.moving[part] for part in ("weights", "buffers", "counters")))
            client.hooks.step_states = client.moving["step_states"]
            trained.append(self._trained(client.local, client.hooks, client.losses, client.trajectory))
        return trained

    def _client(self, round: Round, client: int, client_state: ClientState | None) -> _Client:
        self.poll()
        local, hooks = self._arrive(round, client, client_state)
        model = self.model
        moving = {
            "weights": model.weights.clone(),
            "buffers": model.buffers.clone(),
            "counters": model.counters.clone(),
            "velocities": [torch.zeros_like(optimiser.velocity) for optimiser in self.optimisers],
            "step_states": hooks.step_states,
        }
        images, losses = self.images(round), model.weights.new_zeros(())
        visits = self._visits(round, images, client)
        return _Client(local, hooks, images, visits, self._trajectory(local), moving, losses)

    def _steps(self, members: Sequence[_Client]) -> None:
        """Take all steps of clients that hold tensors of the same names and shapes."""
        stack = _Stack(members)
        while True:
            groups: dict[Any, list[tuple[int, Tensor, Tensor]]] = defaultdict(list)
            for place, client in enumerate(members):
                visit = next(client.visits, None)
                if visit is not None:
                    phase, chosen, changes = visit
                    groups[phase, len(chosen)].append((place, chosen, changes))
            if not groups:
                break
            for (phase, _), batches in groups.items():
                self._step_together(stack, phase, batches)
        stack.hand_out()

    def _step_together(
        self, stack: _Stack, phase: int, batches: Sequence[tuple[int, Tensor, Tensor]]
    ) -> None:
        """Take a step of some clients, whose batches have the same number of images.

        Raises:
            FltrainError: if PyTorch cannot map the step over clients.
        """
        places = [place for place, _, _ in batches]
        parts = []
        for images, batch in groupby(batches, lambda batch: stack.members[batch[0]].images):
            _, chosen, changes = zip(*batch, strict=True)
            parts.append(images.batch(torch.cat(chosen), torch.cat(changes)))
        inputs, labels = (
            torch.cat(part).unflatten(0, (len(batches), -1)) for part in zip(*parts, strict=True)
        )
        moving, held, dims = stack.rows(places)
        hooks, optimiser = stack.members[places[0]].hooks, self.optimisers[phase]

        def step(
            moving: Moving, held: dict[str, Any], inputs: Tensor, labels: Tensor
        ) -> tuple[Moving, Tensor, Tensor]:
            return _step_of_one(self.model, hooks, optimiser, phase, moving, held, inputs, labels)

        try:
            with torch.no_grad():
                moved, loss, gradient = torch.vmap(step, in_dims=(0, dims, 0, 0))(
                    moving, held, inputs, labels
                )
        except RuntimeError as error:
            message = " ".join(str(error).split())
            if any(word in message for word in ("vmap", "functorch")):
                raise _refusal(f"PyTorch cannot map the step over clients ({message})") from None
            raise
        stack.write(places, moved)
        for place, row in enumerate(places):
            client = stack.members[row]
            client.losses += loss[place]
            if client.trajectory:
                client.trajectory.record(gradient[place], moved["weights"][place])


def _refusal(reason: str) -> FltrainError:
    return FltrainError(f"executor 'vectorized': {reason}; use --executor sequential")


def _step_of_one(
    model: FlatModel,
    hooks: LocalHooks,
    optimiser: Sgd,
    phase: int,
    moving: Moving,
    held: Mapping[str, Any],
    images: Tensor,
    labels: Tensor,
) -> tuple[Moving, Tensor, Tensor]:
    """Take a step of one client; return its tensors afterwards, loss and gradient."""
    views = {name: replace(local, **held[name]) for name, local in hooks.locals_.items()}
    states = {name: dict(state) for name, state in moving["step_states"].items()}
    statistics = {"buffers": moving["buffers"], "counters": moving["counters"]}
    weights, velocities = moving["weights"].clone(), [one.clone() for one in moving["velocities"]]
    bound = LocalHooks(hooks.composition, views, states)
    step = FunctionalStep(images, labels, optimiser.part, model, bound, weights, statistics)
    loss, gradient = step.take(weights, optimiser, velocities[phase])
    moved = {"weights": weights, **statistics, "velocities": velocities, "step_states": bound.step_states}
    return moved, loss, gradient


class _Stack:
    """Tensors of clients as rows of stacked tensors; a common tensor is stored once."""

    def __init__(self, members: Sequence[_Client]) -> None:
        self.members = members
        self.moving: Moving = tree_map(lambda *rows: torch.stack(rows), *(one.moving for one in members))
        held = [
            {name: tensors_of(local, PER_CLIENT) for name, local in client.hooks.locals_.items()}
            for client in members
        ]
        known: dict[tuple[int, ...], Tensor] = {}

        def dim(*column: Tensor) -> int | None:
            return None if len(set(map(id, column))) == 1 else 0

        def stacked(*column: Tensor) -> Tensor:
            ids = tuple(map(id, column))
            if ids not in known:
                known[ids] = column[0] if dim(*column) is None else torch.stack(column)
            return known[ids]

        self.indices: dict[tuple[int, ...], Tensor] = {}
        self.dims = tree_map(dim, *held)
        self.held: dict[str, Any] = tree_map(stacked, *held)

    def rows(self, places: Sequence[int]) -> tuple[Moving, dict[str, Any], Any]:
        """Return the tensors of some clients, and the dimension of the read-only ones."""
        if len(places) == len(self.members):
            return self.moving, self.held, self.dims
        index = self._index(places)

        def chosen(tensor: Tensor, dim: int | None = 0) -> Tensor:
            return tensor if dim is None else tensor.index_select(0, index)

        return tree_map(chosen, self.moving), tree_map(chosen, self.held, self.dims), self.dims

    def write(self, places: Sequence[int], moved: Moving) -> None:
        """Store the tensors of some clients after a step."""
        if len(places) == len(self.members):
            self.moving = moved
            return
        index = self._index(places)
        tree_map(lambda tensor, rows: tensor.index_copy_(0, index, rows), self.moving, moved)

    def _index(self, places: Sequence[int]) -> Tensor:
        """Return the clients as a tensor, copied to the device once."""
        key = tuple(places)
        if key not in self.indices:
            self.indices[key] = torch.tensor(key, device=self.moving["weights"].device)
        return self.indices[key]

    def hand_out(self) -> None:
        """Copy the rows of the stacked tensors to their clients."""
        for place, client in enumerate(self.members):
            client.moving = tree_map(lambda tensor, place=place: tensor[place].clone(), self.moving)


@dataclass(frozen=True)
class FunctionalStep(LocalStep):
    """A local step as a function of weights and statistics.

    ``statistics`` (buffers and counters) and ``outputs`` change with it, and with all its parts.
    """

    weights: Tensor
    statistics: State

    def _gradient(
        self, loss: Loss | None, at: Tensor | None, part: Part, track: bool, route: bool, observe: bool
    ) -> tuple[Tensor, Tensor]:
        model, network = self.model, self.model.network
        tracked = track and self.part != "head"

        def value_of(weights: Tensor, statistics: State) -> tuple[Tensor, tuple[Any, ...]]:
            with (
                nullcontext() if tracked else model.untracked(),
                self._holding(weights, statistics),
                self.hooks.route(network) if route else nullcontext(),
            ):
                outputs, value = self._outputs(loss)
            return value, (value, outputs.features, outputs.logits, outputs.extras, statistics)

        with torch.enable_grad(), tf32_products(network.tf32):
            whole, (value, features, logits, extras, statistics) = torch.func.grad(value_of, has_aux=True)(
                self.weights if at is None else at, self._named_statistics(**self.statistics)
            )
        if tracked:
            for kind, slots in (("buffers", model.layout.buffers), ("counters", model.layout.counters)):
                if slots:
                    self.statistics[kind] = torch.cat([statistics[slot.name].flatten() for slot in slots])
        if observe and not loss:
            self.outputs.append((Outputs(features, logits, extras), self))
        where = model.layout.part(part)
        gradient = torch.zeros_like(whole)
        gradient[where] = whole[where]
        return gradient, value

    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        network = self.model.network
        statistics = self._named_statistics(buffers, self.statistics["counters"])
        with (
            torch.no_grad(),
            in_mode(network, training=training),
            self.model.untracked(),
            self._holding(weights, statistics),
        ):
            features = network.features(self.images)
            return Outputs(features, network.classifier(features))

    def _holding(self, weights: Tensor, statistics: State) -> AbstractContextManager[None]:
        """Return a context in which the network has these parameters and buffers."""
        tensors = {**_named(self.model.layout.parameters, weights), **statistics}
        context: AbstractContextManager[None] = _reparametrize_module(self.model.network, tensors)
        return context

    def _named_statistics(self, buffers: Tensor, counters: Tensor) -> State:
        """Return buffers and counters by name, each in its own memory.

        BatchNorm writes to them in place. Under ``vmap``, writes to a part of a larger tensor are lost.
        """
        layout = self.model.layout
        named = {**_named(layout.buffers, buffers), **_named(layout.counters, counters)}
        return {name: tensor.clone() for name, tensor in named.items()}


def _named(slots: Sequence[Slot], vector: Tensor) -> State:
    """Return the tensors of a flat vector by name.

    One split makes them all: separate slices would each have a gradient of the vector's length.
    """
    parts = vector.split([slot.shape.numel() for slot in slots])
    return {slot.name: part.view(slot.shape) for slot, part in zip(slots, parts, strict=True)}
