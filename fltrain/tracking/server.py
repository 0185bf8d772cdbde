"""MLflow's interface to a results folder, served by this process and set up for our runs.

MLflow keeps the columns and charts of a list, and the open parts of its interface, in the browser. Its page
gets a script that sets them at the first visit; later changes by the user stay.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from colorsys import hls_to_rgb
from contextlib import closing
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from fltrain.core.hashing import short_hash
from fltrain.runs.measures import CURVES
from fltrain.tracking.export import CELLS, TABLES, opened
from fltrain.tracking.store import SQLITE, artifacts_of, import_mlflow

RUN_COLUMNS = (
    *("metrics.`final_accuracy`", "params.`training.lr`", "tags.`method`", "tags.`plugins`"),
    *("tags.`dataset`", "tags.`skew`", "tags.`seed`"),
)
CELL_COLUMNS = (
    *("metrics.`mean`", "metrics.`gain`", "metrics.`gain_low`", "metrics.`gain_high`"),
    *("tags.`verdict`", "tags.`gain_verdict`"),
)
CELL_CHARTS = ("gain", "mean", "published")
"""Metrics of cells whose charts come first; MLflow would begin with ``base_diverged``."""
TABLE_COLUMNS = ("params.`title`", "tags.`paper`", "tags.`scale`")
_WIDTHS = {
    **{"metrics.`final_accuracy`": 105, "tags.`seed`": 55, "tags.`skew`": 90},
    **{"tags.`dataset`": 70, "tags.`plugins`": 70},
    **{"tags.`gain_verdict`": 110, "tags.`verdict`": 110, "params.`title`": 380},
    "metrics.`gain`": 90,
}
"""Widths of columns in pixels, if their headings or contents need another one than 80."""
_PREFERENCES = {
    "mlflow.workflowType_v1": "machine_learning",  # Model training
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,  # it then stays closed
    "mlflow.telemetry.info.alert.dismissed_v1": True,
}
_GROUPS = """SELECT DISTINCT cell.value FROM tags cell JOIN tags kind USING (run_uuid)
    WHERE cell.key = 'cell' AND kind.key = 'kind' AND kind.value = 'run'"""
_SCRIPT = """<script>
const [start, settings] = %s;
for (const [key, value, version] of settings) {
  if (localStorage.getItem("fltrain " + key) === version) continue;
  localStorage.setItem(key, JSON.stringify(value));
  localStorage.setItem("fltrain " + key, version);
}
if (!location.hash) location.replace(start);
</script>"""


def state_of(name: str) -> dict[str, Any]:
    """Return the settings of an experiment's list: columns, and groups and charts of runs."""
    columns = {TABLES: TABLE_COLUMNS, CELLS: CELL_COLUMNS}.get(name, RUN_COLUMNS)
    widths = {column: _WIDTHS.get(column, 80) for column in columns}
    state: dict[str, Any] = {
        "selectedColumns": columns,
        "columnOrder": ["attributes.`Run Name`", *columns, "runDateAndNestInfo", "duration"],
        "columnWidths": {"attributes.`Run Name`": 430 if name == CELLS else 280, "runDateAndNestInfo": 135}
        | widths,
    }
    if name == TABLES:
        return state
    first = "Means and gains" if name == CELLS else "Curves"
    line = {
        **{"type": "LINE", "range": {}, "xAxisKey": "step", "yAxisKey": "metric"},
        **{"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True},
    }
    kind = {"type": "BAR", "runsCountToCompare": 10} if name == CELLS else line
    charts = [
        {
            **kind,
            "uuid": metric,
            "metricKey": metric,
            "displayName": metric,
            "metricSectionId": first,
            "isGenerated": True,
        }
        for metric in (CELL_CHARTS if name == CELLS else CURVES)
    ]
    # MLflow itself makes the second section only, sorted by name.
    sections = [
        {"uuid": section, "name": section, "display": True, "isReordered": False}
        for section in (first, "Model metrics")
    ]
    state |= {"compareRunCharts": charts, "compareRunSections": sections}
    if name == CELLS:
        return state
    group = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "cell"}]}
    return {**state, "groupBy": group}


def experiments(database: Path) -> dict[str, str]:
    """Return the IDs of the experiments in a database by name, oldest first; tables and cells are last."""
    found = import_mlflow().MlflowClient(f"{SQLITE}{database}").search_experiments()
    named = {one.name: one.experiment_id for one in found if one.name != "Default"}
    return dict(sorted(named.items(), key=lambda pair: (pair[0] in (TABLES, CELLS), int(pair[1]))))


def address(name: str, experiment: str, condition: str = "") -> str:
    """Return the address of an experiment's runs that meet a condition, in the order of its list."""
    order = {CELLS: "metrics.`gain`", TABLES: "tags.`item`"}.get(name, "tags.`cell`")
    return opened(experiment, condition, order, rising=name != CELLS)


def colours_of(database: Path) -> dict[str, str]:
    """Return a colour for each group of runs in a database, by MLflow's name of the group.

    Methods at the same setting differ: MLflow's own colours, by hashes of these names, often do not.
    """
    with closing(sqlite3.connect(database)) as connection:  # MLflow itself would read whole runs
        found = connection.execute(_GROUPS).fetchall()
    # Groups of one item, dataset and skew are neighbours.
    names = sorted((name for (name,) in found), key=lambda name: (name.split(", ")[-3:-1], name))
    # The golden angle keeps the hues of neighbours apart.
    colours = (hls_to_rgb(0.6 + 0.382 * i, (0.4, 0.55, 0.3)[i % 3], 0.7) for i in count())
    return {
        f"tag.cell.{name}": "#" + "".join(f"{round(255 * part):02x}" for part in colour)
        for name, colour in zip(names, colours, strict=False)
    }


def prepared(page: str, ids: dict[str, str], colours: dict[str, str]) -> str:
    """Return MLflow's page with the script that sets up the lists of these experiments."""
    settings: dict[str, Any] = dict(_PREFERENCES)
    for name, experiment in ids.items():
        key = f'MLflowLocalStorage-1.1-ExperimentPage-["{experiment}"]-ReactComponentState'
        settings[key] = state_of(name)
    settings["experimentRunColors"] = colours
    first = TABLES if TABLES in ids else next(iter(ids), "")
    start = address(first, ids[first]) if ids else "#/experiments"
    versioned = [[key, value, short_hash(value)] for key, value in settings.items()]
    data = json.dumps([start, versioned]).replace("<", "\\u003c")
    return page.replace("<head>", f"<head>{_SCRIPT % data}", 1)


def serve(database: Path, port: int) -> None:
    """Serve MLflow on 127.0.0.1 until Ctrl-C.

    Args:
        database: SQLite database of MLflow.
        port: port.
    """
    store = f"{SQLITE}{database}"
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # workers for language models
    warnings.simplefilter("ignore")  # MLflow's own
    import uvicorn
    from flask import request
    from mlflow.server import app, constants

    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = store
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = store
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = "mlflow-artifacts:/"
    os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = str(artifacts_of(database))
    os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"
    page = (Path(app.root_path) / str(app.static_folder) / "index.html").read_text(encoding="utf-8")

    @app.before_request
    def front() -> str | None:
        return prepared(page, experiments(database), colours_of(database)) if request.path == "/" else None

    from mlflow.server.fastapi_app import app as whole

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            os._exit(0)  # nothing is left to write; an open browser would delay the end

    Server(uvicorn.Config(whole, host="127.0.0.1", port=port, log_level="warning")).run()
