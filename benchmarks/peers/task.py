"""Input and output that all simulators share.

A task is a folder with ``task.json`` and ``arrays.npz``, written by ``compare.py``. This module needs only
NumPy and PyTorch, because it runs in every simulator's own environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

TEST_BATCH = 64


@dataclass(frozen=True)
class Task:
    """Federated averaging on given batches, from given weights.

    ``clients`` is the number of clients that train in a round; a batch names its images, so these can be
    others in every round. If the task is ``tested``, accuracies after each round are reported.
    """

    folder: str
    model: str
    classes: int
    rounds: int
    clients: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    tested: bool = False

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Images and labels of both splits, ``mean`` and ``std``, and what the methods below return."""
        with np.load(Path(self.folder, "arrays.npz")) as file:
            return dict(file)

    def _floats(self, images: NDArray[Any]) -> Tensor:
        """Normalise ``(image / 255 - mean) / std``, rounded as in the engine of this project."""
        mean, std = (torch.from_numpy(self.arrays[name]).view(-1, 1, 1) for name in ("mean", "std"))
        shift, scale = (tensor.expand(images.shape[1:]) for tensor in (-mean / std, 1 / (255 * std)))
        return torch.addcmul(shift, torch.from_numpy(images).float(), scale)

    @cached_property
    def train(self) -> tuple[Tensor, Tensor]:
        """Return the images of all clients, normalised beforehand and in memory, and their labels."""
        return self._floats(self.arrays["train_images"]), torch.from_numpy(self.arrays["train_labels"])

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        return self._floats(self.arrays["test_images"]), torch.from_numpy(self.arrays["test_labels"])

    def orders(self, round: int, client: int) -> Tensor:
        """Return training images in the order of a client's batches in a round, ``[epochs, images]``."""
        return torch.from_numpy(self.arrays["orders"][round, client])

    def network(self) -> nn.Module:
        """Return the network with the initial weights."""
        _, channels, side, _ = self.arrays["test_images"].shape
        network = NETWORKS[self.model](channels, side, self.classes)
        return with_weights(network, torch.from_numpy(self.arrays["start"]))


@cache
def read(folder: str) -> Task:
    """Return the task in a folder; each process reads it once."""
    return Task(folder=folder, **json.loads(Path(folder, "task.json").read_text()))


def lenet5(channels: int, side: int, classes: int) -> nn.Module:
    pooled = (side // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * pooled**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def ecgr_cnn(channels: int, side: int, classes: int) -> nn.Module:
    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()),
        *(*convolution(32, 64), nn.MaxPool2d(2)),
        *(*convolution(64, 128), *convolution(128, 128), nn.MaxPool2d(2)),
        *(*convolution(128, 256), *convolution(256, 256), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(256 * (side // 8) ** 2, classes, bias=False),
    )


def two_nn(channels: int, side: int, classes: int) -> nn.Module:
    hidden = (nn.Linear(channels * side**2, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, classes))


NETWORKS = {"lenet5": lenet5, "ecgr_cnn": ecgr_cnn, "2nn": two_nn}


def train(network: nn.Module, task: Task, round: int, client: int) -> None:
    """Train locally; batches are gathered in memory, which is faster than a DataLoader."""
    images, labels = task.train
    optimiser = torch.optim.SGD(
        network.parameters(), lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay
    )
    network.train()
    for order in task.orders(round, client):
        for chosen in order.split(task.batch_size):
            optimiser.zero_grad()
            functional.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimiser.step()


def accuracy(weights: Tensor, task: Task) -> float:
    """Return the share of all test images that a network with these weights classifies correctly."""
    network = with_weights(task.network(), weights).eval()
    images, labels = task.test
    with torch.no_grad():
        batches = zip(images.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
        return sum(int((network(batch).argmax(1) == target).sum()) for batch, target in batches) / len(labels)


def averaged_tensors(network: nn.Module) -> list[Tensor]:
    """Return the averaged tensors: parameters, then BatchNorm's running means and variances."""
    return [*network.parameters(), *(buffer for buffer in network.buffers() if buffer.is_floating_point())]


def with_weights(network: nn.Module, weights: Tensor) -> nn.Module:
    """Return the network with its ``averaged_tensors`` copied from a vector, as far as it reaches."""
    with torch.no_grad():
        for tensor in averaged_tensors(network):
            if len(weights):
                tensor.copy_(weights[: tensor.numel()].view_as(tensor))
                weights = weights[tensor.numel() :]
    return network


@dataclass
class Report:
    """Ends of the rounds, in seconds since the epoch, and accuracies after them if the task is tested."""

    task: Task
    ends: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def round_ended(self, weights: Callable[[], Iterable[Tensor]]) -> None:
        """Note the end of a round; ``weights`` returns the new global ones in the order of ``averaged``."""
        self.ends.append(time.time())
        if self.task.tested:
            self.accuracies.append(accuracy(_flat(weights()), self.task))

    def finish(self, weights: Iterable[Tensor]) -> None:
        """Write ends and accuracies of the rounds, and the final weights, to the working directory."""
        np.save("weights.npy", _flat(weights).numpy())
        np.save("ends.npy", self.ends)
        np.save("accuracies.npy", self.accuracies)


def _flat(weights: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in weights])


def arguments() -> tuple[Task, int]:
    """Return the task and the number of processes that train its clients: ``SCRIPT FOLDER WORKERS``."""
    folder, workers = sys.argv[1:3]
    return read(folder), int(workers)
