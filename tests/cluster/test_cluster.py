"""The workflow on a real SLURM of one node with two fake GPUs, which these tests start and stop.

Not among the tests that `make test` runs, as they need root and SLURM's programs (Debian: `slurm-wlm`,
`munge`): name them, `pytest tests/cluster`. They refuse to run where a SLURM runs already.
"""

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fltrain.costs import Calibration, DeviceCosts, Exchange, StepCost, Workload, calibration_file
from fltrain.demands import Demand, measured
from fltrain.experiments import plan
from fltrain.spec import RunSpec

from ..workflow.test_workflow import Checkout, contents
from .slurm import Slurm, command, in_jobs, wait_until

# There is no accounting to ask, and jobs are short.
HERE = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2")
# Long enough to be stopped in the middle, in about half a minute.
LONG = """\
scale: long
title: some hundred rounds on a few clients
reduced: true
settings: {rounds: 1500}
items: [toy/accuracy]
"""


def on(profile: str, *options: str) -> tuple[str, ...]:
    """Options of Snakemake for one of the cluster's profiles."""
    return ("--workflow-profile", f"workflow/profiles/{profile}", *HERE, *options)


@dataclass(frozen=True)
class Training:
    """A process that trains in a job, and the devices that it sees."""

    job: str
    devices: str


def trainings() -> Iterator[Training]:
    """Processes that train in jobs at this moment."""
    for process, environment in in_jobs():
        with suppress(OSError):
            if b"-m\0fltrain\0train\0" in Path(f"/proc/{process}/cmdline").read_bytes():
                yield Training(environment["SLURM_JOB_ID"], environment.get("CUDA_VISIBLE_DEVICES", ""))


@dataclass(frozen=True)
class Outcome:
    """A checkout after the workflow ran in it: what was said, the jobs, processes seen at the same time."""

    checkout: Checkout
    said: str
    jobs: list[dict[str, str]]
    together: set[frozenset[Training]]


def ran(slurm: Slurm, checkout: Checkout, *options: str, scale: str = "tiny") -> Outcome:
    """Run the workflow, and watch."""
    before = set(slurm.jobs())
    together = set()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(checkout.snakemake, *options, scale=scale)
        while not running.done():
            together.add(frozenset(trainings()))
            time.sleep(0.1)
    code, said = running.result()
    assert code == 0, said
    jobs = [job for name, job in slurm.jobs().items() if name not in before]
    return Outcome(checkout, said, jobs, together)


def runs_of(checkout: Checkout, scale: str = "tiny") -> Mapping[str, RunSpec]:
    return plan(checkout.root / "config", scale).runs


def record(checkout: Checkout, run: str) -> dict[str, bytes]:
    """Of a record what shows neither times nor machines."""
    return contents(checkout.results.run(run), ("spec.json", "metrics.jsonl", "summary.json"))


def records(checkout: Checkout, scale: str = "tiny") -> dict[str, dict[str, bytes]]:
    """The same of all runs of a scale."""
    return {run: record(checkout, run) for run in runs_of(checkout, scale)}


def items(checkout: Checkout) -> dict[str, bytes]:
    """Tables and figures, as far as they show neither times nor machines."""
    folder = checkout.results.root / "tiny" / "toy"
    files = [file for form in ("csv", "md", "tex", "svg") for file in folder.glob(f"*.{form}")]
    return {file.name: file.read_bytes() for file in files}


def calibrate(checkout: Checkout) -> None:
    """As if steps had been measured: each of the three compositions of methods takes another time."""
    costs = DeviceCosts(start=600.0)
    for factor, spec in enumerate(checkout.plan.runs.values(), start=1):
        work = Workload.of(spec)
        assert work is not None
        costs.steps[work.step] = StepCost(step=10.0, image=0.0)
        costs.factors[work.composition] = factor
        costs.exchanges[work.exchange] = Exchange(down=0, up=0, model=0, server=0.0, rows=10**7)
    Calibration(latest="here", devices={"here": costs}).write(calibration_file(checkout.results))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")).started() as slurm:
        yield slurm


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which nothing has been run; not to be changed."""
    checkout = Checkout.of_this_repository(tmp_path_factory.mktemp("fresh") / "checkout")
    (checkout.root / "config" / "scales" / "long.yaml").write_text(LONG)
    # So that a run that is killed goes on in the middle.
    checkout.edit("workflow/rules/train.smk", "fltrain train -", "fltrain train --checkpoint-rounds 50 -")
    calibrate(checkout)
    return checkout


@pytest.fixture(scope="module")
def prepared(fresh: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with data and partitions; not to be changed."""
    checkout = fresh.copy(tmp_path_factory.mktemp("prepared") / "checkout")
    code, said = checkout.snakemake("--cores", "2", "all_data")
    assert code == 0, said
    return checkout


@pytest.fixture(scope="module")
def local(prepared: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which everything was run without a cluster."""
    checkout = prepared.copy(tmp_path_factory.mktemp("local") / "checkout")
    for scale in ("tiny", "long"):
        code, said = checkout.snakemake("--cores", "2", scale=scale)
        assert code == 0, said
    return checkout


@pytest.fixture(scope="module")
def clustered(slurm: Slurm, fresh: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the profile slurm does."""
    checkout = fresh.copy(tmp_path_factory.mktemp("clustered") / "checkout")
    return ran(slurm, checkout, *on("slurm"))


# ---------------------------------------------------------------- one job for each run
def test_a_cluster_makes_the_same_bytes(clustered: Outcome, local: Checkout) -> None:
    assert records(clustered.checkout) == records(local)
    made = items(clustered.checkout)
    assert {"accuracy.csv", "accuracy.md", "drift.svg"} <= made.keys() and made == items(local)


def test_only_training_is_submitted(clustered: Outcome) -> None:
    assert sorted(job["Comment"] for job in clustered.jobs) == sorted(
        f"rule_train_wildcards_{run}" for run in clustered.checkout.plan.runs
    )


def test_jobs_ask_for_what_the_plan_says(clustered: Outcome) -> None:
    costs = measured(clustered.checkout.results)
    asked = {job["Comment"]: job for job in clustered.jobs}
    demands = {run: Demand.of(spec, costs) for run, spec in clustered.checkout.plan.runs.items()}
    assert len({demand.minutes for demand in demands.values()}) == 3
    for run, demand in demands.items():
        job = asked[f"rule_train_wildcards_{run}"]
        assert job["TimeLimit"] == f"{demand.minutes // 60:02}:{demand.minutes % 60:02}:00"
        assert job["MinMemoryNode"] == f"{demand.memory_mb}M"
        assert job["TresPerJob"] == "gres:gpu:1" and job["CPUs/Task"] == "1"
        assert job["Requeue"] == "1"


def test_each_job_has_a_gpu_of_its_own(clustered: Outcome) -> None:
    assert any(len(seen) == 2 for seen in clustered.together), "two runs at a time"
    for seen in clustered.together:
        devices = [training.devices for training in seen]
        assert set(devices) <= {"0", "1"} and len(set(devices)) == len(devices)


# ---------------------------------------------------------------- several runs for each job
def test_an_array_is_one_submission(
    slurm: Slurm, prepared: Checkout, local: Checkout, tmp_path: Path
) -> None:
    checkout = prepared.copy(tmp_path / "checkout")
    outcome = ran(slurm, checkout, *on("slurm", "--slurm-array-jobs", "train"), "toy_accuracy", "toy_drift")
    assert len(outcome.jobs) == 3 and len({job["ArrayJobId"] for job in outcome.jobs}) == 1
    assert records(checkout) == records(local)


def test_a_batch_is_one_job_whose_runs_take_turns(
    slurm: Slurm, prepared: Checkout, local: Checkout, tmp_path: Path
) -> None:
    checkout = prepared.copy(tmp_path / "checkout")
    outcome = ran(slurm, checkout, *on("slurm-batched"), "toy_accuracy", "toy_drift")
    (job,) = outcome.jobs
    costs = measured(checkout.results)
    demands = [Demand.of(spec, costs) for spec in checkout.plan.runs.values()]
    minutes = sum(demand.minutes for demand in demands)
    assert job["TimeLimit"] == f"{minutes // 60:02}:{minutes % 60:02}:00"
    assert job["MinMemoryNode"] == f"{max(demand.memory_mb for demand in demands)}M"
    assert job["TresPerJob"] == "gres:gpu:1" and job["NumCPUs"] == "1"
    assert max(len(seen) for seen in outcome.together) == 1
    assert records(checkout) == records(local)


# ---------------------------------------------------------------- without a cluster
def test_runs_wait_for_a_gpu_the_longest_first(prepared: Checkout, local: Checkout, tmp_path: Path) -> None:
    checkout = prepared.copy(tmp_path / "checkout")
    code, said = checkout.snakemake(
        "--workflow-profile", "workflow/profiles/gpu", "toy_accuracy", "toy_drift"
    )
    assert code == 0, said
    costs = measured(checkout.results)
    runs = checkout.plan.runs
    longest_first = sorted(runs, key=lambda run: Demand.of(runs[run], costs).minutes, reverse=True)
    assert re.findall(r"^Job \d+: training (.+)$", said, re.MULTILINE) == longest_first
    started = [(checkout.results.run(run) / "spec.json").stat().st_mtime for run in longest_first]
    assert started == sorted(started), "one at a time"
    assert records(checkout) == records(local)


# ---------------------------------------------------------------- interruptions
def resumed(checkout: Checkout, run: str) -> list[int]:
    """After which rounds a run went on."""
    return list(checkout.results.record(run).provenance["resumed"])


def test_a_job_saves_its_state_before_the_limit_and_is_submitted_again(
    slurm: Slurm, prepared: Checkout, local: Checkout, tmp_path: Path
) -> None:
    """SLURM looks twice a minute whose limit is near: the signal comes 1 to 31 seconds after the start."""
    checkout = prepared.copy(tmp_path / "checkout")
    run = next(iter(runs_of(checkout, "long")))
    limit = ("--set-resources", "train:runtime=attempt", "train:slurm_extra='--signal=TERM@29'")
    target = f"results/runs/{run}/summary.json"
    outcome = ran(slurm, checkout, target, *on("slurm", *limit), scale="long")
    jobs = sorted(outcome.jobs, key=lambda job: int(job["JobId"]))
    assert [job["JobState"] for job in jobs] == ["FAILED"] * (len(jobs) - 1) + ["COMPLETED"]
    assert [job["TimeLimit"] for job in jobs] == [f"00:0{n + 1}:00" for n in range(len(jobs))]
    assert resumed(checkout, run)
    assert record(checkout, run) == record(local, run)


def test_a_dead_node_and_a_cancelled_job(
    slurm: Slurm, prepared: Checkout, local: Checkout, tmp_path: Path
) -> None:
    checkout = prepared.copy(tmp_path / "checkout")
    first, second = runs_of(checkout, "long")
    before = set(slurm.jobs())

    def ours() -> dict[str, dict[str, str]]:
        found = [job for name, job in slurm.jobs().items() if name not in before]
        return {job["Comment"].removeprefix("rule_train_wildcards_"): job for job in found}

    def training(run: str) -> bool:
        job = ours()[run]["JobId"]
        return any(one.job == job for one in trainings())

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(checkout.snakemake, *on("slurm", "--preemptible-retries", "0"), scale="long")
        for run in (first, second):
            wait_until(lambda run=run: list(checkout.results.checkpoints(run).glob("*.safetensors")), 120)
        slurm.kill_node()
        slurm.start_node()
        wait_until(lambda: all(job["Restarts"] == "1" for job in ours().values()), 60)
        for job in ours().values():  # SLURM would wait two minutes
            command("scontrol", "update", f"JobId={job['JobId']}", "StartTime=now")
        wait_until(lambda: training(second), 60)
        command("scancel", ours()[second]["JobId"])
        code, said = running.result()
    assert code != 0, said
    assert checkout.results.record(first).complete and not checkout.results.record(second).complete

    again = ran(slurm, checkout, *on("slurm"), scale="long")
    assert [job["Comment"] for job in again.jobs] == [f"rule_train_wildcards_{second}"]
    assert resumed(checkout, first) and resumed(checkout, second)
    assert records(checkout, "long") == records(local, "long")
