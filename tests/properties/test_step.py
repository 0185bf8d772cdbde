"""The local step in the view of methods: gradients of any loss at any weights, and frozen models."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fltrain.engine.local import LocalStep
from fltrain.engine.simulation import Simulation
from fltrain.methods.flfa import Flfa
from fltrain.methods.moon import Moon
from fltrain.methods.types import Outputs
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import FORWARD_ORDER, changed_parameters, local_of, trained
from .reference import features, replica


def step_of(federation: Simulation, weights: Tensor) -> LocalStep:
    """A step of the first client, which received the global model and is now at ``weights``."""
    composition, server, data = federation.composition, federation.server, federation.data
    local = local_of(server.weights, task=federation.task, counts=data.class_counts[0])
    hooks = composition.client_init(
        replace(local, round=1, buffers=server.buffers), composition.payload(server.states), {}
    )
    federation.model.load(weights, server.buffers, server.counters)
    federation.network.train()
    batch = data.train.batch(data.clients[0])
    return LocalStep(*batch, "all", federation.model, hooks)


def nearby_model(federation: Simulation, seed: int = 0, distance: float = 0.05) -> tuple[Tensor, Tensor]:
    """Weights and buffers that differ from the global ones; ``distance`` is the typical change per weight."""
    random = torch.Generator().manual_seed(seed)
    weights, buffers = federation.server.weights, federation.server.buffers
    factors = torch.rand(len(buffers), generator=random) + 0.5
    return weights + distance * torch.randn(len(weights), generator=random), buffers * factors


FEEDBACK = [Flfa(strategy="fixed", layers="all", feedback=kind) for kind in ("global", "random", "direct")]


@pytest.mark.parametrize("flfa", FEEDBACK, ids=lambda method: method.feedback)
def test_plugins_reroute_errors_only_with_route(flfa: Flfa) -> None:
    """Without ``route``, errors are propagated as in a network without plug-ins."""
    federation, plain = (trained(*plugins, rounds=1, model=MobileNetTiny()) for plugins in ((flfa,), ()))
    plain.server = replace(plain.server, weights=federation.server.weights, buffers=federation.server.buffers)
    weights, _ = nearby_model(federation)
    ordinary = step_of(plain, weights=weights).differentiate()[0]
    step = step_of(federation, weights=weights)
    assert torch.equal(step.differentiate(route=False)[0], ordinary)
    changed = changed_parameters(federation, step.differentiate()[0], ordinary)
    upstream = {name.rpartition(".")[0] for name in changed}
    assert upstream == set(FORWARD_ORDER[:-1])
    assert torch.equal(step.differentiate(route=False)[0], ordinary)


@pytest.mark.parametrize("flfa", FEEDBACK, ids=lambda method: method.feedback)
def test_plugins_do_not_change_frozen_models(flfa: Flfa) -> None:
    """A frozen pass within a pass with rerouted errors is an ordinary one, and changes nothing."""
    federation = trained(Moon(first="initial"), flfa, rounds=1)
    current, _ = nearby_model(federation, seed=7)
    step = step_of(federation, weights=current)
    start, buffers = federation.server.weights, federation.server.buffers
    passes: list[tuple[Tensor, Tensor]] = []

    def loss(outputs: Outputs) -> Tensor:
        assert any("forward" in module.__dict__ for module in federation.network.modules())
        for weights in (start, current):
            passes.append((weights, step.frozen(weights, buffers).features))
        torch.testing.assert_close(federation.model.weights, current, rtol=0, atol=0)
        assert federation.network.training
        return step.hooks.loss(outputs, step)

    step.differentiate(loss)
    assert len(passes) == 2
    for weights, output in passes:
        network = replica(federation, weights, buffers).eval()
        torch.testing.assert_close(output, features(network, step.images), rtol=1e-5, atol=1e-6)
    assert not any("forward" in module.__dict__ for module in federation.network.modules())
