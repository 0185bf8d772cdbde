"""Time and memory of a round as one thing grows: clients of a round, local steps, network, clients in all.

For FedAvg, and for SCAFFOLD, whose clients each keep a vector as long as the weights. All clients have taken
part. Images are random bytes, 20 per client, in batches of 10.
Each point runs in a process of its own. Times are CPU seconds on one thread, or wall time on a GPU. Memory is
the peak of the process beyond its size after all imports; on a GPU, PyTorch's peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from common import write_csv

from fltrain.core.errors import FltrainError
from fltrain.engine.cuda_graph import CapturedTraining
from fltrain.engine.local import LocalTraining
from fltrain.engine.synthetic import synthetic_run
from fltrain.reporting.text import markdown_table
from fltrain.runtime.determinism import determined
from fltrain.runtime.devices import pick_device, synchronize
from fltrain.runtime.process import compute_as_runs, forget_peaks, peak_memory

METHODS = ("fedavg", "scaffold")
IMAGES, BATCH = 20, 10
SETTING = {"model": "lenet5", "dataset": "mnist", "clients": 100, "per_round": 10, "epochs": 5}
CURVES: dict[str, tuple[tuple[int | str, ...], dict[str, Any]]] = {
    "per_round": ((5, 10, 20, 50, 100), SETTING),
    "epochs": ((1, 2, 5, 10, 25), SETTING),
    "model": (
        ("mlp", "lenet5", "fedavg_cnn", "mobilenetv2", "ecgr_cnn", "resnet18"),
        {**SETTING, "dataset": "cifar10", "clients": 10, "per_round": 2, "epochs": 2},
    ),
    "clients": ((100, 1_000, 10_000), SETTING),
}
"""Values of the entry of a setting that grows, and the other entries."""


@compute_as_runs()
def point(
    setting: dict[str, Any], method: str, device: torch.device, cuda_graph: bool, repeats: int
) -> list[dict[str, Any]]:
    """Return a row for each timed round of a run: ``seconds``, ``memory`` (the peak in MB), and facts."""

    def peak() -> float:
        return (torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory()) / 1e6

    clients, per_round, epochs = (setting[name] for name in ("clients", "per_round", "epochs"))
    settings = {
        "dataset": setting["dataset"],
        "partition": {"name": "iid", "clients": clients},
        "model": setting["model"],
        "method": method,
        "training": {"epochs": epochs, "batch_size": BATCH, "lr": 0.001},
        "participation": {"fraction": per_round / clients},
    }
    forget_peaks(device)
    before = peak()
    with determined("exact", device):
        run = synthetic_run(settings, IMAGES, 1, device, CapturedTraining if cuda_graph else LocalTraining)
        for client in range(clients):
            scaffold = {"control": torch.zeros_like(run.server.weights)} if method == "scaffold" else {}
            run.clients[client] = {method: scaffold}
        clock, times = time.process_time if device.type == "cpu" else time.perf_counter, []
        for number in range(2 + repeats):
            started = clock()
            run.round(number)
            synchronize(device)
            times.append(clock() - started)
    facts = {**setting, "method": method, "parameters": run.model.layout.size, "memory": peak() - before}
    facts |= {"steps": per_round * epochs * IMAGES // BATCH}
    return [{**facts, "repeat": repeat, "seconds": time} for repeat, time in enumerate(times[2:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of each point")
    parser.add_argument("--cuda-graph", action="store_true", help="capture local steps")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--csv", type=Path, help="write every timed round to this file")
    options = parser.parse_args()
    try:
        device = pick_device(options.device)
    except FltrainError as error:
        sys.exit(f"error: {error}")
    rows: list[dict[str, Any]] = []
    for name in options.curves:
        values, setting = CURVES[name]
        lines = [[name, "method", "parameters", "s/round", "ms/step", "memory, MB"]]
        for method in METHODS:
            for value in values:
                task = ({**setting, name: value}, method, device, options.cuda_graph)
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    points = pool.submit(point, *task, options.repeats).result()
                fact, least = points[0], min(row["seconds"] for row in points)
                time = f"{least:.3f}", f"{1e3 * least / fact['steps']:.2f}", f"{fact['memory']:,.0f}"
                lines.append([str(value), method, f"{fact['parameters']:,}", *time])
                rows += [{"curve": name, **row} for row in points]
        print(f"\n{name} (least of {options.repeats} rounds)\n", markdown_table(lines), sep="\n", flush=True)
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
