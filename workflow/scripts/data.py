"""Fetch and prepare a dataset."""

import json
from pathlib import Path

from fltrain.core.job_log import LOG, job
from fltrain.data.datasets import Dataset
from fltrain.data.prepared import prepare

with job(snakemake.log[0]):
    dataset = Dataset.parse(json.loads(snakemake.params.dataset)["settings"], "dataset")
    path = Path(snakemake.output.data)
    prepared = prepare(dataset, path, Path("results/downloads"), quiet=True)
    LOG.info("%s: digest %s", dataset.id, prepared.digest)
