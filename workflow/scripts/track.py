"""Export runs to MLflow."""

from pathlib import Path

from fltrain.files import write_json
from fltrain.job import LOG, job
from fltrain.records import Results
from fltrain.tracking import export

with job(snakemake.log[0]):  # noqa: F821
    memberships = snakemake.params.memberships  # noqa: F821
    results = Results(Path("results"))
    store = f"sqlite:///{results.tracking}"
    LOG.info("%s: %s", store, export([results.record(run) for run in memberships], memberships, store))
    write_json(Path(snakemake.output[0]), {"store": store, "runs": sorted(memberships)})  # noqa: F821
