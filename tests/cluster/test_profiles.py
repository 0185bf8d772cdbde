"""The profiles for PBS, Kubernetes and LSF are examples: Snakemake reads them and plans a job per run."""

from pathlib import Path

import pytest

from ..workflow.test_workflow import Checkout, jobs_in


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout.of_this_repository(tmp_path_factory.mktemp("profiles") / "checkout")


@pytest.mark.parametrize("profile", ["pbs", "kubernetes", "lsf"])
def test_a_dry_run_plans_a_job_per_run(checkout: Checkout, profile: str, tmp_path: Path) -> None:
    copy = checkout.copy(tmp_path / "checkout")
    code, output = copy.snakemake(
        "--workflow-profile", f"workflow/profiles/{profile}", "--dry-run", scale="single"
    )
    assert code == 0, output
    assert len([job for job in jobs_in(output) if job.startswith("training ")]) == 2, output
