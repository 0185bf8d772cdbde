"""What checkpoints cost: seconds, size, and their share of the time at the default interval.

Clients with random images of CIFAR's shape train as in a run, with the checkpoints that the default interval
makes due; the share is that of the time in which they were written. Each is then read back.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.checkpoint import Checkpoints, Interval, Progress
from fltrain.engine.simulation import Simulation
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device

CASES = {
    "global model": ("fedavg", "mobilenetv2"),
    "a vector of each client": ("scaffold", "ecgr_cnn"),
    "a model of each client": ("local", "mobilenetv2"),
}
"""What is kept, and a method and network that keep it."""

CLASSES, IMAGES = 10, 40


def federation(method: str, model: str, clients: int, device: torch.device) -> Simulation:
    """So many clients, of which a tenth takes part in a round."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (clients * IMAGES, 3, 32, 32), np.uint8)
    labels = random.integers(0, CLASSES, len(pixels))
    data = PreparedData(pixels, labels, pixels[:1], labels[:1], CLASSES, (0.5,) * 3, (0.5,) * 3, "")
    spec = RunSpec.parse(
        {
            "dataset": "cifar10",
            "partition": {"name": "iid", "clients": clients},
            "model": model,
            "method": method,
            "local_test": {"fraction": 0.25} if method == "local" else None,
            "training": {"epochs": 1, "batch_size": 10, "lr": 0.01},
            "participation": {"fraction": 0.1},
            "evaluation": {"every": 1000},
            "rounds": 100_000,
        },
        method,
    )
    own = np.split(np.arange(len(pixels)), clients)
    tests = [indices[: IMAGES // 4] for indices in own] if spec.local_test else None
    return Simulation(spec, data, Partition([indices[IMAGES // 4 :] for indices in own], "", tests), device)


def measure(
    method: str, model: str, clients: int, seconds: float, device: torch.device
) -> dict[str, float | int]:
    """Train for so many seconds and count what went into checkpoints."""
    simulation, progress = federation(method, model, clients, device), Progress([], 0.0, [])
    for client in range(clients):  # as after many rounds, when all have taken part
        if method == "scaffold":
            simulation.clients[client] = {method: {"control": simulation.server.weights.clone()}}
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), {}, Interval())
        written: list[float] = []
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            progress.rows += simulation.round(simulation.finished)
            if checkpoints.due(simulation.finished):
                before = time.perf_counter()
                checkpoints.save(simulation, progress)
                written.append(time.perf_counter() - before)
        elapsed = time.perf_counter() - started
        size = max(path.stat().st_size for path in Path(folder).iterdir())
        before = time.perf_counter()
        checkpoints.restore(federation(method, model, clients, device))
        restored = time.perf_counter() - before
    return {
        "rounds": simulation.finished,
        "checkpoints": len(written),
        "write_seconds": sum(written) / len(written),
        "restore_seconds": restored,
        "megabytes": size / 1e6,
        "share": sum(written) / elapsed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300.0, help="of training, for each case")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="keep the measurements in this file")
    options = parser.parse_args()
    if options.seconds <= Interval().seconds:
        parser.error(f"--seconds: no checkpoint is due in {options.seconds:g} s; take more")
    torch.set_num_threads(1)
    device = pick_device(options.device)
    rows = []
    print(f"{'':40}{'MB':>8}{'write, s':>10}{'restore, s':>12}{'of the time':>13}")
    for name, (method, model) in CASES.items():
        found = measure(method, model, options.clients, options.seconds, device)
        label = f"{name} ({method}, {model})"
        seconds = f"{found['write_seconds']:10.2f}{found['restore_seconds']:12.2f}"
        print(f"{label:40}{found['megabytes']:8.1f}{seconds}{found['share']:13.2%}", flush=True)
        rows.append({"method": method, "model": model, "clients": options.clients, **found})
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
