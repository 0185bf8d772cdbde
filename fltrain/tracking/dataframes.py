"""Runs as pandas data frames, for notebooks: ``fltrain.load_runs`` and ``fltrain.load_settings``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fltrain.runs.record import Results
from fltrain.tracking.compare import Choice, Condition
from fltrain.tracking.run_view import FIELDS, Described, memberships_of, recorded

_FEW = ("paper", "items", "scale", "dataset", "partition", "model", "method", "plugins", "seed", "status")

Wanted = str | int | Sequence[str | int]


def load_runs(
    results: str | Path = "results",
    *,
    uri: str | None = None,
    config: str | Path = "config",
    where: str | Iterable[str] = (),
    **fields: Wanted,
) -> pd.DataFrame:
    """Load metrics of runs: a line for each run, metric and round.

    Columns: ``run``; ``paper``, ``items``, ``scale``, ``dataset``, ``partition``, ``model``, ``method``,
    ``plugins``, ``status`` (categories), ``seed`` (integer); ``metric``, ``round`` (from 1) and ``value``
    (accuracies from 0 to 1). Metrics with one value stand in the last round.

    Args:
        results: folder that holds ``runs/``.
        uri: MLflow store to read from in place of the folder.
        config: folder with ``papers/`` and ``scales/``, which say what runs of the folder belong to.
        where: settings, for example ``training.lr=0.01`` or ``method.mu!=0``, one or several.
        fields: names or lists of names that a run has to have one of: ``paper="flfa"``, ``seed=[0, 1]``,
            ``plugins="none"``; the columns above are the fields, and ``commit``, ``revisions``, ``folder``.

    Raises:
        FltrainError: if no run is left, or the source cannot be read.
    """
    lines: dict[str, list[Any]] = {name: [] for name in ("run", *_FEW, "metric", "round", "value")}
    for run in find_runs(results, uri, config, where, fields):
        once = {metric: [(run.rounds, value)] for metric, value in run.finals.items()}
        for metric, curve in {**run.curves, **once}.items():
            count = len(curve)
            lines["run"] += [run.run_id] * count
            for name in _FEW:
                lines[name] += [run.fields[name]] * count
            lines["metric"] += [metric] * count
            lines["round"] += [round for round, _ in curve]
            lines["value"] += [value for _, value in curve]
    frame = pd.DataFrame(lines)
    categories = [name for name in ("run", *_FEW, "metric") if name != "seed"]
    return frame.astype({"seed": "int64", "round": "int64", "value": "float64"}).astype(
        dict.fromkeys(categories, "category")
    )


def load_settings(
    results: str | Path = "results",
    *,
    uri: str | None = None,
    config: str | Path = "config",
    where: str | Iterable[str] = (),
    **fields: Wanted,
) -> pd.DataFrame:
    """Load fields, settings and final metrics of runs: a line for each run, by its id.

    Columns are all fields, all settings by dotted name (as text, empty where a run has none) and metrics with
    one value. The arguments are those of ``load_runs``.

    Raises:
        FltrainError: if no run is left, or the source cannot be read.
    """
    found = find_runs(results, uri, config, where, fields)
    lines = {run.run_id: {**run.settings, **run.fields, **run.finals} for run in found}
    frame = pd.DataFrame.from_dict(lines, orient="index").rename_axis("run")
    metrics = {name for run in found for name in run.finals}
    order = [*FIELDS, *(str(name) for name in frame if name not in FIELDS)]
    texts = {name: "" for name in order if name not in metrics}
    return frame[order].fillna(texts).astype({"seed": "int64"})


def find_runs(
    results: str | Path,
    uri: str | None,
    config: str | Path,
    where: str | Iterable[str],
    fields: Mapping[str, Wanted],
) -> list[Described]:
    """Choose runs from a results folder or, with ``uri``, from an MLflow store.

    Raises:
        FltrainError: if no run is left, or the source cannot be read.
    """
    conditions = [where] if isinstance(where, str) else where
    wanted = {name: _texts(value) for name, value in fields.items()}
    choice = Choice(wanted, tuple(map(Condition.parse, conditions)))
    if uri:
        from fltrain.tracking.mlflow_store import stored

        return choice.of(stored(uri, wanted))
    where_runs = Results(Path(results))
    memberships = memberships_of(where_runs, Path(config), list(wanted.get("scale", ())) or None)
    return choice.of(recorded(where_runs, memberships))


def _texts(value: Wanted) -> tuple[str, ...]:
    values = [value] if isinstance(value, str | int) else value
    return tuple(str(one) for one in values)
