"""What the job of a run asks for: time, memory, of the GPU too, disk; measured as far as anything was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from fltrain.experiments.costs import (
    Calibration,
    DeviceCosts,
    Workload,
    calibration_file,
    device_bytes,
    estimate,
    image_bytes,
)
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec

MARGIN = 1.5
"""Times what was estimated: nodes differ, and others use them."""

EXTRA_MINUTES = 10
"""For the start of Snakemake and Python on a node whose file system is busy."""

UNKNOWN_MINUTES = 12 * 60
"""Of a run of which nothing was measured. If it takes longer, it goes on in the next job."""

BASE_MB = 8_000
"""Of memory: PyTorch with CUDA takes 3 GB, what is kept for clients up to 4 GiB; the rest is in a file."""

DATA_COPIES = 3
"""Of a data set in memory: as read, in the tensors, and what is gathered for a test."""

VRAM_BASE_MB = 1_000
"""Of a GPU's memory: CUDA itself and the libraries of PyTorch."""

UNKNOWN_VRAM_MB = 8_000
"""Of a run of which nothing was measured."""

CHECKPOINTS_MB = 2_000
"""Of disk: two states of a run that keeps a model for each of 100 clients."""

MOST_GROWTH = 3
"""How many times of the first demand is asked for at most, however often a run is tried."""


@dataclass(frozen=True)
class Demand:
    """What a job asks for: minutes until its limit, megabytes of memory, of a GPU's memory, and of disk."""

    minutes: int
    memory_mb: int
    vram_mb: int
    disk_mb: int

    @classmethod
    def of(cls, spec: RunSpec, costs: DeviceCosts | None) -> Self:
        """The demand of a run from what was measured on a device, if anything was."""
        work = Workload.of(spec)
        expected = estimate(work, costs) if work and costs else None
        on_device = device_bytes(work, costs) if work and costs else None
        memory = BASE_MB + DATA_COPIES * math.ceil(image_bytes(spec) / 1e6)
        vram = VRAM_BASE_MB + math.ceil(MARGIN * on_device / 1e6) if on_device else UNKNOWN_VRAM_MB
        if expected is None:
            return cls(UNKNOWN_MINUTES, memory, vram, CHECKPOINTS_MB)
        minutes = math.ceil(MARGIN * expected.seconds / 60) + EXTRA_MINUTES
        return cls(minutes, memory, vram, CHECKPOINTS_MB + math.ceil(expected.disk / 1e6))

    def grown(self, attempt: int) -> Demand:
        """What is asked for at the first, second ... attempt: so many times as much, up to a limit."""
        times = min(attempt, MOST_GROWTH)
        return Demand(**{name: times * number for name, number in vars(self).items()})


def most_vram_mb(specs: Iterable[RunSpec], results: Results) -> int:
    """Megabytes of a GPU that runs take which are trained one after the other.

    Raises:
        FltrainError: if the file of the measurements is damaged.
    """
    costs = measured(results)
    return max(Demand.of(spec, costs).vram_mb for spec in specs)


def measured(results: Results) -> DeviceCosts | None:
    """What was measured on the device that was measured last; None if nothing was.

    Raises:
        FltrainError: if the file of the measurements is damaged.
    """
    calibration = Calibration.read(calibration_file(results))
    return calibration.named(None)[1] if calibration else None
