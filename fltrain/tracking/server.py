"""MLflow's interface to a results folder, served by this process and set up for our runs.

MLflow keeps the columns and charts of a list, and the open parts of its interface, in the browser. Its page
gets a script that sets them at the first visit; later changes by the user stay. The script also loads whole
lists, opens long descriptions, rounds numbers in lists, shortens names of groups, and shows whole legends.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from colorsys import hls_to_rgb
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fltrain.core.hashing import short_hash
from fltrain.runs.measures import COSTS, CURVES, TARGET_MISSED
from fltrain.tracking.export import ACCURACIES, CELLS, ORDER, TABLES, opened
from fltrain.tracking.store import SQLITE, artifacts_of, import_mlflow

if TYPE_CHECKING:
    from flask import Response

NAME = "attributes.`Run Name`"
COLUMNS = {
    TABLES: {
        **{NAME: 240, "params.`title`": 205, "tags.`claims`": 155, "tags.`result`": 283},
        "tags.`verdicts`": 144,
    },
    CELLS: {
        **{NAME: 280, "tags.`verdict`": 110, "tags.`claims`": 105, "tags.`value`": 106},
        **{"metrics.`n`": 70, "metrics.`published`": 78, "tags.`difference`": 140, "tags.`gain`": 140},
    },
}
"""Columns of the lists of tables and of cells, with their widths in pixels: 1,400 show all of them."""
STATUS = 44
"""Width of MLflow's column *Created*, without its heading: its icon shows the status of a run."""
TAGS = {
    **{"tags.`method`": 80, "tags.`plugins`": 80, "tags.`dataset`": 80, "tags.`skew`": 115},
    "tags.`seed`": 55,
}
"""Tags in lists of runs, with the widths of their columns."""
SETTINGS, WIDTHS = 7, {"metrics": 120, "params": 115}
"""Most columns of tags and parameters in such a list, and the smallest widths: ``0.0245 (average)`` fits."""
OPEN = 20
"""Most runs of a list that shows the runs of its groups at once."""
POINTS = 4
"""Fewest points of a curve, on average over the runs of an experiment, that is worth a chart."""
_PREFERENCES = {
    "mlflow.workflowType_v1": "machine_learning",  # Model training
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,  # it then stays closed
    "mlflow.telemetry.info.alert.dismissed_v1": True,
}
_GROUPS = """SELECT DISTINCT experiment_id, value FROM tags JOIN runs USING (run_uuid)
    WHERE key = 'cell' AND value LIKE '% · %'"""
_SHORT = f"""SELECT experiment_id, key FROM metrics JOIN runs USING (run_uuid)
    WHERE lifecycle_stage = 'active' AND key IN {(*CURVES,)}
    GROUP BY experiment_id, key HAVING COUNT(*) < {POINTS} * COUNT(DISTINCT run_uuid)"""
"""The curves with few points."""
_METRICS = """SELECT experiment_id, key, GROUP_CONCAT(run_uuid)
    FROM latest_metrics JOIN runs USING (run_uuid) WHERE lifecycle_stage = 'active' AND NOT is_nan
    GROUP BY experiment_id, key ORDER BY key DESC"""
"""The runs that have a metric."""
_SETTINGS = """SELECT experiment_id, 'tags.`' || key || '`', COUNT(DISTINCT value), COUNT(value), 0
    FROM tags JOIN runs USING (run_uuid) WHERE lifecycle_stage = 'active' GROUP BY experiment_id, key
    UNION ALL SELECT experiment_id, 'params.`' || key || '`', COUNT(DISTINCT value), COUNT(value),
    MIN(value GLOB '[0-9-]*') FROM params JOIN runs USING (run_uuid)
    WHERE lifecycle_stage = 'active' AND value != 'none'
    AND key NOT IN ('method', 'plugins', 'seed', 'dataset', 'partition') AND key NOT GLOB 'partition.*'
    AND key NOT GLOB 'revisions.*' AND key NOT GLOB 'evaluation.*' GROUP BY experiment_id, key
    ORDER BY 5 DESC, 4 DESC, 3 DESC"""
"""Number of values of each tag and of each parameter that no tag has.

Numbers come first, because MLflow shows nothing else in the row of a group, then settings of most runs."""
_SCRIPT = """<style>
.note-view-outer-container table { margin-bottom: 12px; }
.note-view-outer-container img { max-width: min(100%%, 760px); }
.note-view-outer-container :is(th, td) { padding: 0 16px 2px 0; }
.note-view-outer-container th:first-child { text-align: left; }
.note-view-outer-container td + td:not(:last-child) { white-space: nowrap; }
.ag-header-cell[col-id="runDateAndNestInfo"] > :not(.ag-header-cell-resize) { visibility: hidden; }
/* Tables and cells have no duration. */
body:has([col-id*="result"], [col-id*="value"]) [col-id="duration"],
[data-assistant-ui] { display: none !important; }
.ag-center-cols-container .ag-cell { padding-right: 3px !important; }
.ag-cell :is([id^="cell-tags."], [id^="cell-params."], a > span, span[title]:has(+ [role="status"])) {
  display: -webkit-box; white-space: normal; line-height: 13px; -webkit-line-clamp: 2;
  -webkit-box-orient: vertical; }
/* MLflow shows two lines of a legend. */
div:has(> div > div > svg > path[d$="h24"]) { display: flex; flex-direction: column; }
div:has(> div > div > svg > path[d$="h24"]) > :first-child { flex: 1; min-height: 0; }
div:has(> div > svg > path[d$="h24"]) { flex: none; height: auto !important; max-height: 55%%; }
</style>
<script>
const [start, settings] = %s;
for (const [key, value, version] of settings) {
  if (localStorage.getItem("fltrain " + key) === version) continue;
  localStorage.setItem(key, JSON.stringify(value));
  localStorage.setItem("fltrain " + key, version);
}
if (!location.hash) location.replace(start);
// MLflow loads 100 runs at a time, so the mean of a group could lack some of its runs.
const send = window.fetch;
window.fetch = (address, options) => {
  if (/runs\\/search$/.test(address)) {
    options = {...options, body: options.body.replace('"max_results":100', '"max_results":2000')};
  }
  return send(address, options);
};
// MLflow's lists do not round: means of groups have up to 17 digits.
const round = (text) => (Math.abs(text) < 1 ? Number(text).toPrecision(3) : Number(text).toFixed(2));
const shorten = (text) => String(Number(Number(text).toPrecision(6)));
new MutationObserver(() => {
  // MLflow shows only the first lines of a run's description.
  for (const button of document.querySelectorAll('[aria-label="Expand description"]:not([data-opened])')) {
    button.dataset.opened = true;
    button.click();
  }
  for (const name of document.querySelectorAll(".ag-cell span[title]")) {
    if (name.textContent === "Group: " + name.title) name.firstChild.data = name.title;
  }
  // Titles of charts have the metric already.
  for (const legend of document.querySelectorAll('div:has(> div > svg > path[d$="h24"])')) {
    const names = [...legend.querySelectorAll("span")].map((name) => name.firstChild);
    const ends = new Set(names.flatMap((name) => / \\([a-z_]{5,}\\)$/.exec(name.data) ?? []));
    if (ends.size === 1) for (const name of names) name.data = name.data.replace([...ends][0], "");
  }
  for (const cell of document.querySelectorAll('.ag-cell:is([col-id^="metrics."], [col-id^="params."])')) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    const way = cell.getAttribute("col-id").startsWith("params.") ? shorten : round;
    while (texts.nextNode()) {
      const node = texts.currentNode, rounded = node.data.replace(/-?\\d+\\.\\d+/, way);
      if (rounded !== node.data) node.data = rounded;
    }
  }
}).observe(document, {childList: true, subtree: true, characterData: true});
</script>"""


def main_metrics(metrics: Mapping[str, Set[object]]) -> list[str]:
    """Return up to three metrics: those that give each run a number, then those that most runs have."""
    runs = left = set[object]().union(*metrics.values())
    needed: list[str] = []
    while left:
        needed.append(max(metrics, key=lambda metric: len(left & metrics[metric])))
        left = left - metrics[needed[-1]]
    usual = [metric for metric in metrics if 2 * len(metrics[metric]) > len(runs)]
    return [*dict.fromkeys([*needed, *usual])][:3]


def settings_of(values: Mapping[str, int]) -> dict[str, int]:
    """Return columns with their widths: tags, then parameters, that differ; all tags if nothing differs.

    Args:
        values: number of different values by column; the first parameters are shown.
    """
    differing = [column for column, number in values.items() if number > 1 and column.startswith("params.")]
    columns = [*(tag for tag in TAGS if values.get(tag, 1) > 1), *differing][:SETTINGS]
    return {column: TAGS.get(column) or width_of(column) for column in columns or TAGS}


def width_of(column: str) -> int:
    """Return the width at which a column shows its whole heading."""
    kind, _, name = column.partition(".")
    return max(WIDTHS[kind], 7 * len(name.strip("`")) + 20)


def state_of(
    name: str,
    metrics: Mapping[str, Set[object]],
    settings: Mapping[str, int],
    short: Collection[str] = (),
    groups: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the settings of an experiment's list: order and columns, and groups and charts of runs.

    In a long list, groups are folded. MLflow shows no tags in their rows, so tags are the last columns.

    Args:
        name: of the experiment.
        metrics: the runs that have a metric.
        settings: number of different values of tags and parameters, by column.
        short: curves with few points.
        groups: names of groups of runs.
    """
    folded = len(set[object]().union(*metrics.values())) > OPEN
    measures = metrics.keys() - {*CURVES, *COSTS, TARGET_MISSED}
    numbers = [metric for metric in dict.fromkeys((*ACCURACIES, *metrics)) if metric in measures]
    visible = main_metrics({metric: metrics[metric] for metric in numbers})
    visible += [TARGET_MISSED] * (TARGET_MISSED in metrics)
    widths = {column: width_of(column) for column in (f"metrics.`{metric}`" for metric in visible)}
    chosen = settings_of(settings)
    if folded:
        chosen = dict(sorted(chosen.items(), key=lambda column: column[0].startswith("tags.")))
    columns = COLUMNS.get(name) or {NAME: 300, **widths, **chosen}
    state: dict[str, Any] = {
        **{"orderByKey": ORDER, "orderByAsc": True, "selectedColumns": [*columns]},
        "columnWidths": {**columns, "runDateAndNestInfo": STATUS},
        "columnOrder": [*columns, "runDateAndNestInfo", "duration"],
    }
    if name == TABLES:
        return state
    bars, lines = numbers, [metric for metric in CURVES if metric in metrics and metric not in short]
    if name == CELLS:
        bars = ["gain", "difference"]
    else:
        keys = [{"mode": "tag", "groupByData": "cell"}]
        state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": keys}
        state["groupsExpanded"] = {group_id(group): not folded for group in groups}
    state["compareRunCharts"] = [
        {
            **{"type": "LINE" if metric in lines else "BAR", "range": {}, "isGenerated": True},
            **{"xAxisKey": "step", "yAxisKey": "metric", "runsCountToCompare": 10},
            **{"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True},
            **{"uuid": metric, "metricKey": metric, "displayName": metric},
            "metricSectionId": "Curves" if metric in lines else "Numbers of tables",
            # Otherwise MLflow makes a chart of every metric.
            "deleted": metric not in (*lines, *bars),
            # A diverged run would hide the others.
            "scaleType": "log" if metric.endswith("loss") else "linear",
        }
        for metric in dict.fromkeys([*lines, *bars, *metrics])
    ]
    state["compareRunSections"] = [
        {"uuid": title, "name": title, "display": True, "isReordered": False, "columns": 2, "cardHeight": 420}
        for title, charts in (("Curves", lines), ("Numbers of tables", bars))
        if charts
    ]
    if "test_accuracy" in short:
        state["compareRunSections"].reverse()
        state["isAccordionReordered"] = True  # otherwise, sections have the order of their names
    return state


def experiments(database: Path) -> dict[str, str]:
    """Return the IDs of the experiments in a database by name."""
    query = "SELECT name, CAST(experiment_id AS TEXT) FROM experiments WHERE lifecycle_stage = 'active'"
    return dict(read(database, query))


def read(database: Path, query: str) -> list[Any]:
    """Return the answer to a query. MLflow itself would read whole runs."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def by_experiment(database: Path, query: str) -> dict[str, dict[str, Any]]:
    """Return the answer to a query by experiment, as a dictionary of its second and third column."""
    answers = defaultdict[str, dict[str, Any]](dict)
    for home, key, *values in read(database, query):
        answers[str(home)][key] = values[0] if values else None
    return answers


def group_id(name: str) -> str:
    """Return MLflow's name of a group of runs."""
    return f"tag.cell.{name}"


def colours_of(database: Path) -> dict[str, str]:
    """Return a colour for each group of runs, by MLflow's name of the group.

    MLflow has 20 colours of its own, and chooses one by a hash of the name.
    """
    groups = read(database, _GROUPS)
    groups.sort(key=lambda group: (group[0], group[1].rpartition(" · ")[2], group))
    names = dict.fromkeys(cell for _, cell in groups)
    # The golden angle keeps the hues of neighbours, groups of the same item, apart.
    colours = (hls_to_rgb(0.6 + 0.382 * i, (0.4, 0.55, 0.3)[i % 3], 0.7) for i in range(len(names)))
    return {
        group_id(name): "#" + "".join(f"{round(255 * part):02x}" for part in colour)
        for name, colour in zip(names, colours, strict=True)
    }


def states_of(database: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of the lists of all experiments in a database, by MLflow's key of the browser."""
    queries = (_METRICS, _SETTINGS, _SHORT, _GROUPS)
    metrics, settings, short, groups = (by_experiment(database, query) for query in queries)
    key = 'MLflowLocalStorage-1.1-ExperimentPage-["%s"]-ReactComponentState'
    return {
        key % home: state_of(
            name,
            {metric: {*runs.split(",")} for metric, runs in metrics[home].items()},
            *(settings[home], short[home], groups[home]),
        )
        for name, home in experiments(database).items()
    }


def prepared(page: str, start: str, settings: dict[str, Any]) -> str:
    """Return MLflow's page with the script that sets up its lists, and opens an address by default."""
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
    import_mlflow()
    import uvicorn
    from flask import abort, request, send_from_directory
    from mlflow.server import app, constants

    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = store
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = store
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = "mlflow-artifacts:/"
    os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = str(artifacts_of(database))
    os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"
    page = (Path(app.root_path) / str(app.static_folder) / "index.html").read_text(encoding="utf-8")

    @app.before_request
    def front() -> str | None:
        if request.path != "/":
            return None
        tables = experiments(database).get(TABLES)
        colours = {"experimentRunColors": colours_of(database)}
        start = opened(tables, "") if tables else "#/experiments"
        return prepared(page, start, _PREFERENCES | colours | states_of(database))

    @app.route("/pages/<folder>/<path:file>")
    def pages(folder: str, file: str) -> Response:
        place = database.parent.absolute() / folder
        served = folder == "runs" or (place / "index.html").is_file()  # no datasets
        if not served or folder == "..":
            abort(404)
        return send_from_directory(place, file)

    from mlflow.server.fastapi_app import app as whole

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            os._exit(0)  # nothing is left to write; an open browser would delay the end

    Server(uvicorn.Config(whole, host="127.0.0.1", port=port, log_level="warning")).run()
