"""What it costs that what clients keep lies in a file, and how much of that is hidden behind training.

Clients of SCAFFOLD train on random images; all of them have taken part, half of them do in each round. What
they keep is in memory, in a file of which training waits for every transfer, or in a file as runs use it.
Rounds of the three take turns. Times are seconds on the clock for training and aggregation, medians.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.engine.client_store import ClientStore
from fltrain.engine.simulation import Simulation
from fltrain.engine.synthetic import rehearsal
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device
from fltrain.runtime.process import compute_as_runs

CLIENTS, BATCH, NEVER = 20, 10, 10**6
NETWORKS = {"lenet5": "mnist", "fedavg_cnn": "cifar10", "mobilenetv2": "cifar10", "resnet18": "cifar10"}
"""Data set, for the size of its images, of each network."""


class Waiting(ClientStore):
    """Reads only when it is asked to."""

    def expect(self, clients: Iterable[int]) -> None:
        """Make nothing of it."""


def federation(model: str, steps: int, device: torch.device, store: ClientStore) -> Simulation:
    """Clients with so many local steps in a round, all of whom have taken part."""
    settings = {
        "dataset": NETWORKS[model],
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": model,
        "method": "scaffold",
        "training": {"epochs": 1, "batch_size": BATCH, "lr": 0.001},
        "participation": {"fraction": 0.5},
        "rounds": NEVER,
        "evaluation": {"every": NEVER},
    }
    simulation = rehearsal(RunSpec.parse(settings, "benchmark"), steps * BATCH, 1, device)
    simulation.clients = store
    for client in range(CLIENTS):
        store[client] = simulation.composition.init_client(simulation.task, simulation.server.weights)
    return simulation


def measure(model: str, steps: int, rounds: int, device: torch.device, folder: Path) -> dict[str, float]:
    """Milliseconds of a round by where states are; ``mb``: megabytes that a client keeps."""
    memory = federation(model, steps, device, ClientStore())
    everything = memory.clients.bytes
    federations = {
        "memory": memory,
        "file, waiting": federation(model, steps, device, Waiting(folder, 0)),
        "file": federation(model, steps, device, ClientStore(folder, everything / 2)),
    }
    for _ in range(rounds + 1):
        for simulation in federations.values():
            simulation.round(len(simulation.costs.round_seconds))
    milliseconds = {
        name: 1e3 * statistics.median(simulation.costs.round_seconds[1:])
        for name, simulation in federations.items()
    }
    return {"mb": everything / CLIENTS / 1e6, **milliseconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", choices=NETWORKS, default=["lenet5", "fedavg_cnn", "mobilenetv2"]
    )
    parser.add_argument(
        "--steps", nargs="+", type=int, default=[1, 10], help="local steps of a client in a round"
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--folder", type=Path, help="where the file shall lie; a temporary folder if not given"
    )
    parser.add_argument("--csv", type=Path, help="keep the measurements in this file")
    options = parser.parse_args()
    device = pick_device(options.device)
    compute_as_runs()
    rows = []
    print(f"ms for a round of {CLIENTS // 2} clients, whose states are in memory or in a file")
    print(f"{'':12}{'steps':>6}{'MB each':>9}{'memory':>10}{'file, waiting':>20}{'file':>20}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for model in options.models:
            for steps in options.steps:
                found = measure(model, steps, options.rounds, device, Path(folder))
                rows.append({"model": model, "steps": steps, **found})
                shown = [
                    f"{found[name]:10.1f} ({found[name] / found['memory'] - 1:+6.1%})"
                    for name in ("file, waiting", "file")
                ]
                print(f"{model:12}{steps:6}{found['mb']:9.2f}{found['memory']:10.1f}", *shown, flush=True)
    if options.csv:
        with replacing(options.csv) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    try:
        main()
    except FltrainError as error:
        raise SystemExit(f"error: {error}") from None
