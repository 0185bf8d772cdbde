"""Lanes: rows of stacked tensors in which clients train side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from fltrain.engine.augment import Augmented
from fltrain.engine.executors.sequential import Trained, Visits
from fltrain.engine.executors.views import check_step_states, memory_of
from fltrain.engine.trajectory import Trajectory, record
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, State

if TYPE_CHECKING:
    from fltrain.engine.executors.vectorized import VectorizedExecutor

Moving = dict[str, Any]
"""Tensors that steps change: weights, buffers, counters, a velocity for each phase, step states, the sum of
losses, and ``taken``, the number of images that the steps have visited."""


@dataclass(eq=False)
class Member:
    """A client of a cohort, before, during and after its local training.

    Attributes:
        executor: that of its run.
        cohort: number of clients in its cohort.
        held: tensors that its steps read.
        statistics: its buffers and counters before the first step.
        ahead: the steps that it still has to take, last first: phase and number of images, and how often.
        trajectory: recording of its steps, if a method needs one.
        trained: the result.
    """

    executor: VectorizedExecutor
    cohort: int
    local: Local
    hooks: LocalHooks
    held: dict[str, Any]
    statistics: State
    images: Augmented
    visits: Visits
    ahead: list[tuple[tuple[int, int], int]]
    trajectory: Trajectory | None = None
    trained: Trained | None = None

    @property
    def moving(self) -> Moving:
        """Tensors before the first step."""
        start = self.local.start
        return {
            "weights": start,
            **self.statistics,
            "velocities": [torch.zeros_like(one.velocity) for one in self.executor.optimisers],
            "step_states": self.hooks.step_states,
            "losses": start.new_zeros(()),
            "taken": torch.zeros((), dtype=torch.int64, device=start.device),
        }


def runs_of(members: Sequence[Member], most: Callable[[list[Member]], int]) -> list[VectorizedExecutor]:
    """Return the executor for each lane: a run has ``most(its clients)`` lanes, or fewer by its own limit."""
    runs: list[VectorizedExecutor] = []
    for run, own in groupby(members, lambda member: member.executor):
        count = most(list(own))
        runs += [run] * min(count, run.lanes or count)
    return runs


def _identities(members: Sequence[Member]) -> list[tuple[int, ...]]:
    """Return for each tensor that steps read which one it is for each client."""
    columns = zip(*(tree_leaves(member.held) for member in members), strict=True)
    return [tuple(map(id, column)) for column in columns]


class Lanes:
    """Clients side by side, each in a lane, a row of stacked tensors; the next one takes a free lane.

    Attributes:
        runs: the executor of the clients in each lane; lanes of a run lie side by side.
        members: the client in each lane; None in a free one.
        hooks: hooks of any client; steps replace the tensors of its views.
        moving: tensors that steps change.
        held: tensors that steps only read; one that all clients share is stored once.
        dims: 0 for tensors of ``held`` with a row for each lane, None for shared ones.
    """

    def __init__(self, runs: Sequence[VectorizedExecutor], clients: Sequence[Member]) -> None:
        """Make a lane for each element of ``runs``, in which ``clients`` can take turns."""
        first, self.runs, identities = clients[0], runs, _identities(clients)
        self.hooks = first.hooks
        # For each tensor the first one that is the same for every client, and whether all clients share it.
        self.sharing = [(identities.index(one), len(one) > len(set(one)) == 1) for one in identities]
        self.members: list[Member | None] = [None] * len(runs)
        self.indices: dict[tuple[int, ...], Tensor] = {}
        images = {member.executor: member.images for member in clients}
        self.images = [images[run] for run in runs]
        tensors, form = tree_flatten(first.held)
        self.places: list[Tensor] = []
        for tensor, (same, shared) in zip(tensors, self.sharing, strict=True):
            if same < len(self.places):
                self.places.append(self.places[same])
            else:
                self.places.append(torch.empty_like(tensor) if shared else self._stacked(tensor))
        self.held: dict[str, Any] = tree_unflatten(self.places, form)
        self.dims = tree_unflatten([None if shared else 0 for _, shared in self.sharing], form)
        self.moving: Moving = tree_map(self._stacked, first.moving)
        longest = max(_most_visits(member) for member in clients)
        self.chosen = self._stacked(first.visits.chosen.new_empty(longest))
        self.changes = self._stacked(first.visits.changes.new_empty(longest, first.visits.changes.shape[1]))

    def _stacked(self, tensor: Tensor) -> Tensor:
        return tensor.new_zeros(len(self.runs), *tensor.shape)

    def fit(self, clients: Sequence[Member]) -> bool:
        """Return True if these clients share the tensors that the lanes store once."""
        identities = _identities(clients)
        return all(
            one == identities[same] and (not shared or len(set(one)) == 1)
            for one, (same, shared) in zip(identities, self.sharing, strict=True)
        )

    def begin(self, clients: Sequence[Member]) -> None:
        """Free all lanes, and copy the tensors that the next clients share."""
        self.members = [None] * len(self.runs)
        self._hold(clients[0], None)

    def enter(self, lane: int, member: Member) -> None:
        """Copy the tensors of a client to a free lane."""
        self.members[lane] = member
        self._hold(member, lane)
        self._move(member, lane)
        visits = member.visits
        self.chosen[lane, : len(visits.chosen)] = visits.chosen
        self.changes[lane, : len(visits.changes)] = visits.changes

    def _hold(self, member: Member, lane: int | None) -> None:
        """Copy the tensors of a client that steps read: those in its lane, or with None the shared ones."""
        for number, (tensor, (same, shared)) in enumerate(
            zip(tree_leaves(member.held), self.sharing, strict=True)
        ):
            if same == number and shared == (lane is None):
                place = self.places[number]
                (place if lane is None else place[lane]).copy_(tensor)

    def leave(self, lane: int) -> Moving:
        """Free a lane; return the tensors of its client after the last step.

        Those before the first step take their place: a step of all lanes can compute with them.
        """
        member = self.members[lane]
        assert member
        moved: Moving = tree_map(lambda tensor: tensor[lane].clone(), self.moving)
        self._move(member, lane)
        self.members[lane] = None
        return moved

    def _move(self, member: Member, lane: int) -> None:
        tree_map(lambda place, tensor: place[lane].copy_(tensor), self.moving, member.moving)

    def index(self, lanes: Sequence[int]) -> Tensor:
        """Return the numbers of some lanes as a tensor, copied to the device once."""
        key = tuple(lanes)
        if key not in self.indices:
            self.indices[key] = torch.tensor(key, device=self.chosen.device)
        return self.indices[key]

    def rows(self, index: Tensor | None) -> tuple[Moving, dict[str, Any]]:
        """Return the tensors of the clients in some lanes, or in all."""
        if index is None:
            return self.moving, self.held

        def chosen(tensor: Tensor, dim: int | None = 0) -> Tensor:
            return tensor if dim is None else tensor.index_select(0, index)

        return tree_map(chosen, self.moving), tree_map(chosen, self.held, self.dims)

    def batch(self, lanes: Sequence[int], index: Tensor | None, taken: Tensor, size: int) -> list[Tensor]:
        """Return the next batches of the clients in some lanes: images ``[lanes, size, c, h, w]``, labels.

        ``taken``: images that each client has visited. A lane whose client is done gets any images.
        """
        rows = slice(None) if index is None else index
        where = taken[:, None] + torch.arange(size, device=taken.device)
        where = where.clamp(max=self.chosen.shape[1] - 1)
        chosen = self.chosen[rows].gather(1, where)
        changes = self.changes[rows].gather(1, where[..., None].expand(-1, -1, self.changes.shape[2]))
        parts = []
        for images, own in groupby(range(len(lanes)), lambda row: self.images[lanes[row]]):
            first, *_, last = [*own] * 2
            part = slice(first, last + 1)
            parts.append(images.batch(chosen[part].flatten(), changes[part].flatten(0, 1)))
        return [torch.cat(part).unflatten(0, (len(lanes), -1)) for part in zip(*parts, strict=True)]

    def write(self, moved: Moving, index: Tensor | None = None, active: Tensor | None = None) -> None:
        """Store the tensors of clients after a step: those in some lanes, or in the ``active`` ones of all.

        Raises:
            FltrainError: if a method has other step states than before the step.
        """
        check_step_states(self.runs[0].name, moved["step_states"], self.moving["step_states"], rows=True)
        places, form = tree_flatten(self.moving)
        values = form.flatten_up_to(moved)
        if index is not None:
            for place, value in zip(places, values, strict=True):
                place.index_copy_(0, index, value)
            return
        if active is not None:
            for place, value in zip(places, _selected(active, values, places), strict=True):
                place.copy_(value)
            return
        owned: set[int] = set()
        for number, value in enumerate(values):  # each gets its own memory, so that lanes can be written
            if memory_of(value) in owned or not value.is_contiguous():
                values[number] = value.clone(memory_format=torch.contiguous_format)
            owned.add(memory_of(values[number]))
        self.moving = tree_unflatten(values, form)

    def record(self, lanes: Sequence[int], gradients: Tensor, weights: Tensor) -> None:
        """Add a step to the trajectories of the clients in some lanes, if methods need them."""
        trajectories = [member.trajectory for lane in lanes if (member := self.members[lane])]
        if recorded := [one for one in trajectories if one]:
            record(recorded, gradients.unbind(), weights.unbind())


def _selected(active: Tensor, values: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Return new tensors with the rows of ``values`` where ``active`` is true, else of ``others``."""
    masks = [active.view(-1, *[1] * (value.ndim - 1)) for value in values]
    return list(map(torch.where, masks, values, others))


def _most_visits(member: Member) -> int:
    """Return a limit of the images that any client of a run visits in a round."""
    clients, training = member.executor.clients, member.local.task.training
    schedule = clients.composition.schedule
    return max(map(len, clients.data.clients)) * training.epochs * schedule.passes * len(schedule.phases)
