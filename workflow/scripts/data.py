"""Fetch and prepare a dataset."""

import json
from pathlib import Path

from fltrain.core.job_log import LOG, job
from fltrain.data.datasets import Dataset
from fltrain.data.prepared import prepare

with job(snakemake.log[0]):  # noqa: F821
    dataset = Dataset.parse(json.loads(snakemake.params.dataset)["settings"], "dataset")  # noqa: F821
    path = Path(snakemake.output.data)  # noqa: F821
    prepared = prepare(dataset, path, Path("results/downloads"), quiet=True)
    LOG.info("%s: digest %s", dataset.id, prepared.digest)
