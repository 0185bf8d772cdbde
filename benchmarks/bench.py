"""Ways to train the same rounds, in processes that take turns round by round.

    python benchmarks bench bare this --model lenet5 --dataset mnist
    python benchmarks bench this other=../older-checkout workers=2 --wall
    python benchmarks bench this precision=bf16 --model ecgr_cnn --dataset cifar10

The first way is the reference. ``bare`` is a hand-written loop of federated averaging, ``this`` the engine,
``cuda_graph`` its captured steps. ``other`` names a checkout of another version, ``workers`` divide the
clients, ``precision`` applies to the layers.

Clients have random images. Ways of the same precision must agree after the first round, otherwise the command
stops. Times are CPU times: other work on the machine disturbs them less than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.engine.cuda_graph import CapturedTraining
from fltrain.engine.local import LocalTraining, batch_orders
from fltrain.engine.simulation import Simulation
from fltrain.engine.synthetic import synthetic_run
from fltrain.models.base import build
from fltrain.runtime.determinism import determined, tf32_products
from fltrain.runtime.devices import to_device
from fltrain.runtime.process import compute_as_runs

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("this", "bare", "cuda_graph", "other", "workers", "precision")
TOLERANCE = 1e-6
"""Maximum difference of a weight after a round on the CPU."""
ALIKE = 0.25
"""Maximum length of the difference on a GPU, relative to the update: deep networks magnify rounding."""


class Bare:
    """FedAvg in a plain PyTorch loop, on the clients and batch orders of a simulation.

    A plain module, images normalised beforehand, fused ``torch.optim.SGD``, state dicts averaged by numbers
    of images. In the first round, whose weights are compared, images have the engine's memory layout, because
    layouts round differently; then they have PyTorch's own, channels first.
    """

    def __init__(self, reference: Simulation) -> None:
        """Start from the model of ``reference``, which has not trained yet."""
        spec, data = reference.spec, reference.data
        self.reference = reference
        self.compared, self.labels = data.train.batch(torch.arange(len(data.train), device=reference.device))
        self.images = self.compared.clone(memory_format=torch.contiguous_format)
        _, channels, side, _ = data.train.images.shape
        self.model = build(spec.model, channels, side, data.classes, spec.seed).to(reference.device).train()
        self.model.products, self.model.tf32 = reference.network.products, reference.network.tf32
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def round(self, number: int) -> float:
        """Train all clients in a round (counted from 0); return the sum of the losses."""
        run, images = self.reference, self.images if number else self.compared
        model, training, clients = self.model, run.spec.training, run.data.clients
        total = sum(map(len, clients))
        state = {
            name: torch.zeros_like(tensor, dtype=torch.float64) if tensor.is_floating_point() else tensor
            for name, tensor in self.state.items()
        }
        losses = torch.zeros((), device=self.reference.device)
        for client, indices in enumerate(clients):
            model.load_state_dict(self.state)
            optimiser = torch.optim.SGD(
                model.parameters(),
                training.lr,
                training.momentum,
                weight_decay=training.weight_decay,
                fused=True,
            )
            drawn = batch_orders(run.spec.seed, number, client, training.epochs, len(indices))
            for order in to_device(drawn, indices.device):
                for chosen in indices[order].split(training.batch_size):
                    optimiser.zero_grad()
                    with tf32_products(model.tf32):
                        loss = functional.cross_entropy(model(images[chosen]), self.labels[chosen])
                        loss.backward()
                    optimiser.step()
                    losses += loss.detach()
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    state[name].add_(tensor, alpha=len(indices) / total)
                else:
                    state[name] = tensor.clone()
        self.state = {name: tensor.to(self.state[name].dtype) for name, tensor in state.items()}
        return float(losses)


def model_of(contender: Simulation | Bare) -> Tensor:
    """Return the global model: parameters and running statistics."""
    if isinstance(contender, Simulation):
        return torch.cat([contender.server.weights, contender.server.buffers])
    layout = contender.reference.model.layout
    return torch.cat([contender.state[slot.name].flatten() for slot in (*layout.parameters, *layout.buffers)])


# ---------------------------------------------------------------- in the process of a way
def contender(key: str, value: str, options: dict[str, Any]) -> Simulation | Bare:
    """Return what trains the rounds of a way."""
    base, *plugins = options["method"].split("+")
    precision = value if key == "precision" else options["precision"]
    settings = {
        "dataset": options["dataset"],
        "partition": {"name": "iid", "clients": options["clients"]},
        "local_test": {"fraction": 0.5},  # some methods need it
        "model": options["model"],
        "method": base,
        "plugins": plugins,
        "training": {"epochs": 1, "batch_size": options["batch_size"]},
        "participation": {"fraction": 1.0},
        "precision": precision,
    }
    trainer: Any = CapturedTraining if key == "cuda_graph" else LocalTraining
    if key == "workers":
        trainer = partial(LocalTraining, workers=int(value))
    images, device = options["steps"] * options["batch_size"], torch.device(options["device"])
    run = synthetic_run(settings, images, options["clients"], device, trainer)
    return Bare(run) if key == "bare" else run


@compute_as_runs()
def train(key: str, value: str, options: dict[str, Any]) -> None:
    """Train a round for each line of the input, and print its wall and CPU seconds.

    A line can name a file for the model before and after the round, ``[2, P]``.
    """

    def spent() -> float:
        usages = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    with determined(options["determinism"], torch.device(options["device"]), options["precision"] == "tf32"):
        run = contender(key, value, options)
        for number, line in enumerate(sys.stdin):
            before, wall, cpu = model_of(run).clone(), time.perf_counter(), spent()
            run.round(number)
            wall, cpu = time.perf_counter() - wall, spent() - cpu
            if line.strip():
                np.save(line.strip(), torch.stack([before, model_of(run)]).cpu().numpy())
            print(wall, cpu, flush=True)


# ---------------------------------------------------------------- in the process that measures
class Way:
    """A process that trains rounds when told to.

    Attributes:
        times: wall and CPU seconds of its rounds.
        models: the model before and after the first round, ``[2, P]``.
    """

    def __init__(self, text: str, options: dict[str, Any]) -> None:
        self.text, (self.key, _, value) = text, text.partition("=")
        if self.key not in WAYS:
            raise SystemExit(f"error: {text!r}: unknown way; there are {', '.join(WAYS)}")
        folder = Path(value).resolve() if self.key == "other" else ROOT
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--way", self.key, value, json.dumps(options)],
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.times: list[tuple[float, float]] = []
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            self.round(file.name)
            self.models: NDArray[np.float32] = np.load(file.name)

    def round(self, file: str = "") -> None:
        """Train a round."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{file}\n")
        times = self.process.stdout.readline().split()
        if not times:
            raise SystemExit(f"error: {self.text}: the process ended")
        self.times.append((float(times[0]), float(times[1])))


def agree(text: str, models: NDArray[np.float32], expected: NDArray[np.float32], exact: bool) -> None:
    """Compare models ``[2, P]`` before and after the first round; on a GPU ``exact`` is false.

    Raises:
        SystemExit: if they differ by more than rounding.
    """
    difference = np.abs(models[1] - expected[1])
    alike = np.linalg.norm(difference) <= ALIKE * np.linalg.norm(expected[1] - expected[0])
    if not (difference.max() <= TOLERANCE if exact else alike):
        raise SystemExit(f"error: {text}: after a round its weights differ by {difference.max():.1e}")


def table(ways: Sequence[Way], column: int, images: int, batches: int) -> str:
    """Return medians over the rounds, and ratios to the first way's time in the same turn, with quartiles."""
    from common import quartiles  # not importable in tests

    lines = [f"{'':24}{'samples/s':>12}{'ms/step':>10}{'least':>8}  of the first (quartiles)"]
    reference = [times[column] for times in ways[0].times[2:]]
    for way in ways:
        seconds = [times[column] for times in way.times[2:]]
        ratios = [value / base for value, base in zip(seconds, reference, strict=True)]
        median, least = float(np.median(seconds)), min(seconds) / min(reference)
        numbers = f"{images / median:12,.0f}{1e3 * median / batches:10.2f}{least:8.3f}"
        lines.append(f"{way.text:24}{numbers}  {quartiles(ratios)}")
    return "\n".join(lines)


def main() -> None:
    from common import write_csv  # not importable in tests

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="+", metavar="WAY", help="see above")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--dataset", default="mnist", help="dataset whose image size is used")
    parser.add_argument("--method", default="fedavg", help="method, with plug-ins or not: fedprox+flfa")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; nothing else should use it")
    parser.add_argument("--determinism", choices=("exact", "fast"), default="exact", help="on CUDA")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    for name, text, default in (
        ("batch-size", "images in a batch", 64),
        ("clients", "clients in a round", 2),
        ("steps", "batches of each client in a round", 10),
        ("rounds", "timed rounds", 9),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--wall", action="store_true", help="compare wall time, as on a GPU")
    parser.add_argument("--csv", type=Path, help="write every round to this file")
    options = vars(parser.parse_args())
    texts, out, cpu = options.pop("ways"), options.pop("csv"), options["device"] == "cpu"
    ways = [Way(text, options) for text in texts]
    for way in ways[1:]:
        if way.key != "precision" and (way.key != "bare" or options["method"] == "fedavg"):
            agree(way.text, way.models, ways[0].models, cpu)
    for number in range(1, 2 + options["rounds"]):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            way.round()
    batches = options["clients"] * options["steps"]
    print(table(ways, int(cpu and not options["wall"]), batches * options["batch_size"], batches))
    rows = [
        {"way": way.text, "round": number, "wall": wall, "cpu": cpu_seconds}
        for way in ways
        for number, (wall, cpu_seconds) in enumerate(way.times)
    ]
    write_csv(out, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        try:
            train(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
        except FltrainError as error:
            sys.exit(f"error: {error}")
    else:
        main()
