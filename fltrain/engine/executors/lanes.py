"""Lanes: rows of stacked tensors in which clients train side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from fltrain.engine.augment import Augmented
from fltrain.engine.executors.sequential import Trained, Visits
from fltrain.engine.executors.views import check_step_states, memory_of
from fltrain.engine.trajectory import Trajectory, record
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, State
from fltrain.runtime.devices import uploaded

if TYPE_CHECKING:
    from fltrain.engine.executors.vectorized import VectorizedExecutor

Moving = dict[str, Any]
"""Tensors that steps change: weights, buffers, counters, a velocity for each phase, step states, the sum of
losses, and ``taken``, the number of images that the steps have visited."""


@dataclass(eq=False)
class Member:
    """A client of a cohort, before, during and after its local training.

    Attributes:
        executor: the executor of its run.
        cohort: number of clients in its cohort.
        local: its view of the run.
        hooks: hooks of its methods.
        held: tensors that its steps read.
        sent: identities of the tensors that the server sent to all clients.
        statistics: its buffers and counters before the first step.
        images: the training images of its run.
        visits: the images of its steps.
        ahead: the steps that it still has to take, last first: phase and number of images, and how often.
        trajectory: recording of its steps, if a method needs one.
        trained: the result.
    """

    executor: VectorizedExecutor
    cohort: int
    local: Local
    hooks: LocalHooks
    held: dict[str, Any]
    sent: frozenset[int]
    statistics: State
    images: Augmented
    visits: Visits
    ahead: list[tuple[tuple[int, int], int]]
    trajectory: Trajectory | None = None
    trained: Trained | None = None

    def initial(self) -> Moving:
        """Return the tensors that steps change, before the first step."""
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


def _shared(tensors: tuple[int, ...], members: Sequence[Member]) -> bool:
    """Return True if all clients have the same tensor; a single client shares what its server sent to all."""
    return len(set(tensors)) == 1 and (len(tensors) > 1 or tensors[0] in members[0].sent)


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
        self.sharing = [(identities.index(one), _shared(one, clients)) for one in identities]
        self.members: list[Member | None] = [None] * len(runs)
        self.indices: dict[tuple[int, ...], Tensor] = {}
        images = {member.executor: member.images for member in clients}
        self.images = [images[run] for run in runs]
        tensors, form = tree_flatten(first.held)
        self.stored: list[Tensor] = []
        for tensor, (same, shared) in zip(tensors, self.sharing, strict=True):
            if same < len(self.stored):
                self.stored.append(self.stored[same])
            else:
                self.stored.append(torch.empty_like(tensor) if shared else self._stacked(tensor))
        self.held: dict[str, Any] = tree_unflatten(self.stored, form)
        self.dims = tree_unflatten([None if shared else 0 for _, shared in self.sharing], form)
        self.moving: Moving = tree_map(self._stacked, first.initial())
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
        self.indices.clear()
        for place, tensor in self._held(clients[0], shared=True):
            place.copy_(tensor)

    def enter(self, lane: int, member: Member) -> None:
        """Copy the tensors of a client to a free lane."""
        self.members[lane] = member
        for place, tensor in self._held(member, shared=False):
            place[lane].copy_(tensor)
        self._move(member, lane)
        visits = member.visits
        self.chosen[lane, : len(visits.chosen)] = visits.chosen
        self.changes[lane, : len(visits.changes)] = visits.changes

    def _held(self, member: Member, *, shared: bool) -> list[tuple[Tensor, Tensor]]:
        """Return the stored tensors that steps read, shared or not, each once, with those of a client."""
        tensors = zip(self.stored, tree_leaves(member.held), self.sharing, strict=True)
        return [
            (place, tensor)
            for number, (place, tensor, (same, common)) in enumerate(tensors)
            if same == number and common == shared
        ]

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
        tree_map(lambda place, tensor: place[lane].copy_(tensor), self.moving, member.initial())

    def index(self, lanes: Sequence[int]) -> Tensor:
        """Return the numbers of some lanes as a tensor, copied to the device once a round."""
        key = tuple(lanes)
        if key not in self.indices:
            self.indices[key] = uploaded(np.array(key), self.chosen.device)
        return self.indices[key]

    def rows(self, index: Tensor | None) -> tuple[Moving, dict[str, Any]]:
        """Return the tensors of the clients in some lanes, or in all."""
        if index is None:
            return self.moving, self.held

        def chosen(tensor: Tensor, dim: int | None = 0) -> Tensor:
            # Methods keep some tensors on the host.
            return tensor if dim is None else tensor.index_select(0, index.to(tensor.device))

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
        for images, group in groupby(range(len(lanes)), lambda row: self.images[lanes[row]]):
            rows_of_run = list(group)
            part = slice(rows_of_run[0], rows_of_run[-1] + 1)
            parts.append(images.batch(chosen[part].flatten(), changes[part].flatten(0, 1)))
        return [torch.cat(part).unflatten(0, (len(lanes), -1)) for part in zip(*parts, strict=True)]

    def write(self, moved: Moving, index: Tensor | None) -> None:
        """Store the tensors of the clients in some lanes, or in all, after a step.

        Raises:
            FltrainError: if a method has other step states than before the step.
        """
        before, after = self.moving["step_states"], moved["step_states"]
        check_step_states(self.runs[0].name, after, before, rows=True)
        if index is not None:
            tree_map(lambda place, value: place.index_copy_(0, index, value), self.moving, moved)
            return

        def separate(place: Tensor, value: Tensor) -> Tensor:
            # A step can return a tensor that it only reads, or one twice; lanes are written one by one.
            shared = memory_of(place) != memory_of(value)
            return value.clone(memory_format=torch.contiguous_format) if shared else value

        self.moving = {**moved, "step_states": tree_map(separate, before, after)}

    def record(self, numbers: Sequence[int], gradients: Tensor, weights: Tensor) -> None:
        """Add a step to the trajectories of the clients in some lanes, if methods need them."""
        members = [self.members[number] for number in numbers]
        if trajectories := [member.trajectory for member in members if member and member.trajectory]:
            record(trajectories, gradients.unbind(), weights.unbind())


def _most_visits(member: Member) -> int:
    """Return a limit of the images that any client of a run visits in a round."""
    clients, training = member.executor.clients, member.local.task.training
    schedule = clients.composition.schedule
    return max(map(len, clients.data.clients)) * training.epochs * schedule.passes * len(schedule.phases)
