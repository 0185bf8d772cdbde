"""Recordings of local steps: contents of a row, and memory."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.data.prepared import PreparedData
from fltrain.engine.simulation import Simulation
from fltrain.engine.trajectory import Trajectory
from fltrain.methods.base import Method, Needs
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.scaffold import Scaffold
from fltrain.methods.types import Local, Recording, State, Update
from fltrain.runs.spec import RunSpec

from ..properties.helpers import Tracing
from .helpers import federation, tiny

STEPS, SIZE = 7, 40


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


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


@cache
def lenet() -> RunSpec:
    """Two clients take several steps each on a network without BatchNorm."""
    return tiny(
        dataset={"name": "digits", "image_size": 16},
        model="lenet5",
        training={"epochs": 1, "batch_size": 32, "lr": 0.05, "weight_decay": 0.01},
    )


def trained(method: Method, data: PreparedData, *plugins: Method, spec: RunSpec | None = None) -> Simulation:
    """A federation after one round with methods that need not be registered."""
    spec = spec or lenet()
    settings = {name: getattr(spec, name) for name in RunSpec.model_fields}
    made = RunSpec.model_construct(**{**settings, "method": method, "plugins": plugins})
    simulation = federation(made, data, Tracing)
    simulation.round(0)
    return simulation


@pytest.fixture(scope="module")
def images(digits: PreparedData) -> PreparedData:
    """The digits in 16 x 16 pixels."""
    larger = {
        f"{split}_images": getattr(digits, f"{split}_images").repeat(2, axis=2).repeat(2, axis=3)
        for split in ("train", "test")
    }
    return replace(digits, **larger)


def test_displacements_contain_all_changes_of_the_weights(images: PreparedData) -> None:
    """Momentum, weight decay, corrections of the gradient, and changes after the optimiser."""
    simulation = trained(Keeping(), images)
    for update in simulation.trainer.updates:
        rows, before = update.statistics["keeping"]["rows"], update.start
        assert len(rows) == update.steps > 2
        for row, step in zip(rows, simulation.trainer.of(update.client), strict=True):
            assert torch.equal(row, before - step.weights)
            before = step.weights
        torch.testing.assert_close(rows.sum(0), update.start - update.weights, rtol=1e-4, atol=1e-6)
        assert update.trajectory is None, "recordings do not leave the client"


def test_gradients_are_those_of_the_optimiser(images: PreparedData) -> None:
    """Of the loss on the batch, corrected, without weight decay and momentum."""
    simulation = trained(Keeping(what="gradient"), images)
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


def test_no_recording_is_stored_between_rounds(digits: PreparedData) -> None:
    """Client states, server states and uploads have equal sizes with and without ECGR."""

    def sizes(*plugins: Method) -> tuple[object, ...]:
        simulation = trained(Scaffold(), digits, *plugins, spec=tiny())
        assert all(update.trajectory is None for update in simulation.trainer.updates)
        states = [tensor for state in simulation.clients.values() for tensor in held(state)]
        return simulation.bytes_up, simulation.bytes_down, sum(states), sum(held(simulation.server.states))

    assert sizes(Ecgr()) == sizes()


def held(states: Any) -> list[int]:
    return [tensor.numel() for state in states.values() for tensor in state.values()]
