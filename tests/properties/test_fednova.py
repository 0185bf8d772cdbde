"""FedNova: displacements are divided by the steps behind them, a_k, before they are averaged."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fednova import FedNova
from fltrain.methods.types import Server

from .helpers import local_of, task_of, update_of
from .quadratics import SIZE, Quadratics, weights_after

# Clients with 24, 8 and 4 copies of one image each, in batches of 4: the same gradient in 6, 2 and 1 steps.
STEPS = np.array([6, 2, 1])
SHARES = STEPS / STEPS.sum()
CURVATURES = np.array([1.0, 0.25, 1.0])
MINIMA = np.array([1.0, -2.0, 6.0])


def uneven(method: Method, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Simulation:
    """The three clients; weights other than the first stay zero."""
    unused = np.ones((len(STEPS), SIZE - 1))
    problem = Quadratics(  # with one image instead of SIZE, a client's objective is SIZE times as steep
        np.hstack([CURVATURES[:, None] / SIZE, unused]), np.hstack([MINIMA[:, None], unused])
    )
    images = [np.full(4 * steps, SIZE * client) for client, steps in enumerate(STEPS)]
    return problem.federation(method, monkeypatch, steps=1, images_of=images, batch_size=4, **settings)


def moved(steps: int, momentum: float = 0.0, pull: float = 0.0, steepness: float = 0.0) -> float:
    """End point of SGD with learning rate 1 from zero under the gradient -1 + (pull + steepness) w.

    This is a_k if the gradient is constant except for the proximal term.
    """
    weight = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity - 1 + (pull + steepness) * weight
        weight -= velocity
    return weight


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "settings", [{}, {"normaliser": "tau"}, {"mu": 1.0, "tau_eff": "steps", "server_momentum": 0.5}], ids=str
)
def test_trajectory(settings: dict[str, object], momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with 6, 2 and 1 steps, from the definitions of a_k, tau_eff and the server's step."""
    method = FedNova(**settings)
    lr = 0.2
    pull = lr * method.mu
    counts = STEPS
    if method.normaliser == "momentum":
        counts = np.array([moved(steps, momentum, pull) for steps in STEPS])
    effective = (SHARES * (counts if method.tau_eff == "normalisers" else STEPS)).sum()
    # From r, a client ends at r + share (minimum - r): moved() under its own steepness.
    shares = np.array(
        [h * lr * moved(steps, momentum, pull, lr * h) for steps, h in zip(STEPS, CURVATURES, strict=True)]
    )
    weight = velocity = 0.0
    for _ in range(6):
        direction = (SHARES * shares * (MINIMA - weight) / counts).sum()
        velocity = method.server_momentum * velocity + effective * direction
        weight += velocity
    federation = uneven(method, monkeypatch, momentum=momentum, lr=lr)
    assert weights_after(federation, 6)[0] == pytest.approx(weight, abs=1e-5)
    assert abs(weight) > 0.1


@pytest.mark.parametrize("buffers", ["averaged", "normalised"])
def test_buffers_are_averaged_with_the_configured_weights(buffers: str) -> None:
    method = FedNova(buffers=buffers)
    samples, steps = (60, 30, 5, 5), (94, 47, 2, 2)
    random = torch.Generator().manual_seed(0)
    before, *after = torch.randn(5, 20, generator=random)
    uploads = []
    for k, count in enumerate(steps):
        update = replace(update_of(*torch.zeros(2, 3), k, samples[k]), buffers=after[k], steps=count)
        uploads.append(method.client_final(update, local_of(update.start, steps=count), {})[0])
    server = Server(torch.zeros(3), before, torch.zeros(0), {})
    weights = torch.tensor([0.6, 0.3, 0.05, 0.05])
    if buffers == "normalised":
        weights = weights * 70.7 / torch.tensor(steps)
    expected = before + weights @ (torch.stack(after) - before)
    new = Composition((method,)).aggregate(task_of(), replace(server, states={"fednova": {}}), uploads)[1]
    torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-5)
