"""The workflow as people run it, in a copy of this checkout: a few runs of a round, a table, two figures."""

import csv
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from fltrain.data.datasets import Dataset
from fltrain.data.prepared import load_partition, load_prepared
from fltrain.experiments.costs import run_table
from fltrain.experiments.plan import Plan, plan
from fltrain.runs.record import RECORD_FILES, Results

ROOT = Path(__file__).parents[2]
# Everything hidden, too: the environment, the history, caches, what Snakemake remembers.
LEFT_OUT = (".*", "results", "shared", "tests", "__pycache__", "build", "dist", "*.egg-info")

# Table and figure have their own partitions, so that damage to one leaves the other's runs alone.
PAPER = """\
paper: toy
title: A toy paper
citation: none
settings:
  dataset: digits
  partition: {name: iid, clients: 2}
  model: mlp
  method: fedavg
  participation: {fraction: 1.0}
  rounds: 100
  training: {epochs: 1, batch_size: 64, lr: 0.05}
seeds: 1
items:
  accuracy:
    title: Accuracy of two methods at {rate}, $\\eta_{max}$
    caption: Who is better, in a table, {paper} or {item}.
    axes:
      method:
        FedAvg: fedavg
        FedProx: {set: {method: {name: fedprox, mu: 0.1}}, reported: {method: fedprox}}
    table:
      rows: method
      measures:
        - {measure: final_accuracy, reported: acc, gain_over: {method: FedAvg}}
    reported: toy_accuracy.csv
  drift:
    title: Drift with FLFA
    caption: Who drifts, in a figure.
    settings: {partition: {clients: 3}}
    axes:
      plugin:
        + FLFA: {set: {plugins: [flfa]}}
    figure:
      kind: curves
      series: plugin
      panels:
        - {curve: updates.drift, label: Drift}
  shares:
    title: Who holds what
    caption: Which classes, in bubbles.
    axes:
      scheme:
        As in the table: {set: {}}
        By class: {set: {partition: {name: pathological, clients: 5}, local_test: {fraction: 0.25}}}
    figure: {kind: bubbles, columns: scheme}
"""
SCALE = """\
scale: tiny
title: a round on a few clients
reduced: true
settings:
  rounds: 1
  evaluation: {statistics: [drift]}
items: [toy/accuracy, toy/drift, toy/shares]
"""
# For what takes many runs of the workflow: a table of two runs.
SINGLE = """\
scale: single
title: one table, a round on a few clients
reduced: true
settings: {rounds: 1}
items: [toy/accuracy]
"""
PUBLISHED = """\
method,metric,value,note
fedavg,acc,91.00,as printed
fedprox,acc,92.00,as printed
"""

TABLE, FIGURE, BUBBLES = "assembling toy/accuracy", "drawing toy/drift", "drawing toy/shares"
RUN_TABLE, TRACK = "writing the run table", "exporting runs to MLflow"
CLAIMS, OVERVIEW = "judging the claims of toy", "writing the overview"
DATA = "preparing dataset digits"
REPORT = "results/report.html"
OUTPUTS = [
    "runs.csv",
    "tracked.json",
    "index.html",
    "runs.html",
    "verdicts.csv",
    *(f"toy/{name}" for name in ("claims.csv", "claims.md", "summary.json")),
    *(f"toy/accuracy.{form}" for form in ("csv", "md", "tex", "html", "published.html")),
    *(f"toy/{figure}.{form}" for figure in ("drift", "shares") for form in ("csv", "pdf", "svg", "png")),
]


@dataclass(frozen=True)
class Checkout:
    """A copy of the sources, with a small paper and scale added."""

    root: Path

    @classmethod
    def of_this_repository(cls, root: Path) -> "Checkout":
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        (root / "config" / "papers" / "toy.yaml").write_text(PAPER)
        (root / "config" / "scales" / "tiny.yaml").write_text(SCALE)
        (root / "config" / "scales" / "single.yaml").write_text(SINGLE)
        (root / "config" / "reported" / "toy_accuracy.csv").write_text(PUBLISHED)
        return cls(root)

    def copy(self, root: Path) -> "Checkout":
        """A copy with its results, dates included, and with what Snakemake remembers."""
        return Checkout(Path(shutil.copytree(self.root, root, symlinks=True)))

    @property
    def results(self) -> Results:
        return Results(self.root / "results")

    @property
    def plan(self) -> Plan:
        return plan(self.root / "config", "tiny")

    def snakemake(
        self, *arguments: str, scale: str = "tiny", settings: tuple[str, ...] = ()
    ) -> tuple[int, str]:
        """Run Snakemake with the default profile; return exit code, and output with the log that it names."""
        foreign = ("SNAKEMAKE", "FLTRAIN")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment["PYTHONPATH"] = str(self.root)
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments, "--config", f"scale={scale}", *settings],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        logs = re.findall(r"^Complete log\(s\): (.+)$", done.stdout, re.MULTILINE)
        return done.returncode, "\n".join([done.stdout, *(Path(log).read_text() for log in logs)])

    def jobs(self, *arguments: str, settings: tuple[str, ...] = ()) -> dict[str, str]:
        """What a dry run would do, with the reasons; a job is known by its message."""
        code, said = self.snakemake("--dry-run", *arguments, settings=settings)
        assert code == 0, said
        found = jobs_in(said)
        assert found or "Nothing to be done" in said, said
        return found

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))


def jobs_in(said: str) -> dict[str, str]:
    """Messages of the jobs that Snakemake lists, with the reasons that it gives."""
    return dict(re.findall(r"^Job \d+: (.+)\nReason: (.+)$", said, re.MULTILINE))


def training(*runs: str) -> set[str]:
    return {f"training {run}" for run in runs}


def contents(folder: Path, names: tuple[str, ...] = RECORD_FILES) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def dates(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which nothing has been run; not to be changed."""
    return Checkout.of_this_repository(tmp_path_factory.mktemp("fresh") / "checkout")


@pytest.fixture(scope="module")
def done(fresh: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which everything has been run; not to be changed."""
    checkout = fresh.copy(tmp_path_factory.mktemp("done") / "checkout")
    code, said = checkout.snakemake("--report-after-run", "--report", REPORT)
    assert code == 0, said
    return checkout


@pytest.fixture
def changed(done: Checkout, tmp_path: Path) -> Checkout:
    """A copy in which everything has been run, for a test to change."""
    return done.copy(tmp_path / "checkout")


# ---------------------------------------------------------------- what a run of the workflow leaves
def test_all_outputs_are_there(done: Checkout) -> None:
    folder = done.results.root / "tiny"
    made = {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }
    assert sorted(made) == sorted(OUTPUTS)
    assert all(made.values())


def test_data_come_with_a_contact_sheet(done: Checkout) -> None:
    assert sorted(path.name for path in (done.results.root / "data").iterdir()) == [
        "digits.png",
        "digits.safetensors",
    ]
    path = done.results.data(Dataset(name="digits"))
    data = load_prepared(Dataset(name="digits"), path)
    with Image.open(path.with_suffix(".png")) as sheet:
        assert sheet.size[0] > sheet.size[1] > 10 * data.side, "a row per class"
    log = (done.results.root / "logs" / "data" / "digits.log").read_text()
    assert f"digits: digest {data.digest}" in log and log.endswith(" done\n")


def test_partitions_are_made_from_the_settings_of_the_plan(done: Checkout) -> None:
    specs = {spec.partition_id: spec for spec in done.plan.specs}
    assert len(specs) == 3
    assert {path.stem for path in (done.results.root / "partitions").iterdir()} == set(specs)
    assert [spec.local_test is not None for spec in specs.values()] == [False, False, True]
    for spec in specs.values():
        data = load_prepared(spec.dataset, done.results.data(spec.dataset))
        # Refuses a file that was made from another scheme, local test, seed, or from other data.
        made = load_partition(spec.partition, spec.local_test, data, spec.seed, done.results.partition(spec))
        assert len(made.clients) == spec.partition.clients
        assert (made.tests is None) == (spec.local_test is None)


def test_records_are_complete(done: Checkout) -> None:
    runs = done.plan.runs
    assert len(runs) == 3, "nothing is trained for an item that shows partitions"
    assert sorted(path.name for path in (done.results.root / "runs").iterdir()) == sorted(runs)
    for run, spec in runs.items():
        record = done.results.record(run)
        assert all((record.folder / name).is_file() for name in (*RECORD_FILES, "train.log"))
        assert record.spec == spec.canonical
        assert record.summary["status"] == "completed"
        assert "final accuracy" in (record.folder / "train.log").read_text()


def test_the_run_table_lists_the_plan(done: Checkout) -> None:
    with (done.results.root / "tiny" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == list(csv.DictReader(run_table(done.plan, {}).splitlines())), "nothing was measured here"
    assert [row["run"] for row in rows] == list(done.plan.runs)


def test_the_table_shows_ours_and_the_published_values(done: Checkout) -> None:
    with (done.results.root / "tiny" / "toy" / "accuracy.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["n"], row["published"]) for row in rows] == [
        ("FedAvg", "1", "91.0"),
        ("FedProx", "1", "92.0"),
    ]
    assert [row["runs"] for row in rows] == done.plan.items[0].run_ids
    for row in rows:
        final = done.results.record(row["runs"]).summary["accuracy"]["final"]
        assert float(row["mean"]) == pytest.approx(100 * final)


def test_mlflow_has_every_run_once(done: Checkout) -> None:
    query = (
        "SELECT tags.value FROM tags JOIN runs USING (run_uuid) "
        "WHERE tags.key = 'fltrain.run_id' AND runs.lifecycle_stage = 'active'"
    )
    with closing(sqlite3.connect(done.results.tracking)) as database:
        exported = [run for (run,) in database.execute(query)]
    assert sorted(exported) == sorted(done.plan.runs)


def test_the_report_shows_titles_categories_and_captions(done: Checkout) -> None:
    report = (done.root / REPORT).read_text()
    plain = report.replace("\\u2060", "").replace("\u2060", "").replace("\\\\", "\\")
    for item in done.plan.items:
        assert item.item.title in plain and item.item.caption in plain
    for text in ("Reduced scale", '"toy"', '"tables"', '"figures"', '"ours"', '"published"'):
        assert text in report


def test_the_terminal_shows_a_line_for_each_run(changed: Checkout) -> None:
    """With its accuracy; and next to nothing if there is nothing to do."""
    (run,) = changed.plan.items[1].run_ids
    shutil.rmtree(changed.results.run(run))
    code, said = changed.snakemake("toy_drift")
    assert code == 0, said
    terminal, _, log = said.partition("Complete log(s): ")
    assert "1 run to train, 2 other jobs\n" in terminal
    (line,) = re.findall(
        r"^\[1/1\] (\S+): ([\d.]+) %, [\d.]+ s; all runs are trained$", terminal, re.MULTILINE
    )
    final = changed.results.record(run).summary["accuracy"]["final"]
    assert line == (run, f"{100 * final:.2f}")
    assert "Reason: " not in terminal and "Reason: " in log
    code, said = changed.snakemake("toy_drift")
    assert (code, len(said.strip().splitlines())) == (0, 2), said
    assert "Nothing to be done" in said


# ---------------------------------------------------------------- what is done again, and what is not
def test_a_second_run_has_nothing_to_do_even_with_new_comments(changed: Checkout) -> None:
    for path in ("config/papers/toy.yaml", "config/scales/tiny.yaml", "config/config.yaml"):
        file = changed.root / path
        file.write_text(f"# A remark.\n{file.read_text()}")
    assert changed.jobs() == {}


def test_a_hyper_parameter_of_a_method_retrains_the_runs_of_that_method(changed: Checkout) -> None:
    before = set(changed.plan.runs)
    changed.edit("config/papers/toy.yaml", "mu: 0.1", "mu: 0.2")
    (new,) = set(changed.plan.runs) - before
    jobs = changed.jobs()
    assert set(jobs) == training(new) | {TABLE, RUN_TABLE, TRACK, CLAIMS, OVERVIEW}
    assert jobs[f"training {new}"] == f"Missing output files: results/runs/{new}/summary.json"
    assert new in jobs[TABLE]


def test_a_caption_or_a_published_value_concerns_its_item_only(changed: Checkout) -> None:
    changed.edit("config/papers/toy.yaml", "Which classes, in bubbles.", "Which classes they hold.")
    changed.edit("config/reported/toy_accuracy.csv", "91.00", "90.00")
    jobs = changed.jobs()
    assert set(jobs) == {TABLE, BUBBLES, CLAIMS, OVERVIEW, TRACK}
    assert "config/reported/toy_accuracy.csv" in jobs[TABLE] and "Params" not in jobs[TABLE]
    assert "Params have changed" in jobs[BUBBLES] and "Which classes they hold." in jobs[BUBBLES]


@pytest.mark.slow
def test_a_new_revision_of_a_data_set_concerns_everything_made_from_it(changed: Checkout) -> None:
    changed.edit("config/datasets.yaml", "\n  reader: digits\n", "\n  reader: digits\n  revision: 2\n")
    jobs = changed.jobs()
    divided = {job for job in jobs if job.startswith("partitioning data: ")}
    trained = {job for job in jobs if job.startswith("training ")}
    assert (len(divided), len(trained)) == (3, 3)
    assert not {job.split()[-1] for job in trained} & set(changed.plan.runs)
    made = {TABLE, FIGURE, BUBBLES, RUN_TABLE, TRACK, CLAIMS, OVERVIEW}
    assert set(jobs) == {DATA, *divided, *trained, *made}
    assert "Params have changed" in jobs[DATA]


# ---------------------------------------------------------------- what is asked for
def test_an_item_that_shows_partitions_needs_data_and_partitions_only(fresh: Checkout) -> None:
    shares = fresh.plan.items[2]
    divided = {f"partitioning data: {partition}" for partition in shares.partition_ids}
    assert len(divided) == 2
    assert set(fresh.jobs("toy_shares")) == {DATA, *divided, BUBBLES}


@pytest.mark.slow
def test_data_and_partitions_can_be_had_beforehand_also_of_other_sets(fresh: Checkout) -> None:
    divided = {f"partitioning data: {spec.partition_id}" for spec in fresh.plan.specs}
    assert len(divided) == 3
    jobs = fresh.jobs("all_data", "results/data/mnist.png")
    assert set(jobs) == {DATA, "preparing dataset mnist", *divided}


@pytest.mark.parametrize(
    "arguments", [("--dry-run",), pytest.param(("--lint",), marks=pytest.mark.slow)], ids=" ".join
)
def test_looking_changes_no_file(changed: Checkout, arguments: tuple[str, ...]) -> None:
    """Not even if something is to be done: the database was deleted, and files have dates in the future."""
    changed.results.tracking.unlink()
    tomorrow = time.time() + 86400
    os.utime(next(changed.results.root.glob("runs/*/summary.json")), (tomorrow, tomorrow))
    before = dates(changed.results.root)
    changed.snakemake(*arguments)
    assert dates(changed.results.root) == before


def test_an_unknown_scale_is_one_clear_error(fresh: Checkout) -> None:
    code, said = fresh.snakemake(scale="tinny")
    assert code != 0
    assert said.count("unknown scale 'tinny'; did you mean 'tiny'?") == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_restriction_leaves_what_it_names(fresh: Checkout) -> None:
    """FedProx needs FedAvg, over which the table shows its gain; FedAvg needs no other."""
    average, prox = (entry.spec for entry in fresh.plan.items[0].entries)
    divided = f"partitioning data: {prox.partition_id}"
    common = {DATA, divided, TABLE, RUN_TABLE, TRACK, CLAIMS, OVERVIEW}
    needed = {"fedprox": (average.run_id, prox.run_id), "[fedavg]": (average.run_id,)}
    for method, runs in needed.items():
        settings = (f"methods={method}", "items=toy/accuracy", "papers=[toy]", "seeds=1")
        assert set(fresh.jobs(settings=settings)) == {*common, *training(*runs)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("methods=fedprx", "has no method 'fedprx'; did you mean 'fedprox'?"),
        ("method=fedprox", "unknown key 'method'; did you mean 'methods'?"),
        ("train=false", "none of its runs has a record"),
    ],
)
def test_a_restriction_that_cannot_be_met_is_one_clear_error(
    fresh: Checkout, setting: str, told: str
) -> None:
    code, said = fresh.snakemake("--dry-run", settings=(setting,))
    assert code != 0
    assert said.count(told) == 1
    assert "Traceback" not in said


def test_a_restricted_table_says_so(changed: Checkout) -> None:
    settings = ("methods=fedavg", "items=toy/accuracy")
    code, said = changed.snakemake(settings=settings)
    assert code == 0, said
    assert set(jobs_in(said)) == {TABLE, RUN_TABLE, TRACK, CLAIMS, OVERVIEW}
    folder = changed.results.root / "tiny"
    table = (folder / "toy" / "accuracy.md").read_text()
    assert "FedAvg" in table and "| FedProx" not in table
    assert "Reduced scale: a round on a few clients, restricted to method fedavg." in table
    for page in ("index.html", "runs.html"):
        assert "restricted to item toy/accuracy, method fedavg." in (folder / page).read_text()


@pytest.mark.slow
def test_a_restriction_takes_no_item_from_runs_in_mlflow(changed: Checkout) -> None:
    """FedAvg's run is in the table and in the added one; only the latter is asked for."""
    added = """\
  again:
    title: Again
    axes: {method: [fedavg]}
    table: {rows: method, measures: [{measure: final_accuracy}]}
"""
    (changed.root / "config" / "papers" / "toy.yaml").write_text(PAPER + added)
    scale = SCALE.replace("[toy/", "[toy/again, toy/")
    (changed.root / "config" / "scales" / "tiny.yaml").write_text(scale)
    code, said = changed.snakemake("results/tiny/tracked.json", settings=("items=toy/again",))
    assert code == 0, said
    with closing(sqlite3.connect(changed.results.tracking)) as store:
        query = "select value from tags where key = 'items' and value like '%again%'"
        assert store.execute(query).fetchall() == [("toy/again, toy/accuracy,",)]


def test_without_training_tables_are_made_from_the_records_that_exist(changed: Checkout) -> None:
    table, figure, _ = changed.plan.items
    kept, lost = table.run_ids
    for run in (lost, *figure.run_ids):
        shutil.rmtree(changed.results.run(run))
    for folder in ("data", "partitions"):
        shutil.rmtree(changed.results.root / folder)
    code, said = changed.snakemake(settings=("train=false",))
    assert code == 0, said
    assert set(jobs_in(said)) == {TABLE, RUN_TABLE, TRACK, CLAIMS, OVERVIEW}
    assert [path.name for path in (changed.results.root / "runs").iterdir()] == [kept]
    assert not (changed.results.root / "data").exists()
    rows = (changed.results.root / "tiny" / "toy" / "accuracy.md").read_text().splitlines()
    assert "not run" in next(row for row in rows if row.startswith("| FedProx"))
    assert "not run" not in next(row for row in rows if row.startswith("| FedAvg"))


# ---------------------------------------------------------------- faults of the system
@pytest.mark.slow
def test_mlflow_that_cannot_be_written_stops_nothing_else(changed: Checkout) -> None:
    tiny, store = changed.results.root / "tiny", changed.results.tracking
    for made in (tiny / "tracked.json", tiny / "index.html", store):
        made.unlink()
    store.mkdir()
    code, said = changed.snakemake()
    assert code != 0
    (told,) = set(re.findall(r"^error: (.*)$", said, re.MULTILINE))
    assert told.startswith("sqlite:///results/mlflow.db: cannot write to this MLflow store (unable to open")
    assert told.endswith("; delete it, then export again: it is made anew from the records")
    assert set(jobs_in(said)) == {TRACK, OVERVIEW}
    assert [name for name in OUTPUTS if not (tiny / name).exists()] == ["tracked.json"]
    store.rmdir()
    code, said = changed.snakemake()
    assert code == 0, said
    assert set(jobs_in(said)) == {TRACK}


@pytest.mark.slow
def test_a_deleted_database_is_made_again(changed: Checkout) -> None:
    changed.results.tracking.unlink()
    assert changed.jobs().keys() == {TRACK}


@pytest.mark.slow
def test_a_clock_that_was_set_back_costs_no_record(changed: Checkout) -> None:
    """Snakemake deletes what a job has made if it is older than the job's input."""
    run = changed.plan.items[0].run_ids[-1]
    shutil.rmtree(changed.results.run(run))
    tomorrow = time.time() + 86400
    for made in changed.results.root.rglob("*"):
        os.utime(made, (tomorrow, tomorrow))
    code, said = changed.snakemake("toy_accuracy")
    assert code == 0, said
    assert changed.results.record(run).complete
    assert set(jobs_in(said)) == {*training(run), TABLE}


@pytest.mark.slow
def test_a_damaged_file_can_be_made_again_without_training_what_is_complete(changed: Checkout) -> None:
    spec = changed.plan.items[0].entries[-1].spec
    partition, run = changed.results.partition(spec), spec.run_id
    shutil.rmtree(changed.results.run(run))
    whole = partition.read_bytes()
    os.truncate(partition, 100)
    code, said = changed.snakemake("--force", str(partition.relative_to(changed.root)))
    assert code == 0, said
    assert (
        set(jobs_in(said)) == {f"partitioning data: {spec.partition_id}"} and partition.read_bytes() == whole
    )
    assert changed.jobs("toy_accuracy").keys() == {*training(run), TABLE}


@pytest.mark.slow
def test_data_that_are_made_anew_are_no_reason_to_train_again(changed: Checkout) -> None:
    missing, kept = (entry.spec for entry in changed.plan.items[0].entries)
    shutil.rmtree(changed.results.run(missing.run_id))
    changed.results.data(kept.dataset).unlink()
    changed.results.partition(kept).unlink()
    before = dates(changed.results.run(kept.run_id))
    code, said = changed.snakemake("toy_accuracy")
    assert code == 0, said
    log = changed.results.run(kept.run_id) / "train.log"
    assert f"{kept.run_id}: already trained" in log.read_text()
    after = dates(changed.results.run(kept.run_id))
    metrics = changed.results.run(kept.run_id) / "metrics.jsonl"
    assert after[metrics] == before[metrics]
    assert changed.results.record(missing.run_id).complete


@pytest.mark.slow
def test_killed_processes_cost_no_result(fresh: Checkout, tmp_path: Path) -> None:
    """A small version of what the script does by hand with a hundred kills."""
    command = (sys.executable, "benchmarks", "soak", "--scale", "single", "--kills", "5", "--every", "1")
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "soak")],
        cwd=fresh.root,
        env={**os.environ, "PYTHONPATH": str(fresh.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^[1-5] kills .*, \d+ starts", done.stdout, re.MULTILINE)
    assert re.search(r"^[1-9]\d* files compared, 0 differ$", done.stdout, re.MULTILINE)


METHOD = '''
"""Half of every gradient: what federated averaging does at half the rate."""

from typing import Literal

from fltrain.methods.base import Method


class Halved(Method):
    """Federated averaging with halved gradients."""

    name: Literal["halved"] = "halved"

    def correct(self, gradient, weights, local, carry):
        return gradient / 2
'''


def test_a_new_method_takes_one_file_and_one_line(changed: Checkout) -> None:
    (changed.root / "fltrain" / "methods" / "halved.py").write_text(METHOD)
    changed.edit(
        "config/papers/toy.yaml",
        "        FedAvg: fedavg\n",
        "        FedAvg: fedavg\n        Halved: halved\n",
    )
    code, said = changed.snakemake("toy_accuracy")
    assert code == 0, said
    trained = {job for job in jobs_in(said) if job.startswith("training ")}
    assert len(trained) == 1 and next(iter(trained)).startswith("training digits-halved-")
    with (changed.results.root / "tiny" / "toy" / "accuracy.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["FedAvg", "Halved", "FedProx"]
    record = changed.results.record(rows["Halved"]["runs"])
    assert float(rows["Halved"]["mean"]) == pytest.approx(100 * record.summary["accuracy"]["final"])
    average = changed.results.record(rows["FedAvg"]["runs"])
    assert record.summary["loss"] != average.summary["loss"], "it does what it says"


# ---------------------------------------------------------------- jobs that fail, beside one that does not
@dataclass(frozen=True)
class Failure:
    """Two records were deleted, and a partition and what is known of published values damaged.

    The table's run can be trained again (``good``), the figure's cannot (``bad``); the table fails then.
    """

    checkout: Checkout
    good: str
    bad: str
    dates: dict[Path, int]
    code: int
    said: str


@pytest.fixture(scope="module")
def failure(done: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Failure:
    checkout = done.copy(tmp_path_factory.mktemp("failure") / "checkout")
    table, figure, _ = checkout.plan.items
    good, bad = table.entries[-1].spec, figure.entries[0].spec
    for run in (good.run_id, bad.run_id):
        shutil.rmtree(checkout.results.run(run))

    partition = checkout.results.partition(bad)
    date = partition.stat().st_mtime_ns
    damaged = bytearray(partition.read_bytes())
    damaged[-1] ^= 1
    partition.write_bytes(damaged)
    os.utime(partition, ns=(date, date))
    checkout.edit("config/reported/anomalies.csv", ",match,", ",mtach,")

    before = dates(checkout.results.root / "runs")
    code, said = checkout.snakemake("toy_accuracy", "toy_drift")
    return Failure(checkout, good.run_id, bad.run_id, before, code, said)


def test_exactly_the_missing_records_are_made_again(failure: Failure, done: Checkout) -> None:
    assert set(jobs_in(failure.said)) == {*training(failure.good, failure.bad), TABLE}
    after = dates(failure.checkout.results.root / "runs")
    assert {path: date for path, date in after.items() if path in failure.dates} == failure.dates
    names = ("spec.json", "metrics.jsonl", "summary.json")
    again, first = (where.results.run(failure.good) for where in (failure.checkout, done))
    assert contents(again, names) == contents(first, names), "the same run gives the same record"


def test_a_failed_run_is_an_error_of_the_workflow(failure: Failure) -> None:
    assert failure.code != 0
    message = re.findall(r"^error: (.*partitions.*)$", failure.said, re.MULTILINE)
    assert message and "delete it to have it made again" in message[0]
    assert "Traceback" not in failure.said


def test_the_log_of_a_failed_run_says_why(failure: Failure) -> None:
    log = failure.checkout.results.run(failure.bad) / "train.log"
    assert "delete it to have it made again" in log.read_text()


def test_a_failed_run_leaves_no_record(failure: Failure) -> None:
    folder = failure.checkout.results.run(failure.bad)
    assert {path.name for path in folder.glob("*")} <= {"train.log"}
    assert not failure.checkout.results.record(failure.bad).complete


def test_the_log_of_a_failed_table_says_why(failure: Failure) -> None:
    log = failure.checkout.results.root / "logs" / "tiny" / "table" / "toy_accuracy.log"
    (line,) = log.read_text().splitlines()
    assert "error: config/reported/anomalies.csv: there is no column 'match'; did you mean 'mtach'?" in line
    assert line.partition("error: ")[2] in failure.said
