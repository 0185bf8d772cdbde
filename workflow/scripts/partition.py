"""Divide images over clients."""

from pathlib import Path

from fltrain.core.job_log import LOG, job
from fltrain.data.datasets import Dataset
from fltrain.data.partition import SCHEMES, Division, LocalTest
from fltrain.data.prepared import load_prepared, stored_partition

with job(snakemake.log[0]):
    settings = snakemake.params.partition
    scheme, local = settings["scheme"], settings["local_test"]
    dataset = Dataset.parse(settings["dataset"]["settings"], "dataset")
    division = Division(
        SCHEMES[scheme["name"]].parse(scheme, "partition"),
        LocalTest.parse(local, "local_test") if local else None,
        settings["seed"],
        settings["validation"],
    )
    data = load_prepared(dataset, Path(snakemake.input.data[0]))
    divided = stored_partition(division, data, Path(snakemake.output[0]))
    LOG.info("digest %s, images per client: %s", divided.digest, [len(client) for client in divided.clients])
