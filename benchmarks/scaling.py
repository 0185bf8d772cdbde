"""Time and memory of a round as one thing grows: clients of a round, local steps, network, clients in all.

For FedAvg, and for SCAFFOLD, whose clients each keep a vector as long as the weights. All clients have taken
part; their state lies in a file beyond a limit. Images are random bytes, 20 per client, in batches of 10.
The points of a curve take turns round by round. Times are CPU seconds on one thread, or wall time on a GPU.
Memory is the peak of a separate process in three rounds, beyond its size after all imports; on a GPU,
PyTorch's peak.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from bench import seconds
from common import quartiles, write_csv

from fltrain.core.errors import FltrainError
from fltrain.engine.client_store import ClientStore
from fltrain.engine.cuda_graph import CapturedTraining
from fltrain.engine.local import LocalTraining
from fltrain.engine.simulation import Simulation
from fltrain.engine.synthetic import synthetic_run
from fltrain.reporting.tables.render import markdown_table
from fltrain.runtime.determinism import determined
from fltrain.runtime.devices import pick_device
from fltrain.runtime.process import compute_as_runs, forget_peaks, peak_memory

METHODS = ("fedavg", "scaffold")
IMAGES, BATCH = 20, 10
ROUNDS_FOR_MEMORY = 3
LIMIT_MB = 128
"""Megabytes of client state in memory; in runs the default is 4 GiB."""


@dataclass(frozen=True)
class Setting:
    """Clients and their rounds."""

    model: str = "lenet5"
    dataset: str = "mnist"
    clients: int = 100
    per_round: int = 10
    epochs: int = 5

    @property
    def steps(self) -> int:
        """Local steps of all clients in a round."""
        return self.per_round * self.epochs * IMAGES // BATCH

    def simulation(self, method: str, where: Where) -> Simulation:
        """Return a run after its initial rounds: all clients have taken part, and nothing is tested."""
        settings = {
            "dataset": self.dataset,
            "partition": {"name": "iid", "clients": self.clients},
            "model": self.model,
            "method": method,
            "training": {"epochs": self.epochs, "batch_size": BATCH, "lr": 0.001},
            "participation": {"fraction": self.per_round / self.clients},
        }
        trainer = CapturedTraining if where.cuda_graph else LocalTraining
        run = synthetic_run(settings, IMAGES, 1, where.device, trainer)
        run.clients = ClientStore(where.folder, LIMIT_MB * 10**6)
        control = {"control": torch.zeros_like(run.server.weights)} if method == "scaffold" else {}
        for client in range(self.clients):
            run.clients[client] = {method: control}
        return run


@dataclass(frozen=True)
class Where:
    """Device, capture of steps, and the folder of client state."""

    device: torch.device
    cuda_graph: bool
    folder: Path

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute there, on one thread, as runs do."""
        compute_as_runs()
        with determined("exact", self.device):
            yield


CURVES: dict[str, tuple[Sequence[int | str], Setting]] = {
    "per_round": ((5, 10, 20, 50, 100), Setting()),
    "epochs": ((1, 2, 5, 10, 25), Setting()),
    "model": (
        ("mlp", "lenet5", "fedavg_cnn", "mobilenetv2", "ecgr_cnn", "resnet18"),
        Setting(dataset="cifar10", clients=10, per_round=2, epochs=2),
    ),
    "clients": ((100, 1_000, 10_000), Setting()),
}
"""Values of the attribute of a setting that grows, and the other attributes."""


def rows_of(name: str, where: Where, repeats: int) -> list[dict[str, Any]]:
    """Measure a curve: memory of one point after the other, then the times of all in turns.

    Return a row for each method, value and timed round: the setting, number of ``parameters``, ``memory``
    (peak in MB), ``kept`` (client state in MB; ``in_file`` if it lies in a file) and ``seconds``.
    """
    values, base = CURVES[name]
    points: list[tuple[dict[str, Any], Simulation]] = []
    for method in METHODS:
        for value in values:
            change: dict[str, Any] = {name: value}
            setting = replace(base, **change)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                memory = pool.submit(memory_of, setting, method, where).result()
            run = setting.simulation(method, where)
            facts = {"curve": name, "method": method, **asdict(setting), "steps": setting.steps}
            facts |= {"parameters": run.model.layout.size, "memory": memory}
            points.append(({**facts, "kept": run.clients.bytes / 1e6, "in_file": run.clients.spilled}, run))
    rows = []
    for number in range(1 + repeats):
        first = number % len(points)
        for facts, run in points[first:] + points[:first]:
            taken = seconds(partial(run.round, number), where.device)
            if number:  # the first one warms up
                rows.append({**facts, "repeat": number - 1, "seconds": taken})
    return rows


def memory_of(setting: Setting, method: str, where: Where) -> float:
    """Return the peak memory in MB of a few rounds in this process, in addition to its memory before."""
    forget_peaks(where.device)
    before = peak(where.device)
    with where.used():
        run = setting.simulation(method, where)
        for number in range(ROUNDS_FOR_MEMORY):
            run.round(number)
    return peak(where.device) - before


def peak(device: torch.device) -> float:
    """Return the peak memory in MB of this process, or of PyTorch on a GPU."""
    return (torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory()) / 1e6


def table(name: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table of medians; times also relative to the method's first point, with quartiles."""
    lines = [[name, "method", "parameters", "s/round", "ms/step", "of the first", "memory, MB", "state, MB"]]
    growth = []
    for method, curve in pd.DataFrame(rows).groupby("method", sort=False):
        points = curve.sort_values("repeat").groupby(name, sort=False)
        medians = points["seconds"].median().loc[list(CURVES[name][0])]
        first = points.get_group(medians.index[0])
        for value, median in medians.items():
            point = points.get_group(value)
            fact = point.iloc[0]
            ratios = (point["seconds"] / point["steps"]).to_numpy() / (first["seconds"] / first["steps"])
            times = (f"{median:.3f}", f"{1e3 * median / fact['steps']:.2f}", quartiles(ratios))
            memory = (f"{fact['memory']:,.0f}", f"{fact['kept']:,.0f}{' (file)' if fact['in_file'] else ''}")
            lines.append([str(value), str(method), f"{fact['parameters']:,}", *times, *memory])
        if name != "model":
            exponent = np.polyfit(np.log(medians.index), np.log(medians), 1)[0]
            growth.append(f"{method}: the time of a round grows as {name} ** {exponent:.2f}")
    yield markdown_table(lines)
    yield from growth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of each point")
    parser.add_argument("--cuda-graph", action="store_true", help="capture local steps")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--folder", type=Path, default=Path("results"), help="for client state")
    parser.add_argument("--csv", type=Path, help="write every timed round to this file")
    options = parser.parse_args()
    try:
        where = Where(pick_device(options.device), options.cuda_graph, options.folder)
    except FltrainError as error:
        sys.exit(f"error: {error}")
    rows: list[dict[str, Any]] = []
    with where.used():
        for name in options.curves:
            curve = rows_of(name, where, options.repeats)
            print(f"\n{name}\n", *table(name, curve), sep="\n", flush=True)
            rows += curve
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
