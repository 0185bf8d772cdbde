"""Recorded runs for MLflow, data frames and comparisons: fields, settings by name, metrics. No torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fltrain.core.errors import FltrainError, count
from fltrain.core.own import places
from fltrain.experiments.plan import plan
from fltrain.runs.curves import Curve, curves_of, is_number
from fltrain.runs.record import BROKEN, Record, Results, reason
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import changed_code, revised
from fltrain.runs.where import NONE, Condition, choose, flat_settings, short_names

UNASSIGNED = "unassigned"
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
"""Text fields of every run; several papers, items or scales are separated by spaces.

``status`` is ``completed``, ``diverged`` or ``stale``; ``plugins`` are joined by ``+`` in their order;
``folder`` is that of the record, relative to the results folder.
"""

FINALS = ("final_accuracy", "best_accuracy", "seconds", "traffic_bytes", "peak_memory_bytes")
"""Metrics with one value, in addition to ``final_accuracy.<dataset>`` of further datasets."""

EXTRA = 2
"""Number of further datasets whose final accuracy is a metric: many slow MLflow's interface down."""

Memberships = Mapping[str, Mapping[str, Sequence[str]]]
"""Items, such as ``flfa/table1``, by scale and run ID."""


@dataclass(frozen=True)
class RunView:
    """A run with its settings and metrics, as comparisons and data frames show it.

    Attributes:
        run_id: its ID.
        fields: see ``FIELDS``.
        settings: its spec and revisions as text by dotted name: ``training.lr``, ``plugins.flfa.n_fa``.
        finals: finite metrics with one value; accuracies from 0 to 1. They belong to the last of ``rounds``.
        rounds: number of rounds in the spec.
        read_curves: reads ``curves``.
        read_images: reads ``images``.
    """

    run_id: str
    fields: Mapping[str, str]
    settings: Mapping[str, str]
    finals: Mapping[str, float]
    rounds: int
    read_curves: Callable[[], Mapping[str, Curve]] = field(repr=False)
    read_images: Callable[[], int | None] = field(repr=False)

    @cached_property
    def curves(self) -> Mapping[str, Curve]:
        """Metrics over rounds, see ``CURVES``; read at first use."""
        return self.read_curves()

    @cached_property
    def images(self) -> int | None:
        """Number of test images behind an accuracy, if known; read at first use."""
        return self.read_images()

    @cached_property
    def named(self) -> dict[str, str]:
        """All settings and fields, for ``fltrain.runs.where``."""
        return {**self.settings, **self.fields}

    def value(self, metric: str) -> float | None:
        """Return the single value of a metric, or the last one of a curve; None without one."""
        if metric in self.finals:
            return self.finals[metric]
        curve = self.curves.get(metric)
        return curve[-1][1] if curve else None


# ----------------------------------------------------------------------------------------------- from records
def view_record(record: Record, spec: RunSpec, memberships: Memberships) -> RunView:
    """Return the view of a complete record; a stale one belongs to the items of its current settings.

    Args:
        record: the record.
        spec: its settings, see ``Record.run_spec``.
        memberships: items by scale and run ID.

    Raises:
        FltrainError: if a file of the record is damaged.
    """
    with _damage_named(record):
        summary, stale = record.summary, spec.run_id != record.run_id
        items = {scale: runs[spec.run_id] for scale, runs in memberships.items() if spec.run_id in runs}
        commit = record.provenance.get("commit") or "unknown"
        fields = {
            **membership(items),
            **short_names(spec),
            "status": STALE if stale else str(summary["status"]),
            "revisions": ", ".join(
                f"{key} {_revision_text(value)}" for key, value in record.spec["revisions"].items()
            ),
            "commit": f"{commit}-dirty" if record.provenance.get("dirty") else str(commit),
            "folder": f"{record.folder.parent.name}/{record.folder.name}",
        }
        if stale:
            fields["stale"] = f"{revised(record.spec, spec.canonical)}, now {spec.run_id}"
        if change := changed_code(record.provenance, spec):
            fields["code"] = change
        settings, finals = dict(flat_settings(record.spec)), _finals(record)
    return RunView(
        record.run_id,
        fields,
        settings,
        finals,
        spec.rounds,
        lambda: _curves(record, spec),
        lambda: record.test_images,
    )


@contextmanager
def _damage_named(record: Record) -> Iterator[None]:
    """Name the record if one of its files is damaged."""
    try:
        yield
    except FltrainError:
        raise
    except BROKEN as error:
        raise FltrainError(
            f"{record.run_id}: damaged: {reason(error)}; see `fltrain verify` for details"
        ) from None


def membership(items: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the fields ``paper``, ``items`` and ``scale`` of a run with these items by scale."""
    every = [item for scale in sorted(items) for item in items[scale]]
    return {
        "paper": _joined(item.partition("/")[0] for item in every) or UNASSIGNED,
        "items": _joined(every) or NONE,
        "scale": _joined(sorted(items)) or NONE,
    }


def _joined(names: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(names))


def _revision_text(revision: Any) -> str:
    return "+".join(map(str, revision)) or "-" if isinstance(revision, list) else str(revision)


def _finals(record: Record) -> dict[str, float]:
    summary, costs, extra = record.summary, record.costs, record.summary.get("extra", {})
    values = {
        "final_accuracy": summary["accuracy"]["final"],
        "best_accuracy": summary["accuracy"]["best"],
        "validation_accuracy": summary.get("validation", {}).get("final"),
        "seconds": costs["seconds"]["total"],
        "traffic_bytes": sum(summary["bytes"].values()),
        "peak_memory_bytes": costs.get("peak_device_memory_bytes") or costs.get("peak_memory_bytes"),
        **{f"final_accuracy.{name}": extra[name] for name in sorted(extra)[:EXTRA]},
    }
    return {name: float(value) for name, value in values.items() if is_number(value)}


def _curves(record: Record, spec: RunSpec) -> dict[str, Curve]:
    with _damage_named(record):
        return curves_of(record, spec)


def memberships_of(results: Results, config: Path, scales: Sequence[str] | None = None) -> Memberships:
    """Return the items of all runs at these scales (default: all with a folder in the results).

    Raises:
        FltrainError: if a scale is not declared, or not valid.
    """
    if scales is None:
        declared = sorted(path.stem for place in places(config) for path in (place / "scales").glob("*.yaml"))
        scales = [scale for scale in declared if (results.root / scale).is_dir()]
    return {scale: plan(config, scale).memberships for scale in scales}


def recorded_runs(results: Results, memberships: Memberships) -> Iterator[RunView]:
    """Yield views of all runs in a results folder; skip damaged records with a warning.

    Records with settings of another version are skipped, too.
    """
    for record in results.records():
        try:
            if (spec := record.run_spec) is not None:
                yield view_record(record, spec, memberships)
        except FltrainError as error:
            logging.getLogger(__name__).warning("left out: %s", error)


# --------------------------------------------------------------------------------------------------- choosing
def choose_runs(runs: Iterable[RunView], where: Sequence[Condition]) -> list[RunView]:
    """Return the runs that meet all conditions; stale ones only if ``status`` is among the keys.

    Raises:
        FltrainError: if a key is unknown or no run is left; the message lists the possible values.
    """
    every, keys = list(runs), {condition.key for condition in where}
    if not every:
        raise FltrainError("there are no runs yet; train some, or name another folder or store")
    if "status" not in keys:
        every = [run for run in every if run.fields["status"] != STALE]
        if not every:
            raise FltrainError("all runs are stale; choose them with status=stale")
    try:
        return choose(every, where, lambda run: run.named)
    except FltrainError as error:
        unknown = sum(run.fields["paper"] == UNASSIGNED for run in every)
        if unknown and keys & {"paper", "items"} and "scale" not in keys:
            raise FltrainError(
                f"{error}; the items of {count(unknown, 'run')} are unknown: after an import, name the "
                "scale, for example --where scale=published"
            ) from None
        raise
