"""Runs as pandas data frames, for notebooks: ``fltrain.load_runs`` and ``fltrain.load_settings``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from fltrain.core.errors import FltrainError
from fltrain.runs.record import Results
from fltrain.runs.where import parse_where
from fltrain.tracking.run_view import FIELDS, RunView, choose_runs, memberships_of, recorded_runs

_FEW = ("paper", "items", "scale", "dataset", "partition", "model", "method", "plugins", "seed", "status")


def load_runs(
    results: str | Path = "results",
    *,
    where: str | Iterable[str] = (),
    config: str | Path = "config",
) -> pd.DataFrame:
    """Load metrics of runs: a row per run, metric and round.

    Columns: ``run``; ``paper``, ``items``, ``scale``, ``dataset``, ``partition``, ``model``, ``method``,
    ``plugins``, ``status`` (categories), ``seed`` (integer); ``metric``, ``round`` (from 1) and ``value``
    (accuracies from 0 to 1). Metrics with one value belong to the last round.

    Args:
        results: folder that holds ``runs/``.
        where: conditions, for example ``"items=flfa/table1 method=fedavg,fedprox training.lr!=0.1"``; keys
            are the columns above, ``commit``, ``revisions``, ``folder``, and settings by dotted name.
        config: folder with ``papers/`` and ``scales/``, which assign runs of the folder to items.

    Raises:
        FltrainError: if no run is left, or the configuration is not valid.
    """
    rows: list[tuple[Any, ...]] = []
    for run in find_runs(results, where, config):
        names = (run.run_id, *(run.fields[name] for name in _FEW))
        finals = {metric: [(run.rounds, value)] for metric, value in run.finals.items()}
        for metric, curve in {**run.curves, **finals}.items():
            rows += ((*names, metric, round, value) for round, value in curve)
    categories = dict.fromkeys(("run", *(name for name in _FEW if name != "seed"), "metric"), "category")
    frame = pd.DataFrame(rows, columns=["run", *_FEW, "metric", "round", "value"])
    return frame.astype({"seed": "int64", "round": "int64", "value": "float64"} | categories)


def load_settings(
    results: str | Path = "results",
    *,
    where: str | Iterable[str] = (),
    config: str | Path = "config",
) -> pd.DataFrame:
    """Load fields, settings and final metrics of runs: a row per run, indexed by its ID.

    Columns are all fields, all settings by dotted name (as text, empty if a run does not have one) and
    metrics with one value. The arguments are those of ``load_runs``.

    Raises:
        FltrainError: if no run is left, or the configuration is not valid.
    """
    runs = find_runs(results, where, config)
    rows = {run.run_id: {**run.settings, **run.fields, **run.finals} for run in runs}
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")
    metrics = {name for run in runs for name in run.finals}
    order = [*FIELDS, *(str(name) for name in frame if name not in FIELDS)]
    texts = {name: "" for name in order if name not in metrics}
    return frame[order].fillna(texts).astype({"seed": "int64"})


def find_runs(results: str | Path, where: str | Iterable[str], config: str | Path) -> list[RunView]:
    """Return the chosen runs of a results folder.

    Raises:
        FltrainError: if no run is left, or the configuration is not valid.
    """
    conditions = parse_where(where)
    scales = [scale for one in conditions if one.key == "scale" and not one.excluded for scale in one.values]
    folder = Results(Path(results))
    memberships = memberships_of(folder, Path(config), scales or None)
    try:
        return choose_runs(recorded_runs(folder, memberships), conditions)
    except FltrainError:
        if scales:  # a message about the scales has to list the others, too
            every = {**memberships_of(folder, Path(config)), **memberships}
            choose_runs(recorded_runs(folder, every), conditions)
        raise
