"""Write the overview of a scale."""

import json
from pathlib import Path

from fltrain.core.job_log import job
from fltrain.reporting import overview
from fltrain.reporting.listing import Listing
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    listing = Listing.parse(json.loads(snakemake.params.listing), "listing")
    index, runs = Path(snakemake.output.index), Path(snakemake.output.runs)
    overview.write(listing, Results(Path("results")), index, runs)
