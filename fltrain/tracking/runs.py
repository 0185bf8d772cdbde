"""Recorded runs for MLflow, comparisons and data frames: fields, settings by name, metrics. No torch.

Metrics are those that a run recorded: a diverged run has no final accuracy. Only means over seeds, which
tables, figures, claims and ``fltrain compare`` take from their frame, count it as chance.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

import pandas as pd

from fltrain.core import arguments
from fltrain.core.errors import FltrainError, count
from fltrain.core.shell import command, workflow
from fltrain.experiments.items import names_of
from fltrain.experiments.plan import Plan, no_item, plan, unplanned
from fltrain.experiments.schema import folders_of
from fltrain.runs.measures import METRICS, TARGET_ROUNDS, Curve, factor, metrics_of, recorded_curves
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import CONDITIONS, NONE, Condition, choose, flat_settings, parse_where, short_names

UNASSIGNED = "unassigned"

_NAMES = ("paper", "items", "scale", "dataset", "partition", "model", "method", "plugins", "seed", "status")
FIELDS = (*_NAMES, "revisions", "commit", "folder")
"""Text fields of every run; several papers, items or scales are separated by spaces.

``status`` is ``completed`` or ``diverged``; ``plugins`` are joined by ``+`` in their order;
``folder`` is the record's folder, relative to the results folder.
"""

RECORDED = ("paper", "items", "scale", "status", "revisions", "commit", "folder")
"""Fields that are no settings of a run."""

Memberships = Mapping[str, Mapping[str, Sequence[str]]]
"""Items, such as ``flfa/table1``, by scale and run ID."""


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run.

    Attributes:
        record: its record.
        spec: its settings. The record of a stale run has another run ID than they have today.
        fields: see ``FIELDS``.
    """

    record: Record
    spec: RunSpec
    fields: Mapping[str, str]

    @classmethod
    def of(cls, record: Record, memberships: Memberships) -> Self:
        """Return the run of a complete record.

        Raises:
            FltrainError: if the record is damaged, or has settings of another version.
        """
        summary, spec = record.summary, record.run_spec
        if spec is None:
            raise FltrainError(f"{record.run_id}: today's code lacks one of its settings ({record.lacking})")
        run = record.run_id
        items = {scale: runs[run] for scale, runs in sorted(memberships.items()) if run in runs}
        names = dict.fromkeys(itertools.chain.from_iterable(items.values()))
        commit = record.provenance.get("commit") or "unknown"
        revisions = [
            f"{key} {('+'.join(map(str, revision)) or '-') if isinstance(revision, list) else revision}"
            for key, revision in record.spec["revisions"].items()
        ]
        fields = {
            "paper": " ".join(dict.fromkeys(item.partition("/")[0] for item in names)) or UNASSIGNED,
            "items": " ".join(names) or NONE,
            "scale": " ".join(items) or NONE,
            **short_names(spec),
            "status": str(summary["status"]),
            "revisions": ", ".join(revisions),
            "commit": f"{commit}-dirty" if record.provenance.get("dirty") else str(commit),
            "folder": f"{record.folder.parent.name}/{record.run_id}",
        }
        return cls(record, spec, fields)

    @property
    def run_id(self) -> str:
        """ID of the run."""
        return self.record.run_id

    @cached_property
    def settings(self) -> dict[str, str]:
        """Spec and revisions as text by dotted name: ``training.lr``, ``plugins.flfa.n_fa``."""
        return dict(flat_settings(self.record.spec))

    @cached_property
    def named(self) -> dict[str, str]:
        """All settings and fields, for ``fltrain.runs.where``; a paper stands for its items."""
        items = f"{self.fields['items']} {self.fields['paper']}"
        settings = dict(flat_settings(self.spec.all_settings()))
        return {**settings, **self.settings, **self.fields, "items": items}

    @cached_property
    def finals(self) -> dict[str, float]:
        """``METRICS``, and the rounds to the target at which a run ends; accuracies from 0 to 1."""
        until = self.spec.evaluation.until
        targets = {**dict.fromkeys(METRICS), **({TARGET_ROUNDS: until} if until else {})}
        return {name: value / factor(name) for name, value in metrics_of(self.record, targets).items()}

    @property
    def last_round(self) -> int:
        """The round in which the run ended: the one that diverged, else the last trained one."""
        diverged = self.record.summary.get("diverged")
        rounds = [row["round"] for row in self.record.rows("train")]
        return int(diverged["round"]) if diverged else max(rounds, default=self.spec.rounds)

    @property
    def metrics(self) -> dict[str, Curve]:
        """All metrics over rounds, those with one value at the run's last round; accuracies from 0 to 1."""
        last = self.last_round
        finals = {name: [(last, value)] for name, value in self.finals.items()}
        return recorded_curves(self.record) | finals


# ------------------------------------------------------------------------------------------------- choosing
@cache
def _warn(_folder: Path, text: str) -> None:
    """Log a warning on a folder once in a process."""
    logging.getLogger(__name__).warning(text)


def find_runs(results: str | Path, where: str | Iterable[str], config: str | Path) -> list[RecordedRun]:
    """Return the chosen runs of a results folder, without stale ones.

    A warning counts the records that are left out: damaged ones, and ones with settings that the code lacks.
    If items or papers are named, it counts only their records. A scale that cannot be planned has a warning,
    too.

    Raises:
        FltrainError: if a key is unknown, no run is left, or a scale in the conditions cannot be planned.
    """
    conditions = parse_where(arguments.texts("where", where, CONDITIONS))
    conditions = tuple(sorted(conditions, key=lambda term: term.key not in ("scale", "items", "paper")))
    folder = Results(arguments.path("results", results))
    config = arguments.path("config", config)
    wanted = {key: _values(conditions, key) - {NONE} for key in ("items", "paper", "scale")}
    declared = {path.stem for place in folders_of(config, "scale") for path in place.glob("*.yaml")}
    scales = {scale for scale in declared if (folder.root / scale).is_dir()}
    plans: dict[str, Plan] = {}
    for scale in sorted(scales | wanted["scale"]):
        try:
            plans[scale] = plan(config, scale)
        except FltrainError as error:
            if scale in wanted["scale"]:
                raise
            _warn(folder.root, unplanned(scale, error))
    memberships = {scale: planned.memberships for scale, planned in plans.items()}
    runs: list[RecordedRun] = []
    lacking: dict[str, str] = {}
    for record in folder.records():
        try:
            runs.append(RecordedRun.of(record, memberships))
        except FltrainError:
            lacking[record.run_id] = record.lacking
    recorded = len(runs)
    runs = [run for run in runs if run.spec.run_id == run.run_id]
    items = [item for scale in sorted(wanted["scale"] or plans) for item in plans[scale].items]
    place = f"scale {', '.join(map(repr, sorted(wanted['scale'])))}" if wanted["scale"] else str(folder.root)
    run_ids = {run.run_id for run in runs}
    names = wanted["items"] | wanted["paper"]
    named_runs = {run for item in items if names & item.names for run in item.run_ids}
    all_records = not names or UNASSIGNED in names
    reasons = [reason for run, reason in lacking.items() if all_records or run in named_runs]
    _warn_left_out(reasons, folder, command("fltrain verify", folder.root, config))
    for name in sorted(names - {UNASSIGNED}):
        members = [item for item in items if name in item.names]
        if not members and (runs or wanted["scale"]):
            raise no_item(config, name, place, [item.id for item in items if wanted["scale"]])
        if runs and not any(run in run_ids for item in members for run in item.run_ids):
            raise untrained(folder, name, members[0].scale.scale)
    if not runs:
        status = command("fltrain status", folder.root, config)
        numbers = {"stale": recorded, "unusable": len(lacking)}
        numbers["unfinished"] = len(folder.folders()) - sum(numbers.values())
        only = " and ".join(count(number, f"{state} run") for state, number in numbers.items() if number)
        problem = f"{folder.runs}: {only and 'only '}{only or 'no runs'} (`{status}`)"
        problem += "; train an unfinished run again, which continues it" * bool(numbers["unfinished"])
        raise FltrainError(
            f"{folder.missing or problem}; {_imported(folder, wanted['scale'] or declared, ', ')}train runs, "
            "or name another results folder"
        )
    present = {item for run in runs for item in run.fields["items"].split()}
    return choose(runs, _by_id(conditions, present), lambda run: run.named)


def _warn_left_out(reasons: Sequence[str], folder: Results, verify: str) -> None:
    """Warn of records with settings that the code lacks, and of damaged ones, which have no reason."""
    if unknown := list(filter(None, reasons)):
        number = f"{count(len(unknown), 'record')} with settings that today's code lacks"
        _warn(folder.root, f"left out: {number} ({verify} lists them), for example {unknown[0]}")
    if damaged := reasons.count(""):
        _warn(folder.root, f"left out: {count(damaged, 'damaged record')} ({verify} lists them)")


def untrained(results: Results, name: str, scale: str) -> FltrainError:
    """Return the error that a results folder has no run of an item or paper."""
    problem = f"{results.runs} has no run of {name!r} at scale {scale!r}"
    return FltrainError(
        f"{results.missing or problem}; {_imported(results, [scale], ', or ')}train its "
        f"runs with {workflow(f'scale={scale} items={name}', results.root)}, or name another scale"
    )


def _imported(results: Results, scales: Iterable[str], end: str) -> str:
    """Return the remedy to import records that the project has in the folder of a scale, else nothing."""
    files = [file for scale in sorted(scales) if (file := Path(scale, "records.tar.gz")).exists()]
    imports = command(f"fltrain records import {files[0]}", results.root) if files else ""
    return f"import records with `{imports}`{end}" if files else ""


def _values(conditions: Iterable[Condition], key: str) -> set[str]:
    """Return the values that conditions want of a key."""
    return {value for term in conditions if term.key == key and not term.excluded for value in term.values}


def _by_id(conditions: Iterable[Condition], ids: Iterable[str]) -> tuple[Condition, ...]:
    """Return the conditions with the IDs of the items that a name stands for, such as a paper's."""
    ids = sorted(ids)
    resolved: list[Condition] = []
    for term in conditions:
        if term.key == "items":
            matches = [[item for item in ids if name in names_of(item)] or [name] for name in term.values]
            term = replace(term, values=tuple(dict.fromkeys(itertools.chain.from_iterable(matches))))
        resolved.append(term)
    return tuple(resolved)


# ---------------------------------------------------------------------------------------------- data frames
def load_runs(
    results: str | Path = "results", *, where: str | Iterable[str] = (), config: str | Path = "config"
) -> pd.DataFrame:
    """Load metrics of runs: a row per run, metric and round.

    A run of several items has all their names in ``items``, separated by spaces: choose items by ``where``.

    Args:
        results: folder that holds ``runs/``.
        where: conditions, for example ``"items=flfa/table1 method=fedavg,fedprox training.lr!=0.1"``; keys
            are the columns above, ``commit``, ``revisions``, ``folder``, and settings by dotted name.
        config: folder with ``papers/`` and ``scales/``, which assign runs of the folder to items.

    Returns:
        A data frame with the columns ``run``; ``paper``, ``items``, ``scale``, ``dataset``, ``partition``,
        ``model``, ``method``, ``plugins``, ``status`` (categories), ``seed`` (integer); ``metric``, ``round``
        (from 1) and ``value``. Accuracies are from 0 to 1; only ``fltrain.compare`` has percent, like tables.
        Metrics with one value belong to the last round that was trained, also of a run that diverged.

    Raises:
        FltrainError: if no run is left, or the configuration is not valid.
    """
    curves: list[tuple[tuple[str, ...], Curve]] = []
    runs = find_runs(results, where, config)
    runs.reverse()
    while runs:
        run = runs.pop()  # its rows are freed at once: they need memory, and slow down garbage collection
        names = (run.run_id, *(run.fields[name] for name in _NAMES))
        curves += (((*names, metric), curve) for metric, curve in run.metrics.items())
    names_of_curves, points = zip(*curves, strict=True)
    # A row per curve, repeated for its points, is faster than a row per point.
    frame = pd.DataFrame(names_of_curves, columns=["run", *_NAMES, "metric"]).astype("category")
    frame = frame.loc[frame.index.repeat([len(curve) for curve in points])].reset_index(drop=True)
    frame[["round", "value"]] = pd.DataFrame(itertools.chain.from_iterable(points))
    return frame.astype({"seed": "int64", "round": "int64", "value": "float64"})


def load_settings(
    results: str | Path = "results", *, where: str | Iterable[str] = (), config: str | Path = "config"
) -> pd.DataFrame:
    """Load fields, settings and final metrics of runs: a row per run, indexed by its ID.

    Args:
        results: folder that holds ``runs/``.
        where: conditions, as for ``load_runs``.
        config: folder with ``papers/`` and ``scales/``, as for ``load_runs``.

    Returns:
        A data frame. Its columns are the names of ``load_runs``; ``revisions``, ``commit`` and ``folder``;
        all settings by dotted name; and metrics with one value, accuracies from 0 to 1. A setting is a number
        if all of its values are, else text; it is NaN or empty if a run does not have it.

    Raises:
        FltrainError: if no run is left, or the configuration is not valid.
    """
    runs = find_runs(results, where, config)
    rows = {run.run_id: {**run.settings, **run.fields, **run.finals} for run in runs}
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")
    metrics = {name for run in runs for name in run.finals}
    order = [*FIELDS, *(str(name) for name in frame if name not in FIELDS)]
    keys = [name for name in order if name not in metrics]
    frame[keys] = frame[keys].fillna("").apply(lambda text: text if text.name in FIELDS else as_numbers(text))
    return frame[order].astype({"seed": "int64"})


def as_numbers(texts: pd.Series) -> pd.Series:
    """Return a column of settings as numbers, NaN if a run has none; unchanged if one is another text."""
    values = texts[~texts.isin(["", "null", NONE])]
    numbers = pd.to_numeric(values, errors="coerce")
    return texts if values.empty or numbers.isna().any() else numbers.reindex(texts.index)
