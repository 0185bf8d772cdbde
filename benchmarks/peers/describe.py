"""The work, described once for all simulators."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from task import Task, read

from fltrain.data.readers.arrays import Npz
from fltrain.engine.local import batch_orders
from fltrain.engine.simulation import cohort
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
    folder: Path,
    spec: RunSpec,
    file: Path,
    rounds: int,
    shards: int,
    clients: int = CLIENTS,
    tested: bool = False,
) -> Task:
    """Write the task for all simulators; the file of images has MedMNIST's layout.

    Images are divided into ``shards``; the first ``clients`` are the clients', of which each round draws as
    many as the spec says.
    """
    raw = Npz().read(file)
    _, channels, side, _ = raw.train_images.shape
    scheme = spec.partition.model_copy(update={"clients": shards})
    drawn = scheme.split(raw.train_labels, raw.classes, spec.seed)[:clients]
    size = min(map(len, drawn))
    if size % spec.training.batch_size:
        # The peers treat a last batch that is not full in different ways.
        sys.exit(f"error: batches of {spec.training.batch_size} must divide a client's {size} images evenly")
    chosen = np.concatenate([indices[:size] for indices in drawn])
    positions = np.arange(len(chosen)).reshape(clients, size)
    epochs = spec.training.epochs
    orders = [
        [
            positions[client][batch_orders(spec.seed, round, client, epochs, size)]
            for client in cohort(spec, clients, round)
        ]
        for round in range(rounds)
    ]
    normalisation = spec.dataset.entry.normalisation(spec.dataset.normalisation, channels)
    assert normalisation is not None  # the registry states one for these datasets
    network = build(spec.model, channels, side, raw.classes, spec.seed)
    np.savez(
        folder / "arrays.npz",
        train_images=raw.train_images[chosen],
        train_labels=raw.train_labels[chosen],
        test_images=raw.test_images,
        test_labels=raw.test_labels,
        shards=positions,
        orders=np.array(orders),
        mean=np.array(normalisation.mean, np.float32),
        std=np.array(normalisation.std, np.float32),
        start=np.concatenate([parameter.detach().numpy().ravel() for parameter in network.parameters()]),
    )
    training = spec.training.model_dump(include={"epochs", "batch_size", "lr", "momentum", "weight_decay"})
    work = {"model": spec.model.name, "classes": raw.classes, "rounds": rounds, "clients": len(orders[0])}
    (folder / "task.json").write_text(json.dumps(work | training | {"tested": tested}))
    (folder / "spec.json").write_text(spec.to_json())
    return read(str(folder))
