"""Runs as MLflow, data frames and comparisons know them: fields, settings by dotted name, metrics. No torch.

A run is described from its record, or from what an export of its record left in an MLflow store
(``fltrain.tracking.mlflow_store``): both have the same fields, settings and metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import canonical_json
from fltrain.experiments.plan import plan
from fltrain.runs.record import BROKEN, Record, Results, reason
from fltrain.runs.spec import RunSpec
from fltrain.runs.status import Stale, revised, slug

UNASSIGNED, NONE = "unassigned", "none"
STALE = "stale"

FIELDS = (
    "paper",
    "items",
    "scale",
    "dataset",
    "partition",
    "model",
    "method",
    "plugins",
    "seed",
    "status",
    "revisions",
    "commit",
    "folder",
)
"""What is said of every run, as text; several papers, items or scales are separated by spaces.

``status`` is ``completed``, ``diverged`` or ``stale``; ``plugins`` are joined by ``+`` in their order;
``folder`` is that of the record, relative to the results folder.
"""
SEVERAL = ("paper", "items", "scale")
"""Fields that can hold several names."""

CURVES = {
    "test_accuracy": ("evaluation", "accuracy"),
    "test_loss": ("evaluation", "loss"),
    "train_loss": ("train", "loss"),
    "drift": ("updates", "drift"),
    "similarity_skewness": ("updates", "skewness"),
    "separability_ratio": ("separability", "ratio"),
}
"""Metrics that have a value per round: kind of row and its value."""

FINALS = ("final_accuracy", "best_accuracy", "seconds", "bytes")
"""Metrics that have one value, beside ``final_accuracy.<data set>`` for further data sets."""

EXTRA = 2
"""Further data sets whose final accuracy is a metric: MLflow's interface slows down with many keys."""

Curve = list[tuple[int, float]]
"""Rounds (from 1) and values."""
Memberships = Mapping[str, Mapping[str, Sequence[str]]]
"""Items, such as ``flfa/table1``, by scale and run id."""


@dataclass(frozen=True)
class Described:
    """A run.

    Attributes:
        run_id: its id.
        fields: see ``FIELDS``.
        settings: its spec and revisions as text by dotted name: ``training.lr``, ``plugins.flfa.n_fa``.
        finals: metrics with one value, from 0 to 1 for accuracies; those that are no finite number are left
            out. They belong to the last of ``rounds``.
        rounds: rounds that were asked for.
    """

    run_id: str
    fields: Mapping[str, str]
    settings: Mapping[str, str]
    finals: Mapping[str, float]
    rounds: int
    read_curves: Callable[[], Mapping[str, Curve]] = field(repr=False)

    @cached_property
    def curves(self) -> Mapping[str, Curve]:
        """Metrics over rounds, read when asked for; see ``CURVES``."""
        return self.read_curves()

    def value(self, metric: str) -> float | None:
        """The one value of a metric, or the last of a curve; None if there is none."""
        if metric in self.finals:
            return self.finals[metric]
        curve = self.curves.get(metric)
        return curve[-1][1] if curve else None


def describe(record: Record, spec: RunSpec, memberships: Memberships) -> Described:
    """Describe a run by its complete record. What is stale belongs to what its settings belong to today.

    Args:
        record: the record.
        spec: its settings, see ``Record.run_spec``.
        memberships: items by scale and run id.

    Raises:
        FltrainError: if a file of the record cannot be read, or is damaged.
    """
    with _readable(record):
        return _described(record, spec, memberships)


@contextmanager
def _readable(record: Record) -> Iterator[None]:
    """Say of what record a file is not as it was written."""
    try:
        yield
    except FltrainError:
        raise
    except BROKEN as error:
        raise FltrainError(f"{record.run_id}: damaged: {reason(error)}; `fltrain verify` says more") from None


def _described(record: Record, spec: RunSpec, memberships: Memberships) -> Described:
    summary, stale = record.summary, spec.run_id != record.run_id
    items = {scale: runs[spec.run_id] for scale, runs in memberships.items() if spec.run_id in runs}
    fields = {
        **membership(items),
        "dataset": spec.dataset.name,
        "partition": spec.partition.name,
        "model": spec.model.name,
        "method": spec.method.name,
        "plugins": "+".join(plugin.name for plugin in spec.plugins) or NONE,
        "seed": str(spec.seed),
        "status": STALE if stale else str(summary["status"]),
        "revisions": ", ".join(f"{key} {_shown(value)}" for key, value in record.spec["revisions"].items()),
        "commit": _commit(record),
        "folder": f"{record.folder.parent.name}/{record.folder.name}",
    }
    if stale:
        fields["stale"] = f"{revised(record.spec, spec.canonical)}, now {spec.run_id}"
    settings = dict(flat({**spec.all_settings(), "revisions": record.spec["revisions"]}))
    return Described(
        record.run_id, fields, settings, _finals(record), spec.rounds, lambda: _curves(record, spec)
    )


def membership(items: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The fields that say what a run belongs to, from its items by scale."""
    every = [item for scale in sorted(items) for item in items[scale]]
    return {
        "paper": _joined(item.partition("/")[0] for item in every) or UNASSIGNED,
        "items": _joined(every) or NONE,
        "scale": _joined(sorted(items)) or NONE,
    }


def _joined(names: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(names))


def _shown(revision: Any) -> str:
    return "+".join(map(str, revision)) or "-" if isinstance(revision, list) else str(revision)


def _commit(record: Record) -> str:
    commit = record.provenance.get("commit") or "unknown"
    return f"{commit}-dirty" if record.provenance.get("dirty") else str(commit)


def _finals(record: Record) -> dict[str, float]:
    summary, extra = record.summary, record.summary.get("extra", {})
    found = {
        "final_accuracy": summary["accuracy"]["final"],
        "best_accuracy": summary["accuracy"]["best"],
        "seconds": record.costs["seconds"]["total"],
        "bytes": sum(summary["bytes"].values()),
        **{f"final_accuracy.{name}": extra[name] for name in sorted(extra)[:EXTRA]},
    }
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _curves(record: Record, spec: RunSpec) -> dict[str, Curve]:
    """Curves of the tests that count, not of those on further data sets or with another model."""
    counts = {"split": spec.test_split, "view": spec.view}.items()
    curves: dict[str, Curve] = {name: [] for name in CURVES}
    by_kind: dict[str, list[tuple[Curve, str]]] = {}
    for name, (kind, value) in CURVES.items():
        by_kind.setdefault(kind, []).append((curves[name], value))
    with _readable(record):
        for row in record.metrics:
            if row["kind"] == "evaluation" and not counts <= row.items():
                continue
            for curve, value in by_kind.get(row["kind"], ()):
                if _is_number(row.get(value)):
                    curve.append((row["round"], float(row[value])))
    return {name: curve for name, curve in curves.items() if curve}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Settings as text by dotted name; components of a list go by their names."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {item["name"]: item for item in value}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from flat(item, f"{key}.{name}" if key else name)
    else:
        yield key, value if isinstance(value, str) else canonical_json(value)


def stale_records(runs: Collection[str], current: Collection[str], results: Results) -> list[Record]:
    """Records with the settings of these runs (by id), made before a component was revised.

    Only records whose names begin like those of the runs are read, and none that are known to be current.
    """
    slugs = {slug(run) for run in runs}
    others = (record for record in results.records() if record.run_id not in current)
    candidates = (Stale.of(record) for record in others if slug(record.run_id) in slugs)
    return [stale.record for stale in candidates if stale and stale.run in runs and stale.record.usable]


def memberships_of(results: Results, config: Path, scales: Sequence[str] | None = None) -> Memberships:
    """What runs belong to: at these scales, or at all that the workflow has worked on in the results folder.

    Raises:
        FltrainError: if a scale is not declared, or not validly.
    """
    if scales is None:
        declared = sorted(path.stem for path in (config / "scales").glob("*.yaml"))
        scales = [scale for scale in declared if (results.root / scale).is_dir()]
    return {scale: plan(config, scale).memberships for scale in scales}


def recorded(results: Results, memberships: Memberships) -> Iterator[Described]:
    """Describe all runs in a results folder, without damaged records and without unknown settings.

    Raises:
        FltrainError: if a record cannot be read.
    """
    for record in results.records():
        if record.usable and (spec := record.run_spec):
            yield describe(record, spec, memberships)
