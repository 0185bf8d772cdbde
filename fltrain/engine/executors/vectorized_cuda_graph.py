"""The ``vectorized_cuda_graph`` executor: a step of clients side by side, captured once and replayed.

Lanes stay in memory, because captured steps read and write them. A captured step is one of all lanes, and
changes those that are active. It finds its batches by the number of images that each client has visited.
Between two steps of the same lanes, phase and batch size, the CPU only starts the next replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fltrain.engine.clients import Clients
from fltrain.engine.executors.cuda_graph import MOST_KEPT, NUMBERS, Capturing, Work
from fltrain.engine.executors.lanes import Lanes, Member, Moving, runs_of
from fltrain.engine.executors.vectorized import VectorizedExecutor
from fltrain.engine.executors.views import Numbers, check_step_states, signature
from fltrain.methods.types import Place


class FixedLanes(Lanes):
    """Lanes at fixed addresses, with the steps that are captured on them.

    Attributes:
        active: mask of the lanes that the next step changes.
        gradients: gradients of the last step ``[lanes, P]``, if methods record them.
        captured: steps by phase and number of images; None if one has run but is not captured yet.
    """

    def __init__(self, runs: Sequence[VectorizedExecutor], clients: Sequence[Member]) -> None:
        super().__init__(runs, clients)
        self.active = torch.zeros(len(runs), dtype=torch.bool, device=self.chosen.device)
        self.activated: Sequence[int] = ()
        recorded = runs[0].composition.needs.recording
        self.gradients = torch.zeros_like(self.moving["weights"]) if recorded else None
        self.captured: dict[Any, Work | None] = {}

    def activate(self, numbers: Sequence[int]) -> None:
        """Let the next step change these lanes."""
        if numbers != self.activated:
            self.active.zero_()
            self.active[self.index(numbers)] = True
            self.activated = list(numbers)

    def keep(self, moved: Moving, gradients: Tensor) -> None:
        """Store the tensors of the active lanes after a step of all.

        Raises:
            FltrainError: if a method has other step states than before the step.
        """
        check_step_states(self.runs[0].name, moved["step_states"], self.moving["step_states"], rows=True)

        def selected(value: Tensor, place: Tensor) -> Tensor:
            return torch.where(self.active.view(-1, *[1] * (value.ndim - 1)), value, place)

        tree_map(Tensor.copy_, self.moving, tree_map(selected, moved, self.moving))
        if self.gradients is not None:
            self.gradients.copy_(gradients)


class VectorizedCudaGraphExecutor(Capturing, VectorizedExecutor):
    """Clients of a round side by side, in steps that are captured once and replayed."""

    name = "vectorized_cuda_graph"
    numbers: ClassVar[Numbers] = NUMBERS

    def __init__(self, clients: Clients, recordings: Place = "device", lanes: int | None = None) -> None:
        super().__init__(clients, recordings, lanes=lanes)
        self.kept: list[tuple[Any, FixedLanes]] = []

    def _lanes(self, members: Sequence[Member]) -> Lanes:
        # A power of two, so that rounds with a few clients more or less of this kind use the same lanes.
        runs = runs_of(members, lambda own: min(own[0].cohort, 1 << (len(own) - 1).bit_length()))
        kind = signature(members[0].hooks), runs
        fitting = (entry for entry in self.kept if entry[0] == kind and entry[1].fit(members))
        entry = next(fitting, None) or (kind, FixedLanes(runs, members))
        self.kept = [*(other for other in self.kept if other is not entry), entry][-MOST_KEPT:]
        return entry[1]

    def _step_together(self, lanes: Lanes, places: Sequence[int], phase: int, size: int) -> None:
        assert isinstance(lanes, FixedLanes)
        everywhere = range(len(lanes.runs))
        lanes.activate(places)
        self.replayed(
            lanes.captured,
            (phase, size),
            lambda: lanes.keep(*self._mapped(lanes, everywhere, None, phase, size)),
        )
        if lanes.gradients is not None:
            index = lanes.index(places)
            lanes.record(places, lanes.gradients[index], lanes.moving["weights"][index])
