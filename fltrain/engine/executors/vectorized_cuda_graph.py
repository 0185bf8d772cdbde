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

from fltrain.engine.clients import Clients
from fltrain.engine.executors.cuda_graph import NUMBERS, Capturing, Work
from fltrain.engine.executors.lanes import Lanes, Member, runs_of
from fltrain.engine.executors.vectorized import VectorizedExecutor
from fltrain.engine.executors.views import Numbers, signature
from fltrain.methods.types import Place


class FixedLanes(Lanes):
    """Lanes at fixed addresses, with the steps that are captured on them.

    Attributes:
        active: mask of the lanes that the next step changes.
        captured: steps by phase and number of images; None if one has run but is not captured yet.
    """

    def __init__(self, runs: Sequence[VectorizedExecutor], clients: Sequence[Member]) -> None:
        super().__init__(runs, clients)
        self.active = torch.zeros(len(runs), dtype=torch.bool, device=self.chosen.device)
        self.activated: Sequence[int] = ()
        self.captured: dict[Any, Work | None] = {}

    def activate(self, lanes: Sequence[int]) -> None:
        """Let the next step change these lanes."""
        if lanes != self.activated:
            self.active.zero_()
            self.active[self.index(lanes)] = True
            self.activated = list(lanes)


class VectorizedCudaGraphExecutor(Capturing, VectorizedExecutor):
    """Clients of a round side by side, in steps that are captured once and replayed."""

    name = "vectorized_cuda_graph"
    numbers: ClassVar[Numbers] = NUMBERS

    def __init__(self, clients: Clients, recordings: Place = "auto", lanes: int | None = None) -> None:
        super().__init__(clients, recordings, lanes=lanes)
        self.kept: dict[Any, list[FixedLanes]] = {}

    def _lanes(self, members: Sequence[Member]) -> Lanes:
        # As many as a cohort has clients: rounds with fewer clients of this kind use the same ones.
        runs = runs_of(members, lambda own: own[0].cohort)
        kept = self.kept.setdefault((signature(members[0].hooks), tuple(runs)), [])
        for lanes in kept:
            if lanes.fit(members):
                return lanes
        kept.append(FixedLanes(runs, members))
        return kept[-1]

    def _step_together(self, lanes: Lanes, places: Sequence[int], phase: int, size: int) -> None:
        assert isinstance(lanes, FixedLanes)
        everywhere = range(len(lanes.runs))

        def work() -> Tensor:
            moved, gradient = self._mapped(lanes, everywhere, None, phase, size)
            lanes.write(moved, active=lanes.active)
            return gradient

        lanes.activate(places)
        gradient: Tensor = self.replayed(lanes.captured, (phase, size), work)
        index = lanes.index(places)
        lanes.record(places, gradient[index], lanes.moving["weights"][index])
