"""FedAvg on the digits by Flower: the published values of the control ``controls/flower``.

Flower's ``FedAvg`` samples and averages; partition, network, training and test are written here, without this
project's code. Only the prepared images are its own, so that both test on the same ones. 10 clients of a
Dirichlet(10) partition (no further class for a client with its share of images), 4 a round, 20 rounds.

    python published/controls_flower.py results/data/digits.safetensors

Needs ``benchmarks/peers/requirements-flower.txt`` and ``safetensors``. Prints accuracy after the last round,
and the best one, in per cent for each seed, then their means and deviations.
"""

from __future__ import annotations

import random
import statistics
import sys

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

SEEDS = range(100, 120)
CLIENTS, COHORT, ROUNDS = 10, 4, 20
client, server = ClientApp(), ServerApp()


def digits(file: str) -> dict[str, Tensor]:
    """Return images ``[n, 64]``, normalised, and labels ``[n]`` of both splits."""
    arrays = load_file(file)
    images = {name: arrays[name].flatten(1).float() / 255 for name in ("train_images", "test_images")}
    labels = {name: arrays[name].long() for name in ("train_labels", "test_labels")}
    return {**{name: (one - 0.3053) / 0.3759 for name, one in images.items()}, **labels}


def partition(file: str, seed: int) -> list[list[int]]:
    """Return the training images of each client."""
    draws, parts = np.random.default_rng(seed), [list[int]() for _ in range(CLIENTS)]
    labels = digits(file)["train_labels"].numpy()
    for label in range(10):
        members = draws.permutation(np.flatnonzero(labels == label))
        shares = draws.dirichlet(np.full(CLIENTS, 10.0))
        shares *= [len(part) < len(labels) / CLIENTS for part in parts]
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(members)).astype(int)
        for part, own in zip(parts, np.split(members, cuts), strict=True):
            part.extend(own.tolist())
    return parts


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config, place = message.content["config"], int(context.node_config["partition-id"])
    data, seed = digits(config["file"]), config["seed"]
    own = torch.tensor(partition(config["file"], seed)[place])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = np.random.default_rng([seed, config["server-round"], place]).permutation(len(own))
    for chosen in own[torch.from_numpy(order)].split(16):
        optimiser.zero_grad()
        functional.cross_entropy(model(data["train_images"][chosen]), data["train_labels"][chosen]).backward()
        optimiser.step()
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(own)}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def trained(grid: Grid, file: str, seed: int) -> list[float]:
    """Return the test accuracy in per cent after each round."""
    random.seed(seed)
    torch.manual_seed(seed)
    model, data, accuracies = network(), digits(file), list[float]()

    @torch.no_grad()
    def test(round: int, arrays: ArrayRecord) -> None:
        model.load_state_dict(arrays.to_torch_state_dict())
        right = model(data["test_images"]).argmax(1) == data["test_labels"]
        accuracies.append(100 * right.double().mean().item())

    def all_there(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        assert len(replies) == COHORT, "Flower goes on without clients that fail"
        return MetricRecord({"replies": len(replies)})

    strategy = FedAvg(
        fraction_train=COHORT / CLIENTS,
        min_train_nodes=COHORT,
        min_available_nodes=CLIENTS,
        fraction_evaluate=0.0,
        train_metrics_aggr_fn=all_there,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=ROUNDS,
        train_config=ConfigRecord({"file": file, "seed": seed}),
        evaluate_fn=test,
    )
    assert len(accuracies) == ROUNDS + 1  # it is also called before the first round
    return accuracies[1:]


@server.main()
def serve(grid: Grid, context: Context) -> None:
    found = {seed: trained(grid, sys.argv[1], seed) for seed in SEEDS}
    for seed, accuracies in found.items():
        print(f"seed {seed}: last {accuracies[-1]:.2f}, best {max(accuracies):.2f}")
    for name, values in (
        ("last_acc", [accuracies[-1] for accuracies in found.values()]),
        ("best_acc", [max(accuracies) for accuracies in found.values()]),
    ):
        print(f"{name}: {statistics.mean(values):.2f} {statistics.stdev(values):.2f}")


if __name__ == "__main__":
    run_simulation(
        server,
        client,
        num_supernodes=CLIENTS,
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1}},
    )
