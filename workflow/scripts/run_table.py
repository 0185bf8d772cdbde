"""List the runs of a plan with their estimated costs."""

from dataclasses import replace
from pathlib import Path

from fltrain.core.files import write_text
from fltrain.core.job_log import job
from fltrain.experiments.costs import PlanCosts, run_table
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import plan
from fltrain.runs.record import Results

with job(snakemake.log[0]):  # noqa: F821
    whole = plan(Path(snakemake.params.config), snakemake.params.scale)  # noqa: F821
    memberships = snakemake.params.memberships  # noqa: F821

    def requested(item: PlannedItem) -> PlannedItem:
        entries = [entry for entry in item.entries if item.id in memberships.get(entry.spec.run_id, ())]
        return replace(item, entries=entries)

    part = replace(whole, items=[requested(item) for item in whole.items])
    costs = PlanCosts.of(part, Results(Path("results")))
    write_text(Path(snakemake.output[0]), run_table(part, costs.estimates))  # noqa: F821
