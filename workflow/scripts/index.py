"""Write the overview of a scale."""

import json
from pathlib import Path

from fltrain.core.job_log import job
from fltrain.reporting.overview import page as overview
from fltrain.reporting.overview.listing import Listing
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    listing = Listing.parse(json.loads(snakemake.params.listing), "listing")
    index, runs = Path(snakemake.output.index), Path(snakemake.output.runs)
    overview.write(listing, Results(Path("results")), index, runs)
