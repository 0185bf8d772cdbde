"""Federated least squares with known solutions, run by the real round loop on a linear network.

Client k holds one image per coordinate j, zero except pixel j, and a target for each. Its objective is then

    f_k(w) = (1/2) sum_j h_kj (w_j - a_kj)^2

so that coordinates are independent and all solutions have a closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.models.base import Model
from fltrain.models.network import Network

from .helpers import simulation

SIZE = 4
"""Number of coordinates: the pixels of a 2 x 2 image."""


class LinearNetwork(Network):
    """One output, no bias, starting from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(SIZE, 1, bias=False)
        nn.init.zeros_(self.classifier.weight)

    def features(self, images: Tensor) -> Tensor:
        return images.flatten(1)


class LinearModel(Model):
    name: Literal["linear"] = "linear"
    min_side: ClassVar[int] = 1

    def network(self, channels: int, side: int, classes: int) -> Network:
        return LinearNetwork()


@dataclass(frozen=True)
class Quadratics:
    """Curvatures h (squares of multiples of a half) and minima a of the clients' objectives, ``[k][j]``."""

    curvatures: np.ndarray
    minima: np.ndarray

    @property
    def clients(self) -> int:
        return len(self.curvatures)

    def federation(
        self,
        method: Method,
        monkeypatch: pytest.MonkeyPatch,
        steps: int,
        *,
        images_of: Sequence[np.ndarray] | None = None,
        copies: Sequence[int] | None = None,
        fraction: float = 1.0,
        **training: object,
    ) -> Simulation:
        """The clients' problems, trained by ``method`` with full-batch steps and no weight decay.

        Client k has images ``SIZE * k`` to ``SIZE * k + SIZE - 1``: each once, or in this many ``copies``,
        which do not change its objective; or it has those in ``images_of``.
        """
        # An image of value p gives the curvature p^2 / SIZE; images are normalised to halves of their bytes.
        pixels = np.sqrt(self.curvatures * SIZE)
        assert np.array_equal(2 * pixels, np.rint(2 * pixels))
        images = np.concatenate([np.diag(row) for row in np.rint(2 * pixels).astype(np.uint8)])
        targets = torch.tensor((pixels * self.minima).reshape(-1), dtype=torch.float32)
        labels = np.arange(len(images))
        images = images.reshape(-1, 1, 2, 2)
        data = PreparedData(images, labels, images, labels, len(labels), (0.0,), (2 / 255,), digest="")
        each = [1] * self.clients if copies is None else copies
        own = [np.tile(part, count) for part, count in zip(labels.reshape(-1, SIZE), each, strict=True)]
        partition = Partition(list(images_of or own), digest="")

        def loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
            losses = 0.5 * (outputs[:, 0] - targets[labels]).square()
            return losses.sum() if reduction == "sum" else losses.mean()

        monkeypatch.setattr(torch.nn.functional, "cross_entropy", loss)
        whole = max(map(len, partition.clients))
        settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch_size": whole, **training}
        return simulation(
            method,
            model=LinearModel(),
            data=data,
            partition=partition,
            fraction=fraction,
            epochs=steps,
            rounds=10**6,  # tests run the loop round by round, without evaluations
            evaluate_every=10**6,
            **settings,
        )


TWO_CLIENTS = Quadratics(
    curvatures=np.array([[1.0, 0.25, 0.5625, 1.0], [0.25, 1.0, 0.25, 1.0]]),
    minima=np.array([[1.0, 1.0, -1.0, 2.0], [-1.0, 0.0, 1.0, -1.0]]),
)
FOUR_CLIENTS = Quadratics(
    np.concatenate([TWO_CLIENTS.curvatures, TWO_CLIENTS.curvatures[:, ::-1]]),
    np.concatenate([TWO_CLIENTS.minima, TWO_CLIENTS.minima[::-1] + 0.5]),
)


def weights_after(federation: Simulation, rounds: int) -> np.ndarray:
    """Global weights after some rounds."""
    for number in range(rounds):
        federation.round(number)
    return federation.server.weights.double().numpy()
