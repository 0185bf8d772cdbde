"""Costs of a plan: multiply-adds of its runs, and hours at the speed of a device. Imports no torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fltrain.experiments.plan import Plan
from fltrain.runs.spec import Precision, RunSpec

SHARES = (0.05, 0.2)
"""Assumed shares of a GPU's peak: runs with small networks and batches stay below them."""


class Gpu(NamedTuple):
    """A GPU and its peaks in 1e12 operations per second (data sheets, dense); 0 for a missing precision."""

    title: str
    fp32: float
    tf32: float
    bf16: float

    def speed(self, precision: Precision) -> float:
        """Return the peak in multiply-adds per second; one is two operations."""
        peak: float = getattr(self, precision) or self.fp32
        return peak * 1e12 / 2


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


@dataclass(frozen=True)
class PlanCosts:
    """Costs of runs, by run ID; runs of datasets without a size in the registry are missing.

    Attributes:
        multiply_adds: number of multiply-adds.
        hours: least and most hours on one device, one run at a time.
    """

    multiply_adds: Mapping[str, float] = field(default_factory=dict)
    hours: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def sum(self, runs: Iterable[str]) -> float:
        """Return the multiply-adds of runs together."""
        return sum(self.multiply_adds.get(run, 0.0) for run in runs)

    def range(self, runs: Iterable[str]) -> tuple[float, float]:
        """Return the least and the most hours of runs together."""
        least, most = zip((0.0, 0.0), *(self.hours[run] for run in runs if run in self.hours), strict=True)
        return sum(least), sum(most)


def arithmetic(runs: Mapping[str, RunSpec], multiply_adds: Mapping[str, float], gpu: Gpu) -> PlanCosts:
    """Return the costs of runs at the assumed shares of a GPU's peak."""
    low, high = SHARES
    peak = {run: gpu.speed(runs[run].precision) * 3600 for run in multiply_adds}
    hours = {run: (n / peak[run] / high, n / peak[run] / low) for run, n in multiply_adds.items()}
    return PlanCosts(multiply_adds, hours)


def run_table(plan: Plan, costs: PlanCosts) -> str:
    """Return the run table as CSV text: a row per trained item, cell and seed, to read before training."""
    rows = []
    for item in plan.items:
        for entry in item.entries if item.trains else ():
            spec, run = entry.spec, entry.spec.run_id
            least, most = costs.hours.get(run, ("", ""))
            rows.append(
                {
                    "item": item.id,
                    "cell": " / ".join(entry.labels.values()),
                    "seed": entry.seed,
                    "run": run,
                    "dataset": spec.dataset.id,
                    "model": spec.model.name,
                    "method": spec.composition.name,
                    "partition": spec.partition_id,
                    "clients": spec.partition.clients,
                    "per_round": spec.participation.per_round(spec.partition.clients),
                    "rounds": spec.rounds,
                    "multiply_adds": f"{found:.0f}" if (found := costs.multiply_adds.get(run)) else "",
                    "hours_least": least,
                    "hours_most": most,
                }
            )
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
