"""A small training run on the handwritten digits, and small data sets of one's own."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fltrain.core.files import read_json, write_json
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.executors.sequential import SequentialExecutor, Trained
from fltrain.engine.simulation import Simulation
from fltrain.engine.train import Execution, train
from fltrain.experiments.layout import Sheet
from fltrain.runs.record import Record, Results, sha256, summary_digest, with_digest
from fltrain.runs.spec import RunSpec

CPU = torch.device("cpu")


class Cells:
    """Cells of a sheet, to be filled by hand-made records: seeds are counted per place."""

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self.cells: list[dict[str, Any]] = []

    def place(self, labels: dict[str, str], run: str, **rest: Any) -> None:
        """Add a cell with this run, and with the next seed of its place."""
        seed = sum(cell["labels"] == labels for cell in self.cells)
        cell = {"reported": {}, "partition": "of-no-matter", **rest}
        self.cells.append({"labels": labels, "seed": seed, "run": run, **cell})

    def sheet(self, **changes: Any) -> Sheet:
        """The sheet of all cells so far; its axes are those of their labels."""
        axes: dict[str, dict[str, None]] = {}
        for axis, label in itertools.chain.from_iterable(cell["labels"].items() for cell in self.cells):
            axes.setdefault(axis, {})[label] = None
        data = {
            "id": "toy/table",
            "paper": "A toy paper",
            "title": "A toy",
            "caption": "What is shown.",
            "scale": "on toy data",
            "reduced": True,
            "axes": {axis: list(labels) for axis, labels in axes.items()},
            "table": None,
            "figure": None,
            "reported": None,
            "cells": self.cells,
        }
        return Sheet.parse({**data, **changes}, "sheet")


TINY: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "mobilenet_tiny",
    "method": "fedavg",
    "training": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "rounds": 3,
    "participation": {"fraction": 0.2},
}
"""A run of a fraction of a second, as a user would write it."""


def tiny(**changes: Any) -> RunSpec:
    """The small run with some settings replaced."""
    return RunSpec.parse({**TINY, **changes}, "test")


def trained(spec: RunSpec, root: Path) -> Record:
    """Train a run on one thread of the CPU."""
    return train(spec, Results(root), Execution(CPU), again=True)


def federation(
    spec: RunSpec,
    data: PreparedData,
    executor: type[SequentialExecutor] = SequentialExecutor,
    extra: Mapping[str, PreparedData] | None = None,
) -> Simulation:
    """A run in memory, its images divided as the spec says."""
    pool = data.merged() if spec.local_test else data
    clients = spec.partition.split(pool.train_labels, data.classes, spec.seed, pool.writers)
    tests = None
    if spec.local_test:
        clients, tests = spec.local_test.split(clients, pool.train_labels, spec.seed)
    return Simulation(spec, data, Partition(clients, "", tests), CPU, executor, extra)


def seal(folder: Path) -> None:
    """Give an edited or renamed record the digests and the run ID that it should have."""
    summary = read_json(folder / "summary.json")
    summary["run_id"] = folder.name
    for name in ("spec.json", "metrics.jsonl"):
        summary["digests"][name.partition(".")[0]] = sha256((folder / name).read_bytes())
    summary["digests"]["summary"] = summary_digest(summary)
    for name in ("costs.json", "provenance.json"):
        write_json(folder / name, with_digest(read_json(folder / name)))
    write_json(folder / "summary.json", summary)


class Reversing(SequentialExecutor):
    """Trains the clients in reversed order."""

    def train(self, round: Any, clients: Any, kept: Any) -> list[Trained]:
        return super().train(round, clients[::-1], kept)[::-1]


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random images."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(count: int, classes: int = 4) -> NDArray[np.int64]:
    """Labels of so many images: every class in turn."""
    return np.arange(count) % classes


def write_npz(path: Path, train: int = 40, test: int = 20, shape: tuple[int, ...] = (8, 8)) -> Path:
    """A data set of four classes as MedMNIST lays it out, without a validation split."""
    arrays: dict[str, NDArray[Any]] = {}
    for seed, (split, count) in enumerate({"train": train, "test": test}.items()):
        arrays[f"{split}_images"] = pixels(count, *shape, seed=seed)
        arrays[f"{split}_labels"] = labels(count)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
