"""Prepare a data set."""

import json
from pathlib import Path

from fltrain.data.datasets import DATASETS
from fltrain.data.prepared import prepare

settings = json.loads(snakemake.params.dataset)["settings"]  # noqa: F821
dataset = DATASETS[settings["name"]].parse(settings, "data set")
prepared = prepare(dataset, Path(snakemake.output[0]))  # noqa: F821
Path(snakemake.log[0]).write_text(f"{dataset.id}: digest {prepared.digest}\n")  # noqa: F821
