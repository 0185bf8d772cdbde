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
from pathlib import Path
from types import FrameType
from typing import Any

from fltrain.core.hashing import short_hash
from fltrain.runs.measures import CURVES, TARGET_MISSED, TARGET_ROUNDS
from fltrain.tracking.export import CELLS, ORDER, TABLES, opened
from fltrain.tracking.store import SQLITE, artifacts_of, import_mlflow

NAME = "attributes.`Run Name`"
COLUMNS = {
    TABLES: {NAME: 330, "params.`title`": 420, "tags.`paper`": 130, "tags.`scale`": 90},
    CELLS: {
        **{NAME: 355, "tags.`verdict`": 142, "metrics.`mean`": 60, "metrics.`published`": 75},
        **{"metrics.`n`": 35, "tags.`difference`": 135, "tags.`gain`": 130},
    },
    "": {  # MLflow hides those without a value in the list
        **{NAME: 400, f"metrics.`{TARGET_ROUNDS}`": 150, f"metrics.`{TARGET_MISSED}`": 100},
        **{"metrics.`final_accuracy`": 105, "tags.`method`": 75, "tags.`plugins`": 65},
        **{"tags.`skew`": 115, "tags.`seed`": 55, "tags.`dataset`": 70},
    },
}
"""Columns of the lists of tables, of cells, and of a paper's runs, with their widths in pixels."""
_PREFERENCES = {
    "mlflow.workflowType_v1": "machine_learning",  # Model training
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,  # it then stays closed
    "mlflow.telemetry.info.alert.dismissed_v1": True,
}
_GROUPS = """SELECT DISTINCT experiment_id, value FROM tags JOIN runs USING (run_uuid)
    WHERE key = 'cell' AND value LIKE '% · %'"""
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
    """Return the settings of an experiment's list: order and columns, and groups and charts of runs."""
    columns = COLUMNS.get(name, COLUMNS[""])
    state: dict[str, Any] = {
        **{"orderByKey": ORDER, "orderByAsc": True, "selectedColumns": [*columns]},
        "columnWidths": {**columns, "runDateAndNestInfo": 130},
        "columnOrder": [*columns, "runDateAndNestInfo", "duration"],
    }
    if name == TABLES:
        return state
    kind, section, metrics = "BAR", "Numbers", ["gain", "difference", "mean"]
    if name != CELLS:
        kind, section, metrics = "LINE", "Curves", [*CURVES]
        keys = [{"mode": "tag", "groupByData": "cell"}]
        state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": keys}
    state["compareRunCharts"] = [
        {
            **{"type": kind, "range": {}, "xAxisKey": "step", "yAxisKey": "metric", "isGenerated": True},
            **{"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True, "runsCountToCompare": 10},
            **{"uuid": metric, "metricKey": metric, "displayName": metric, "metricSectionId": section},
            # A diverged run would hide the others.
            "scaleType": "log" if metric.endswith("loss") else "linear",
        }
        for metric in metrics
    ]
    # MLflow itself makes the second section only, sorted by name.
    state["compareRunSections"] = [
        {"uuid": one, "name": one, "display": True, "isReordered": False}
        for one in (section, "Model metrics")
    ]
    return state


def experiments(database: Path) -> dict[str, str]:
    """Return the IDs of the experiments in a database by name."""
    found = import_mlflow().MlflowClient(f"{SQLITE}{database}").search_experiments()
    return {one.name: one.experiment_id for one in found}


def colours_of(database: Path) -> dict[str, str]:
    """Return a colour for each group of runs, by MLflow's name of the group.

    MLflow has 20 colours of its own, and chooses one by a hash of the name.
    """
    with closing(sqlite3.connect(database)) as connection:  # MLflow itself would read whole runs
        found = connection.execute(_GROUPS).fetchall()
    found.sort(key=lambda group: (group[0], group[1].rpartition(" · ")[2], group))
    names = dict.fromkeys(cell for _, cell in found)
    # The golden angle keeps the hues of neighbours, groups of the same item, apart.
    colours = (hls_to_rgb(0.6 + 0.382 * i, (0.4, 0.55, 0.3)[i % 3], 0.7) for i in range(len(names)))
    return {
        f"tag.cell.{name}": "#" + "".join(f"{round(255 * part):02x}" for part in colour)
        for name, colour in zip(names, colours, strict=True)
    }


def prepared(page: str, ids: dict[str, str], colours: dict[str, str]) -> str:
    """Return MLflow's page with the script that sets up the lists of these experiments."""
    settings: dict[str, Any] = {**_PREFERENCES, "experimentRunColors": colours}
    key = 'MLflowLocalStorage-1.1-ExperimentPage-["%s"]-ReactComponentState'
    settings |= {key % experiment: state_of(name) for name, experiment in ids.items()}
    start = opened(ids[TABLES], "") if TABLES in ids else "#/experiments"
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
