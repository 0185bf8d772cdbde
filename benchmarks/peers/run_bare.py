"""Federated averaging without a framework: what one would write by hand for this one case."""

from __future__ import annotations

import sys

import torch
from task import Report, Task, arguments, averaged_tensors, train
from torch import nn

LAYOUTS = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
"""Of weights and what networks compute; the first is PyTorch's own."""


def run(task: Task, layout: str = "channels_first") -> tuple[nn.Module, Report]:
    report = Report(task)
    network = task.network().to(memory_format=LAYOUTS[layout])
    server = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for round in range(task.rounds):
        mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in server.items()}
        for client in range(task.clients):  # all have equally many images
            network.load_state_dict(server)
            train(network, task, round, client)
            for name, tensor in network.state_dict().items():
                mean[name].add_(tensor, alpha=1 / task.clients)
        server = {name: tensor.to(server[name].dtype) for name, tensor in mean.items()}
        network.load_state_dict(server)
        report.round_ended(lambda: averaged_tensors(network))
    return network, report


if __name__ == "__main__":
    task, _ = arguments()
    torch.set_num_threads(1)
    network, report = run(task, sys.argv[3])
    report.finish(averaged_tensors(network))
