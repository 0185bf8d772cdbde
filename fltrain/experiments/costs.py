"""Costs of a plan: hours at the speed of a device, and the table of runs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fltrain.experiments.plan import Plan
from fltrain.runs.spec import Precision

SHARES = (0.05, 0.2)
"""Assumed shares of a GPU's peak: runs with small networks and batches stay below them."""

Range = tuple[float, float]
"""Least and most: multiply-adds per second, or hours."""


class Gpu(NamedTuple):
    """A GPU and its peaks in 1e12 operations per second (data sheets, dense); 0 for a missing precision."""

    title: str
    fp32: float
    tf32: float
    bf16: float

    def speed(self, precision: Precision) -> Range:
        """Return the assumed multiply-adds per second; one is two operations."""
        peak: float = getattr(self, precision) or self.fp32
        low, high = SHARES
        return low * peak * 1e12 / 2, high * peak * 1e12 / 2


GPUS = {
    "t4": Gpu("NVIDIA T4", 8.1, 0, 0),
    "v100": Gpu("NVIDIA V100 SXM2", 15.7, 0, 0),
    "rtx3090": Gpu("NVIDIA RTX 3090", 35.6, 35.6, 71),
    "a40": Gpu("NVIDIA A40", 37.4, 74.8, 149.7),
    "a100": Gpu("NVIDIA A100 SXM", 19.5, 156, 312),
    "rtx4090": Gpu("NVIDIA RTX 4090", 82.6, 82.6, 165.2),
    "l40s": Gpu("NVIDIA L40S", 91.6, 183, 362),
    "h100": Gpu("NVIDIA H100 SXM", 67, 495, 989),
    "h200": Gpu("NVIDIA H200 SXM", 67, 495, 989),
}


def hours(multiply_adds: float, speed: Range) -> Range:
    """Return the least and the most hours of a run on one device."""
    slow, fast = speed
    return multiply_adds / fast / 3600, multiply_adds / slow / 3600


def together(ranges: Iterable[Range]) -> Range:
    """Return the sum of ranges."""
    least, most = zip((0.0, 0.0), *ranges, strict=True)
    return sum(least), sum(most)


def run_table(
    plan: Plan, multiply_adds: Mapping[str, float], needed: Mapping[str, Range]
) -> list[dict[str, object]]:
    """Return a row per trained item, cell and seed, to read before training.

    Args:
        plan: the runs.
        multiply_adds: of each run whose dataset has a size in the registry.
        needed: hours of these runs, if a speed is known.
    """
    return [
        {
            "item": item.id,
            "cell": " / ".join(entry.labels.values()),
            "seed": entry.seed,
            "run": entry.spec.run_id,
            "dataset": entry.spec.dataset.id,
            "model": entry.spec.model.name,
            "method": entry.spec.composition.name,
            "partition": entry.spec.partition_id,
            "clients": entry.spec.partition.clients,
            "per_round": entry.spec.participation.per_round(entry.spec.partition.clients),
            "rounds": entry.spec.rounds,
            "multiply_adds": f"{number:.0f}" if (number := multiply_adds.get(entry.spec.run_id)) else "",
            **dict(zip(("hours_least", "hours_most"), needed.get(entry.spec.run_id, ("", "")), strict=True)),
        }
        for item in plan.items
        for entry in (item.entries if item.trains else ())
    ]
