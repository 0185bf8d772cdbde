"""Write the overview of a scale."""

import json
from pathlib import Path

from fltrain.job import job
from fltrain.records import Results
from fltrain.reporting import overview
from fltrain.reporting.listing import Listing

with job(snakemake.log[0]):  # noqa: F821
    listing = Listing.parse(json.loads(snakemake.params.listing), "listing")  # noqa: F821
    index, runs = map(Path, snakemake.output)  # noqa: F821
    overview.write(listing, Results(Path("results")), index, runs)
