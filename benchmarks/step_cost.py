"""What local training on a batch costs with each method, relative to FedAvg, beside what it declares.

Images are random bytes, one client trains alone. A method declares its work on a batch in forward passes (a
backward pass counts as two, so FedAvg's step is 3); the rest of a ratio is vector arithmetic and overhead.
The methods take turns, after a first round in which those that need a past get one. Times are medians of
processor seconds on one thread, or of seconds on the clock on a GPU.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.executors.loop import LoopExecutor, Trained
from fltrain.engine.simulation import Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device

SIDE, CLASSES, BATCH = 28, 10, 64
FEDAVG_STEP = 3.0
PERSONAL = {name for name, method in METHODS.items() if Composition((method(),)).personal}

Costs = dict[str, tuple[float, float | None]]


class Timed(LoopExecutor):
    """The reference executor; keeps the seconds of its last call."""

    seconds = 0.0

    def train(self, *arguments: object) -> list[Trained]:
        cuda = self.model.weights.is_cuda
        clock = time.perf_counter if cuda else time.process_time
        started = clock()
        trained = super().train(*arguments)  # type: ignore[arg-type]
        if cuda:
            torch.cuda.synchronize()
        self.seconds = clock() - started
        return trained


def federation(methods: Sequence[Method], model: str, steps: int, device: torch.device) -> Simulation:
    """One client with ``steps`` batches of random images, which trains in every round."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (steps * BATCH, 1, SIDE, SIDE), np.uint8)
    labels = random.integers(0, CLASSES, len(images))
    data = PreparedData(images, labels, images[:BATCH], labels[:BATCH], CLASSES, (0.5,), (0.25,), digest="")
    settings = {
        "dataset": "mnist",
        "partition": {"name": "iid", "clients": 1},
        "model": model,
        "method": methods[0].model_dump(mode="json"),
        "plugins": [method.model_dump(mode="json") for method in methods[1:]],
        "training": {"epochs": 1, "batch_size": BATCH, "lr": 0.001},
        "participation": {"fraction": 1.0},
        "rounds": 10**6,
        "evaluation": {"every": 10**6},
    }
    own, tests = np.arange(len(images)), None
    if methods[0].name in PERSONAL:  # these are not trained without images to test them on
        settings["local_test"], tests = {"fraction": 0.5}, [own[:BATCH]]
    spec = RunSpec.parse(settings, "benchmark")
    return Simulation(spec, data, Partition([own], "", tests), device, Timed)


def measure(model: str, steps: int, repeats: int, device: torch.device) -> Costs:
    """Seconds per local step and declared work, by method; plug-ins act on FedAvg."""
    fedavg = METHODS["fedavg"]()
    compositions = {
        name: (fedavg, method()) if method.plugin else (method(),) for name, method in METHODS.items()
    }
    federations: dict[str, Simulation] = {}
    for name, methods in compositions.items():
        try:
            federations[name] = federation(methods, model, steps, device)
        except FltrainError as error:
            print(f"{name} is left out: {error}")
    seconds: dict[str, list[float]] = {name: [] for name in federations}
    for repeat in range(1 + repeats):
        for name, one in federations.items():
            one.round(repeat)
            if repeat:
                assert isinstance(one.executor, Timed)
                seconds[name].append(one.executor.seconds / steps)
    return {
        name: (statistics.median(taken), compositions[name][-1].footprint.step)
        for name, taken in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mobilenetv2")
    parser.add_argument("--steps", type=int, default=4, help="local steps per round")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="where to write the table")
    options = parser.parse_args()

    torch.set_num_threads(1)
    costs = measure(options.model, options.steps, options.repeats, pick_device(options.device))
    base, _ = costs["fedavg"]
    print(f"{options.model}, batch of {BATCH}: FedAvg's step takes {base * 1e3:.1f} ms")
    print(f"{'method':12}{'measured':>10}{'declared':>10}")
    for name, (seconds, work) in costs.items():
        declared = "depends" if work is None else f"{work / FEDAVG_STEP:.2f}"
        print(f"{name:12}{seconds / base:10.2f}{declared:>10}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["model", "method", "seconds_per_step", "declared_work"])
            writer.writerows((options.model, name, *both) for name, both in costs.items())


if __name__ == "__main__":
    main()
