"""Write the overview of a scale."""

from pathlib import Path

from fltrain.core.job_log import job
from fltrain.reporting import overview
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    index, runs = Path(snakemake.output.index), Path(snakemake.output.runs)
    overview.write(snakemake.params.listing, Results(Path("results")), index, runs)
