"""The numbers that tables show, each a function of one run's record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fltrain.component import suggest
from fltrain.errors import FltrainError
from fltrain.records import Record

WARM_UP_ROUNDS = 3
"""Rounds left out of timings, as the first ones include one-off work."""


@dataclass(frozen=True)
class Measure:
    """A number, or one number per label of a ``dimension``, read off a record; None if the run has none.

    ``targeted`` measures are also handed a target accuracy. ``median`` ones are summarised by their median
    over seeds, as they can be infinite.
    """

    label: str
    decimals: int
    of: Callable[..., Mapping[str, float] | None]
    dimension: str | None = None
    targeted: bool = False
    median: bool = False


def _percent(name: str) -> Callable[[Record], Mapping[str, float] | None]:
    def of(record: Record) -> Mapping[str, float] | None:
        value = record.summary["accuracy"][name]
        return None if value is None or record.summary["status"] == "diverged" else {"": 100 * value}

    return of


def _round_seconds(record: Record) -> Mapping[str, float] | None:
    seconds = record.costs["round_seconds"]
    timed = seconds[WARM_UP_ROUNDS:] or seconds
    return {"": sum(timed) / len(timed)} if timed else None


def best_accuracy(record: Record) -> float:
    """Highest accuracy of any round, 0 if there is none."""
    return float(record.summary["accuracy"]["best"] or 0.0)


def _rounds_to_target(record: Record, target: float) -> Mapping[str, float]:
    """First round (from 1) whose accuracy is at least the target; infinite if none is."""
    split = "local_test" if record.spec["local_test"] else "test"
    rounds = (
        row["round"]
        for row in record.rows("evaluation")
        if row["split"] == split and row["accuracy"] >= target
    )
    return {"": min(rounds, default=math.inf)}


def _selection_share(record: Record) -> Mapping[str, float] | None:
    """Share of selections that fall into each block, in percent (FLFA, table 13)."""
    selected = Counter(name.partition(".")[0] for row in record.rows("flfa") for name in row["selected"])
    blocks = dict.fromkeys(name.partition(".")[0] for name in record.summary["layers"])
    total = selected.total()
    return {block: 100 * selected[block] / total if total else math.nan for block in blocks}


MEASURES = {
    "final_accuracy": Measure("accuracy, %", 2, _percent("final")),
    "best_accuracy": Measure("best accuracy, %", 2, _percent("best")),
    "last_accuracy": Measure("last accuracy, %", 2, _percent("last")),
    "rounds_to_target": Measure("rounds to target", 0, _rounds_to_target, targeted=True, median=True),
    "round_seconds": Measure("seconds per round", 3, _round_seconds),
    "selection_share": Measure("share of selections, %", 2, _selection_share, dimension="block"),
}


def measure(name: str) -> Measure:
    """Return a measure by name.

    Raises:
        FltrainError: if there is none of that name.
    """
    if name not in MEASURES:
        raise FltrainError(
            f"unknown measure {name!r}{suggest(name, MEASURES)} (known: {', '.join(MEASURES)})"
        )
    return MEASURES[name]
