"""Fetch and prepare a dataset."""

from pathlib import Path

from fltrain.core.job_log import LOG, job
from fltrain.data.datasets import Dataset
from fltrain.data.prepared import prepare

with job(snakemake.log[0]):
    dataset = Dataset.parse(snakemake.params.dataset["settings"], "dataset")
    prepared = prepare(dataset, Path(snakemake.output.data), Path("results/downloads"))
    LOG.info("%s: digest %s", dataset.id, prepared.digest)
