"""Throughput of federated averaging with LeNet-5 on MNIST: this engine against a bare PyTorch loop.

Both train the same network from the same weights on the same batches, on one thread, in turns, round by
round. The bare loop is what one would write by hand for this one case: a plain module, ``torch.optim.SGD`` in
each of its implementations, images normalised beforehand, state dicts averaged. That all end at the same
weights shows that the work is equal. Times are processor seconds, which other work on the machine disturbs
less than the clock.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.local import LoopExecutor
from fltrain.engine.rounds import Simulation
from fltrain.randomness import Purpose, stream
from fltrain.spec import RunSpec

CPU = torch.device("cpu")
OPTIMISERS = {"plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
NEVER = 10**6
SPEC = RunSpec.parse(
    {
        "dataset": "mnist",
        "partition": {"name": "iid", "clients": 100},
        "model": "lenet5",
        "method": "fedavg",
        "training": {"epochs": 2, "batch_size": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3},
        "participation": {"fraction": 0.1},
        "rounds": NEVER,
        "evaluation": {"every": NEVER},
    },
    "benchmark",
)


def read_mnist(path: Path) -> PreparedData:
    """Read an npz file in the layout of MedMNIST."""
    normalisation = SPEC.dataset.normalise(channels=1)
    with np.load(path) as file:
        return PreparedData(
            train_images=file["train_images"][:, None],
            train_labels=file["train_labels"][:, 0].astype(np.int64),
            test_images=file["test_images"][:, None],
            test_labels=file["test_labels"][:, 0].astype(np.int64),
            classes=10,
            mean=normalisation.mean,
            std=normalisation.std,
            digest="",
        )


class LeNet5(nn.Module):
    """The network as one would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        hidden = functional.relu(self.fc1(hidden.flatten(1)))
        return self.fc3(functional.relu(self.fc2(hidden)))


class Bare:
    """Federated averaging without a framework. Clients and batch orders are given, and cost it nothing."""

    def __init__(
        self, data: PreparedData, clients: list[Tensor], start: list[Tensor], optimiser: dict[str, bool]
    ) -> None:
        mean, std = torch.tensor(data.mean), torch.tensor(data.std)
        # (image / 255 - mean) / std, rounded as the engine does it: the inputs are the same to the last bit.
        images = torch.as_tensor(data.train_images).float()
        self.images = torch.addcmul(-mean / std, images, 1 / (255 * std))
        self.labels = torch.as_tensor(data.train_labels)
        self.clients = clients
        self.model = LeNet5()
        names = self.model.state_dict().keys()
        self.weights = {name: tensor.clone() for name, tensor in zip(names, start, strict=True)}
        self.optimiser = optimiser

    def round(self, sampled: list[int], orders: list[list[Tensor]]) -> float:
        model, training = self.model, SPEC.training
        total = sum(len(self.clients[client]) for client in sampled)
        mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in self.weights.items()}
        losses = torch.zeros(())
        for client, epochs in zip(sampled, orders, strict=True):
            model.load_state_dict(self.weights)
            optimiser = torch.optim.SGD(
                model.parameters(),
                lr=training.lr,
                momentum=training.momentum,
                weight_decay=training.weight_decay,
                **self.optimiser,
            )
            indices = self.clients[client]
            for order in epochs:
                for chosen in indices[order].split(training.batch_size):
                    optimiser.zero_grad()
                    loss = functional.cross_entropy(model(self.images[chosen]), self.labels[chosen])
                    loss.backward()
                    optimiser.step()
                    losses += loss.detach()
            for name, tensor in model.state_dict().items():
                mean[name].add_(tensor, alpha=len(indices) / total)
        self.weights = {name: tensor.float() for name, tensor in mean.items()}
        return float(losses)

    @property
    def vector(self) -> Tensor:
        return torch.cat([tensor.flatten() for tensor in self.weights.values()])


@dataclass(frozen=True)
class Timing:
    """Seconds that one round took."""

    repeat: int
    round: int
    who: str
    seconds: float


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def batch_orders(number: int, client: int, samples: int) -> list[Tensor]:
    """The order in which a client of the engine visits its images, by epoch."""
    where = {"round": number, "client": client}
    streams = [stream(SPEC.seed, Purpose.BATCH_ORDER, **where, epoch=e) for e in range(SPEC.training.epochs)]
    return [torch.from_numpy(random.permutation(samples)) for random in streams]


def compare(
    data: PreparedData, divided: Partition, rounds: int, repeat: int
) -> tuple[list[Timing], dict[str, tuple[float, float]]]:
    """Train all in turns.

    Returns the time of each round but the first, which warms up; and by how much the weights of each bare
    loop differ from the engine's at most, after the first round and after the last.
    """
    ours = Simulation(SPEC, data, divided, CPU, executor=LoopExecutor)
    start = [slot.of(ours.server.weights) for slot in ours.model.layout.parameters]
    bare = {name: Bare(data, list(ours.data.clients), start, options) for name, options in OPTIMISERS.items()}
    timings: list[Timing] = []
    differences: list[dict[str, float]] = []
    for number in range(rounds + 1):
        sampled = ours.sample(number)
        orders = [batch_orders(number, client, len(divided.clients[client])) for client in sampled]
        turns: list[tuple[str, Callable[[], object]]] = [
            ("ours", partial(ours.round, number)),
            *((name, partial(loop.round, sampled, orders)) for name, loop in bare.items()),
        ]
        first = (number + repeat) % len(turns)
        for who, work in turns[first:] + turns[:first]:
            timings.append(Timing(repeat, number, who, timed(work)))
        differences.append(
            {name: float((loop.vector - ours.server.weights).abs().max()) for name, loop in bare.items()}
        )
    return [timing for timing in timings if timing.round > 0], {
        name: (differences[0][name], differences[-1][name]) for name in bare
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, required=True, help="npz file in MedMNIST's layout")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds of each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="where to write the time of every round")
    options = parser.parse_args()

    torch.set_num_threads(1)
    data = read_mnist(options.mnist)
    divided = Partition(SPEC.partition.split(data.train_labels, data.classes, SPEC.seed), digest="")
    timings: list[Timing] = []
    for repeat in range(options.repeats):
        measured, differences = compare(data, divided, options.rounds, repeat)
        timings += measured
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["repeat", "round", "who", "seconds"])
            writer.writerows((t.repeat, t.round, t.who, f"{t.seconds:.6f}") for t in timings)

    seconds = {who: [t.seconds for t in timings if t.who == who] for who in ("ours", *OPTIMISERS)}
    images = sum(len(divided.clients[client]) for client in range(10)) * SPEC.training.epochs
    print(f"medians of {len(seconds['ours'])} rounds of {images:,} images")
    print("         s/round  images/s  ours/bare (quartiles)   weights differ: round 1, last round")
    for who, each in seconds.items():
        median = statistics.median(each)
        line = f"{who:8} {median:7.3f} {images / median:9,.0f}"
        if who != "ours":
            ratios = [mine / theirs for mine, theirs in zip(seconds["ours"], each, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            once, finally_ = differences[who]
            line += f"  {middle:.3f} ({low:.3f} to {high:.3f})  {once:.1e}, {finally_:.1e}"
        print(line)
    if max(once for once, _ in differences.values()) > 1e-6:
        sys.exit("error: they did not do the same work")


if __name__ == "__main__":
    main()
