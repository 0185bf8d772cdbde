"""FedProx, FedAvgM, FedOpt and FedACG: a pull to the received weights, server optimisers, a lookahead."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrain.engine.evaluation import test as evaluate
from fltrain.methods.fedacg import FedACG
from fltrain.methods.fedavgm import FedAvgM
from fltrain.methods.fedopt import FedOpt
from fltrain.methods.fedprox import FedProx
from fltrain.methods.types import Server

from .helpers import (
    Tracing,
    mean_by_size,
    simulation,
    task_of,
    update_of,
)
from .quadratics import FOUR_CLIENTS, TWO_CLIENTS, weights_after

STRONG = 0.5
"""A penalty with a visible effect in one round."""


@pytest.mark.parametrize(("lam", "beta"), [(0.5, 0.0), (0.85, 0.001), (0.85, STRONG)])
def test_trajectory_is_nesterovs(lam: float, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nesterov's form, without m: a step from the lookahead, in the direction of the previous step.

    Half of the clients per round; K steps from r on h/2 (w - a)^2 + beta (w - r)^2 end at
    r + (1 - (1 - lr (h + 2 beta))^K) h (a - r) / (h + 2 beta).
    """
    method = FedACG(lam=lam, beta=beta)
    problem, lr, steps, rounds = FOUR_CLIENTS, 0.1, 5, 8
    federation = problem.federation(method, monkeypatch, steps=steps, lr=lr, fraction=0.5)
    stiff = problem.curvatures + 2 * method.beta
    share = (1 - (1 - lr * stiff) ** steps) * problem.curvatures / stiff
    weights = previous = np.zeros(4)
    sampled = [federation.sample(number) for number in range(rounds)]
    assert len(set(map(tuple, sampled))) > 2
    for clients in sampled:
        received = weights + method.lam * (weights - previous)
        trained_weights = received + share * (problem.minima - received)
        weights, previous = trained_weights[clients].mean(0), weights
    np.testing.assert_allclose(weights_after(federation, rounds), weights, atol=1e-5)


def test_the_weights_are_tested_not_the_lookahead() -> None:
    federation = simulation(FedACG(), trainer=Tracing)
    for number in range(3):
        rows = federation.round(number)
    server, network = federation.server, federation.network
    losses = []
    for weights in (
        mean_by_size(federation.trainer.updates, "weights").float(),
        federation.trainer.clients.receive(federation.at(1), 0, None)[0].start,
    ):
        federation.model.load(weights, server.buffers, server.counters)
        losses.append(evaluate(network, federation.data.test).loss)
    (reported,) = [row["loss"] for row in rows if row["kind"] == "evaluation"]
    assert reported == pytest.approx(losses[0], rel=1e-6)
    assert abs(losses[1] - losses[0]) > 1e-4 * losses[0], "the lookahead gives the same result"


SIZE = 30


def moved_by(
    method: FedAvgM | FedOpt, rounds: Sequence[Sequence[Tensor]], samples: Sequence[int]
) -> Iterator[Tensor]:
    """Yield the global weights after each round, given the displacements of its clients; from zero."""
    weights = torch.zeros(SIZE)
    state = method.server_init(task_of(), weights)
    for displacements in rounds:
        server = Server(weights, torch.zeros(0), torch.zeros(0), {method.name: state})
        updates = [
            update_of(weights, weights + displacement, client, count)
            for client, (displacement, count) in enumerate(zip(displacements, samples, strict=True))
        ]
        result = method.aggregate(task_of(), state, server, updates)
        weights, state = result.weights, result.state
        yield weights


def random_rounds(rounds: int, clients: int) -> Tensor:
    return torch.randn(rounds, clients, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", ["heavy_ball", "nesterov"])
def test_it_is_torch_sgd_on_the_pseudo_gradient(form: str) -> None:
    displacements = random_rounds(7, 1)
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    sgd = torch.optim.SGD([parameter], lr=0.3, momentum=0.8, nesterov=form == "nesterov")
    steps = moved_by(FedAvgM(beta=0.8, server_lr=0.3, form=form), displacements, [1])
    for (displacement,), weights in zip(displacements, steps, strict=True):
        parameter.grad = -displacement
        sgd.step()
        torch.testing.assert_close(weights, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("form", "seconds"),
    [("adam", [1.75, 1.3125, 1.234375]), ("yogi", [2.0, 2.0, 1.75]), ("adagrad", [5.0, 5.0, 6.0])],
)
def test_three_adaptive_rounds_by_hand(form: str, seconds: list[float]) -> None:
    """Mean displacements 2, 0 and 1; Yogi's v rises by a quarter of D^2 if D^2 > v, else falls by it."""
    method = FedOpt(form=form, server_lr=1.0, beta1=0.5, beta2=0.75, tau=1.0)
    moving = (torch.arange(SIZE) % 2).float()  # every other element rests
    rounds = [[value * moving for value in pair] for pair in ((5.0, 1.0), (-3.0, 1.0), (1.0, 1.0))]
    expected = 0.0
    steps = moved_by(method, rounds, samples=[1, 3])
    for momentum, second, weights in zip([1.0, 0.5, 0.75], seconds, steps, strict=True):
        expected += momentum / (second**0.5 + 1)
        torch.testing.assert_close(weights, expected * moving)


def test_larger_mu_ends_closer_to_the_received_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """K steps from r on h/2 (w - a)^2 end at r + (1 - (1 - lr (h + mu))^K) h (a - r) / (h + mu)."""
    h, a, lr, steps = TWO_CLIENTS.curvatures, TWO_CLIENTS.minima, 0.1, 10
    distances = []
    for mu in (0.0, 0.01, 0.1, 1.0, 5.0):
        federation = TWO_CLIENTS.federation(FedProx(mu=mu), monkeypatch, steps=steps, lr=lr)
        moved = weights_after(federation, 1)  # from zero
        expected = (1 - (1 - lr * (h + mu)) ** steps) * h * a / (h + mu)
        np.testing.assert_allclose(moved, expected.mean(0), atol=1e-6)
        distances.append(np.linalg.norm(moved))
    assert distances == sorted(distances, reverse=True)
    assert len(set(distances)) == len(distances)
