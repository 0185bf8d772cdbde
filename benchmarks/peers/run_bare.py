"""Federated averaging without a framework: what one would write by hand for this one case."""

from __future__ import annotations

import torch
from task import Report, Task, arguments, train, trained
from torch import nn


def run(task: Task) -> tuple[nn.Module, Report]:
    report = Report()
    network = task.network()
    server = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for round in range(task.rounds):
        mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in server.items()}
        for client in range(task.clients):  # all have equally many images
            network.load_state_dict(server)
            train(network, task, round, client)
            for name, tensor in network.state_dict().items():
                mean[name].add_(tensor, alpha=1 / task.clients)
        server = {name: tensor.to(server[name].dtype) for name, tensor in mean.items()}
        report.round_ended()
    network.load_state_dict(server)
    return network, report


if __name__ == "__main__":
    task, _ = arguments()
    torch.set_num_threads(1)
    network, report = run(task)
    report.finish(trained(network))
