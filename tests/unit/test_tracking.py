"""Exporting records to MLflow: every run once, whatever happened before; checked on real SQLite files."""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from fltrain import cli
from fltrain.core.errors import FltrainError
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.tracking import export as tracking
from fltrain.tracking import mlflow_store
from fltrain.tracking.export import Exported, Page, Wanted, export, follow
from fltrain.tracking.mlflow_store import Data, Database, Entry, Patience, Server, writing

from .helpers import seal, tiny, trained

AT_ONCE = Patience(lock=0.1, database=0.1, server=0.2)
EVERYTHING = {"statistics": ["drift", "similarity", "separability"]}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three runs: plain, with everything measured, and diverged."""
    root = tmp_path_factory.mktemp("results")
    trained(tiny(), root)
    trained(tiny(method="fedprox", plugins=["flfa"], seed=7, evaluation=EVERYTHING), root)
    trained(tiny(training={"epochs": 1, "lr": 1e30}), root)
    return root


class Store:
    """A copy of the results, and an MLflow database of their records."""

    def __init__(self, originals: Path, folder: Path) -> None:
        self.folder = folder
        self.results = Results(Path(shutil.copytree(originals, folder / "results")))
        self.path = folder / "mlflow" / "mlflow.db"
        self.uri = f"sqlite:///{self.path}"
        self.copies = count()
        self.memberships: dict[str, Sequence[str]] = {
            self.plain.run_id: ["flfa/table1", "flfa/figure2", "ecgr/table1"],
            self.measured.run_id: ["ecgr/table1"],
        }

    @property
    def records(self) -> list[Record]:
        return list(self.results.records())

    def _record(self, plugins: bool, status: str) -> Record:
        (found,) = (
            record
            for record in self.records
            if bool(record.spec["plugins"]) == plugins and record.summary["status"] == status
        )
        return found

    @property
    def plain(self) -> Record:
        return self._record(plugins=False, status="completed")

    @property
    def measured(self) -> Record:
        return self._record(plugins=True, status="completed")

    @property
    def diverged(self) -> Record:
        return self._record(plugins=False, status="diverged")

    def wanted(self, *runs: Record, scale: str = "demo", pages: Sequence[Page] = ()) -> Wanted:
        chosen = [record.run_id for record in runs or self.records]
        return Wanted(self.results, scale, self.memberships, chosen, pages)

    def export(self, **changes: Any) -> Exported:
        return export(self.wanted(**changes), self.uri)

    def reader(self) -> MlflowClient:
        """A client on a copy of the database, which so keeps nothing open."""
        copy = self.folder / f"copy{next(self.copies)}.db"
        return MlflowClient(f"sqlite:///{shutil.copy(self.path, copy)}")

    def search(self, filter_string: str = "") -> list[dict[str, Any]]:
        """The MLflow runs that match, as plain data, with the name of their experiment."""
        client = self.reader()
        experiments = {e.experiment_id: e.name for e in client.search_experiments()}
        found = client.search_runs(list(experiments), filter_string)
        return [run.to_dictionary() | {"paper": experiments[run.info.experiment_id]} for run in found]

    def ids(self) -> dict[str, str]:
        """MLflow's own ids by run id; every run id must be there once."""
        runs = self.search()
        ids = {run["data"]["tags"]["fltrain.run_id"]: run["info"]["run_id"] for run in runs}
        assert len(ids) == len(runs)
        return ids

    def contents(self) -> dict[str, Any]:
        """All that MLflow holds of runs, but for the ids that it gave."""
        runs = self.search("tags.kind = 'run'")
        for run in runs:
            for key in ("run_id", "run_uuid", "artifact_uri", "experiment_id"):
                run["info"].pop(key, None)
        return {run["data"]["tags"]["fltrain.run_id"]: run for run in runs}

    def edit_summary(self, record: Record, **changes: Any) -> None:
        path = record.folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        seal(record.folder)

    def edit_metrics(self, record: Record, rows: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (record.folder / "metrics.jsonl").write_text(text)
        seal(record.folder)

    def tags(self, record: Record) -> dict[str, str]:
        tags: dict[str, str] = self.contents()[record.run_id]["data"]["tags"]
        return tags


def nothing(folder: Path) -> Wanted:
    return Wanted(Results(folder), "demo", {}, [])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without a run; tests only look at it. Making one takes seconds."""
    path = tmp_path_factory.mktemp("tables") / "mlflow.db"
    assert export(nothing(path.parent), f"sqlite:///{path}") == Exported()
    return path


@pytest.fixture(scope="module")
def exported(originals: Path, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The exported results; tests only look at them."""
    store = Store(originals, tmp_path_factory.mktemp("exported"))
    store.path.parent.mkdir()
    shutil.copy(tables, store.path)
    assert store.export() == Exported(created=3)
    return store


@pytest.fixture
def store(exported: Store, tmp_path: Path) -> Store:
    """The exported results once more, for a test to change."""
    copy = Store(exported.results.root, tmp_path)
    copy.path.parent.mkdir()
    shutil.copy(exported.path, copy.path)
    return copy


# ------------------------------------------------------------------------------------ what is in it
def test_every_run_is_there_once_in_the_experiment_of_its_first_paper(exported: Store) -> None:
    assert {run["data"]["tags"]["fltrain.run_id"]: run["paper"] for run in exported.search()} == {
        exported.plain.run_id: "flfa",
        exported.measured.run_id: "ecgr",
        exported.diverged.run_id: "unassigned",
    }
    assert exported.ids().keys() == {record.run_id for record in exported.records}


@pytest.mark.parametrize(
    ("filter_string", "names"),
    [
        ("tags.method = 'fedprox'", {"measured"}),
        ("tags.plugins = 'flfa'", {"measured"}),
        ("tags.plugins = 'none'", {"plain", "diverged"}),
        ("tags.dataset = 'digits' and tags.model = 'mobilenet_tiny'", {"plain", "measured", "diverged"}),
        ("tags.partition = 'dirichlet' and tags.seed = '7'", {"measured"}),
        ("tags.status = 'diverged'", {"diverged"}),
        ("attributes.status = 'FINISHED'", {"plain", "measured"}),
        ("tags.scale = 'demo'", {"plain", "measured"}),
        ("dataset.name = 'digits' and dataset.context = 'data set'", {"plain", "measured", "diverged"}),
        (
            "params.`revisions.engine` = '1' and tags.revisions LIKE 'engine 1,%'",
            {"plain", "measured", "diverged"},
        ),
        ("tags.paper LIKE '%ecgr%'", {"plain", "measured"}),
        ("tags.items LIKE '%flfa/figure2,%'", {"plain"}),
        ("tags.items LIKE '%flfa/figure,%'", set()),
        ("params.`training.lr` = '0.1'", {"plain", "measured"}),
        ("params.`plugins.flfa.n_fa` = '1' and params.`method.mu` = '0.01'", {"measured"}),
        ("metrics.final_accuracy >= 0", {"plain", "measured"}),
        ("metrics.final_accuracy > 1", set()),
        ("metrics.bytes >= 0 and metrics.seconds > 0", {"plain", "measured", "diverged"}),
    ],
)
def test_runs_can_be_searched(exported: Store, filter_string: str, names: set[str]) -> None:
    found = {run["data"]["tags"]["fltrain.run_id"] for run in exported.search(filter_string)}
    assert found == {getattr(exported, name).run_id for name in names}


def test_metrics_are_the_records_rows(exported: Store) -> None:
    record, client = exported.measured, exported.reader()
    ours = exported.ids()[record.run_id]
    keys = client.get_run(ours).data.metrics
    assert len(keys) <= 12
    expected = {
        "test_accuracy": ("evaluation", "accuracy"),
        "test_loss": ("evaluation", "loss"),
        "train_loss": ("train", "loss"),
        "drift": ("updates", "drift"),
        "similarity_skewness": ("updates", "skewness"),
        "separability_ratio": ("separability", "ratio"),
    }
    for key, (kind, name) in expected.items():
        curve = [(metric.step, metric.value) for metric in client.get_metric_history(ours, key)]
        assert curve == [(row["round"], row[name]) for row in record.rows(kind)]
        assert len(curve) == 3
    accuracy = record.summary["accuracy"]
    assert (keys["final_accuracy"], keys["best_accuracy"]) == (accuracy["final"], accuracy["best"])
    assert keys["bytes"] == sum(record.summary["bytes"].values())


def test_tests_on_other_images_are_no_part_of_the_curve(store: Store) -> None:
    rows = store.plain.metrics
    tests = [row for row in rows if row["kind"] == "evaluation"]
    others = [row | {"accuracy": 2.0, "split": split} for row in tests for split in ("a", "b", "c")]
    others += [row | {"accuracy": 2.0, "view": "client"} for row in tests]
    store.edit_metrics(store.plain, [*others, *rows])
    store.edit_summary(store.plain, extra={"c": 0.1, "b": 0.2, "a": 0.3})
    store.export()
    client, ours = store.reader(), store.ids()[store.plain.run_id]
    curve = [metric.value for metric in client.get_metric_history(ours, "test_accuracy")]
    assert curve == [row["accuracy"] for row in tests]
    metrics = client.get_run(ours).data.metrics
    assert (metrics["final_accuracy.a"], metrics["final_accuracy.b"]) == (0.3, 0.2)
    assert "final_accuracy.c" not in metrics and len(metrics) <= 12


@pytest.mark.parametrize("counts", ["test", "local_test"])
def test_curves_are_those_of_the_split_that_counts(store: Store, counts: str) -> None:
    """Not those of further data sets, on which the model may be tested as well."""
    folder, rows = store.plain.folder, store.plain.metrics
    spec = json.loads((folder / "spec.json").read_text())
    spec["local_test"] = {"fraction": 0.25, "stratify": False} if counts == "local_test" else None
    (folder / "spec.json").write_text(json.dumps(spec))
    seal(folder)
    tests = [row | {"split": counts} for row in rows if row["kind"] == "evaluation"]
    others = [row | {"split": "shifted", "accuracy": 0.0, "loss": 9.0} for row in tests]
    store.edit_metrics(store.plain, [*tests, *others])
    store.export()
    client, ours = store.reader(), store.ids()[store.plain.run_id]
    for key in ("accuracy", "loss"):
        curve = [(metric.step, metric.value) for metric in client.get_metric_history(ours, f"test_{key}")]
        assert curve == [(row["round"], row[key]) for row in tests]


def test_a_diverged_run_has_ended_without_a_final_accuracy(exported: Store) -> None:
    (run,) = exported.search("tags.status = 'diverged'")
    assert run["info"]["status"] == "FAILED"
    assert "final_accuracy" not in run["data"]["metrics"]
    assert "**Diverged**" in run["data"]["tags"]["mlflow.note.content"]


def test_nothing_but_finite_numbers_is_logged(exported: Store) -> None:
    with closing(sqlite3.connect(exported.path)) as database:
        values = database.execute("SELECT value, is_nan FROM metrics").fetchall()
    assert values
    assert all(abs(value) < 1e300 and not is_nan for value, is_nan in values)


def test_times_are_those_of_the_run(exported: Store) -> None:
    for run in exported.search():
        record = exported.results.record(run["data"]["tags"]["fltrain.run_id"])
        seconds = (run["info"]["end_time"] - run["info"]["start_time"]) / 1000
        assert seconds == pytest.approx(record.costs["seconds"]["total"], abs=0.002)


def test_a_run_of_a_wrong_clock_does_not_begin_before_1970(store: Store) -> None:
    store.edit_summary(store.plain, parameters=1)
    os.utime(store.plain.folder / "summary.json", (0, 0))
    store.export()
    (run,) = (run for run in store.search() if run["data"]["tags"]["fltrain.run_id"] == store.plain.run_id)
    start, end = (run["info"][f"{which}_time"] for which in ("start", "end"))
    assert (start, end) == (1, 1 + round(1000 * store.plain.costs["seconds"]["total"]))


def test_the_database_can_be_moved_with_the_results(exported: Store) -> None:
    with closing(sqlite3.connect(exported.path)) as database:
        dump = "\n".join(database.iterdump())
    assert str(exported.folder) not in dump and str(Path.cwd()) not in dump
    for run in exported.search():
        assert (exported.results.root / run["data"]["tags"]["folder"] / "summary.json").exists()


def test_data_and_partition_are_inputs_with_digests(exported: Store) -> None:
    record = exported.measured
    spec = RunSpec.parse(record.settings, "record")
    run = exported.reader().get_run(exported.ids()[record.run_id])
    found = {one.tags[0].value: one.dataset for one in run.inputs.dataset_inputs}
    digests = record.summary["digests"]
    assert {context: data.name for context, data in found.items()} == {
        "data set": spec.dataset.id,
        "partition": spec.partition_id,
    }
    assert json.loads(found["data set"].profile) == {"sha256": digests["data"]}
    assert json.loads(found["partition"].profile) == {"sha256": digests["partition"]}
    assert digests["partition"].startswith(found["partition"].digest)


def long_entry(experiment: str, name: str) -> Entry:
    """More of everything than goes into one request: 1,000 metrics, 100 parameters of 6,000 characters."""
    return Entry(
        experiment=experiment,
        name=name,
        status="FINISHED",
        started=5,
        ended=9,
        tags={"fltrain.run_id": name, "long": "y" * 9000, "mlflow.note.content": "*note*"},
        params={f"key{i}": str(i) for i in range(250)} | {"long": "x" * 10_000},
        metrics=[("loss", step, 1 / step) for step in range(1, 2501)] + [("final", 7, 0.5), ("zero", 1, 0.0)],
        data=[Data("digits", "ab" * 32, "data/digits.safetensors", "data set")],
    )


def test_tables_and_client_leave_the_same_behind(store: Store) -> None:
    """What is written straight into MLflow's tables is what MLflow itself would have written."""
    names = {"tables": Database, "client": Server}
    with writing(store.uri, store.folder) as tables:
        client = Server(MlflowClient(store.uri))
        assert isinstance(tables, Database)
        experiment = tables.experiment("long")
        ids = {
            name: writer.create([long_entry(experiment, name)])[0]
            for name, writer in zip(names, (tables, client), strict=True)
        }
        for writer in (tables, client):
            for run in ids.values():
                writer.retag({run: {"more": "1", "long": "z"}})
            assert writer.present("fltrain.run_id", {"tables", "none"}).keys() == {"tables"}
            assert writer.present("fltrain.run_id", {*map(str, range(30)), "client"}).keys() == {"client"}
        seen = [writer.present("fltrain.run_id", {"tables"}) for writer in (tables, client)]
        assert seen[0] == seen[1]
    reader, found = store.reader(), []
    for name, run in ids.items():
        content = reader.get_run(run).to_dictionary()
        history = [(point.step, point.value) for point in reader.get_metric_history(run, "loss")]
        found.append(
            json.dumps([content, sorted(history)], sort_keys=True).replace(run, "id").replace(name, "")
        )
    assert found[0] == found[1]
    assert len(history) == 2500 and content["data"]["params"]["key249"] == "249"
    assert len(content["data"]["params"]["long"]) == 6000


# ------------------------------------------------------------------------------------ again and again
def test_exporting_again_changes_nothing(store: Store) -> None:
    before = store.search()
    for record in store.records:  # as after copying the results to another machine
        os.utime(record.folder / "summary.json", (1e9, 1e9))
    assert store.export() == Exported(unchanged=3)
    assert store.search() == before


def test_a_changed_record_replaces_its_run_only(store: Store) -> None:
    before = store.ids()
    changed = store.measured
    accuracy = changed.summary["accuracy"] | {"final": 0.875}
    store.edit_summary(changed, accuracy=accuracy)
    assert store.export() == Exported(unchanged=2, replaced=1)
    after = store.ids()
    assert {run_id for run_id in before if before[run_id] != after[run_id]} == {changed.run_id}
    (run,) = store.search("metrics.final_accuracy = 0.875")
    assert run["info"]["run_id"] == after[changed.run_id]


def test_a_run_gets_the_items_that_it_has_gained(store: Store) -> None:
    before = store.ids()
    store.memberships[store.measured.run_id] = ["ecgr/table1", "ecgr/figure3"]
    assert store.export() == Exported(unchanged=2, retagged=1)
    assert store.ids() == before
    (run,) = store.search("tags.items LIKE '%ecgr/figure3%'")
    assert "ecgr/figure3" in run["data"]["tags"]["mlflow.note.content"]
    assert store.export() == Exported(unchanged=3)


def test_items_of_another_scale_stay(store: Store) -> None:
    """Each scale says what its runs are; exporting one after the other changes nothing in the end."""
    run, of_demo = store.measured, store.memberships
    store.memberships = {run.run_id: ["common/table1"]}
    assert export(store.wanted(run, scale="small"), store.uri) == Exported(retagged=1)
    store.memberships = of_demo
    assert export(store.wanted(run), store.uri) == Exported(unchanged=1)
    tags = store.tags(run)
    assert (tags["scale"], tags["items"]) == ("demo small", "ecgr/table1, common/table1,")
    assert tags["paper"] == "ecgr common"


def test_a_description_that_was_edited_stays(store: Store) -> None:
    client, run = MlflowClient(store.uri), store.ids()[store.measured.run_id]
    client.set_tag(run, "mlflow.note.content", "mine")
    store.memberships[store.measured.run_id] = ["ecgr/table1", "ecgr/figure3"]
    assert store.export().retagged == 1
    tags = store.tags(store.measured)
    assert (tags["mlflow.note.content"], tags["items"]) == ("mine", "ecgr/table1, ecgr/figure3,")


def test_a_stale_record_is_marked(store: Store) -> None:
    """It stands for the run of today, which has no record, or has one beside it."""
    old = store.plain
    spec = json.loads((old.folder / "spec.json").read_text())
    older = old.folder.with_name(f"{old.run_id[:-10]}0123456789")
    shutil.copytree(old.folder, older)
    spec["revisions"]["methods"] = [0]
    (older / "spec.json").write_text(json.dumps(spec))
    seal(older)
    assert export(store.wanted(old), store.uri) == Exported(created=1, unchanged=1)
    tags = store.contents()[older.name]["data"]["tags"]
    assert tags["status"] == "stale" and tags["items"] == "flfa/table1, flfa/figure2, ecgr/table1,"
    assert tags["stale"] == f"methods 0 -> 1, now {old.run_id}"
    assert "**Stale**" in tags["mlflow.note.content"]
    assert store.contents()[older.name]["info"]["status"] == "KILLED"
    shutil.rmtree(old.folder)
    wanted = Wanted(store.results, "demo", store.memberships, [old.run_id])
    assert export(wanted, store.uri) == Exported(unchanged=1)


def test_a_record_of_other_settings_than_today_is_left_out(store: Store) -> None:
    """It was written by another version; all others are exported, and what there is of it stays."""
    store.export()
    before, old = store.contents(), store.plain
    spec = {**old.spec, "a_setting_of_another_time": 1}
    (old.folder / "spec.json").write_text(json.dumps(spec))
    seal(old.folder)
    assert store.export() == Exported(unchanged=2, unknown=1)
    assert store.contents() == before
    store.path.unlink()
    done = store.export()
    assert (done, str(done)) == (
        Exported(created=2, unknown=1),
        "2 created, 1 left out, as their settings are not known",
    )


def test_a_run_moves_with_its_membership(store: Store) -> None:
    store.memberships[store.diverged.run_id] = ["fed2/table3"]
    assert store.export() == Exported(unchanged=2, replaced=1)
    (run,) = store.search("tags.status = 'diverged'")
    assert (run["paper"], run["data"]["tags"]["items"]) == ("fed2", "fed2/table3,")
    assert len(store.ids()) == 3


def test_a_subset_leaves_the_others_alone(store: Store) -> None:
    before = store.search()
    assert export(store.wanted(store.plain), store.uri) == Exported(unchanged=1)
    assert store.search() == before


def test_an_export_that_was_cut_short_is_made_good(store: Store) -> None:
    expected = store.contents()
    client = MlflowClient(store.uri)
    client.update_run(store.ids()[store.plain.run_id], status="RUNNING")
    assert store.export() == Exported(unchanged=2, replaced=1)
    assert store.contents() == expected


def test_a_double_is_removed(store: Store) -> None:
    expected = store.search()
    experiment = MlflowClient(store.uri).get_experiment_by_name("unassigned").experiment_id
    MlflowClient(store.uri).create_run(experiment, tags={"fltrain.run_id": store.plain.run_id})
    assert len(store.search()) == 4
    assert store.export() == Exported(unchanged=3)
    assert store.search() == expected


def test_other_runs_in_the_store_are_left_alone(store: Store) -> None:
    client = MlflowClient(store.uri)
    mine = client.create_run(client.get_experiment_by_name("flfa").experiment_id).info.run_id
    store.export()
    assert client.get_run(mine).info.lifecycle_stage == "active"


def test_a_deleted_database_is_rebuilt(store: Store) -> None:
    expected = store.contents()
    store.export()  # so that this process, too, has had it open
    store.path.unlink()
    assert store.export() == Exported(created=3)
    assert store.contents() == expected


def test_a_deleted_experiment_comes_back(store: Store) -> None:
    expected = store.contents()
    client = MlflowClient(store.uri)
    client.delete_experiment(client.get_experiment_by_name("flfa").experiment_id)
    assert len(store.ids()) == 2
    assert store.export() == Exported(unchanged=3)
    assert store.contents() == expected


# ------------------------------------------------------------------------------------ tables and figures
TABLE = Page("ecgr/table1", "Accuracy", "What is shown.")


def make_table(store: Store, text: str = "<p>1</p>") -> list[Path]:
    folder = store.results.root / "demo" / "ecgr"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "table1.html", folder / "table1.csv"]
    for file in files:
        file.write_text(text)
    return files


def artefacts(store: Store) -> dict[str, str]:
    """Contents of the artefacts of the one item, by name."""
    (run,) = store.search("tags.kind = 'item'")
    place = run["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    folder = store.path.parent / "mlflow-artifacts" / place
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_a_table_is_a_run_with_its_files_and_the_way_to_its_runs(store: Store) -> None:
    make_table(store)
    pages = (TABLE, Page("ecgr/table2", "Not made yet", ""))
    assert store.export(pages=pages).items == 1
    (run,) = store.search("tags.item = 'ecgr/table1' and tags.scale = 'demo'")
    assert (run["info"]["run_name"], run["paper"]) == ("ecgr/table1 (demo)", "ecgr")
    assert artefacts(store) == {"table1.html": "<p>1</p>", "table1.csv": "<p>1</p>"}
    note = run["data"]["tags"]["mlflow.note.content"]
    assert "**Accuracy**" in note and "What is shown." in note
    # Its runs are in two experiments: one of them is FLFA's first.
    experiments = {store.contents()[r.run_id]["paper"] for r in (store.plain, store.measured)}
    assert experiments == {"ecgr", "flfa"} and "#/compare-experiments/s?experiments=" in note
    assert "searchFilter=tags.items%20LIKE%20%27%25ecgr/table1%2C%25%27" in note
    assert "tags.item%20%3D%20%27ecgr/table1%27" in store.tags(store.measured)["mlflow.note.content"]


def test_a_table_that_is_made_again_keeps_its_run(store: Store) -> None:
    files = make_table(store)
    assert [store.export(pages=[TABLE]).items for _ in range(2)] == [1, 0]
    (before,) = store.search("tags.kind = 'item'")
    make_table(store, "<p>2</p>")
    assert store.export(pages=[TABLE]).items == 1
    (after,) = store.search("tags.kind = 'item'")
    assert after["info"]["run_id"] == before["info"]["run_id"]
    assert artefacts(store)[files[0].name] == "<p>2</p>"
    assert store.export(pages=[TABLE]).items == 0


# ------------------------------------------------------------------------------------ while runs are trained
def followed(
    store: Store, monkeypatch: pytest.MonkeyPatch, steps: Sequence[Callable[[], object]], wanted: Wanted
) -> list[str]:
    """What is reported while one thing after the other happens between two looks, then Ctrl-C."""
    said: list[str] = []
    left = iter(steps)

    def sleep(_: float) -> None:
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(tracking, "sleep", sleep)
    monkeypatch.setattr(tracking.os, "nice", lambda _: 0)  # this process goes on
    with pytest.raises(KeyboardInterrupt):
        follow(wanted, store.uri, lambda text: said.append(text.partition(": ")[2]), patience=AT_ONCE)
    return said


def test_records_and_tables_are_exported_as_they_appear(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, elsewhere = store.measured, store.folder / "elsewhere"
    wanted = store.wanted(pages=[TABLE])
    shutil.move(late.folder, elsewhere)
    store.path.unlink()
    said = followed(
        store,
        monkeypatch,
        [
            lambda: None,
            lambda: shutil.move(elsewhere, late.folder),
            lambda: make_table(store),
            lambda: store.edit_summary(store.plain, parameters=1),
        ],
        wanted,
    )
    assert said == [
        "2 created; following, Ctrl-C ends it",
        "1 created",
        "1 tables and figures written",
        "1 replaced",
    ]
    assert store.export(pages=[TABLE]) == Exported(unchanged=3)


def test_following_goes_on_when_the_store_was_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = mlflow_store.FileLock(f"{store.path}.lock")

    def taken() -> None:
        store.edit_summary(store.plain, parameters=1)
        lock.acquire()

    said = followed(
        store,
        monkeypatch,
        [
            taken,
            lock.release,
        ],
        store.wanted(),
    )
    assert said[0] == "3 unchanged; following, Ctrl-C ends it"
    assert said[1].startswith("another process has been exporting to it; try again later; trying again in")
    assert said[2:] == ["1 replaced"]


def test_ctrl_c_ends_following_cleanly(store: Store) -> None:
    command = [sys.executable, "-m", "fltrain", "track", "--follow", "--interval", "0.1", "--every"]
    config = Path(__file__).parents[2] / "config"
    command += ["--results", str(store.results.root), "--config", str(config), "--uri", store.uri]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=store.folder) as process:
        assert process.stdout and process.stderr
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    # None of the runs is in the plan: those that were in an experiment of a paper leave it.
    assert first == f"{store.uri}: 2 replaced, 1 unchanged; following, Ctrl-C ends it\n"
    assert rest.startswith(f"{store.uri}: no longer followed;") and errors == ""
    assert process.returncode == 0


EXPORT = """
import sys
from pathlib import Path
from fltrain.runs.record import Results
from fltrain.tracking import Wanted, export
results = Results(Path(sys.argv[1]))
done = export(Wanted(results, "", {}, [record.run_id for record in results.records()]), sys.argv[2])
print(done.created, done.unchanged, done.replaced)
"""


def test_two_processes_at_once_export_every_run_once_and_print_nothing(store: Store) -> None:
    store.path.unlink()
    command = [sys.executable, "-c", EXPORT, str(store.results.root), store.uri]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=store.folder)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=60) for process in processes]
    assert sorted(printed) == [("0 3 0\n", ""), ("3 0 0\n", "")]
    assert len(store.ids()) == 3
    assert {path.name for path in store.path.parent.iterdir()} == {"mlflow.db", "mlflow.db.lock"}
    assert not (store.folder / "mlruns").exists()


def in_a_process(work: Callable[[], object]) -> int | None:
    """Do the work in a process of its own and return how it ended."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode


def export_and_die(store: Store, call: str, number: int) -> None:
    """Export run by run, and be killed when the database is written to in this way for the n-th time."""
    calls, write = count(1), getattr(Database, call)

    def written(*args: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*args)

    setattr(Database, call, written)
    tracking._AT_ONCE = 1
    store.export()


@pytest.mark.parametrize(
    ("call", "number", "whole"),
    [
        ("experiment", 2, 0),
        ("create", 1, 0),
        ("_run", 1, 0),
        ("_run", 2, 1),
        ("create", 3, 2),
        ("retag", 3, 3),
    ],
)
def test_an_export_that_is_killed_is_made_good(
    exported: Store, store: Store, tables: Path, call: str, number: int, whole: int
) -> None:
    shutil.copy(tables, store.path)
    assert in_a_process(lambda: export_and_die(store, call, number)) == -signal.SIGKILL
    assert store.export().unchanged == whole
    assert store.contents() == exported.contents()


def test_an_export_that_is_killed_while_the_tables_are_made_is_made_good(
    exported: Store, store: Store
) -> None:
    store.path.unlink()

    def tables(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def export_and_die() -> None:
        from alembic.runtime.migration import MigrationContext

        MigrationContext._ensure_version_table = tables
        store.export()

    assert in_a_process(export_and_die) == -signal.SIGKILL
    assert not store.path.exists()
    assert store.export() == Exported(created=3)
    assert store.contents() == exported.contents()


# ------------------------------------------------------------------------------------ what can be wrong
def make_folder(path: Path) -> None:
    path.mkdir()


def make_other_file(path: Path) -> None:
    path.write_text("this is a text, and not a short one: no database begins like this" * 20)


def make_read_only(path: Path) -> None:
    # A write version that SQLite does not know makes it read-only for everyone, the superuser included.
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE one (column)")
    content = bytearray(path.read_bytes())
    content[18] = 9
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_folder, "unable to open database file"),
        (make_other_file, "file is not a database"),
        (make_read_only, "attempt to write a readonly database"),
    ],
)
def test_a_database_that_cannot_be_written_is_one_clear_line(tmp_path: Path, make: Any, reason: str) -> None:
    make(tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with pytest.raises(FltrainError) as caught:
        export(nothing(tmp_path), uri)
    assert str(caught.value) == (
        f"{uri}: cannot write to this MLflow store ({reason}); delete it, then export again: it is made anew "
        "from the records"
    )


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 100_000)


@pytest.mark.parametrize("damage", [truncate, overwrite])
def test_a_damaged_database_is_named(store: Store, damage: Callable[[Path], None]) -> None:
    damage(store.path)

    def be_refused() -> None:
        with pytest.raises(FltrainError, match=r"disk image is malformed.*; delete it, then export again"):
            store.export()

    assert in_a_process(be_refused) == 0


def test_a_full_disk_ends_an_export_and_the_next_one_goes_on(exported: Store, store: Store) -> None:
    def on_a_full_disk() -> None:
        size = store.path.stat().st_size if store.path.exists() else 100_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        with pytest.raises(
            FltrainError, match=r"mlflow\.db: cannot write to this .*; make room, then export"
        ):
            store.export()

    memberships, store.memberships = store.memberships, {}  # runs move to another experiment
    assert in_a_process(on_a_full_disk) == 0
    store.memberships = memberships
    store.export()
    assert store.contents() == exported.contents()
    store.path.unlink()
    assert in_a_process(on_a_full_disk) == 0
    assert {path.name for path in store.path.parent.iterdir()} == {"mlflow.db.lock"}


def test_the_command_line_tells_in_one_line_that_it_cannot_export(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = Path(__file__).parents[2] / "config"
    command = [
        "track",
        "--results",
        store.results.root,
        "--config",
        config,
        "--uri",
        f"sqlite:///{store.folder}",
    ]
    monkeypatch.setattr(sys, "argv", ["fltrain", *map(str, command)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"error: sqlite:///{store.folder}: cannot write to this MLflow store")


def test_a_database_that_another_program_holds(store: Store) -> None:
    expected = store.search()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(FltrainError, match=r"\(database is locked\); end the program that uses it, then"):
            export(store.wanted(), store.uri, AT_ONCE)
    assert store.export() == Exported(unchanged=3)
    assert store.search() == expected


def test_another_export_that_does_not_end(tmp_path: Path) -> None:
    with (
        mlflow_store.FileLock(f"{tmp_path / 'mlflow.db'}.lock"),
        pytest.raises(FltrainError, match="another process has been exporting to it; try again later"),
    ):
        export(nothing(tmp_path), f"sqlite:///{tmp_path / 'mlflow.db'}", AT_ONCE)


@contextmanager
def serving(front: int, behind: int) -> Iterator[str]:
    """The address of a server that answers with these codes: on its front page, and beyond it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(front if self.path == "/" else behind)
            self.end_headers()
            self.wfile.write(b"<html>this is no MLflow</html>")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


# MLflow's own server, in front of which there is a guard that asks for a token.
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


@pytest.fixture(scope="module")
def server(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server with an empty store; it lets in who has the token ``secret``."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(tables, folder / "mlflow.db")
    places = {
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artefacts"),
    }
    command = [sys.executable, "-c", SERVE, f"sqlite:///{folder / 'mlflow.db'}"]
    pipe, environment = subprocess.PIPE, {**os.environ, **places}
    with subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def test_a_server_gets_what_a_database_gets(
    store: Store, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(store)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    wanted = store.wanted(pages=[TABLE])
    export(wanted, store.uri)
    assert [export(wanted, server) for _ in range(2)] == [Exported(created=3), Exported(unchanged=3)]
    client = MlflowClient(server)
    experiments = {e.experiment_id: e.name for e in client.search_experiments()}
    runs = client.search_runs(list(experiments))
    found = {run.info.run_name: run.to_dictionary() for run in runs}
    expected = store.search()
    assert found.keys() == {run["info"]["run_name"] for run in expected}
    for run in expected:
        there = found[run["info"]["run_name"]]
        assert there["data"]["metrics"] == run["data"]["metrics"]
        assert there["data"]["params"] == run["data"]["params"]
        assert there["info"]["status"] == run["info"]["status"]
        assert experiments[there["info"]["experiment_id"]] == run["paper"]
        kept = [key for key in run["data"]["tags"] if not key.endswith("note") and "content" not in key]
        assert {key: there["data"]["tags"][key] for key in kept} == {
            key: run["data"]["tags"][key] for key in kept
        }
    (item,) = (run.info.run_id for run in runs if run.data.tags["kind"] == "item")
    assert {file.path for file in client.list_artifacts(item)} == {"table1.html", "table1.csv"}


def test_a_server_that_asks_for_a_token(store: Store, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "wrong")
    with pytest.raises(FltrainError, match=r"401.*; set MLFLOW_TRACKING_TOKEN"):
        export(store.wanted(), server)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (lambda: serving(500, 500), "Internal Server Error"),
        (lambda: serving(200, 500), "500 error responses"),
        (lambda: serving(200, 200), ""),
        (silent, "timed out"),
    ],
    ids=["broken", "broken behind its front page", "no MLflow", "silent"],
)
def test_a_server_that_does_not_do_its_work(
    store: Store, monkeypatch: pytest.MonkeyPatch, server: Any, reason: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # pauses in between take seconds
    with server() as uri, pytest.raises(FltrainError) as caught:
        export(store.wanted(), uri, AT_ONCE)
    message = str(caught.value)
    assert message.startswith(f"{uri}: cannot write to this MLflow store (") and reason in message
    assert message.endswith("; start the server or check its address, then export again")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://127.0.0.1:9", "cannot write to this MLflow store .*refused"),
        ("foo://bar", "cannot write to this MLflow store .*unsupported URI"),
        ("results/mlflow.db", "use sqlite:///path/to/file.db or http://host:port"),
    ],
)
def test_an_address_that_does_not_work(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(FltrainError, match=message) as caught:
        export(nothing(tmp_path), uri)
    assert uri in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_record_is_left_out(store: Store) -> None:
    damaged, chosen = store.plain, [record.run_id for record in store.records]
    (damaged.folder / "metrics.jsonl").write_text("{half a li")
    export(Wanted(store.results, "demo", store.memberships, chosen), store.uri)
    assert store.contents().keys() == {*chosen} - {damaged.run_id}
