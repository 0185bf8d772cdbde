"""Recordings of local steps: contents of a row, and memory."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.trajectory import Trajectory
from fltrain.methods.base import Method, Needs
from fltrain.methods.types import Local, Recording, State, Update
from fltrain.models.networks.lenet5 import LeNet5

from .helpers import Tracing, drawn, trained

STEPS, SIZE = 7, 40
LENET = {"model": LeNet5(), "epochs": 2, "batch_size": 4, "weight_decay": 0.01}
"""Several steps of each client on a network without BatchNorm."""


def recorded(what: str, device: torch.device, storage: str = "float32") -> Tensor:
    """A recording of gradients and weights."""
    gradients, weights = drawn(STEPS, SIZE).to(device), drawn(STEPS + 1, SIZE).cumsum(0).to(device)
    live, gradient = weights[0].clone(), torch.empty(SIZE, device=device)
    local = SimpleNamespace(steps=STEPS, start=live, buffers=live[:0])
    trajectory = Trajectory(Recording(what, storage), local)
    for step in range(STEPS):
        # As in training, the same two vectors in every step.
        gradient.copy_(gradients[step])
        live.copy_(weights[step + 1])
        trajectory.add(gradient, live, live[:0])
    live.zero_()
    gradient.zero_()
    return trajectory.rows


@pytest.mark.parametrize("what", ["displacement", "gradient"])
def test_half_precision_is_the_rounded_row(what: str, device: torch.device) -> None:
    """A row is computed in single precision and rounded once."""
    half, full = recorded(what, device, "bfloat16"), recorded(what, device)
    assert half.dtype == torch.bfloat16 and half.device == full.device == device
    assert torch.equal(half, full.to(torch.bfloat16))
    assert not torch.equal(half.float(), full)


class Keeping(Method):
    """Requests a recording of local steps, and stores it for the test."""

    name: Literal["keeping"] = "keeping"
    what: Literal["displacement", "gradient"] = "displacement"
    storage: Literal["float32", "bfloat16"] = "float32"

    @property
    def needs(self) -> Needs:
        return Needs(recording=Recording(self.what, self.storage))

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + 0.5 * (weights - local.start)

    def post_step(self, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return 0.999 * weights

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        assert update.trajectory is not None
        return replace(update, statistics={self.name: {"rows": update.trajectory}}), {}


def test_gradients_are_those_of_the_optimiser() -> None:
    """Of the loss on the batch, corrected, without weight decay and momentum."""
    simulation = trained(Keeping(what="gradient"), rounds=1, trainer=Tracing, **LENET)
    model = simulation.model
    for update in simulation.trainer.updates:
        rows, before = update.statistics["keeping"]["rows"], update.start
        for row, step in zip(rows, simulation.trainer.of(update.client), strict=True):
            model.weights.copy_(before)
            inputs, labels = simulation.data.train.batch(step.chosen)
            loss = functional.cross_entropy(model.network(inputs), labels)
            parts = torch.autograd.grad(loss, list(model.network.parameters()))
            gradient = torch.cat([part.flatten() for part in parts])
            expected = gradient + 0.5 * (before - update.start)
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)
            before = step.weights
