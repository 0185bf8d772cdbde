"""Export of records to MLflow: every run once, in any situation; checked on real SQLite files."""

import json
import math
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from filelock import FileLock
from mlflow import MlflowClient

from fltrain.core.errors import FltrainError
from fltrain.experiments.claims import Claim, InRegion, NotJudged
from fltrain.experiments.layout import ItemJob, Measured, Table
from fltrain.reporting.tables.table_cell import CORRECTED, TableCell, to_csv
from fltrain.runs.archive import export_records, import_records
from fltrain.runs.measures import CURVES
from fltrain.runs.record import RECORD_FILES, Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.tracking import store as stores
from fltrain.tracking.export import (
    ACCURACIES,
    CELLS,
    TABLES,
    Export,
    _numbers,
    groups_of,
    measures_of,
    numbers_of,
    our_value,
    place_of,
    result,
    skew,
)
from fltrain.tracking.server import (
    TAGS,
    colours_of,
    experiments,
    main_metrics,
    prepared,
    settings_of,
    state_of,
    states_of,
)
from fltrain.tracking.store import NOTE, TrackedRun, writing

from .helpers import seal, tiny, trained

PUBLISHED = Path(__file__).parents[2] / "published"
EVERYTHING = {"statistics": ["drift", "similarity", "separability"]}
PLAIN = tiny()
MEASURED = tiny(method="fedprox", plugins=["flfa"], seed=7, evaluation=EVERYTHING)
DIVERGING = tiny(training={"epochs": 1, "lr": 1e30})
GAIN = {"item": "table1", "measure": "final_accuracy", "kind": "positive", "over": {"method": "FedAvg"}}
ECGR = SimpleNamespace(
    **{"paper": "ecgr", "title": "ECGR", "citation": "Authors, 2025", "kind": "paper"},
    items=["figure1", "table1", "table2"],
    claims=[
        Claim(where="", claim="A", test=InRegion(**GAIN, at={"dataset": "Digits"})),
        Claim(where="", claim="B", test=InRegion(**GAIN, at={"dataset": "MNIST"})),
        Claim(where="", claim="C", test=InRegion(**GAIN | {"measure": "best_accuracy"})),
        Claim(where="", claim="D", test=NotJudged(kind="not_judged", why="why")),
    ],
)
LAYOUT = {
    **{"rows": "method", "columns": "feedback", "panels": "dataset"},
    "measures": [{"measure": "final_accuracy", "label": "accuracy, %", "gain_over": {"method": "FedAvg"}}],
}
TABLE = SimpleNamespace(
    id="ecgr/table1",
    name="table1",
    rule="table",
    trains=True,
    paper=ECGR,
    scale=SimpleNamespace(
        reduces=lambda paper: paper is ECGR,
        items=["controls/a", "fedavg", "ecgr/table1"],
        conclusions={"ecgr": "ECGR helps.", "fedavg": "Another paper."},
    ),
    axes={"method": ["FedAvg", "FedProx"], "feedback": ["BP"], "dataset": ["Digits"]},
    item=SimpleNamespace(title="Accuracy", caption="The caption.", table=Table.model_validate(LAYOUT)),
    entries=[
        SimpleNamespace(spec=spec, labels={"method": method, "feedback": "BP", "dataset": "Digits"})
        for spec, method in ((PLAIN, "FedAvg"), (MEASURED, "FedProx"))
    ],
    run_ids=[PLAIN.run_id, MEASURED.run_id],
)
TABLE.sheet = ItemJob(id=TABLE.id, reduced=True, axes=TABLE.axes, table=TABLE.item.table, cells=[])
NOT_MADE = SimpleNamespace(**{**vars(TABLE), "id": "ecgr/table2", "name": "table2"})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make exports wait for no other process."""
    for wait in ("LOCK_SECONDS", "DATABASE_SECONDS"):
        monkeypatch.setattr(stores, wait, 0.1)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three runs: plain, with everything measured, and diverged."""
    root = tmp_path_factory.mktemp("results")
    for spec in (PLAIN, MEASURED, DIVERGING):
        trained(spec, root)
    return root


class Exports:
    """A copy of the results, and an MLflow database of their records."""

    def __init__(self, originals: Path, folder: Path) -> None:
        self.folder = folder
        self.results = Results(Path(shutil.copytree(originals, folder / "results")))
        self.path = folder / "mlflow" / "mlflow.db"
        self.uri = f"sqlite:///{self.path}"
        self.copies = count()
        self.memberships: dict[str, Sequence[str]] = {
            self.plain.run_id: ["flfa/table1", "flfa/figure2"],
            self.measured.run_id: ["ecgr/table1"],
        }

    @property
    def records(self) -> list[Record]:
        return list(self.results.records())

    @property
    def plain(self) -> Record:
        return self.results.record(PLAIN.run_id)

    @property
    def measured(self) -> Record:
        return self.results.record(MEASURED.run_id)

    @property
    def diverged(self) -> Record:
        return self.results.record(DIVERGING.run_id)

    def export(self, *runs: Record, scale: str = "demo", uri: str = "", **more: Any) -> dict[str, int]:
        """Export all records or some; return the counts that are not zero."""
        chosen = [record.run_id for record in runs or self.records]
        groups = {
            run: {item: {"cell": f"FedAvg · {item}", "order": item} for item in items}
            for run, items in self.memberships.items()
        }
        done = Export(self.results, scale, groups, chosen, **more).to(uri or self.uri)
        return {kind: number for kind, number in done.items() if number}

    def reader(self) -> MlflowClient:
        """A client on a copy of the database, so that the database itself is not held open."""
        copy = self.folder / f"copy{next(self.copies)}.db"
        return MlflowClient(f"sqlite:///{shutil.copy(self.path, copy)}")

    def search(self, condition: str = "tags.kind = 'run'") -> list[dict[str, Any]]:
        """The MLflow runs that match, as plain data, with the name of their experiment."""
        client = self.reader()
        experiments = {e.experiment_id: e.name for e in client.search_experiments()}
        runs = []
        for run in client.search_runs(list(experiments), condition):
            runs.append(run.to_dictionary() | {"paper": experiments[run.info.experiment_id]})
            metrics = runs[-1]["data"]["metrics"].items()
            runs[-1]["data"]["metrics"] = {key: None if math.isnan(y) else y for key, y in metrics}
        return runs

    def ids(self) -> dict[str, str]:
        """MLflow's IDs by run ID; each run ID occurs once."""
        runs = self.search()
        ids = {run["data"]["tags"]["fltrain.key"]: run["info"]["run_id"] for run in runs}
        assert len(ids) == len(runs)
        return ids

    def contents(self) -> dict[str, Any]:
        """All content of runs in MLflow, except the IDs that MLflow assigns."""
        runs = self.search()
        for run in runs:
            for key in ("run_id", "run_uuid", "artifact_uri", "experiment_id"):
                run["info"].pop(key, None)
        return {run["data"]["tags"]["fltrain.key"]: run for run in runs}

    def edit_summary(self, record: Record, **changes: Any) -> None:
        path = record.folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        seal(record.folder)

    def edit_spec(self, record: Record, **changes: Any) -> None:
        (record.folder / "spec.json").write_text(json.dumps({**record.spec, **changes}))
        seal(record.folder)

    def tags(self, record: Record) -> dict[str, str]:
        tags: dict[str, str] = self.contents()[record.run_id]["data"]["tags"]
        return tags

    def files(self, run: dict[str, Any]) -> dict[str, bytes]:
        """The artifacts of a run by path, in the place where an MLflow server reads them."""
        place = run["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
        folder = self.path.parent / "mlflow-artifacts" / place
        return {
            str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()
        }


def nothing(folder: Path) -> Export:
    return Export(Results(folder), "demo", {}, [])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs; tests must not change it. Making one takes seconds."""
    path = tmp_path_factory.mktemp("tables") / "mlflow.db"
    assert not any(nothing(path.parent).to(f"sqlite:///{path}").values())
    return path


@pytest.fixture(scope="module")
def exported(originals: Path, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The exported results; tests must not change them."""
    store = Exports(originals, tmp_path_factory.mktemp("exported"))
    store.path.parent.mkdir()
    shutil.copy(tables, store.path)
    assert store.export() == {"created": 3}
    return store


@pytest.fixture
def store(exported: Exports, tmp_path: Path) -> Exports:
    """A copy of the exported results that a test may change."""
    copy = Exports(exported.results.root, tmp_path)
    shutil.copytree(exported.path.parent, copy.path.parent)
    return copy


# ------------------------------------------------------------------------------------------- content of runs
def test_every_run_is_exported_to_the_experiment_of_its_paper_and_scale(exported: Exports) -> None:
    assert {run["data"]["tags"]["fltrain.key"]: run["paper"] for run in exported.search()} == {
        exported.plain.run_id: "flfa (demo)",
        exported.measured.run_id: "ecgr (demo)",
        exported.diverged.run_id: "unassigned",
    }


CONDITIONS = {
    "tags.method = 'fedprox' and tags.plugins = 'flfa'": {"measured"},
    "tags.plugins = 'none'": {"plain", "diverged"},
    "tags.partition = 'dirichlet' and tags.seed = '7'": {"measured"},
    "tags.status = 'diverged' and attributes.status = 'FAILED'": {"diverged"},
    "params.`revisions.engine` = '1' and tags.revisions LIKE 'engine 1,%'": {"plain", "measured", "diverged"},
    "tags.items LIKE '%flfa/figure2,%' and tags.paper LIKE '%flfa%'": {"plain"},
    "tags.items LIKE '%flfa/figure,%'": set(),
    "params.`plugins.flfa.n_fa` = '1' and params.`method.mu` = '0.01'": {"measured"},
    "params.`plugins` = 'flfa' and params.`local_test` = 'none'": {"measured"},
    "params.`plugins` = 'none'": {"plain", "diverged"},
    "metrics.final_accuracy > 1 and attributes.status = 'FINISHED'": {"plain", "measured"},
    "tags.skew = 'alpha 0.3' and tags.cell = 'FedAvg · ecgr/table1'": {"measured"},
    "tags.cell LIKE 'fedavg · digits, alpha 0.3 (%'": {"diverged"},
}


def test_runs_can_be_searched(exported: Exports) -> None:
    for condition, names in CONDITIONS.items():
        runs = {run["data"]["tags"]["fltrain.key"] for run in exported.search(condition)}
        assert runs == {getattr(exported, name).run_id for name in names}, condition


def test_metrics_equal_the_rows_of_the_record(exported: Exports) -> None:
    record, client = exported.measured, exported.reader()
    ours = exported.ids()[record.run_id]
    metrics = client.get_run(ours).data.metrics
    assert len(metrics) <= 12
    for key, (kind, name) in {key: name.split(".") for key, name in CURVES.items()}.items():
        curve = [(metric.step, metric.value) for metric in client.get_metric_history(ours, key)]
        factor = 100 if key == "test_accuracy" else 1
        assert curve == [
            (row["round"], pytest.approx(factor * row[name], rel=1e-3)) for row in record.rows(kind)
        ]
        assert len(curve) == 3
    accuracy, costs = record.summary["accuracy"], record.costs
    assert metrics["final_accuracy"] == pytest.approx(100 * accuracy["final"], abs=1e-4)
    traffic, memory = sum(record.summary["bytes"].values()), costs["peak_memory_bytes"]
    expected = {"traffic": traffic / 1e6, "peak_memory": memory / 1e6, "seconds": costs["seconds"]["total"]}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert all(len(str(metrics[name]).removesuffix(".0")) < 8 for name in expected), "MLflow does not round"
    assert all(expected.values())
    (point,) = client.get_metric_history(ours, "final_accuracy")
    assert point.step == 0, "MLflow draws bars"


def test_a_run_has_accuracies_and_the_measures_of_its_tables(store: Exports) -> None:
    """So that a reader finds the number of a table, and can compare all runs."""
    declared = [Measured(measure="best_accuracy"), Measured(measure="traffic")]
    declared += [Measured(measure="rounds_to_target", printed_target=99.0)]
    declared += [Measured(measure="seconds_to_target", target_of={"method": "fedavg"})]
    table, figure = (
        SimpleNamespace(item=SimpleNamespace(table=content), run_ids=[run])
        for content, run in ((SimpleNamespace(measures=declared), MEASURED.run_id), (None, PLAIN.run_id))
    )
    measures = measures_of(SimpleNamespace(items=[figure, table]))  # type: ignore[arg-type]
    assert measures == {MEASURED.run_id: {"best_accuracy": None, "traffic": None, "rounds_to_target": 0.99}}
    store.export(measures=measures)
    contents = store.contents()
    for record in (store.plain, store.measured):
        metrics, accuracy = contents[record.run_id]["data"]["metrics"], record.summary["accuracy"]
        values = {f"{name}_accuracy": 100 * accuracy[name] for name in ("final", "last", "best")}
        assert {name: metrics[name] for name in values} == pytest.approx(values, abs=1e-4)
        assert ("target_missed" in metrics) == (record.run_id in measures)


def test_a_run_that_ends_at_a_target_has_the_rounds_to_it(store: Exports) -> None:
    """Its final accuracy would be the target, whatever the method."""
    first, second, *_ = (row["accuracy"] for row in store.plain.rows("evaluation"))
    target = 0.25 * first + 0.75 * second
    reached, missed = (
        trained(tiny(evaluation={"until": until}), store.results.root) for until in (target, 0.999)
    )
    rounds = "interpolated_rounds_to_target"
    measures = {reached.run_id: {rounds: target}, missed.run_id: {rounds: 0.999}}
    store.export(reached, missed, measures=measures)
    runs = [store.search(f"attributes.run_name = '{run.run_id}'")[0] for run in (reached, missed)]
    names = ("rounds_to_target", "target_missed", "final_accuracy")
    assert [[run["data"]["metrics"].get(name) for name in names] for run in runs] == [
        [1.75, 0, None],
        [None, 1, None],
    ]


LARGE_GAIN = {"gain": 80.5, "gain_low": 79.7, "gain_high": 81.3}


def test_a_cell_whose_runs_all_diverged_is_no_measurement() -> None:
    """Chance accuracy with a deviation of zero would look like one."""
    lost = TableCell(seeds=2, n=2, diverged=2, mean=10.0, std=0.0, published=50.0)
    assert _numbers(lost) == {"n": 2, "diverged": 2, "published": 50.0}
    assert _numbers(lost.replace(diverged=1))["mean"] == 10.0


@pytest.mark.parametrize(
    ("runs", "numbers"),
    [((0, 3), {"mean": 90.5}), ((3, 0), {}), ((0, 1), {"mean": 90.5, **LARGE_GAIN})],
)
def test_a_lost_gain_is_no_metric(runs: tuple[int, int], numbers: dict[str, float]) -> None:
    """If all runs of a side diverged, the counts say so."""
    gains = {"gains": (80.0, 81.0, 80.5), **LARGE_GAIN, "published_gain": 2.0}
    lost, base_lost = runs
    cell = TableCell(seeds=3, n=3, mean=90.5, diverged=lost, base_diverged=base_lost, **gains)
    expected = {**numbers, "n": 3, "diverged": lost, "base_diverged": base_lost, "published_gain": 2.0}
    assert _numbers(cell) == expected


def test_a_run_names_its_dataset(exported: Exports) -> None:
    client = exported.reader()
    (data,) = client.get_run(exported.ids()[exported.plain.run_id]).inputs.dataset_inputs
    assert data.dataset.name == "digits"
    assert exported.plain.summary["digests"]["data"].startswith(data.dataset.digest)
    assert json.loads(data.dataset.source) == {"uri": "data/digits.safetensors"}


def test_a_diverged_run_has_finite_metrics_and_no_accuracy(exported: Exports) -> None:
    """NaN, so that MLflow shows a dash as the mean of its group, not the mean of the other seeds."""
    (run,) = exported.search("tags.status = 'diverged'")
    assert run["data"]["metrics"]["final_accuracy"] is None
    assert "**Diverged**" in run["data"]["tags"]["mlflow.note.content"]
    with closing(sqlite3.connect(exported.path)) as database:
        values = database.execute("SELECT value, CASE WHEN is_nan THEN key END FROM metrics").fetchall()
    assert values and all(abs(value) < 1e300 for value, _ in values)
    assert {lost for _, lost in values} == {None, *ACCURACIES}


def test_the_duration_of_a_run_is_the_time_of_its_training(exported: Exports) -> None:
    """It ends with its record; an export takes less."""
    (run,) = exported.search(f"attributes.run_name = '{exported.plain.run_id}'")
    start, end = run["info"]["start_time"], run["info"]["end_time"]
    assert end == int(1000 * exported.plain.written)
    assert (end - start) / 1000 == pytest.approx(exported.plain.costs["seconds"]["total"], abs=0.002)


def test_the_database_can_be_moved_with_the_results(exported: Exports) -> None:
    with closing(sqlite3.connect(exported.path)) as database:
        dump = "\n".join(database.iterdump())
    assert str(exported.folder) not in dump
    for run in exported.search():
        assert (exported.results.root / run["data"]["tags"]["folder"] / "summary.json").exists()


# ------------------------------------------------------------------------------------ repeated exports
def test_exporting_again_writes_nothing(store: Exports) -> None:
    """Also after a copy of the results to another machine."""
    store.export()
    for record in store.records:
        os.utime(record.folder / "summary.json", (1e9, 1e9))
    store.memberships[store.diverged.run_id] = ["fed2/table3"]  # now all runs belong to items
    assert store.export() == {"unchanged": 2, "created": 1}
    before = store.path.read_bytes()
    assert store.export() == {"unchanged": 3}
    assert store.path.read_bytes() == before


def test_a_changed_record_replaces_its_run_only(store: Exports) -> None:
    before = store.ids()
    changed = store.measured
    store.edit_summary(changed, accuracy=changed.summary["accuracy"] | {"final": 0.875})
    assert store.export() == {"unchanged": 2, "replaced": 1}
    after = store.ids()
    assert {run_id for run_id in before if before[run_id] != after[run_id]} == {changed.run_id}
    (run,) = store.search("metrics.final_accuracy = 87.5")
    assert run["info"]["run_id"] == after[changed.run_id]
    assert sum(1 for _ in (store.path.parent / "mlflow-artifacts").glob("*/*/artifacts")) == 3


def test_a_run_of_two_scales_is_in_an_experiment_of_each(store: Exports) -> None:
    """Exports of the scales in turn change nothing; a run outside of one of them is not exported again."""
    run, of_demo = store.measured, store.memberships
    store.memberships = {run.run_id: ["common/table1"]}
    assert store.export(scale="small") == {"created": 1, "unchanged": 2}
    homes = {
        copy["paper"]: copy["data"]["tags"] for copy in store.search(f"attributes.run_name = '{run.run_id}'")
    }
    assert homes.keys() == {"ecgr (demo)", "common (small)"}
    tags = homes["common (small)"]
    assert [tags[key] for key in ("scale", "paper", "items")] == ["small", "common", "common/table1,"]
    store.memberships = of_demo
    assert store.export() == {"unchanged": 3}


def test_a_run_of_two_papers_is_in_the_experiment_of_each_with_its_group_there(store: Exports) -> None:
    """A list or chart of a paper lacks no baseline; an export with other papers leaves nothing behind."""
    items = {"flfa (demo)": "flfa/table1", "common (demo)": "common/curves"}
    run, of_one = store.plain.run_id, store.memberships
    for groups, counts in (
        ([*items.values()], {"created": 1, "replaced": 1, "unchanged": 1}),
        (["common/curves"], {"replaced": 1, "unchanged": 1}),
    ):
        store.memberships = of_one | {run: groups}
        assert store.export(store.plain, store.measured) == counts
        assert store.export() == {"unchanged": len(groups) + 2}
        homes = {x["paper"]: x["data"]["tags"] for x in store.search(f"attributes.run_name = '{run}'")}
        assert {home: tags["cell"] for home, tags in homes.items()} == {
            home: f"FedAvg · {item}" for home, item in items.items() if item in groups
        }
        assert {tags["items"] for tags in homes.values()} == {" ".join(f"{item}," for item in groups)}


def test_a_run_that_has_left_all_tables_of_a_scale_is_unassigned(store: Exports) -> None:
    """Also if the next export is of other runs: means of groups and lists of tables have no old run."""
    run, others = store.plain, store.measured
    del store.memberships[run.run_id]
    assert store.export(others) == {"created": 1, "unchanged": 1}
    assert store.export(others) == {"unchanged": 1}
    tags = store.tags(run)
    assert store.contents()[run.run_id]["paper"] == "unassigned"
    note = store.reader().get_experiment_by_name("unassigned").tags[NOTE]
    assert note == "Runs that no exported table or figure uses."
    assert (tags["items"], tags["scale"]) == ("none", "none") and tags["cell"].startswith("fedavg · digits")
    store.memberships[run.run_id] = ["flfa/table1"]
    assert store.export() == {"created": 1, "unchanged": 2}
    assert store.contents()[run.run_id]["paper"] == "flfa (demo)"


def test_a_run_without_a_record_stays_in_its_experiment(store: Exports) -> None:
    """On a tracking server, it may be of somebody else."""
    del store.memberships[store.plain.run_id]
    store.plain.folder.rename(store.folder / "elsewhere")
    assert store.export(store.measured) == {"unchanged": 1}
    assert store.contents()[PLAIN.run_id]["paper"] == "flfa (demo)"


def test_a_stale_record_belongs_to_no_item(store: Exports) -> None:
    old = store.plain
    older = Record(old.folder.with_name(f"{old.run_id[:-10]}0123456789"))
    shutil.copytree(old.folder, older.folder)
    store.edit_spec(older, revisions={**old.spec["revisions"], "methods": [0]})
    assert store.export(old, older) == {"created": 1, "unchanged": 1}
    assert store.contents()[older.run_id]["data"]["tags"]["paper"] == "unassigned"


@pytest.mark.parametrize(
    ("file", "text"), [("metrics.jsonl", "{half a li"), ("metrics.jsonl", ""), ("costs.json", "{}")]
)
def test_a_record_that_cannot_be_read_is_left_out(
    store: Exports, file: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All others are exported, and the earlier export of it stays."""
    before, run = store.contents(), store.plain.run_id
    (store.plain.folder / file).write_text(text)
    for _ in range(2):
        assert store.export() == {"unchanged": 2, "left out": 1}
        assert run in caplog.text
    assert store.contents() == before


def double(client: MlflowClient, store: Exports) -> None:
    experiment = client.get_experiment_by_name("unassigned").experiment_id
    client.create_run(experiment, tags={"fltrain.key": store.plain.run_id, "kind": "run"})


STORE_DAMAGE: dict[str, Callable[[MlflowClient, Exports], object]] = {
    "cut short": lambda client, store: client.update_run(store.ids()[store.plain.run_id], status="RUNNING"),
    "run deleted": lambda client, store: client.delete_run(store.ids()[store.plain.run_id]),
    "run doubled": double,
    "database deleted": lambda client, store: store.path.unlink(),
}


@pytest.mark.parametrize("damage", STORE_DAMAGE)
def test_a_changed_store_is_repaired(store: Exports, damage: str) -> None:
    expected = store.contents()
    store.export()  # so that this process has opened it, too
    STORE_DAMAGE[damage](MlflowClient(store.uri), store)
    store.export()
    assert store.contents() == expected and len(store.ids()) == 3


def test_other_runs_in_the_store_are_not_changed(store: Exports) -> None:
    client = MlflowClient(store.uri)
    mine = client.create_run(client.get_experiment_by_name("flfa (demo)").experiment_id).info.run_id
    assert store.export(store.plain) == {"unchanged": 1}, "a part of the records"
    assert len(store.ids()) == 3 and client.get_run(mine).info.lifecycle_stage == "active"


# --------------------------------------------------------------------------------- tables, figures and cells
def write_table(store: Exports, *cells: TableCell) -> None:
    """Write the files of ``TABLE``: a page, and a tidy CSV file with these cells."""
    folder = store.results.root / "demo" / "ecgr"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table1.html").write_text(f"<p>{len(cells)}</p>")
    (folder / "table1.csv").write_text(to_csv(cells))


def table_cells(store: Exports) -> list[TableCell]:
    base = {"column": "BP", "panel": "Digits", "measure": "final_accuracy", "label": "accuracy, %"}
    ours = {"mean": 61.5, "std": 0.25, "n": 3, "gain": 1.5, "gain_low": -0.5, "gain_high": 3.5}
    ours |= {"published": 64.0, "difference": -2.5, "difference_low": -4.0, "difference_high": -1.0}
    verdicts = {"verdict": "reproduced", "gain_verdict": "opposite"}
    return [
        TableCell(**base, row="FedAvg", mean=60.0, n=1, runs=(store.plain.run_id,)),
        TableCell(**base, **ours, **verdicts, row="FedProx", runs=(store.measured.run_id,)),
    ]


def test_the_run_of_a_figure_shows_its_picture(store: Exports) -> None:
    item = SimpleNamespace(title="Curves", caption="The caption.", table=None)
    figure = SimpleNamespace(
        **{**vars(TABLE), "id": "ecgr/figure1", "name": "figure1", "rule": "figure", "item": item}
    )
    (folder := store.results.root / "demo" / "ecgr").mkdir(parents=True)
    (folder / "figure1.png").write_bytes(b"picture")
    store.export(items=[figure])
    (run,) = store.search("tags.kind = 'item' and tags.item = 'ecgr/figure1'")
    _, picture, caption = run["data"]["tags"]["mlflow.note.content"].split("\n\n")
    assert (picture, caption) == ("![Curves](pages/demo/ecgr/figure1.png)", "The caption.")


def test_a_table_is_a_run_with_its_files_and_links_to_its_runs(store: Exports) -> None:
    write_table(store, *table_cells(store))
    assert store.export(items=[TABLE, NOT_MADE])["tables and figures written"] == 1
    (run,) = store.search("tags.kind = 'item' and tags.item = 'ecgr/table1' and tags.scale = 'demo'")
    assert (run["info"]["run_name"], run["paper"]) == ("ecgr/table1 (demo)", "tables")
    tags = run["data"]["tags"]
    assert tags["verdicts"] == "1 reproduced; 1 opposite"
    assert tags["result"] == "FedProx, accuracy, %, gain over FedAvg: +1.50 [-0.50, +3.50]"
    assert "claims" not in tags
    assert store.files(run).keys() == {"table1.html", "table1.csv"}
    note = tags["mlflow.note.content"]
    assert note.startswith("**Accuracy**: [Page](pages/demo/ecgr/table1.html), [cells](#/experiments/")
    columns = "cell | n | accuracy, % ± SD | gain [90 % interval] | published (full scale)"
    columns += " | difference [90 % interval] | verdict | verdict on the gain"
    numbers = "3 | 61.50 ± 0.25 | +1.50 [-0.50, +3.50] | 64.00 | -2.50 [-4.00, -1.00]"
    assert note.split("\n\n")[1:] == [
        f"| {columns} |\n| --- {'| ---: ' * 7}|\n"
        "| FedAvg | 1 | 60.00 |  |  |  |  |  |\n"
        f"| FedProx | {numbers} | reproduced | opposite |",
        "The caption.",
    ]
    cells = f"tags.item = '{TABLE.id}' and tags.scale = 'demo'"
    assert quote(cells) in note and len(store.search(f"{cells} and tags.kind = 'cell'")) == 2
    condition = "searchFilter=tags.items%20LIKE%20%27%25ecgr/table1%2C%25%27"
    links = ("[runs](", "[charts](", condition, "compareRunsMode=CHART")
    assert [note.count(part) for part in links] == [1, 1, 2, 1]
    table = "run_name%20%3D%20%27ecgr/table1%20%28demo%29%27"
    assert table in store.tags(store.measured)["mlflow.note.content"]
    experiment = store.reader().get_experiment_by_name("ecgr (demo)")
    description = experiment.tags["mlflow.note.content"]
    links = "[Page](pages/demo/ecgr/index.html), [tables](#/experiments/"
    assert description.startswith(f"ECGR. One row per training run, grouped by table cell. {links}")
    assert description.endswith("\n\nECGR helps.\n\nAuthors, 2025")


def test_the_list_of_experiments_has_descriptions_without_markup(store: Exports) -> None:
    """It shows the beginning of their source; 40 characters are more than its width."""
    write_table(store, *table_cells(store))
    store.export(items=[TABLE])
    notes = {home.name: home.tags.get(NOTE, "") for home in store.reader().search_experiments()}
    del notes["flfa (demo)"]  # without an exported table
    assert notes.pop("unassigned") == "Runs that no exported table or figure uses."
    assert notes.keys() == {"ecgr (demo)", TABLES, CELLS}, "MLflow's empty experiment is left out"
    assert "The column result has the number of a claim, or of one cell" in notes[TABLES]
    for note in notes.values():
        assert re.match(r"(ECGR[.] )?One row per [\w ,]{22}", note)


def test_a_long_table_has_only_its_first_cells_in_the_description(store: Exports) -> None:
    """MLflow truncates longer descriptions."""
    _, cell = table_cells(store)
    cells = [({"cell": f"{row}, accuracy, %"}, cell.replace(dropped=row == 70)) for row in range(80)]
    *lines, _, left_out, _, dropped = numbers_of(cells).split("\n")
    assert lines[-1].startswith("| 39 | 3 | 61.50 ± 0.25 |") and len(lines) == 2 + 40
    assert left_out == "The first 40 of 80 cells." and dropped.startswith("† Significant alone")
    assert len(numbers_of(cells)) < 6000


def test_values_of_several_measures_have_a_general_heading(store: Exports) -> None:
    _, cell = table_cells(store)
    cells = [
        ({"cell": "FedProx, accuracy, %"}, cell),
        ({"cell": "FedProx, time"}, cell.replace(label="time")),
    ]
    heading, _, *lines = numbers_of(cells).split("\n")
    assert heading.startswith("| cell | n | value ± SD |")
    assert [line.split(" | ")[0] for line in lines] == ["| FedProx, accuracy, %", "| FedProx, time"]


def test_lists_of_tables_and_cells_have_the_same_verdicts(store: Exports) -> None:
    _, cell = table_cells(store)
    write_table(store, cell.replace(verdict="not reproduced", falsified=True, gain_verdict=None))
    store.export(items=[TABLE])
    table, cell_tags = (store.search(f"tags.kind = '{kind}'")[0]["data"]["tags"] for kind in ("item", "cell"))
    assert table["verdicts"] == f"1 {cell_tags['verdict']}" == "1 not reproduced (as intended)"
    late = {"verdict": None, "gain_verdict": "inconclusive", "reason": CORRECTED, "exploratory": True}
    write_table(store, cell.replace(**late))
    store.export(items=[TABLE])
    table, cell_tags = (store.search(f"tags.kind = '{kind}'")[0]["data"]["tags"] for kind in ("item", "cell"))
    assert cell_tags["verdict"] == "inconclusive (not significant after correction), exploratory"
    assert table["verdicts"] == f"1 {cell_tags['verdict']}"
    write_table(store, cell.replace(verdict=None, gain_verdict=None))
    store.export(items=[TABLE])
    assert store.search("tags.kind = 'item'")[0]["data"]["tags"]["verdicts"] == "none at reduced scale"


def test_claims_stand_beside_their_table_and_cells(store: Exports) -> None:
    """Decided ones come first. A cell has the claims of which it is a place, its base does not."""
    write_table(store, *table_cells(store))
    judged = [("B", "table1", "inconclusive", True), ("A", "table2, table1", "supported", False)]
    judged += [("C", "table1", "supported", False), ("A", "table2", "contradicted", False)]
    claims = [
        {
            **{"where": "", "claim": claim, "item": item, "verdict": verdict, "exploratory": late},
            **{"dropped": False, "number": f"x: +{number} points" if number else ""},
            **{"needed": "above 0" if number else "", "reason": "1 run diverged" if number == 1 else ""},
        }
        for number, (claim, item, verdict, late) in enumerate(judged)
    ]
    folder = store.results.root / "demo" / "ecgr"
    (folder / "summary.json").write_text(json.dumps({"claims": claims}))
    store.export(items=[TABLE])
    cells = {run["data"]["tags"]["cell"]: run["data"]["tags"] for run in store.search("tags.kind = 'cell'")}
    about = {cell: tags.get("claims") for cell, tags in cells.items()}
    assert about == {"FedAvg, accuracy, %": None, "FedProx, accuracy, %": "1 supported"}
    assert cells["FedProx, accuracy, %"][NOTE].endswith(
        "\n| A | supported | x: +1 points; needed: above 0; 1 run diverged |"
    )
    (folder / "table1.csv").unlink()
    for verdicts in ("1 reproduced; 1 opposite", None):
        (run,) = store.search("tags.kind = 'item'")
        tags = run["data"]["tags"]
        assert tags["claims"] == "2 supported; 1 inconclusive, exploratory"
        assert (tags.get("verdicts"), tags["result"]) == (verdicts, "x: +1 points")
        rows = (
            "| claim | verdict | our runs |\n| --- | --- | --- |\n"
            "| A | supported | x: +1 points; needed: above 0; 1 run diverged |\n"
            "| C | supported | x: +2 points; needed: above 0 |\n| B | inconclusive, exploratory |  |"
        )
        assert rows in tags[NOTE]
        counts = {"claims_supported": 2, "claims_inconclusive": 1, "runs": 2, "cells": 2 if verdicts else 0}
        counts |= {"verdicts_reproduced": 1, "verdicts_opposite": 1} if verdicts else {}
        assert run["data"]["metrics"] == counts
        assert "\n\nECGR helps.\n\n" in tags[NOTE]
        store.export(items=[TABLE])


def test_the_result_of_a_table_without_claims_is_the_number_of_a_cell() -> None:
    """A gain, else a difference, else a value; of a decided cell, if there is one."""
    cell, tags = TableCell(mean=60.0), {"cell": "FedProx, accuracy, %", "value": "60.00"}
    difference = tags | {"difference": "-3.00 [-3.60, -2.41]"}
    gain = difference | {"gain": "+1.50 [-0.50, +3.50]", "base": "FedAvg"}
    name = "FedProx, accuracy, %"
    for expected, texts in {
        f"{name}: 60.00": tags,
        f"{name}, minus published: -3.00 [-3.60, -2.41]": difference,
        f"{name}, gain over FedAvg: +1.50 [-0.50, +3.50]": gain,
    }.items():
        assert result([(texts, cell)], []) == expected
    decided = cell.replace(verdict="reproduced")
    assert result([(gain, cell.replace(gain=1.5)), (tags, decided)], []) == f"{name}: 60.00"
    assert result([(tags, cell.replace(mean=None))], []) == ""
    claims = [{"number": ""}, {"number": "x: +1 points; y: +2 points"}]
    assert result([(tags, cell)], claims) == "x: +1 points"
    each = {"number": "x, average of 2 cases: +1 points; weakest of 2 cases (y): -2 points; z: 3"}
    assert result([(tags, cell)], [each]) == "x, weakest of 2 cases (y): -2 points"


def test_a_seed_far_from_the_others_is_shown(store: Exports) -> None:
    """A large spread alone does not tell that one seed of three stayed at chance."""
    _, cell = table_cells(store)
    cell = cell.replace(mean=67.93, std=50.08, values=(96.56, 97.13, 10.1))
    texts = [our_value(other) for other in (cell, cell.replace(std=30.0), cell.replace(diverged=3, seeds=3))]
    assert texts == ["67.93 ± 50.08 (10.10 to 97.13)", "67.93 ± 30.00", "3 of 3 diverged"]
    assert f"| {texts[0]} |" in numbers_of([({"cell": "beta 0"}, cell)])
    write_table(store, cell)
    store.export(items=[TABLE])
    (run,) = store.search("tags.kind = 'cell'")
    assert run["data"]["tags"]["value"] == texts[0]


def grid(name: str, *runs: tuple[RunSpec, dict[str, str]], **axes: Sequence[str]) -> SimpleNamespace:
    entries = [SimpleNamespace(spec=spec, labels=labels) for spec, labels in runs]
    return SimpleNamespace(id=f"ecgr/{name}", name=name, trains=True, axes=axes, entries=entries)


def test_a_run_belongs_to_the_item_with_the_most_seeds_of_its_cell() -> None:
    """The search of rates and the pilot share a seed: all seeds of the pilot stay one group."""
    runs = [(tiny(seed=seed), {"rate": "0.1"}) for seed in (100, 101)]
    items = [grid("rates", runs[0], rate=["0.1"]), grid("pilot", *runs, rate=["0.1"])]
    plan: Any = SimpleNamespace(items=items)
    assert [list(groups) for groups in groups_of(plan).values()] == [
        ["ecgr/pilot", "ecgr/rates"],
        ["ecgr/pilot"],
    ]


def test_a_group_is_named_by_the_labels_that_vary_in_its_item() -> None:
    """Runs that differ only in their learning rate look different; groups have the order of the item.

    MLflow cuts names: labels of the longest axis come first, and the item last.
    """
    rates, skew = ("0.1", "0.01"), {"skew": "Dirichlet"}
    runs = [(tiny(training={"lr": float(rate)}), skew | {"rate": rate}) for rate in rates]
    plan: Any = SimpleNamespace(items=[grid("table1", *runs, skew=["Dirichlet"], rate=rates)])
    assert [groups["ecgr/table1"] for groups in groups_of(plan).values()] == [
        {"cell": "rate 0.1 · table1", "order": "999 table1 0000 000000"},
        {"cell": "rate 0.01 · table1", "order": "999 table1 0001 000000"},
    ]
    axes = {
        "skew": ["IID", "Dirichlet"],
        "method": ["FedAvg", "FedDyn", "MOON"],
        "plugin": ["base", "+ ECGR"],
    }
    labels = {"skew": "IID", "method": "MOON", "plugin": "+ ECGR"}
    for grid_axes, name in ((axes, "MOON, IID, + ECGR"), (axes | {"skew": ["IID"]}, "MOON + ECGR")):
        plan.items = [grid("table1", (PLAIN, labels), **grid_axes)]
        assert groups_of(plan)[PLAIN.run_id]["ecgr/table1"]["cell"] == f"{name} · table1"
    labels, alone = {"method": "MOON", "plugin": "base"}, {"method": ["MOON"], "plugin": axes["plugin"]}
    plan.items = [grid("table1", (PLAIN, labels), **alone)]
    assert groups_of(plan)[PLAIN.run_id]["ecgr/table1"]["cell"] == "MOON · table1", "not: base"


def test_runs_of_a_group_are_in_the_order_of_their_seeds() -> None:
    runs = [(tiny(seed=seed), {"rate": "0.1"}) for seed in (100, 5, 40)]
    plan: Any = SimpleNamespace(items=[grid("table1", *runs, rate=["0.1"])])
    orders = [groups["ecgr/table1"]["order"] for groups in groups_of(plan).values()]
    assert sorted(orders) == [orders[1], orders[2], orders[0]]


def test_groups_of_runs_have_colours_of_their_own(exported: Exports) -> None:
    colours = colours_of(exported.path)
    assert colours.keys() == {f"tag.cell.{run['data']['tags']['cell']}" for run in exported.search()}
    assert len(set(colours.values())) == 3 and all(len(colour) == 7 for colour in colours.values())


def test_an_imported_run_has_the_date_of_the_import(store: Exports, tmp_path: Path) -> None:
    """Archives hold no dates; 1970 would be shown as 56 years ago."""
    export_records([store.plain], tmp_path / "records.tar.gz")
    import_records(tmp_path / "records.tar.gz", Results(tmp_path / "other"))
    record = Results(tmp_path / "other").record(PLAIN.run_id)
    assert (record.folder / "summary.json").stat().st_mtime == 0
    assert abs(record.written - time.time()) < 600


def test_a_record_is_the_artifact_of_its_run(exported: Exports) -> None:
    (run,) = exported.search(f"attributes.run_name = '{exported.plain.run_id}'")
    files = {f"record/{name}": (exported.plain.folder / name).read_bytes() for name in RECORD_FILES}
    assert exported.files(run) == files


def test_a_cell_is_a_run_with_its_numbers_verdict_and_seeds(store: Exports) -> None:
    write_table(store, *table_cells(store))
    assert store.export(items=[TABLE])["cells written"] == 2
    (run,) = store.search("tags.plugins = 'flfa' and metrics.gain > 0")
    numbers = {"mean": 61.5, "std": 0.25, "n": 3, "diverged": 0, "gain": 1.5}
    numbers |= {"gain_low": -0.5, "gain_high": 3.5, "published": 64.0}
    numbers |= {"difference": -2.5, "difference_low": -4.0, "difference_high": -1.0}
    assert run["paper"] == "cells" and run["data"]["metrics"] == numbers
    assert run["info"]["run_name"] == "FedProx, accuracy, % · ecgr/table1 (demo)"
    tags = run["data"]["tags"]
    expected = {
        "kind": "cell",
        "item": "ecgr/table1",
        "cell": "FedProx, accuracy, %",
        "base": "FedAvg",
        "verdict": "reproduced; opposite",
        "difference": "-2.50 [-4.00, -1.00]",
        "gain": "+1.50 [-0.50, +3.50]",
        "method": "fedprox",
        "dataset": "digits",
        "runs": store.measured.run_id,
    }
    assert {key: tags[key] for key in expected} == expected
    note = tags["mlflow.note.content"]
    page = "pages/demo/ecgr/table1.html#cell-"
    assert note.startswith(f"**FedProx, accuracy, %**, gain over FedAvg: [its seeds on the page]({page}")
    assert "[ecgr/table1](#/experiments/" in note
    condition = f"attributes.run_name = '{store.measured.run_id}'"
    assert f"Its runs: [{store.measured.run_id}](#/experiments/" in note and quote(condition) in note
    assert len(store.search(condition)) == 1, "MLflow refuses some conditions"
    (other,) = store.search("tags.kind = 'cell' and metrics.mean = 60")
    assert "verdict" not in other["data"]["tags"], "MLflow shows a dash"
    assert other["data"]["metrics"] == {"mean": 60.0, "n": 1, "diverged": 0}


def test_cells_are_in_the_order_of_decided_verdicts_other_verdicts_and_gains(store: Exports) -> None:
    base, ours = table_cells(store)
    verdicts = {
        "inconclusive": ("inconclusive", "inconclusive"),
        "gain": (None, None),
        "not reproduced": ("not reproduced", None),
        "not run": ("not run", None),
        "size reproduced": ("inconclusive", "size reproduced"),
    }
    judged = [
        ours.replace(row=name, verdict=value, gain_verdict=gain) for name, (value, gain) in verdicts.items()
    ]
    write_table(store, base, *judged)
    store.export(items=[TABLE])
    tags = [run["data"]["tags"] for run in store.search("tags.kind = 'cell'")]
    assert not any("None" in cell["order"] for cell in tags)
    rows = [cell["row"] for cell in sorted(tags, key=lambda cell: cell["order"])]
    assert rows == ["size reproduced", "not reproduced", "inconclusive", "not run", "gain", "FedAvg"]


def test_papers_come_before_comparisons_and_controls_in_lists() -> None:
    """Each in the order of the scale; items without a verdict come last."""
    items = ["controls/a", "common", "fedavg/b", "fedavg/c", "ecgr/table1"]
    kinds = {"controls": "control", "common": "comparison"}

    def planned(item: str) -> Any:
        paper, _, name = item.partition("/")
        names = [other.partition("/")[2] for other in items if other.startswith(paper)]
        owner = SimpleNamespace(paper=paper, kind=kinds.get(paper, "paper"), items=names)
        return SimpleNamespace(name=name, paper=owner, scale=SimpleNamespace(items=items))

    listed = sorted(items, key=lambda item: place_of(planned(item), judged=item != "fedavg/b"))
    assert listed == ["fedavg/c", "ecgr/table1", "common", "controls/a", "fedavg/b"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"partition.alpha": "0.3"}, "alpha 0.3"),
        ({"partition.shards_per_client": "2"}, "2 shards per client"),
        ({}, "iid"),
    ],
)
def test_a_label_skew_is_a_phrase(settings: dict[str, str], text: str) -> None:
    assert skew(SimpleNamespace(settings=settings, fields={"partition": "iid"})) == text  # type: ignore[arg-type]


def names_of_experiments(store: Exports) -> list[str]:
    listing = store.reader().search_experiments(order_by=["last_update_time DESC"])
    return [home.name for home in listing]


def test_the_list_of_experiments_begins_with_tables_and_papers(store: Exports) -> None:
    """MLflow shows the one first that was changed last."""
    store.path.unlink()
    control = SimpleNamespace(**{**vars(ECGR), "paper": "controls", "kind": "control", "items": ["a"]})
    other = SimpleNamespace(**{**vars(TABLE), "id": "controls/a", "name": "a", "paper": control})
    store.memberships = {store.diverged.run_id: ["controls/a"], store.measured.run_id: ["ecgr/table1"]}
    store.export(items=[other, TABLE])
    listed = [TABLES, CELLS, "ecgr (demo)", "controls (demo)", "unassigned"]
    assert names_of_experiments(store) == listed
    store.export(store.measured, items=[TABLE], scale="published")
    listed[2:2] = ["ecgr (published)", "controls (published)"]
    assert names_of_experiments(store) == listed
    store.export(items=[other, TABLE])
    assert names_of_experiments(store) == listed, "published results stay first"


def test_a_run_has_a_value_of_each_setting_of_its_experiment(store: Exports) -> None:
    """In place of a lacking one, plots of MLflow show a number."""
    store.memberships = {record.run_id: ["ecgr/table1"] for record in (store.plain, store.measured)}
    store.export()
    parts = {record.run_id: store.contents()[record.run_id]["data"] for record in store.records}
    plain, measured, diverged = (
        parts[record.run_id]["params"] for record in (store.plain, store.measured, store.diverged)
    )
    assert plain.keys() == measured.keys() and "method.mu" not in diverged
    names = ("method", "method.mu", "plugins.flfa.n_fa")
    assert [plain[name] for name in names] == ["fedavg", "none", "none"]
    assert [measured[name] for name in names] == ["fedprox", "0.01", "1"]
    columns = {column for state in states_of(store.path).values() for column in state["selectedColumns"]}
    assert not {f"params.`{name}`" for name in names} & columns, "no values of several runs differ"


def written(store: Exports) -> tuple[int, int]:
    done = store.export(items=[TABLE])
    return done.get("tables and figures written", 0), done.get("cells written", 0)


def test_tables_and_cells_follow_their_files(store: Exports) -> None:
    first, second = table_cells(store)
    write_table(store, first, second)
    assert [written(store) for _ in range(2)] == [(1, 2), (0, 0)]
    write_table(store, first.replace(mean=59.0))
    assert [written(store) for _ in range(2)] == [(1, 1), (0, 0)]
    (cell,) = store.search("tags.kind = 'cell'")
    assert cell["data"]["metrics"]["mean"] == 59.0
    (table,) = store.search("tags.kind = 'item'")
    assert store.files(table)["table1.html"] == b"<p>1</p>"


def test_a_run_can_exceed_the_limits_of_one_request(store: Exports) -> None:
    """MLflow accepts 1,000 values, or 100 parameters of 6,000 characters."""
    params = {f"key{i}": str(i) for i in range(250)}
    metrics = [("loss", step, 1 / step) for step in range(1, 2501)]
    entry = TrackedRun("long", "long", {}, 5.0, params=params, metrics=metrics)
    with writing(store.uri, store.folder) as opened:
        opened.put(entry)
    client, ours = store.reader(), store.search("tags.`fltrain.key` = 'long'")[0]
    history = client.get_metric_history(ours["info"]["run_id"], "loss")
    assert sorted(("loss", point.step, point.value) for point in history) == metrics
    assert ours["data"]["params"] == params
    assert [ours["info"][key] for key in ("start_time", "end_time", "status")] == [5000, None, "FINISHED"]


# ------------------------------------------------------------------------------------------------- interface
def test_the_root_address_opens_a_list() -> None:
    assert '["#/experiments/7/runs?' in prepared("<head>", "#/experiments/7/runs?", {})


def test_charts_are_curves_and_numbers_of_tables() -> None:
    """MLflow would draw a chart of each metric, such as seconds."""
    metrics = ["seconds", "test_loss", "round_seconds", "last_accuracy", "test_accuracy"]
    charts = state_of("flfa (demo)", dict.fromkeys(metrics, frozenset([1])), {})["compareRunCharts"]
    rows = [(plot["metricKey"], plot["type"], plot["scaleType"]) for plot in charts if not plot["deleted"]]
    assert rows == [
        ("test_accuracy", "LINE", "linear"),
        ("test_loss", "LINE", "log"),
        ("last_accuracy", "BAR", "linear"),
        ("round_seconds", "BAR", "linear"),
    ]
    assert [plot["metricKey"] for plot in charts if plot["deleted"]] == ["seconds"]
    few = state_of("flfa (demo)", dict.fromkeys(metrics, frozenset([1])), {}, ["test_accuracy", "test_loss"])
    visible = [plot["metricKey"] for plot in few["compareRunCharts"] if not plot["deleted"]]
    assert visible == ["last_accuracy", "round_seconds"]
    assert state_of("cells", {"mean": {1, 2}, "gain": {1}}, {})["compareRunCharts"][0]["metricKey"] == "gain"


def test_a_long_list_shows_groups_and_the_settings_that_they_have() -> None:
    """MLflow shows no tags in the row of a group."""
    values, groups = {"tags.`method`": 2, "params.`training.lr`": 2}, ["FedAvg · table1"]
    for number, folded in ((20, False), (21, True)):
        state = state_of("flfa (demo)", {"final_accuracy": {*range(number)}}, values, (), groups)
        assert state["groupsExpanded"] == {"tag.cell.FedAvg · table1": not folded}
        assert state["selectedColumns"][2:] == sorted(values, reverse=not folded)


@pytest.mark.parametrize("name", [TABLES, CELLS])
def test_a_window_of_1400_pixels_shows_all_columns(name: str) -> None:
    around = 222 + 73 + 32  # MLflow's menu, its column of check boxes, and the right margin
    state = state_of(name, {}, {})
    assert around + sum(state["columnWidths"].values()) <= 1400
    assert min(state["columnWidths"][column] for column in state["selectedColumns"]) >= 70  # "Metrics" fits


def test_columns_that_differ_within_a_list_come_first(exported: Exports) -> None:
    experiment = experiments(exported.path)["ecgr (demo)"]
    (state,) = [state for key, state in states_of(exported.path).items() if f'"{experiment}"' in key]
    columns = [column.partition(".")[2].strip("`") for column in state["selectedColumns"]]
    differing = ["method", "plugins", "dataset", "skew", "seed"]
    assert columns == ["Run Name", *ACCURACIES, *differing]
    metrics = {"best_accuracy": {1}, "final_accuracy": {1, 2, 3}, "seconds": {1, 2, 3}}
    values = {"tags.`items`": 3, "tags.`seed`": 2, "params.`rounds`": 2, "params.`training.lr`": 2}
    values |= {"tags.`method`": 1, "params.`model.name`": 1}
    selected = state_of("ecgr (demo)", metrics, values)["selectedColumns"]
    assert selected[1:3] == ["metrics.`final_accuracy`", "tags.`seed`"]
    assert selected[3:] == ["params.`rounds`", "params.`training.lr`"]
    assert [*settings_of({"tags.`method`": 1})] == [*TAGS], "nothing differs"


def test_each_run_has_a_number_in_the_first_columns() -> None:
    """A column that most runs have may be empty on the whole first page."""
    six = {1, 2, 3, 4, 5, 6}
    metrics = {"final": six, "best": six, "last": {7, 20}, "validation": {1, 2, 30}}
    assert main_metrics(metrics) == ["final", "last", "validation"]
    assert main_metrics(metrics | {"validation": {1, 2}}) == ["final", "last", "best"]
    assert main_metrics({"final": {1, 2, 3}, "best": {1}}) == ["final"]
    assert main_metrics({}) == []
    widths = state_of("ecgr (demo)", metrics, {"params.`participation.fraction`": 2})["columnWidths"]
    columns = [column.partition(".")[2].strip("`") for column in widths]
    assert columns[:-1] == ["Run Name", "final", "last", "validation", "participation.fraction"]
    assert widths["params.`participation.fraction`"] > 150, "the whole heading"
    assert widths["metrics.`final`"] >= 120, "0.0245 (average)"


@pytest.mark.slow
def test_the_interface_is_set_up_for_our_runs_and_ends_at_once(store: Exports) -> None:
    shutil.move(store.path, store.results.tracking)
    (store.results.root / "demo").mkdir()
    for folder in (store.results.root / "demo", store.results.root.parent):
        (folder / "index.html").write_text("page")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "fltrain",
        "ui",
        "--results",
        str(store.results.root),
        "--port",
        str(port),
    ]
    pipe, address = subprocess.PIPE, f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            for _ in range(600):
                with suppress(OSError), urlopen(address) as answer:
                    page = answer.read().decode()
                    break
                time.sleep(0.1)
            with urlopen(f"{address}/api/2.0/mlflow/experiments/search?max_results=9") as answer:
                names = {experiment["name"] for experiment in json.load(answer)["experiments"]}
            with urlopen(f"{address}/pages/demo/index.html") as answer:
                assert answer.read() == b"page"
            for hidden in ("mlflow.db", "mlflow-artifacts/x", "demo/../mlflow.db", "../index.html"):
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"{address}/pages/{hidden}")
            started = time.monotonic()
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
            printed, errors = process.communicate(timeout=10)
        finally:
            process.kill()  # otherwise a failed test waits for it
    assert time.monotonic() - started < 1 and (process.returncode, errors) == (0, "")
    assert names >= {"flfa (demo)", "ecgr (demo)"} and f"  papers  {address}/#/experiments\n" in printed
    assert '"mlflow.workflowType_v1", "machine_learning"' in page and "final_accuracy" in page


# ------------------------------------------------------------------------------------ while runs are trained
EXPORT = """
import sys
from pathlib import Path
from fltrain.runs.record import Results
from fltrain.tracking.export import Export
results = Results(Path(sys.argv[1]))
done = Export(results, "demo", {}, [record.run_id for record in results.records()]).to(sys.argv[2])
print({kind: number for kind, number in done.items() if number})
"""


@pytest.mark.slow
def test_two_processes_at_once_export_every_run_once(store: Exports) -> None:
    store.path.unlink()
    command = [sys.executable, "-c", EXPORT, str(store.results.root), store.uri]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=store.folder)
        for _ in range(2)
    ]
    printed, errors = zip(*[process.communicate(timeout=60) for process in processes], strict=True)
    assert sorted(printed) == ["{'created': 3}\n", "{'unchanged': 3}\n"]
    wait = f"waiting: another process is exporting to {store.uri} (lock: {store.path}.lock)\n"
    assert set(errors) <= {"", wait} and "" in errors  # the wait is announced after a second
    assert len(store.ids()) == 3
    names = {path.name for path in store.path.parent.iterdir()}
    assert names == {"mlflow.db", "mlflow.db.lock", "mlflow-artifacts"}
    assert not (store.folder / "mlruns").exists()


# ------------------------------------------------------------------------------------ faults
def test_a_database_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    text = "this is a text, and not a short one: no database begins like this"
    (tmp_path / "mlflow.db").write_text(text * 20)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with pytest.raises(FltrainError) as caught:
        nothing(tmp_path).to(uri)
    remedy = "allow writing, make room, or delete it: the next export makes it anew from the records"
    assert str(caught.value) == (
        f"{uri}: cannot write to this MLflow store (file is not a database); {remedy}"
    )


@pytest.mark.usefixtures("impatient")
def test_a_database_locked_by_another_program_is_reported(store: Exports) -> None:
    expected = store.search()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(FltrainError, match=r"\(database is locked\); end the program that uses it, then"):
            store.export()
    assert store.export() == {"unchanged": 3}
    assert store.search() == expected


@pytest.mark.usefixtures("impatient")
def test_a_wait_for_another_export_is_announced(store: Exports, caplog: pytest.LogCaptureFixture) -> None:
    with FileLock(f"{store.path}.lock"), pytest.raises(FltrainError, match="another process is exporting"):
        store.export()
    lock = f"(lock: {store.path}.lock)"
    assert caplog.messages == [f"waiting: another process is exporting to {store.uri} {lock}"]


# MLflow's own server behind a proxy that requires a token.
SERVE = """
import sys
from werkzeug.serving import make_server
from mlflow.server import app
from mlflow.server.handlers import initialize_backend_stores
initialize_backend_stores(sys.argv[1], None, "mlflow-artifacts:/")
def guarded(environment, start):
    path = environment["PATH_INFO"]
    if path.startswith("/api") and environment.get("HTTP_AUTHORIZATION") != "Bearer secret":
        start("401 Unauthorized", [("Content-Type", "text/plain")])
        return [b"no token"]
    return app(environment, start)
server = make_server("127.0.0.1", 0, guarded, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def server(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server with an empty store; it accepts the token ``secret``."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(tables, folder / "mlflow.db")
    places = {
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
    }
    command = [sys.executable, "-c", SERVE, f"sqlite:///{folder / 'mlflow.db'}"]
    pipe, environment = subprocess.PIPE, {**os.environ, **places}
    with subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


@pytest.mark.slow
def test_exports_to_a_server_need_its_token_and_equal_exports_to_a_database(
    store: Exports, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(store, *table_cells(store))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "wrong")
    with pytest.raises(FltrainError, match=r"401.*; set MLFLOW_TRACKING_TOKEN"):
        store.export(uri=server)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    store.export(items=[TABLE])
    first, second = (store.export(uri=server, items=[TABLE]) for _ in range(2))
    assert first == {"created": 3, "tables and figures written": 1, "cells written": 2}
    assert second == {"unchanged": 3}
    client = MlflowClient(server)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    on_server = {run.info.run_name: run.to_dictionary() for run in runs}
    expected = {run["info"]["run_name"]: run for run in store.search("")}
    assert len(expected) == 6 and on_server.keys() == expected.keys()
    for name, run in expected.items():
        for part in ("metrics", "params"):
            values = on_server[name]["data"][part]
            assert {key: None if value != value else value for key, value in values.items()} == run["data"][
                part
            ]
    (item,) = (run.info.run_id for run in runs if run.data.tags["kind"] == "item")
    assert {file.path for file in client.list_artifacts(item)} == {"table1.html", "table1.csv"}


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://127.0.0.1:9", "cannot write to this MLflow store .*refused"),
        ("results/mlflow.db", "use sqlite:///path/to/file.db or http://host:port"),
    ],
)
def test_an_invalid_address_is_refused(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(FltrainError, match=message) as caught:
        nothing(tmp_path).to(uri)
    assert uri in str(caught.value) and "\n" not in str(caught.value)
