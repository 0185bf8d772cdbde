"""List the runs of a plan with their estimated costs."""

from pathlib import Path

from fltrain.core.files import write_text
from fltrain.core.job_log import job
from fltrain.experiments.costs import PlanCosts, run_table
from fltrain.experiments.jobs import Jobs

with job(snakemake.log[0]):  # noqa: F821
    jobs = Jobs.of(snakemake.config, Path(snakemake.params.config))  # noqa: F821
    costs = PlanCosts.of(jobs.plan, jobs.results)
    write_text(Path(snakemake.output[0]), run_table(jobs.plan, costs.estimates))  # noqa: F821
