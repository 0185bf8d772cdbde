"""All numbers of a run: curves, which are fields of its rows, and measures, functions of its record.

Tables, figures, claims, MLflow, data frames and ``fltrain compare`` take them from here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, get_args

from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError
from fltrain.core.floats import average, total
from fltrain.data.datasets import registry
from fltrain.methods import METHODS
from fltrain.runs.record import Record, Row, on_split
from fltrain.runs.spec import RunSpec, StatisticName

if TYPE_CHECKING:  # planning needs no statistics, which take a second to import
    from fltrain.core.statistics import OverSeeds

Curve = list[tuple[int, float]]
"""Rounds (from 1) and values."""

WARM_UP_ROUNDS = 3
"""Rounds omitted from timings, because the first rounds include one-off work."""


@dataclass(frozen=True)
class Margin:
    """Largest distance from a published number that is still a match; a share of it if ``relative``."""

    size: float
    relative: bool = False

    def around(self, value: float) -> float:
        """Return the margin in the unit of the value."""
        return self.size * abs(value) if self.relative else self.size

    def __str__(self) -> str:
        return f"{100 * self.size:g} %" if self.relative else f"{self.size:g}"


POINT = Margin(1.0)
FIFTH = Margin(0.2, relative=True)
QUARTER = Margin(0.25, relative=True)
TWENTIETH = Margin(0.05, relative=True)


@dataclass(frozen=True)
class Measure:
    """A number, or one per label of a ``dimension``, which ``read`` computes from a record; None without one.

    ``targeted`` measures also take a target: an accuracy, or seconds of training. ``over_seeds`` names the
    summary over seeds. ``margin`` is the default margin of tables; measures with a relative one are costs, of
    which less is better. ``diverged`` names the value for a diverged run, ``needs`` a setting, method or
    plug-in that a run must have, see ``lacking``.
    """

    label: str
    decimals: int
    read: Callable[..., float | Mapping[str, float] | None]
    margin: Margin
    dimension: str | None = None
    targeted: Literal["accuracy", "seconds"] | None = None
    over_seeds: OverSeeds = "mean"
    diverged: Literal["chance", "never"] | None = None
    needs: str = ""

    @property
    def accuracy(self) -> bool:
        """More is better: it is an accuracy."""
        return self.diverged == "chance"

    @property
    def unit(self) -> str:
        """Unit of the number, from the label: ``%``, ``MB``, ``rounds`` ...; empty without one."""
        first, *_ = self.label.split()
        return self.label.partition(", ")[2] or (first if first in ("rounds", "seconds") else "")

    def of(self, record: Record, *target: float) -> Mapping[str, float] | None:
        """Return the numbers of a run by label of the dimension (empty if there is none)."""
        value = self.read(record, *target)
        return {"": value} if isinstance(value, int | float) else value

    def of_diverged(self, record: Record) -> float:
        """Return the value for a diverged run: chance accuracy, infinite rounds, or NaN.

        Raises:
            FltrainError: if the dataset's number of classes, which decides chance accuracy, is unknown.
        """
        if self.diverged != "chance":
            return math.inf if self.diverged else math.nan
        name = record.spec["dataset"]["name"]
        entry = registry().get(name)
        if not (entry and entry.classes):
            raise FltrainError(
                f"{record.run_id} diverged and counts as chance accuracy, but the registry has no number of "
                f"classes of dataset {name!r}; add 'classes' to its entry (docs/add-a-dataset.md)"
            )
        return 100 / entry.classes

    def resolution(self, images: int | None) -> float:
        """Return the smallest believable spread over seeds.

        Args:
            images: test images of a run; accuracies differ in steps of one image.
        """
        if self.diverged == "never":
            return 1.0
        if self.accuracy and images:
            return 100 / images
        return float(10.0**-self.decimals)


# ------------------------------------------------------------------------------------------------- curves
ROW_FIELDS: dict[str, dict[str, str]] = {
    "train": {"loss": ""},
    "evaluation": {"accuracy": "", "loss": "", "images": "", "macro": "local_test", "std": "local_test"},
    "updates": {"drift": "drift", "similarity": "similarity", "skewness": "similarity"},
    "divergence": dict.fromkeys(("weights", "layers", "blocks"), "divergence"),
    "dissimilarity": dict.fromkeys(("blocks", "all"), "dissimilarity"),
    "separability": dict.fromkeys(("intra", "intra_micro", "inter", "ratio"), "separability"),
}
"""By kind of rows in ``metrics.jsonl``: fields, each with the statistic (or ``local_test``) that it needs.

Rows of a method have its name as their kind.
"""


CURVES = {
    "test_accuracy": "evaluation.accuracy",
    "test_loss": "evaluation.loss",
    "train_loss": "train.loss",
    "drift": "updates.drift",
    "similarity_skewness": "updates.skewness",
    "separability_ratio": "separability.ratio",
}
"""Curves that MLflow and data frames show under a short name. Its last value is a measure, too."""


def points(record: Record, curve: str) -> dict[int, dict[str, float]]:
    """Return the numbers of a curve by round (from 1), in the unit of the record.

    Args:
        record: the record.
        curve: one of ``CURVES``, or ``kind.field``. Of tests, only those on the run's own images count.

    Returns:
        The numbers of each round that has any, by layer or block; a single number has an empty name.
    """
    kind, _, field = CURVES.get(curve, curve).partition(".")
    rows = _tests(record) if kind == "evaluation" else record.rows(kind)
    pairs = ((row["round"], row.get(field)) for row in rows)
    return {
        round: value if isinstance(value, dict) else {"": value}
        for round, value in pairs
        if value is not None
    }


def recorded_curves(record: Record) -> dict[str, Curve]:
    """Return each of ``CURVES`` that a record has, in the unit of the record."""
    curves = {name: [(round, value[""]) for round, value in points(record, name).items()] for name in CURVES}
    return {name: curve for name, curve in curves.items() if curve}


def factor(name: str) -> int:
    """Return 100 for accuracies (``macro``: mean over clients), which pages show in per cent, else 1."""
    return 100 if "accuracy" in name or "macro" in name else 1


def _tests(record: Record) -> list[Row]:
    """Return the rows of the run's own tests."""
    return on_split("local_test" if record.spec["local_test"] else "test", record.metrics)


def _last(name: str) -> Measure:
    """Return the last value of one of ``CURVES`` as a measure."""
    kind, _, field = CURVES[name].partition(".")
    percent, label = factor(name) == 100, name.replace("_", " ")

    def read(record: Record) -> float | None:
        values = [*points(record, name).values()]
        return factor(name) * values[-1][""] if values else None

    if percent:
        return Measure(f"{label}, %", 2, read, POINT, diverged="chance")
    return Measure(label, 4, read, QUARTER, needs=ROW_FIELDS[kind][field])


# ----------------------------------------------------------------------------------------------- measures
def _percent(name: str, split: str = "accuracy") -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        value = record.summary.get(split, {}).get(name)
        return None if value is None or record.summary["status"] == "diverged" else 100.0 * value

    return read


def _round_seconds(record: Record) -> float | None:
    seconds = record.costs["round_seconds"]
    timed = seconds[WARM_UP_ROUNDS:] or seconds
    return average(timed) if timed else None


def best_accuracy(record: Record) -> float:
    """Return the highest accuracy of any round, 0 without any."""
    return float(record.summary["accuracy"]["best"] or 0.0)


def _rounds_to_target(record: Record, target: float) -> float:
    """Return the first round (from 1) whose accuracy is at least the target; infinite if none is."""
    return min((row["round"] for row in _tests(record) if row["accuracy"] >= target), default=math.inf)


def _interpolated_rounds(record: Record, target: float) -> float:
    """Return where the curve of the best accuracy so far crosses the target, linear between tests.

    The FedAvg paper counts rounds so. If the first test reaches the target, it is the crossing.
    """
    before: tuple[float, float] | None = None
    for row in _tests(record):
        if row["accuracy"] >= target:
            if before is None:
                return float(row["round"])
            round, best = before
            share = (target - best) / (row["accuracy"] - best)
            return float(round + share * (row["round"] - round))
        before = row["round"], max(row["accuracy"], before[1] if before else 0.0)
    return math.inf


def _to_target(cost: Callable[[Record], float]) -> Callable[[Record, float], float]:
    """Return a measure of the cost up to a target: the rounds to it times the mean cost of a round."""

    def read(record: Record, target: float) -> float:
        rounds, trained_rounds = _interpolated_rounds(record, target), len(record.costs["round_seconds"])
        return rounds / trained_rounds * cost(record) if trained_rounds and rounds < math.inf else math.inf

    return read


def _at_equal_traffic(record: Record) -> float | None:
    """Return the accuracy of the last test within the traffic of the parameters alone, in all rounds.

    This is FedAvg's traffic, apart from buffers of BatchNorm. One per cent more counts as equal.
    """
    rounds = [len(row["clients"]) for row in record.rows("train")]
    if not rounds:  # it diverged at once
        return None
    plain, sent = 2 * 4 * record.summary["parameters"] * sum(rounds), sum(record.summary["bytes"].values())
    return _accuracy_by(record, 1.01 * len(rounds) * plain / sent if sent else math.inf)


def _at_equal_time(record: Record, seconds: float) -> float | None:
    """Return the accuracy of the last test within so many seconds. One per cent more counts as equal."""
    ends = accumulate(record.costs["round_seconds"])
    return _accuracy_by(record, sum(end <= 1.01 * seconds for end in ends))


def _accuracy_by(record: Record, last: float) -> float | None:
    """Return the accuracy of the last test up to a round; None without a test."""
    accuracies = [row["accuracy"] for row in _tests(record) if row["round"] <= last]
    return 100.0 * accuracies[-1] if accuracies else None


def _rounds_to_settle(record: Record) -> float | None:
    """Return the first round (from 1) within a point of the best accuracy, where a curve becomes flat."""
    best = _percent("best")(record)
    # The slack includes an accuracy of exactly one point less.
    return None if best is None else _rounds_to_target(record, (best - 1 - 1e-9) / 100)


def _fall(record: Record) -> float | None:
    """Return the fall from the best accuracy to the last one, in percentage points."""
    best, last = _percent("best")(record), _percent("last")(record)
    return None if best is None or last is None else best - last


def _selection_share(record: Record) -> Mapping[str, float]:
    """Return the share of selections in each block, in percent (FLFA, table 13)."""
    selected = Counter(name.partition(".")[0] for row in record.rows("flfa") for name in row["selected"])
    blocks = dict.fromkeys(name.partition(".")[0] for name in record.summary["layers"])
    number = selected.total()
    return {block: 100 * selected[block] / number if number else math.nan for block in blocks}


def _extra_accuracy(record: Record) -> Mapping[str, float]:
    """Return the final accuracy on each further test set; NaN for a diverged run."""
    extra: Mapping[str, float | None] = record.summary.get("extra", {})
    return {name: math.nan if value is None else 100 * value for name, value in extra.items()}


def training_seconds(record: Record) -> float:
    """Return the seconds of local training and of the server, over all rounds."""
    return total(record.costs["round_seconds"])


def _seconds(record: Record) -> float:
    """Return the wall time of training with its tests."""
    return float(record.costs["seconds"]["total"])


def _peak_memory(record: Record) -> float | None:
    """Return the peak memory of the GPU, or of the process on a CPU, in MB."""
    costs = record.costs
    peak = costs.get("peak_device_memory_bytes") or costs.get("peak_memory_bytes")
    return peak / 1e6 if peak else None


def _traffic(record: Record) -> float:
    return float(sum(record.summary["bytes"].values()) / 1e6)


def _parameters(record: Record) -> float:
    return float(record.summary["parameters"] / 1e6)


def _accuracy(
    label: str, name: str, over_seeds: OverSeeds = "mean", split: str = "accuracy", needs: str = ""
) -> Measure:
    read = _percent(name, split)
    return Measure(label, 2, read, POINT, over_seeds=over_seeds, diverged="chance", needs=needs)


def _cost_to_target(
    label: str, decimals: int, read: Callable[[Record, float], float], over_seeds: OverSeeds = "mean"
) -> Measure:
    return Measure(label, decimals, read, FIFTH, targeted="accuracy", over_seeds=over_seeds, diverged="never")


MEASURES = {
    "final_accuracy": _accuracy("final accuracy, %", "final"),
    "best_accuracy": _accuracy("best accuracy, %", "best"),
    # ECGR prints the highest accuracy of any round and any seed.
    "best_of_all_seeds": _accuracy("best accuracy of all seeds, %", "best", "max"),
    "best_macro_accuracy": _accuracy("best mean over clients, %", "best_macro", needs="local_test"),
    "last_accuracy": _accuracy("last accuracy, %", "last"),
    "validation_final_accuracy": _accuracy(
        "validation accuracy, %", "final", split="validation", needs="evaluation.validation"
    ),
    "extra_accuracy": Measure(
        "accuracy, %",
        2,
        _extra_accuracy,
        POINT,
        dimension="test_set",
        diverged="chance",
        needs="evaluation.extra",
    ),
    "rounds_to_target": _cost_to_target("rounds to target", 0, _rounds_to_target, "median"),
    "interpolated_rounds_to_target": _cost_to_target("rounds to target", 0, _interpolated_rounds),
    "traffic_to_target": _cost_to_target("traffic to target, MB", 1, _to_target(_traffic)),
    "seconds_to_target": _cost_to_target("seconds to target", 1, _to_target(training_seconds)),
    "accuracy_at_equal_traffic": Measure(
        "accuracy at equal traffic, %", 2, _at_equal_traffic, POINT, diverged="chance"
    ),
    "accuracy_at_equal_time": Measure(
        "accuracy at equal time, %", 2, _at_equal_time, POINT, targeted="seconds", diverged="chance"
    ),
    "rounds_to_settle": Measure("rounds to a point below the best", 0, _rounds_to_settle, FIFTH),
    "fall": Measure("fall from best to last, points", 2, _fall, POINT),
    "round_seconds": Measure("seconds per round", 3, _round_seconds, QUARTER),
    "seconds": Measure("seconds", 2, _seconds, QUARTER),
    "peak_memory": Measure("peak memory, MB", 0, _peak_memory, QUARTER),
    "parameters": Measure("trained parameters, millions", 2, _parameters, TWENTIETH),
    "traffic": Measure("traffic up and down, MB", 1, _traffic, TWENTIETH),
    "selection_share": Measure(
        "share of selections, %", 2, _selection_share, Margin(2.0), dimension="block", needs="flfa"
    ),
    **{name: _last(name) for name in CURVES},
}


COSTS = ("seconds", "traffic", "peak_memory")
"""Measures of every run in MLflow, in addition to the curves and the measures of its tables."""
METRICS = ("final_accuracy", "best_accuracy", "validation_final_accuracy", "extra_accuracy", *COSTS)
"""Measures of every run in data frames, in addition to the curves."""
TARGET_ROUNDS, TARGET_MISSED = "interpolated_rounds_to_target", "target_missed"
"""Metrics of runs that have a target: rounds to it; 1 if a run never reached it, else 0."""


def metrics_of(record: Record, targets: Mapping[str, float | None]) -> dict[str, float]:
    """Return the finite numbers of a run by measure and label; accuracies in percent.

    Args:
        record: the record. If it diverged, it has no accuracy.
        targets: the measures, each with its target, or None without one. A target adds ``TARGET_MISSED``.
    """
    metrics: dict[str, float] = {}
    for name, target in targets.items():
        metric = measure(name)
        lost = metric.diverged == "chance" and record.summary["status"] == "diverged"
        numbers = {} if lost else metric.of(record, *filter(None, [target])) or {}
        for label, value in sorted(numbers.items()):
            metrics[f"{name}.{label}" if label else name] = value
            metrics |= {TARGET_MISSED: float(math.isinf(value))} if target else {}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def measure(name: str) -> Measure:
    """Return a measure by name."""
    check_known("unknown measure", [name], MEASURES)
    return MEASURES[name]


def lacking(spec: RunSpec, measure_or_curve: str, where: str) -> str:
    """Return the setting that a run lacks for a measure or curve (``kind.field``); empty if it lacks none."""
    kind, curve, field = measure_or_curve.partition(".")
    if not curve:
        needed = MEASURES[kind].needs if kind in MEASURES else ""
    elif kind in METHODS:
        needed = kind
    else:
        curves = [f"{kind}.{name}" for kind, fields in ROW_FIELDS.items() for name in fields]
        check_known(f"{where}: unknown curve", [measure_or_curve], curves)
        needed = ROW_FIELDS[kind][field]
    if needed in METHODS:
        taking_part = [method.name for method in spec.composition.methods]
        return "" if needed in taking_part else f"the method or plug-in {needed!r}"
    if needed in get_args(StatisticName):
        return "" if needed in spec.evaluation.statistics else f"evaluation.statistics: [{needed}]"
    return needed if needed and not attrgetter(needed)(spec) else ""


def lacking_in_all(specs: Iterable[RunSpec], measure_or_curve: str, where: str) -> str:
    """Return the setting that all of these runs lack for a measure or curve; empty if one lacks none."""
    lacks = [lacking(spec, measure_or_curve, where) for spec in specs]
    return lacks[0] if lacks and all(lacks) else ""
