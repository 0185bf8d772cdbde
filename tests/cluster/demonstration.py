"""The whole demonstration on a cluster and on this machine, side by side: a quarter of an hour on two cores.

Nothing collects this file; to run it, name it: ``pytest tests/cluster/demonstration.py``.
"""

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fltrain.experiments.plan import plan

from ..workflow.test_workflow import ROOT, Checkout
from .slurm import Slurm
from .test_cluster import Outcome, on, record


def test_the_demonstration_has_the_same_bytes(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    timeless = importlib.import_module("soak").timeless
    here = Checkout.of_this_repository(tmp_path / "here")
    there = here.copy(tmp_path / "there")
    with ThreadPoolExecutor(2) as threads:
        local = threads.submit(here.snakemake, "--cores", "1", scale="demo")
        clustered = threads.submit(there.snakemake, *on("slurm"), scale="demo")
        for code, said in (local.result(), clustered.result()):
            assert code == 0, said

    runs = plan(here.root / "config", "demo").runs
    outcome = Outcome(there, "", list(slurm.jobs_of(there.root).values()))
    assert sorted(outcome.names) == sorted(runs)
    assert {job["JobState"] for job in outcome.jobs} == {"COMPLETED"}
    for run in runs:
        assert record(there, run) == record(here, run)

    def tables(checkout: Checkout) -> dict[Path, bytes]:
        """Tables, numbers of figures, and claims, without measured times."""
        folder = checkout.results.root / "demo"
        return {file.relative_to(folder): timeless(file) for file in folder.glob("*/*.csv")}

    made = tables(here)
    assert len(made) > len(plan(here.root / "config", "demo").items)
    assert tables(there) == made
