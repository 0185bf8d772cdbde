"""The workflow on a real single-node SLURM with four fake GPUs, which these tests start and stop.

The runs are part of the demonstration. Results from the cluster are compared with results from a local run.
These tests need root and SLURM's programs (Debian: `slurm-wlm`, `munge`): `.ci/run` runs them, `make test`
does not. They refuse to run if SLURM is already running.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest
import yaml

from fltrain.experiments.plan import plan
from fltrain.experiments.selection import Request
from fltrain.runs.spec import RunSpec

from ..workflow.test_workflow import Checkout
from .slurm import GPUS, Slurm, command, in_jobs, wait_until

# There is no accounting database, and jobs are short.
SITE_OPTIONS = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2")
# Two runs of the demonstration.
PAPER = "fedfcd"
SELECTION = {"items": PAPER, "where": "method=fedavg,local"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")).started() as slurm:
        yield slurm


def on(profile: str, *options: str) -> tuple[str, ...]:
    """Snakemake options that select one of the cluster's profiles."""
    return ("--workflow-profile", f"workflow/profiles/{profile}", *SITE_OPTIONS, *options)


def snakemake(checkout: Checkout, *options: str) -> tuple[int, str]:
    """Run the workflow on the selected runs."""
    settings = tuple(f"{name}={value}" for name, value in SELECTION.items())
    return checkout.snakemake(*options, scale="demo", settings=settings)


def runs_of(checkout: Checkout) -> Mapping[str, RunSpec]:
    request = Request.parse({"scale": "demo", **SELECTION}, "selection")
    return plan(checkout.root / "config", request.scale).restricted(request).runs


def records_of(runs: Mapping[str, RunSpec]) -> tuple[str, ...]:
    """Snakemake targets of the records of some runs."""
    return tuple(f"results/runs/{run}/summary.json" for run in runs)


def record(checkout: Checkout, run: str) -> dict[str, bytes]:
    """The parts of a record that contain no times and no machine names."""
    folder = checkout.results.run(run)
    return {name: (folder / name).read_bytes() for name in ("spec.json", "metrics.jsonl", "summary.json")}


def records(checkout: Checkout) -> dict[str, dict[str, bytes]]:
    """The comparable parts of all records, by run."""
    return {run: record(checkout, run) for run in runs_of(checkout)}


def items(checkout: Checkout) -> dict[str, bytes]:
    """The paper's tables, figures and claims; none of them contains times."""
    folder = checkout.results.root / "demo" / PAPER
    files = [file for form in ("csv", "md", "tex", "svg", "json") for file in folder.glob(f"*.{form}")]
    return {file.name: file.read_bytes() for file in files}


def resumed(checkout: Checkout, run: str) -> list[int]:
    """Rounds after which a run was resumed."""
    return list(checkout.results.record(run).provenance["resumed"])


def amount(checkout: Checkout, resource: str) -> int:
    """The amount that each job requests at its first attempt; all runs have the same network."""
    request = Request.parse(yaml.safe_load((checkout.root / "config" / "config.yaml").read_text()), "config")
    (value,) = {request.resources.amount(resource, spec.model.name, 1) for spec in runs_of(checkout).values()}
    return value


def clock(minutes: int) -> str:
    """A time limit of less than a day, in SLURM's notation."""
    assert minutes < 24 * 60
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


@dataclass(frozen=True)
class Training:
    """A training process in a job, and the devices that it sees."""

    process: int
    job: str
    devices: str


def trainings() -> list[Training]:
    """All training processes in jobs at this moment.

    While the list is collected, a process may end and pass its GPU to the next one. A process that starts
    another program is listed twice until that program runs. So processes that have ended are removed last,
    after the parents have been read.
    """
    candidates = []
    for process, environment in in_jobs():
        if trains(process):
            devices = environment.get("CUDA_VISIBLE_DEVICES", "")
            candidates.append(Training(process, environment["SLURM_JOB_ID"], devices))
    processes = {training.process for training in candidates}
    roots = [training for training in candidates if parent(training.process) not in processes]
    return [training for training in roots if trains(training.process)]


def trains(process: int) -> bool:
    """Return True if a process exists and trains."""
    with suppress(OSError):
        return b"-m\0fltrain\0train\0" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def parent(process: int) -> int | None:
    """The parent of a process, if the process still exists."""
    with suppress(OSError):
        (ppid,) = re.findall(r"^PPid:\s*(\d+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
        return int(ppid)
    return None


def paused_after_a_checkpoint(checkout: Checkout, run: str, job: str) -> Training:
    """Stop the run of a job in the middle, as soon as it has a checkpoint.

    The next event then meets the run at this point, on slow and on fast machines.
    """
    wait_until(lambda: list(checkout.results.checkpoints(run).glob("*.safetensors")), 240, pause=0.02)
    (training,) = (training for training in trainings() if training.job == job)
    os.kill(training.process, signal.SIGSTOP)
    assert not checkout.results.record(run).complete
    return training


def has_pending_sigterm(process: int) -> bool:
    """Return True if a stopped process has a pending SIGTERM, or is gone."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
        masks = re.findall(r"^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)
    return True


def is_requeued(job: Mapping[str, str]) -> bool:
    """Return True if a job is back in the queue and its first attempt has been cleaned up.

    Until then its state is COMPLETING, and its earliest start time cannot be set.
    """
    return (job["Restarts"], job["JobState"]) == ("1", "PENDING")


def start_again(slurm: Slurm, job: str) -> None:
    """Wait until a job is back in the queue, and start it soon; SLURM would wait two minutes.

    SLURM polls nodes once a minute to notice lost jobs. A node refuses to start a job in the second in which
    it learned that the first attempt has ended, and SLURM then gives the job up.
    """
    wait_until(lambda: is_requeued(slurm.jobs()[job]), 240)
    command("scontrol", "update", f"JobId={job}", "StartTime=now+3")


@dataclass(frozen=True)
class Outcome:
    """A checkout after a workflow run: its output, and its jobs in order of submission."""

    checkout: Checkout
    output: str
    jobs: list[dict[str, str]]

    @property
    def names(self) -> list[str]:
        """Run IDs of the jobs."""
        return [job["Comment"].removeprefix("rule_train_wildcards_") for job in self.jobs]


def ran(slurm: Slurm, checkout: Checkout, *options: str) -> Outcome:
    """Run the workflow."""
    before = slurm.jobs_of(checkout.root).keys()
    code, output = snakemake(checkout, *options)
    assert code == 0, output
    jobs = slurm.jobs_of(checkout.root)
    return Outcome(checkout, output, [job for name, job in jobs.items() if name not in before])


def stopped_by_the_limit(slurm: Slurm, checkout: Checkout, run: str) -> Outcome:
    """Run the workflow, and shorten the time limit of a job while it trains.

    SLURM checks the limits twice a minute and may send its signal up to a minute before the limit: 40 seconds
    before the limit, the signal comes in time.
    """
    options = on(
        "slurm", "--set-resources", "train:runtime=10*attempt", "train:slurm_extra='--signal=TERM@29'"
    )
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(ran, slurm, checkout, *records_of({run: runs_of(checkout)[run]}), *options)
        wait_until(lambda: running.done() or slurm.jobs_of(checkout.root), 120)
        (job,) = slurm.jobs_of(checkout.root)
        training = paused_after_a_checkpoint(checkout, run, job)
        elapsed = time.time() - slurm.started_at(job)
        command("scontrol", "update", f"JobId={job}", f"TimeLimit={int(elapsed + 40) // 60 + 1}")
        wait_until(lambda: has_pending_sigterm(training.process), 120)
        with suppress(ProcessLookupError):
            os.kill(training.process, signal.SIGCONT)
        return running.result()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """An unused checkout; tests must not change it."""
    checkout = Checkout.of_this_repository(tmp_path_factory.mktemp("fresh") / "checkout")
    # Frequent checkpoints: runs are stopped in the middle, and killed runs resume there.
    checkout.edit("workflow/rules/train.smk", "fltrain train -", "fltrain train --checkpoint-seconds 0 -")
    return checkout


@pytest.fixture(scope="module")
def prepared(fresh: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with data and partitions; tests must not change it."""
    checkout = fresh.copy(tmp_path_factory.mktemp("prepared") / "checkout")
    code, output = snakemake(checkout, "--cores", "2", "all_data")
    assert code == 0, output
    return checkout


@dataclass(frozen=True)
class Everything:
    """Workflow runs in separate checkouts, all started at once because they mostly wait."""

    local: Future[Outcome]
    """On one GPU of this machine, without the cluster."""
    clustered: Future[Outcome]
    batch: Future[Outcome]
    limited: Future[Outcome]
    seen: set[frozenset[Training]]
    """Processes that trained at the same moment."""


@pytest.fixture(scope="module")
def everything(
    slurm: Slurm, fresh: Checkout, prepared: Checkout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Everything]:
    root = tmp_path_factory.mktemp("everything")
    runs = runs_of(fresh)
    stop, seen = Event(), set()

    def watch() -> None:
        while not stop.wait(0.3):
            seen.add(frozenset(trainings()))

    def copy(name: str, source: Checkout = prepared) -> Checkout:
        return source.copy(root / name)

    with ThreadPoolExecutor(5) as threads:
        one_gpu = ("--workflow-profile", "workflow/profiles/gpu")
        outcomes = Everything(
            limited=threads.submit(stopped_by_the_limit, slurm, copy("limited"), next(iter(runs))),
            clustered=threads.submit(ran, slurm, copy("clustered", fresh), *on("slurm")),
            batch=threads.submit(ran, slurm, copy("batch"), *on("slurm-batched"), *records_of(runs)),
            local=threads.submit(ran, slurm, copy("local"), *one_gpu),
            seen=seen,
        )
        threads.submit(watch)
        yield outcomes
        stop.set()


@pytest.fixture(scope="module")
def local(everything: Everything) -> Checkout:
    """A checkout in which the workflow ran without the cluster."""
    return everything.local.result().checkout


def test_results_of_the_cluster_and_of_a_local_run_are_bytewise_equal(
    everything: Everything, local: Checkout
) -> None:
    clustered = everything.clustered.result().checkout
    assert records(clustered) == records(local)
    files = items(clustered)
    assert {
        "table1.csv",
        "table1.md",
        "table1.tex",
        "figure3.csv",
        "figure3.svg",
        "claims.csv",
    } <= files.keys()
    assert files == items(local)


def test_runs_are_submitted_and_ask_for_the_resources_of_their_network(everything: Everything) -> None:
    clustered = everything.clustered.result()
    assert sorted(clustered.names) == sorted(runs_of(clustered.checkout)) and len(clustered.jobs) == 2
    for job in clustered.jobs:
        assert job["TimeLimit"] == clock(amount(clustered.checkout, "runtime"))
        assert job["MinMemoryNode"] == f"{amount(clustered.checkout, 'mem_mb')}M"
        assert job["TresPerJob"] == "gres:gpu:1" and job["CPUs/Task"] == "1"
        assert job["Requeue"] == "1"


def test_each_job_has_a_separate_gpu(everything: Everything) -> None:
    for future in (everything.clustered, everything.batch, everything.limited):
        future.result()
    assert any(len(moment) > 1 for moment in everything.seen), "several runs at a time"
    for moment in everything.seen:
        devices = [training.devices for training in moment]
        assert set(devices) <= set(map(str, range(len(GPUS)))) and len(set(devices)) == len(devices)


def test_a_batch_is_one_job_that_trains_its_runs_in_turn(everything: Everything, local: Checkout) -> None:
    batch = everything.batch.result()
    (job,) = batch.jobs
    assert job["TimeLimit"] == clock(2 * amount(batch.checkout, "runtime"))
    assert job["MinMemoryNode"] == f"{amount(batch.checkout, 'mem_mb')}M"
    assert job["TresPerJob"] == "gres:gpu:1" and job["NumCPUs"] == "1"
    groups = [[training for training in moment if training.job == job["JobId"]] for moment in everything.seen]
    assert max(map(len, groups)) == 1, "one at a time"
    assert records(batch.checkout) == records(local)


def test_a_job_saves_a_checkpoint_before_its_time_limit_and_is_requeued(
    everything: Everything, local: Checkout
) -> None:
    limited = everything.limited.result()
    first, second = limited.jobs
    assert (first["JobState"], second["JobState"]) == ("FAILED", "COMPLETED")
    assert second["TimeLimit"] == clock(20), "twice the time of the first attempt"
    (run,) = set(limited.names)
    assert resumed(limited.checkout, run)
    assert record(limited.checkout, run) == record(local, run)


def test_a_preempted_job_resumes_when_the_node_is_free(
    slurm: Slurm, everything: Everything, prepared: Checkout, local: Checkout, tmp_path: Path
) -> None:
    for future in (everything.clustered, everything.batch, everything.limited):
        future.result()  # every job on the node is preempted
    checkout = prepared.copy(tmp_path / "checkout")
    run = next(iter(runs_of(checkout)))
    targets = records_of({run: runs_of(checkout)[run]})
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(ran, slurm, checkout, *on("slurm"), *targets)
        wait_until(lambda: running.done() or slurm.jobs_of(checkout.root), 120)
        (job,) = slurm.jobs_of(checkout.root)
        paused_after_a_checkpoint(checkout, run, job)
        command("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
        start_again(slurm, job)
        preempted = running.result()
    assert len(preempted.jobs) == 1, "SLURM starts it again, Snakemake waits"
    assert resumed(checkout, run)
    assert record(checkout, run) == record(local, run)


def test_a_run_needs_no_network_and_no_environment_variables(
    prepared: Checkout, local: Checkout, tmp_path: Path
) -> None:
    checkout = prepared.copy(tmp_path / "checkout")
    run, spec = next(iter(runs_of(checkout).items()))
    argv = ("unshare", "--net", "env", "-i", sys.executable, "-m", "fltrain", "train", "--quiet", "-")
    result = subprocess.run(argv, input=spec.to_json(), cwd=checkout.root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert record(checkout, run) == record(local, run)


def test_a_job_without_memory_gets_more_and_resumes_at_a_site_with_gres_only(
    slurm: Slurm, prepared: Checkout, tmp_path: Path
) -> None:
    """The kernel ends a process without memory by SIGKILL; SLURM then sees a failed job."""
    checkout = prepared.copy(tmp_path / "checkout")
    run = next(iter(runs_of(checkout)))
    site = ("--set-resources", "train:gpu=0", "train:gres=gpu:1")
    with ThreadPoolExecutor(1) as thread:
        targets = records_of({run: runs_of(checkout)[run]})
        running = thread.submit(ran, slurm, checkout, *targets, *on("slurm", *site))
        wait_until(lambda: running.done() or slurm.jobs_of(checkout.root), 120)
        (job,) = slurm.jobs_of(checkout.root)
        os.kill(paused_after_a_checkpoint(checkout, run, job).process, signal.SIGKILL)
        killed, retried = running.result().jobs
    memory = amount(checkout, "mem_mb")
    assert (killed["JobState"], killed["MinMemoryNode"]) == ("FAILED", f"{memory}M")
    assert retried["MinMemoryNode"] == f"{2 * memory}M"
    for fields in (killed, retried):
        assert fields["TresPerNode"] == "gres:gpu:1" and "TresPerJob" not in fields
    assert resumed(checkout, run)
