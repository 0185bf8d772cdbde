"""Divide a training split over clients."""

import json
from pathlib import Path

from fltrain.data.datasets import DATASETS
from fltrain.data.partition import SCHEMES
from fltrain.data.prepared import load_prepared, partition

settings = snakemake.params.partition  # noqa: F821
dataset, scheme = (json.loads(settings[key])["settings"] for key in ("dataset", "scheme"))
data = load_prepared(DATASETS[dataset["name"]].parse(dataset, "data set"), Path(snakemake.input.data))  # noqa: F821
divided = partition(
    SCHEMES[scheme["name"]].parse(scheme, "partition"),
    data,
    settings["seed"],
    Path(snakemake.output[0]),  # noqa: F821
)
sizes = [len(client) for client in divided.clients]
Path(snakemake.log[0]).write_text(f"digest {divided.digest}, images per client: {sizes}\n")  # noqa: F821
