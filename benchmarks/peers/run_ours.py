"""This project's engine: the simulation that ``fltrain train`` runs; each process has one thread."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from task import Report, Task, arguments

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.local import LocalTraining
from fltrain.engine.simulation import Simulation
from fltrain.runs.spec import RunSpec
from fltrain.runtime.process import compute_as_runs


def run(task: Task, workers: int = 1) -> tuple[Simulation, Report]:
    arrays = task.arrays
    data = PreparedData(
        train_images=arrays["train_images"],
        train_labels=arrays["train_labels"],
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"],
        classes=task.classes,
        mean=tuple(arrays["mean"].tolist()),
        std=tuple(arrays["std"].tolist()),
        digest="",
    )
    spec = RunSpec.parse(json.loads(Path(task.folder, "spec.json").read_text()), "spec.json")
    divided = Partition(list(arrays["shards"]), "")
    cpu = torch.device("cpu")
    simulation = Simulation(spec, data, divided, cpu, partial(LocalTraining, workers=workers))
    report = Report(task)
    for round in range(task.rounds):
        simulation.round(round)
        report.round_ended(lambda: (simulation.server.weights, simulation.server.buffers))
    return simulation, report


if __name__ == "__main__":
    task, workers = arguments()
    with compute_as_runs():
        simulation, report = run(task, workers)
        report.finish([simulation.server.weights, simulation.server.buffers])
