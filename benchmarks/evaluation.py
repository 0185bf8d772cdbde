"""What testing all clients with their own models costs, as a share of the round.

20 clients with random images train for an epoch in batches of 10 and are tested after every round on a
quarter of their images, as in FedFCD's protocol. Times are those of the records: seconds on the clock, all
rounds but the first together.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.simulation import Simulation
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device

CLIENTS, CLASSES = 20, 10
METHODS = ("fedavg", "fedprox", "perfedavg", "fedamp", "fedproto", "gpfl", "fedgh", "fedfcd", "local")
DATASETS = {"mlp": ("mnist", 1, 28), "fedavg_cnn": ("cifar10", 3, 32)}
"""Data set, channels and side of the images of each network."""


def federation(method: str, model: str, images: int, rounds: int, device: torch.device) -> Simulation:
    """20 clients with so many random images each, a quarter of them for testing."""
    dataset, channels, side = DATASETS[model]
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (CLIENTS * images, channels, side, side), np.uint8)
    labels = random.integers(0, CLASSES, len(pixels))
    data = PreparedData(
        pixels, labels, pixels[:1], labels[:1], CLASSES, (0.5,) * channels, (0.5,) * channels, ""
    )
    spec = RunSpec.parse(
        {
            "dataset": dataset,
            "partition": {"name": "iid", "clients": CLIENTS},
            "local_test": {"fraction": 0.25},
            "model": model,
            "method": method,
            "training": {"epochs": 1, "batch_size": 10, "momentum": 0, "weight_decay": 0},
            "participation": {"fraction": 1.0},
            "rounds": rounds,
        },
        method,
    )
    own = np.split(np.arange(len(pixels)), CLIENTS)
    tests = [indices[: images // 4] for indices in own]
    return Simulation(spec, data, Partition([indices[images // 4 :] for indices in own], "", tests), device)


def measure(method: str, model: str, images: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Seconds per round by phase."""
    simulation = federation(method, model, images, rounds + 1, device)
    simulation.round(0)
    before = dict(simulation.costs.seconds)
    for number in range(1, rounds + 1):
        simulation.round(number)
    after = simulation.costs.seconds
    return {phase: (after[phase] - before[phase]) / rounds for phase in ("train", "aggregate", "evaluate")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp", choices=DATASETS)
    parser.add_argument("--images", type=int, default=400, help="images of each client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="keep the measurements in this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = pick_device(options.device)
    rows = []
    print(f"{options.model}, {CLIENTS} clients: seconds per round, and the share of the tests")
    print(f"{'':10}{'train':>9}{'aggregate':>11}{'evaluate':>10}{'share':>8}")
    for method in METHODS:
        seconds = measure(method, options.model, options.images, options.rounds, device)
        share = seconds["evaluate"] / sum(seconds.values())
        train, aggregate, evaluate = seconds.values()
        print(f"{method:10}{train:9.3f}{aggregate:11.3f}{evaluate:10.3f}{share:8.1%}")
        rows.append({"model": options.model, "method": method, **seconds, "share": share})
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
