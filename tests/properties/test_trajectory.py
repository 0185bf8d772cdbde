"""Recordings of local steps: contents of a row, and memory."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.methods.base import Method, Needs
from fltrain.methods.types import Local, Recording, State, Update
from fltrain.models.networks.lenet5 import LeNet5

from .helpers import Tracing, trained

LENET = {"model": LeNet5(), "epochs": 2, "batch_size": 4, "weight_decay": 0.01}
"""Several steps of each client on a network without BatchNorm."""


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


@pytest.mark.parametrize("what", ["displacement", "gradient"])
def test_half_precision_is_the_rounded_row(what: str, device: torch.device) -> None:
    """A row is computed in single precision and rounded once."""
    half, full = (
        trained(Keeping(what=what, storage=storage), rounds=1, trainer=Tracing, device=device, **LENET)
        for storage in ("bfloat16", "float32")
    )
    for half_update, full_update in zip(half.trainer.updates, full.trainer.updates, strict=True):
        rounded, rows = (update.statistics["keeping"]["rows"] for update in (half_update, full_update))
        assert rounded.dtype == torch.bfloat16 and rounded.device.type == device.type
        assert torch.equal(rounded, rows.to(torch.bfloat16)) and not torch.equal(rounded.float(), rows)


def test_gradients_are_those_of_the_optimiser() -> None:
    """Of the loss on the batch, corrected, without weight decay and momentum."""
    simulation = trained(Keeping(what="gradient"), rounds=1, trainer=Tracing, **LENET)
    model = simulation.model
    for update in simulation.trainer.updates:
        rows, before = update.statistics["keeping"]["rows"], update.start
        for row, step in zip(rows, simulation.trainer.steps_of(update.client), strict=True):
            model.weights.copy_(before)
            inputs, labels = simulation.data.train.batch(step.chosen)
            loss = functional.cross_entropy(model.network(inputs), labels)
            parts = torch.autograd.grad(loss, list(model.network.parameters()))
            gradient = torch.cat([part.flatten() for part in parts])
            expected = gradient + 0.5 * (before - update.start)
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)
            before = step.weights
