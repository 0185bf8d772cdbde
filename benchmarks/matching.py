"""What FedMA's matching costs the server per round, beside federated averaging of the same clients.

VGG-9 for images of CIFAR-10's size; clients have the weights that a run starts from and noise of the same
size, for fixed widths in random orders. It is the first round, in which ``bbp_map`` matches all layers.
Times are processor seconds on one thread, medians of the repeats, in which the methods take turns.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedma import FedMA
from fltrain.methods.training import Training
from fltrain.methods.types import Server, Task, Update
from fltrain.models.build import build
from fltrain.models.catalogue import Vgg9
from fltrain.models.chain import Chain
from fltrain.models.flat import FlatModel

CHANNELS, SIDE, CLASSES = 3, 32, 10
METHODS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "fedma": FedMA(),
    "fedma, bbp_map": FedMA(mode="bbp_map"),
}


def problem(method: Method, clients: int, noise: float) -> tuple[Task, Server, list[Update]]:
    """What the server has to aggregate in the first round."""
    network = method.adapt(build(Vgg9(), CHANNELS, SIDE, CLASSES, seed=0), CLASSES)
    model = FlatModel(network, torch.zeros(1, CHANNELS, SIDE, SIDE))
    start, empty = model.weights, torch.zeros(0)
    task = Task(
        layout=model.layout,
        network=network,
        map_shape=lambda split: (),
        classes=CLASSES,
        clients=clients,
        samples=clients,
        training=Training(),
        rounds=1,
        seed=0,
        initialise=lambda client=None: (start, empty),
    )
    state = method.server_init(task, start)
    server = Server(start, empty, empty.long(), {method.name: state})
    chain, random = Chain.of(network, model.layout), torch.Generator().manual_seed(0)
    spread = torch.cat(
        [slot.of(start).std().expand(slot.stop - slot.start) for slot in model.layout.parameters]
    )
    updates = []
    for client in range(clients):
        # What is zero, all of a spare neuron, stays so.
        weights = start + noise * spread * start.sign().abs() * torch.randn(len(start), generator=random)
        for layer in range(0 if "sources" in state else chain.last):  # those are the orders it knows of
            order = torch.randperm(chain.widths[layer], generator=random)
            chain.reorder_outputs(weights, layer, order)
            chain.reorder_inputs(weights, layer + 1, order)
        extras = {method.name: {"classes": torch.ones(CLASSES)}}
        loss = torch.zeros(())
        updates.append(
            Update(client, 1, 1, start, weights, weights, empty, empty.long(), loss, extras=extras)
        )
    return task, server, updates


def aggregation(method: Method, clients: int, noise: float) -> Callable[[], object]:
    """The server's work in one round."""
    task, server, updates = problem(method, clients, noise)
    return lambda: method.aggregate(task, server.states[method.name], server, updates)


def measure(counts: Sequence[int], repeats: int, noise: float) -> dict[tuple[int, str], float]:
    """Seconds per round, by number of clients and method."""
    seconds: dict[tuple[int, str], float] = {}
    for clients in counts:
        work = {name: aggregation(method, clients, noise) for name, method in METHODS.items()}
        times: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(repeats):
            for name, aggregate in work.items():
                started = time.process_time()
                aggregate()
                times[name].append(time.process_time() - started)
        seconds |= {(clients, name): statistics.median(taken) for name, taken in times.items()}
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--noise", type=float, default=1.0, help="of clients' weights, relative to their spread"
    )
    parser.add_argument("--csv", type=Path, help="where to write the table")
    options = parser.parse_args()

    torch.set_num_threads(1)
    seconds = measure(options.clients, options.repeats, options.noise)
    print(f"{'seconds per round':18}" + "".join(f"{clients:>6} clients" for clients in options.clients))
    for name in METHODS:
        print(f"{name:18}" + "".join(f"{seconds[clients, name]:14.2f}" for clients in options.clients))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["model", "clients", "method", "seconds_per_round"])
            writer.writerows(("vgg9", *key, f"{value:.3e}") for key, value in seconds.items())


if __name__ == "__main__":
    main()
