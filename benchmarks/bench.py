"""Training speed of the engine compared with a bare PyTorch loop, in one process.

Clients with random images train for some rounds: in the engine, on a GPU also with captured steps, and in a
hand-written loop for federated averaging. All take turns within each repeat; ratios are of times of the same
repeat. All must end the first round of federated averaging at the same weights, otherwise the command stops.
On one CPU thread times are CPU times, which other work on the machine disturbs less than wall time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.core.errors import FltrainError, MethodError
from fltrain.core.files import write_json
from fltrain.engine.cuda_graph import CapturedTraining
from fltrain.engine.local import LocalTraining, batch_orders
from fltrain.engine.simulation import Simulation, Trainer
from fltrain.engine.synthetic import synthetic_run
from fltrain.models.base import build
from fltrain.runs.spec import Precision
from fltrain.runtime.determinism import Profile, determined, tf32_products
from fltrain.runtime.devices import pick_device, synchronize, to_device
from fltrain.runtime.process import compute_as_runs

BARE = "bare loop"
TRAINERS: dict[str, type[LocalTraining]] = {one.name: one for one in (LocalTraining, CapturedTraining)}
TOLERANCE = 1e-6
"""Maximum difference of a weight after a round of federated averaging on the CPU, in the engine."""
ALIKE = 0.25
"""Maximum length of the difference otherwise, relative to the update: deep networks magnify rounding."""


@dataclass(frozen=True)
class Bench:
    """Settings of a measurement.

    Attributes:
        method: a method, or a method with plug-ins as ``fedavg+flfa``.
        steps: batches of each client in a round.
        repeats: timed rounds.
        precision: precision of products in layers.
    """

    model: str
    dataset: str
    method: str
    device: torch.device
    batch_size: int = 64
    clients: int = 2
    steps: int = 10
    repeats: int = 5
    threads: int = 1
    determinism: Profile = "exact"
    precision: Precision = "fp32"

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the engine's ways of local training on the device."""
        return [name for name in TRAINERS if self.device.type == "cuda" or name == LocalTraining.name]

    def simulation(self, method: str, trainer: Trainer = LocalTraining) -> Simulation:
        """Return clients with random images, all of which train in every round; nothing is tested.

        Raises:
            FltrainError: if network, dataset and method do not fit together.
        """
        base, *plugins = method.split("+")
        settings = {
            "dataset": self.dataset,
            "partition": {"name": "iid", "clients": self.clients},
            "local_test": {"fraction": 0.5},  # some methods need it
            "model": self.model,
            "method": base,
            "plugins": plugins,
            "training": {"epochs": 1, "batch_size": self.batch_size},
            "participation": {"fraction": 1.0},
            "precision": self.precision,
        }
        return synthetic_run(settings, self.steps * self.batch_size, self.clients, self.device, trainer)


def seconds(work: Callable[[], object], device: torch.device, threads: int = 1) -> float:
    """Return the time of some work: CPU time on one CPU thread, else wall time."""
    clock = time.process_time if device.type == "cpu" and threads == 1 else time.perf_counter
    synchronize(device)
    started = clock()
    work()
    synchronize(device)
    return clock() - started


# ---------------------------------------------------------------- contenders
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


# ---------------------------------------------------------------- measurement
@dataclass
class Timing:
    """Times of a contender.

    Attributes:
        name: its local training, or the name of the bare loop.
        images: images of local steps in a round.
        seconds: of each timed round.
    """

    name: str
    contender: Simulation | Bare
    images: int = 0
    seconds: list[float] = field(default_factory=list)


def timed(bench: Bench) -> list[dict[str, Any]]:
    """Time the bare loop and the engine.

    Returns:
        a row per contender, with its ``name`` and medians over repeats: ``samples_per_second``, images of
        local steps over the time of whole rounds; ``step_ms``, milliseconds of a round per batch; ``ratio``,
        ``ratio_low`` and ``ratio_high``, time relative to the bare loop's in the same repeat, with quartiles.

    Raises:
        FltrainError: if network, dataset, method and device do not fit together.
        MethodError: if the engine or the bare loop does not compute federated averaging.
    """
    compute_as_runs(bench.threads)
    with determined(bench.determinism, bench.device, bench.precision == "tf32"):
        timings = _contenders(bench)
        for repeat in range(bench.repeats):
            first = repeat % len(timings)
            for timing in (*timings[first:], *timings[:first]):
                work = partial(timing.contender.round, repeat + 2)
                timing.seconds.append(seconds(work, bench.device, bench.threads))
    rows = []
    for timing in timings:
        ratios = np.divide(timing.seconds, timings[0].seconds)
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
        median = statistics.median(timing.seconds)
        rows.append(
            {
                "name": timing.name,
                "samples_per_second": timing.images / median,
                "step_ms": 1e3 * median / (bench.clients * bench.steps),
                **{"ratio": middle, "ratio_low": low, "ratio_high": high},
            }
        )
    return rows


def _contenders(bench: Bench) -> list[Timing]:
    """Return all contenders after two rounds, the bare loop first."""
    reference = bench.simulation("fedavg")
    timings = [Timing(BARE, Bare(reference))]
    for name in bench.trainers:
        timings.append(Timing(name, bench.simulation(bench.method, TRAINERS[name])))
    start = model_of(reference)
    for timing in timings:
        timing.contender.round(0)
    reference.round(0)
    for timing in timings:
        if timing.name == BARE or bench.method == "fedavg":
            _check(timing, start, model_of(reference), bench.device.type == "cpu")
        timing.contender.round(1)
        run = timing.contender if isinstance(timing.contender, Simulation) else reference
        timing.images = run.costs.samples // len(run.costs.round_seconds)
    return timings


def _check(timing: Timing, start: Tensor, expected: Tensor, exact: bool) -> None:
    """Compare the model after one round of federated averaging with the uncaptured loop's."""
    difference = model_of(timing.contender) - expected
    alike = float(difference.norm()) <= ALIKE * float((expected - start).norm())
    if not (float(difference.abs().max()) <= TOLERANCE if exact else alike):
        raise MethodError(
            f"{timing.name}: after a round of federated averaging its weights differ by "
            f"{float(difference.abs().max()):.1e} from those of the uncaptured loop"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--dataset", default="mnist", help="dataset whose image size is used")
    parser.add_argument("--method", default="fedavg", help="method, with plug-ins or not: fedprox+flfa")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    for name, text, default in (
        ("batch-size", "images in a batch", 64),
        ("clients", "clients in a round", 2),
        ("steps", "batches of each client in a round", 10),
        ("repeats", "timed rounds", 5),
        ("threads", "CPU threads", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--determinism", choices=get_args(Profile), default="exact", help="on CUDA")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument("--out", type=Path, help="also write settings and table to this JSON file")
    options = vars(parser.parse_args())
    out = options.pop("out")
    try:
        # Another process on the device would disturb the times.
        bench = Bench(**{**options, "device": pick_device(options["device"], runs=1)})
        rows = timed(bench)
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{'':12}{'samples/s':>12}{'ms/step':>10}  of bare (quartiles)")
    for row in rows:
        ratio = f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
        print(f"{row['name']:12}{row['samples_per_second']:12,.0f}{row['step_ms']:10.2f}  {ratio}")
    if out is not None:
        write_json(out, {**asdict(bench), "device": str(bench.device), "rows": rows})
        print(f"written: {out}")


if __name__ == "__main__":
    main()
