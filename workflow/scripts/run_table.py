"""List the runs of a plan and what they cost."""

from pathlib import Path

from fltrain.core.files import write_text
from fltrain.core.job_log import job
from fltrain.experiments.costs import PlanCosts, run_table
from fltrain.experiments.plan import plan
from fltrain.runs.record import Results

with job(snakemake.log[0]):  # noqa: F821
    whole = plan(Path("config"), snakemake.params.scale)  # noqa: F821
    planned = whole.within(snakemake.params.memberships, "")  # noqa: F821
    costs = PlanCosts.of(planned, Results(Path("results")))
    write_text(Path(snakemake.output[0]), run_table(planned, costs.estimates))  # noqa: F821
