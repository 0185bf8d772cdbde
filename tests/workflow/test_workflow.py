"""The workflow in a copy of this checkout: a few runs of one round, a table, two figures."""

import csv
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from fltrain.data.datasets import Dataset
from fltrain.experiments.plan import Plan, plan
from fltrain.runs.record import Results

ROOT = Path(__file__).parents[2]
# Hidden files are left out, too: the environment, the history, caches, Snakemake's metadata.
LEFT_OUT = (".*", "results", "shared", "tests", "build", "dist", "*.egg-info")

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
    settings: {partition: {name: pathological, clients: 5}, local_test: {fraction: 0.25}}
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
# For tests that run the workflow many times: a table of two runs.
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
TRACK = "exporting runs to MLflow"
CLAIMS, OVERVIEW = "judging the claims of toy", "writing the overview"
DATA, VERSION = "preparing dataset digits", "noting the version of the reporting code"
REPORT = "results/report.html"
FORMS = ("csv", "pdf", "svg", "png")
LOOKS = """\
from snakemake.cli import main
from snakemake.scheduling.job_scheduler import JobScheduler
JobScheduler._schedule_reevalutation = lambda self, delay: print('looks again')
main()
"""
"""Snakemake, announcing each look at all jobs that it plans."""
OUTPUTS = [
    "tracked.txt",
    "index.html",
    "runs.html",
    "verdicts.csv",
    *(f"toy/{name}" for name in ("claims.csv", "claims.md", "summary.json", "index.html")),
    *(f"toy/accuracy.{form}" for form in ("csv", "md", "tex", "html")),
    *(f"toy/{figure}.{form}" for figure in ("drift", "shares") for form in FORMS),
]


@dataclass(frozen=True)
class Checkout:
    """A copy of the sources, with a small paper and scale added."""

    root: Path
    output: str = ""
    """Printed by the run that made everything, with its log."""

    @classmethod
    def of_this_repository(cls, root: Path) -> "Checkout":
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        (root / "config" / "papers" / "toy.yaml").write_text(PAPER)
        (root / "config" / "scales" / "tiny.yaml").write_text(SCALE)
        (root / "config" / "scales" / "single.yaml").write_text(SINGLE)
        (root / "config" / "reported" / "toy_accuracy.csv").write_text(PUBLISHED)
        (root / "looks.py").write_text(LOOKS)
        return cls(root)

    def copy(self, root: Path) -> "Checkout":
        """Copy it with its results, modification times and Snakemake's metadata."""
        return Checkout(Path(shutil.copytree(self.root, root, symlinks=True)))

    @property
    def results(self) -> Results:
        return Results(self.root / "results")

    @property
    def plan(self) -> Plan:
        return plan(self.root / "config", "tiny")

    def snakemake(
        self, *arguments: str, scale: str = "tiny", settings: tuple[str, ...] = (), program: str = "snakemake"
    ) -> tuple[int, str]:
        """Run Snakemake with the default profile; return exit code, and output with the log that it names."""
        result = self.python(program, *arguments, "--config", f"scale={scale}", *settings)
        logs = re.findall(r"^Complete log\(s\): (.+)$", result.stdout, re.MULTILINE)
        return result.returncode, "\n".join([result.stdout, *(Path(log).read_text() for log in logs)])

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module with Python in this checkout."""
        foreign = ("SNAKEMAKE", "FLTRAIN", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment["PYTHONPATH"] = f"{self.root}{os.pathsep}{self.root / 'workflow' / 'logger'}"
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def jobs(self, *arguments: str, settings: tuple[str, ...] = ()) -> dict[str, str]:
        """Messages of the jobs that a dry run lists, with the reasons."""
        code, output = self.snakemake("--dry-run", *arguments, settings=settings)
        assert code == 0, output
        jobs = jobs_in(output)
        assert jobs or "Nothing to be done" in output, output
        return jobs

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))


def jobs_in(output: str) -> dict[str, str]:
    """Messages of the jobs that Snakemake lists, with the reasons."""
    return dict(re.findall(r"^Job \d+: (.+)\nReason: (.+)$", output, re.MULTILINE))


def training(*runs: str) -> set[str]:
    return {f"training {run}" for run in runs}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def dates(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """An unused checkout; tests must not change it."""
    return Checkout.of_this_repository(tmp_path_factory.mktemp("fresh") / "checkout")


@pytest.fixture(scope="module")
def done(fresh: Checkout, once: Callable[[str, Callable[[Path], None]], Path]) -> Checkout:
    """A checkout after a complete workflow run; tests must not change it."""

    def make(root: Path) -> None:
        code, output = fresh.copy(root).snakemake("--report-after-run", "--report", REPORT, program="looks")
        assert code == 0, output
        (root / "output.txt").write_text(output)

    root = once("workflow", make)
    return Checkout(root, (root / "output.txt").read_text())


@pytest.fixture
def changed(done: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the complete checkout that a test may change."""
    return done.copy(tmp_path / "checkout")


# ---------------------------------------------------------------- outputs of a run
def test_all_outputs_of_the_workflow_exist(done: Checkout) -> None:
    folder = done.results.root / "tiny"
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }
    assert sorted(sizes) == sorted(OUTPUTS)
    assert all(sizes.values())
    assert (done.results.data(Dataset(name="digits")).with_suffix(".png")).stat().st_size > 1000


def test_records_are_complete_and_exported_once(done: Checkout) -> None:
    runs = done.plan.runs
    assert len(runs) == 3, "nothing is trained for an item that shows partitions"
    assert sorted(path.name for path in (done.results.root / "runs").iterdir()) == sorted(runs)
    for run, spec in runs.items():
        record = done.results.record(run)
        assert record.complete and record.spec == spec.canonical
        assert "final accuracy" in (record.folder / "train.log").read_text()
    query = (
        "SELECT runs.name FROM tags JOIN runs USING (run_uuid) "
        "WHERE tags.key = 'kind' AND tags.value = 'run' AND runs.lifecycle_stage = 'active'"
    )
    with closing(sqlite3.connect(done.results.tracking)) as database:
        assert sorted(run for (run,) in database.execute(query)) == sorted(runs)


def test_tables_show_the_plan_and_the_published_values(done: Checkout) -> None:
    rows = rows_of(done.results.root / "tiny" / "toy" / "accuracy.csv")
    assert [(row["row"], row["n"], row["published"]) for row in rows] == [
        ("FedAvg", "1", "91.0"),
        ("FedProx", "1", "92.0"),
    ]
    assert [row["runs"] for row in rows] == done.plan.items[0].run_ids
    for row in rows:
        final = done.results.record(row["runs"]).summary["accuracy"]["final"]
        assert float(row["mean"]) == pytest.approx(100 * final)


def test_the_report_shows_titles_categories_and_captions(done: Checkout) -> None:
    report = (done.root / REPORT).read_text()
    plain = report.replace("\\u2060", "").replace("\u2060", "").replace("\\\\", "\\")
    for item in done.plan.items:
        assert item.item.title in plain and item.item.caption in plain and item.paper.title in plain
    assert "Reduced scale" in report
    assert len(report.encode()) < 5e6, "two figures, one table and the pages of Snakemake"


def test_the_terminal_shows_the_accuracy_of_each_run(done: Checkout) -> None:
    terminal, _, log = done.output.partition("Complete log(s): ")
    assert "3 runs to train, 10 other jobs\n" in terminal
    lines = re.findall(r"^\[(\d)/3\] (\S+): final accuracy ([\d.]+) %, [\d.]+ s; ", terminal, re.MULTILINE)
    assert [number for number, _, _ in lines] == ["1", "2", "3"]
    assert {run: accuracy for _, run, accuracy in lines} == {
        run: f"{100 * done.results.record(run).summary['accuracy']['final']:.2f}" for run in done.plan.runs
    }
    assert "Reason: " not in terminal and "Reason: " in log


@pytest.mark.parametrize(
    ("arguments", "settings", "problem"),
    [
        (("--dry-run",), ("items=nosuch",), "has no item 'nosuch'"),
        (("--delete-all-output",), (), "would delete finished runs"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], settings: tuple[str, ...], problem: str, fresh: Checkout, tmp_path: Path
) -> None:
    code, output = fresh.copy(tmp_path / "checkout").snakemake(*arguments, settings=settings)
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert code == 2 and problem in line


# ---------------------------------------------------------------- jobs that run again
@pytest.mark.slow
def test_an_edit_reruns_only_the_jobs_that_depend_on_it(changed: Checkout) -> None:
    """Comments rerun nothing, and a dry run changes no file."""
    for path in ("config/papers/toy.yaml", "config/scales/tiny.yaml", "config/config.yaml"):
        file = changed.root / path
        file.write_text(f"# A remark.\n{file.read_text()}")
    before = set(changed.plan.runs)
    changed.edit("config/papers/toy.yaml", "mu: 0.1", "mu: 0.2")
    changed.edit("config/papers/toy.yaml", "Which classes, in bubbles.", "Which classes they hold.")
    (new_run,) = set(changed.plan.runs) - before
    files = dates(changed.results.root)
    jobs = changed.jobs()
    assert dates(changed.results.root) == files
    assert set(jobs) == training(new_run) | {TABLE, BUBBLES, TRACK, CLAIMS, OVERVIEW}
    assert jobs[f"training {new_run}"] == f"Missing output files: results/runs/{new_run}/summary.json"
    assert new_run in jobs[TABLE]
    assert "Params have changed" in jobs[BUBBLES] and "they hold." in jobs[BUBBLES]


@pytest.mark.slow
def test_runs_of_changed_code_are_named_and_trained_again(changed: Checkout) -> None:
    entry = changed.plan.items[0].entries[-1]
    summary = changed.results.run(entry.spec.run_id) / "summary.json"
    costs, before = summary.with_name("costs.json"), summary.read_bytes()
    measured = costs.read_bytes()
    source = changed.root / "fltrain" / "methods" / "fedprox.py"
    source.write_text(f"{source.read_text()}\n_UNUSED = 1\n")
    notice = (
        "methods.fedprox changed after 1 record; if a change of yours "
        "affects results, increase `revision` (docs/records.md#changed-code); to train again: "
        "snakemake --config scale=tiny"
    )
    code, output = changed.snakemake("--dry-run")
    assert code == 0 and notice in output and "Nothing to be done" in output, output
    command = changed.python("fltrain", "status", "--changed", "--scale", "tiny").stdout.split()
    assert command == [f"results/runs/{entry.spec.run_id}/summary.json"]
    code, output = changed.snakemake("toy_accuracy", "-R", *command)
    assert code == 0 and set(jobs_in(output)) >= {*training(entry.spec.run_id), TABLE}, output
    assert summary.read_bytes() == before and costs.read_bytes() != measured, "trained, with equal results"
    assert notice not in changed.snakemake("--dry-run")[1]


def test_a_copy_without_metadata_makes_tables_of_another_version_again(changed: Checkout) -> None:
    shutil.rmtree(changed.root / ".snakemake")
    assert changed.jobs() == {}
    changed.edit(
        "fltrain/reporting/templates/table.md", "{{ sheet.caption }}", "Caption: {{ sheet.caption }}"
    )
    assert set(changed.jobs()) == {VERSION, TABLE, FIGURE, BUBBLES, TRACK, CLAIMS, OVERVIEW}


def test_a_deleted_mlflow_store_is_filled_again(changed: Checkout) -> None:
    changed.results.tracking.unlink()
    assert set(changed.jobs()) == {TRACK}


def test_a_new_revision_of_a_dataset_reruns_everything_made_from_it(changed: Checkout) -> None:
    changed.edit("config/datasets.yaml", "\n  reader: digits\n", "\n  reader: digits\n  revision: 2\n")
    jobs = changed.jobs()
    divisions = {job for job in jobs if job.startswith("partitioning data: ")}
    trainings = {job for job in jobs if job.startswith("training ")}
    assert (len(divisions), len(trainings)) == (len({spec.partition_id for spec in changed.plan.specs}), 3)
    assert not {job.split()[-1] for job in trainings} & set(changed.plan.runs)
    reports = {TABLE, FIGURE, BUBBLES, TRACK, CLAIMS, OVERVIEW}
    assert set(jobs) == {DATA, *divisions, *trainings, *reports}
    assert "Params have changed" in jobs[DATA]


# ---------------------------------------------------------------- targets and restrictions
@pytest.mark.slow
def test_a_target_needs_only_its_data_and_partitions(fresh: Checkout) -> None:
    """Data and partitions can be made beforehand, also of other datasets."""
    divided = {f"partitioning data: {spec.partition_id}" for spec in fresh.plan.specs}
    jobs = fresh.jobs("toy_shares", "all_data", "results/data/mnist.png")
    assert set(jobs) == {DATA, "preparing dataset mnist", *divided, VERSION, BUBBLES}


@pytest.mark.slow
def test_the_cores_of_a_training_job_are_its_workers(fresh: Checkout, tmp_path: Path) -> None:
    checkout, run = fresh.copy(tmp_path / "checkout"), fresh.plan.items[0].entries[0].spec.run_id
    target, cores = f"results/runs/{run}/summary.json", ("--cores", "2", "--set-threads", "train=2")
    code, output = checkout.snakemake(target, *cores)
    assert code == 0, output
    assert checkout.results.record(run).provenance["workers"] == 2


@pytest.mark.slow
def test_a_restricted_table_names_its_restriction(changed: Checkout) -> None:
    settings = ("where=method=fedavg", "items=toy/accuracy")
    code, output = changed.snakemake(settings=settings)
    assert code == 0, output
    assert set(jobs_in(output)) == {TABLE, TRACK, CLAIMS, OVERVIEW}
    folder = changed.results.root / "tiny"
    table = (folder / "toy" / "accuracy.md").read_text()
    assert "FedAvg" in table and "| FedProx" not in table
    assert "Reduced scale: a round on a few clients, restricted to method=fedavg." in table
    for page in ("index.html", "runs.html"):
        assert "restricted to item toy/accuracy, method=fedavg." in (folder / page).read_text()


# ---------------------------------------------------------------- faults of the system
@pytest.mark.slow
def test_no_result_is_lost_when_processes_are_killed(fresh: Checkout, tmp_path: Path) -> None:
    """A short version of ``benchmarks/soak.py``, which kills processes a hundred times."""
    command = (sys.executable, "benchmarks", "soak", "--scale", "single", "--kills", "1", "--every", "4")
    result = subprocess.run(
        [*command, "--folder", str(tmp_path / "soak")],
        cwd=fresh.root,
        env={**os.environ, "PYTHONPATH": str(fresh.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout
    assert re.search(r"^1 kills, \d+ starts", result.stdout, re.MULTILINE)
    assert re.search(r"^[1-9]\d* files compared, 0 differ$", result.stdout, re.MULTILINE)


def test_finished_jobs_do_not_let_snakemake_look_at_all_jobs_more_often(done: Checkout) -> None:
    """A look that plans another one a second later never ends."""
    assert "looks again" not in done.output


@pytest.mark.slow
def test_a_limit_of_the_user_lets_snakemake_look_at_all_jobs_again(fresh: Checkout, tmp_path: Path) -> None:
    limit = ("--max-jobs-per-timespan", "50/1s")
    code, output = fresh.copy(tmp_path / "checkout").snakemake(
        "results/data/digits.png", *limit, program="looks"
    )
    assert code == 0 and "looks again" in output, output


@pytest.mark.slow
def test_a_failed_job_is_reported_and_the_others_run(changed: Checkout, done: Checkout) -> None:
    """The table's run can be trained again; the figure's cannot, because its lock is a folder.

    The table itself fails because two published values fit a cell.
    """
    table, figure, _ = changed.plan.items
    good, bad = table.entries[-1].spec.run_id, figure.entries[0].spec
    for run in (good, bad.run_id):
        shutil.rmtree(changed.results.run(run))
    changed.results.lease(bad.run_id).mkdir(parents=True)
    changed.edit("config/scales/tiny.yaml", "reduced: true", "reduced: false")
    value = "fedavg,acc,91.00,as printed\n"
    changed.edit("config/reported/toy_accuracy.csv", value, 2 * value)
    before = dates(changed.results.root / "runs")
    code, output = changed.snakemake("toy_accuracy", "toy_drift")

    assert code != 0 and "Traceback" not in output
    terminal = output.partition("Complete log(s)")[0]
    assert f"training {bad.run_id} did not finish:\nerror: " in terminal and "CalledProcess" not in terminal
    assert set(jobs_in(output)) == {*training(good, bad.run_id), TABLE}
    after = dates(changed.results.root / "runs")
    assert {path: date for path, date in after.items() if path in before} == before
    for name in ("spec.json", "metrics.jsonl", "summary.json"):
        again, first = (checkout.results.run(good) / name for checkout in (changed, done))
        assert again.read_bytes() == first.read_bytes(), "equal runs give equal records"
    folder = changed.results.run(bad.run_id)
    assert [path.name for path in folder.iterdir()] == ["train.log"]
    remedy = "choose a results folder that has locks"
    assert remedy in (folder / "train.log").read_text()
    assert re.search(rf"^error: .*lock: cannot be locked.*{remedy}", output, re.MULTILINE)
    (line,) = (
        (changed.results.root / "logs" / "tiny" / "items" / "toy" / "accuracy.log").read_text().splitlines()
    )
    assert "error: toy_accuracy.csv: 2 published values of 'acc' fit method=fedavg; name more columns" in line
    assert line.partition("error: ")[2] in output
