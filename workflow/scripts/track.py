"""Export runs, tables and figures to MLflow."""

from pathlib import Path

from fltrain.core.files import write_json
from fltrain.core.job_log import LOG, job
from fltrain.runs.record import Results
from fltrain.tracking.export import Export, Page, in_words

with job(snakemake.log[0]):
    memberships, scale = snakemake.params.memberships, snakemake.params.scale
    pages = [Page(*page) for page in snakemake.params.pages]
    results = Results(Path("results"))
    store = f"sqlite:///{results.tracking}"
    done = Export(results, scale, memberships, list(memberships), pages).to(store)
    LOG.info("%s: %s", store, in_words(done))
    write_json(Path(snakemake.output[0]), {"store": store, "runs": sorted(memberships)})
