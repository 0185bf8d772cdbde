"""Places in MLflow's interface: addresses of lists of runs, and the view with which a list opens.

The interface keeps shared views as tags of experiments, and opens the one whose key an address names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from fltrain.runs.curves import CURVES
from fltrain.tracking.mlflow_store import import_mlflow

VIEW = "mlflow.sharedViewState.fltrain"
"""Tag of an experiment that holds its view."""

_COLUMNS = ("tags.`method`", "tags.`plugins`", "tags.`dataset`", "metrics.`final_accuracy`", "tags.`seed`")
_CELL_COLUMNS = ("tags.`verdict`", *(f"metrics.`{name}`" for name in ("mean", "published", "gain")))
_SECTIONS = ("Curves", "Model metrics")  # MLflow itself makes the second only, sorted by name
_CHARTS = [
    {
        "uuid": name,
        "type": "LINE",
        "metricKey": name,
        "displayName": name,
        "metricSectionId": _SECTIONS[0],
        "isGenerated": True,
        "range": {},
        "xAxisKey": "step",
        "yAxisKey": "metric",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
    for name in CURVES
]


def runs_view() -> str:
    """Return the view of a paper's runs: method and accuracy; charts of curves before those of numbers."""
    sections = [{"uuid": name, "name": name, "display": True, "isReordered": False} for name in _SECTIONS]
    charts = {"compareRunCharts": _CHARTS, "compareRunSections": sections}
    return json.dumps({"searchFilter": "tags.kind = 'run'", "selectedColumns": _COLUMNS, **charts})


def cells_view() -> str:
    """Return the view of the cells of all tables: verdict, mean and gain; the largest gain first."""
    order = {"orderByKey": "metrics.`gain`", "orderByAsc": False}
    return json.dumps({"searchFilter": "", "selectedColumns": _CELL_COLUMNS, **order})


def opened(experiment: str, charts: bool = False) -> str:
    """Return the address of an experiment's runs, or of their charts, with the experiment's view."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{_runs(experiment)}?viewStateShareKey={VIEW.rpartition('.')[2]}{mode}"


def views_in(uri: str) -> dict[str, str]:
    """Return the addresses of the views in an MLflow store, by experiment."""
    experiments = import_mlflow().MlflowClient(uri).search_experiments(order_by=["name ASC"])
    return {one.name: opened(one.experiment_id) for one in experiments if VIEW in one.tags}


def search(experiments: Sequence[str], condition: str) -> str:
    """Return the address of the runs of experiments that meet a condition."""
    found = f"searchFilter={quote(condition)}"
    if len(experiments) == 1:
        return f"{_runs(experiments[0])}?{found}"
    every = quote("[" + ",".join(f'"{experiment}"' for experiment in experiments) + "]")
    return f"#/compare-experiments/s?experiments={every}&{found}"


def _runs(experiment: str) -> str:
    return f"#/experiments/{experiment}/runs"


def equals(tag: str, value: str) -> str:
    """Return the condition that a tag has this value."""
    return f"tags.`{tag}` = '{value}'"
