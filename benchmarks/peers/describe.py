"""The work, described once for all simulators."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from task import Task, read

from fltrain.core.rng import Purpose, stream
from fltrain.models.base import build
from fltrain.runs.spec import RunSpec

CLIENTS = 10
ENOUGH_ROUNDS = 10**6
"""Rounds of the spec; the task sets the number of trained rounds."""


@dataclass(frozen=True)
class Case:
    """Work on a dataset, which is divided evenly into ``shards``; the first shards are the clients'.

    ``rounds`` is the default number of rounds.
    """

    model: str
    shards: int
    rounds: int
    training: dict[str, float]


CASES = {
    "mnist": Case("lenet5", 100, 10, {"epochs": 2, "batch_size": 50, "lr": 0.02}),
    "cifar10": Case("ecgr_cnn", 500, 4, {"epochs": 1, "batch_size": 50, "lr": 0.02}),
}


def spec_of(dataset: str, case: Case) -> RunSpec:
    """Return the run as a user of this project describes it."""
    settings = {
        "dataset": dataset,
        "model": case.model,
        "partition": {"name": "iid", "clients": CLIENTS},
        "method": "fedavg",
        "participation": {"fraction": 1.0},
        "rounds": ENOUGH_ROUNDS,
        "evaluation": {"every": ENOUGH_ROUNDS},
        "training": {"momentum": 0.9, "weight_decay": 1e-3, **case.training},
    }
    return RunSpec.parse(settings, f"the benchmark on {dataset}")


def write_task(
    folder: Path, spec: RunSpec, arrays: Mapping[str, NDArray[Any]], rounds: int, shards: int
) -> Task:
    """Write the task for all simulators; ``arrays`` are those of a file in MedMNIST's layout."""
    images = {
        split: np.ascontiguousarray(_with_channels(arrays[f"{split}_images"])) for split in ("train", "test")
    }
    labels = {split: arrays[f"{split}_labels"].reshape(-1).astype(np.int64) for split in ("train", "test")}
    classes, (_, channels, side, _) = int(labels["train"].max()) + 1, images["train"].shape
    scheme = spec.partition.model_copy(update={"clients": shards})
    drawn = scheme.split(labels["train"], classes, spec.seed)[:CLIENTS]
    size = min(map(len, drawn))
    if size % spec.training.batch_size:
        # The peers treat a last batch that is not full in different ways.
        sys.exit(f"error: batches of {spec.training.batch_size} must divide a client's {size} images evenly")
    chosen = np.concatenate([indices[:size] for indices in drawn])
    own = np.arange(len(chosen)).reshape(CLIENTS, size)
    orders = [
        [own[client][_epochs(spec, round, client, size)] for client in range(CLIENTS)]
        for round in range(rounds)
    ]
    normalisation = spec.dataset.entry.normalisation(spec.dataset.normalisation, channels)
    assert normalisation is not None  # the registry states one for these datasets
    network = build(spec.model, channels, side, classes, spec.seed)
    np.savez(
        folder / "arrays.npz",
        train_images=images["train"][chosen],
        train_labels=labels["train"][chosen],
        test_images=images["test"],
        test_labels=labels["test"],
        shards=own,
        orders=np.array(orders),
        mean=np.array(normalisation.mean, np.float32),
        std=np.array(normalisation.std, np.float32),
        start=np.concatenate([one.detach().numpy().ravel() for one in network.parameters()]),
    )
    training = spec.training.model_dump(include={"epochs", "batch_size", "lr", "momentum", "weight_decay"})
    work = {"model": spec.model.name, "classes": classes, "rounds": rounds, "clients": CLIENTS}
    (folder / "task.json").write_text(json.dumps(work | training))
    (folder / "spec.json").write_text(spec.to_json())
    return read(str(folder))


def _with_channels(images: NDArray[Any]) -> NDArray[Any]:
    """Return images ``[n, channels, height, width]`` from grey ones without channels, or channels last."""
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)


def _epochs(spec: RunSpec, round: int, client: int, images: int) -> NDArray[Any]:
    """Return the order in which the engine visits a client's images, ``[epochs, images]``."""
    where = {"round": round, "client": client}
    streams = [stream(spec.seed, Purpose.BATCH_ORDER, **where, epoch=e) for e in range(spec.training.epochs)]
    return np.stack([random.permutation(images) for random in streams])
