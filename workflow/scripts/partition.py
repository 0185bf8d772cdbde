"""Divide images over clients."""

import json
from pathlib import Path

from fltrain.core.job_log import LOG, job
from fltrain.data.datasets import Dataset
from fltrain.data.partition import SCHEMES, LocalTest
from fltrain.data.prepared import load_prepared, partition

with job(snakemake.log[0]):
    settings = json.loads(snakemake.params.partition)
    scheme, local_test = settings["scheme"]["settings"], settings["local_test"]
    dataset = Dataset.parse(settings["dataset"]["settings"], "dataset")
    divided = partition(
        SCHEMES[scheme["name"]].parse(scheme, "partition"),
        LocalTest.parse(local_test, "local_test") if local_test else None,
        load_prepared(dataset, Path(snakemake.input.data)),
        settings["seed"],
        Path(snakemake.output[0]),
        settings.get("validation", 0.0),
    )
    sizes = [len(client) for client in divided.clients]
    LOG.info("digest %s, images per client: %s", divided.digest, sizes)
