"""FedACG: clients start from a lookahead r = w + lambda m and are pulled towards it; w is what is tested."""

import numpy as np
import pytest
import torch

from fltrain.engine.evaluation import test as evaluate
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedacg import FedACG
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedavgm import FedAvgM
from fltrain.methods.fedprox import FedProx
from fltrain.methods.ops.vectors import data_weighted_mean
from fltrain.runs.spec import Participation

from .helpers import FULL_BATCH, Tracing, local_of, simulation, trained
from .quadratics import TWO_CLIENTS, Quadratics, weights_after

FOUR_CLIENTS = Quadratics(
    np.concatenate([TWO_CLIENTS.curvatures, TWO_CLIENTS.curvatures[:, ::-1]]),
    np.concatenate([TWO_CLIENTS.minima, TWO_CLIENTS.minima[::-1] + 0.5]),
)
STRONG = 0.5
"""A penalty that shows at once."""


def half_of(federation: Simulation) -> Simulation:
    """The federation with half of its clients in each round."""
    participation = Participation(fraction=0.5)
    federation.spec = federation.spec.model_copy(update={"participation": participation})
    return federation


def mean_of_weights(federation: Simulation, uniform: bool) -> torch.Tensor:
    """What the clients of the last round sent, by size or alike, in double precision."""
    updates = federation.executor.updates
    samples = torch.tensor([1 if uniform else update.samples for update in updates]).double()
    return samples / samples.sum() @ torch.stack([update.weights for update in updates]).double()


# ------------------------------------------------------------------------------------ neutral settings
def test_without_lookahead_and_pull_it_is_federated_averaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round locally bit for bit; then up to the rounding of the server's sum."""
    first, plain = (
        trained(method, rounds=1, executor=Tracing) for method in (FedACG(lam=0.0, beta=0.0), FedAvg())
    )
    pairs = list(zip(first.executor.steps, plain.executor.steps, strict=True))
    assert all(torch.equal(one.weights, other.weights) for one, other in pairs)
    torch.testing.assert_close(first.server.weights, plain.server.weights, rtol=1e-6, atol=1e-6)
    assert torch.equal(first.server.buffers, plain.server.buffers)
    many, plain = (
        weights_after(half_of(FOUR_CLIENTS.federation(method, monkeypatch, steps=5)), 10)
        for method in (FedACG(lam=0.0, beta=0.0), FedAvg())
    )
    np.testing.assert_allclose(many, plain, atol=1e-6)


@pytest.mark.parametrize("beta", [0.001, 0.05])
def test_without_lookahead_it_is_fedprox_with_twice_the_weight(
    beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, proximal = (
        trained(method, rounds=1, epochs=2, executor=Tracing)
        for method in (FedACG(lam=0.0, beta=beta), FedProx(mu=2 * beta))
    )
    pairs = list(zip(first.executor.steps, proximal.executor.steps, strict=True))
    assert len(pairs) > 6
    assert all(torch.equal(one.weights, other.weights) for one, other in pairs)
    torch.testing.assert_close(first.server.weights, proximal.server.weights, rtol=1e-6, atol=1e-6)
    many, proximal = (
        weights_after(half_of(FOUR_CLIENTS.federation(method, monkeypatch, steps=5)), 10)
        for method in (FedACG(lam=0.0, beta=beta), FedProx(mu=2 * beta))
    )
    np.testing.assert_allclose(many, proximal, atol=1e-6)


# ------------------------------------------------------------------------------------ the recursion
@pytest.mark.parametrize("mean", ["data", "uniform"])
def test_new_weights_are_the_mean_of_the_clients(mean: str) -> None:
    """w^{t+1} = w^t + m^{t+1} and the mean of the clients' weights are the same thing."""
    method = FedACG(mean=mean)
    federation = simulation(method, executor=Tracing)
    for number in range(4):
        before = federation.server.weights
        federation.round(number)
        after, momentum = federation.server.weights, federation.server.states[method.name]["momentum"]
        torch.testing.assert_close(after - before, momentum, rtol=1e-6, atol=1e-6)
        expected = mean_of_weights(federation, method.mean == "uniform")
        torch.testing.assert_close(after.double(), expected, rtol=1e-6, atol=1e-6)


def test_the_two_means_differ_among_clients_of_different_sizes() -> None:
    by_size, alike = (trained(FedACG(mean=mean), rounds=1).server.weights for mean in ("data", "uniform"))
    assert (by_size - alike).norm() > 1e-3


def test_clients_start_from_the_lookahead() -> None:
    """r^t = w^t + lambda (w^t - w^{t-1}), where w^0 counts as w^{-1}: round 0 sends w^0 itself."""
    method = FedACG()
    federation = simulation(method, executor=Tracing)
    first = previous = federation.server.weights
    federation.round(0)
    assert all(torch.equal(update.start, first) for update in federation.executor.updates)
    for number in (1, 2):
        weights = federation.server.weights
        federation.round(number)
        for update in federation.executor.updates:
            lookahead = weights + method.lam * (weights - previous)
            torch.testing.assert_close(update.start, lookahead, rtol=1e-6, atol=1e-6)
        previous = weights


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.85])
@pytest.mark.parametrize("beta", [0.0, 0.001, STRONG])
def test_trajectory_is_nesterovs(lam: float, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nesterov's form, without m: a step from the lookahead, which is where the last step points to.

    Half of the clients per round; K steps from r on h/2 (w - a)^2 + beta (w - r)^2 end at
    r + (1 - (1 - lr (h + 2 beta))^K) h (a - r) / (h + 2 beta).
    """
    method = FedACG(lam=lam, beta=beta)
    problem, lr, steps, rounds = FOUR_CLIENTS, 0.1, 5, 8
    federation = half_of(problem.federation(method, monkeypatch, steps=steps, lr=lr))
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


def test_without_pull_it_is_fedavgm_but_measured_at_the_lookahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rounds agree; in the second, Dbar shrinks by the share of the way that the lookahead took."""
    accelerated, heavy = (
        TWO_CLIENTS.federation(method, monkeypatch, steps=5)
        for method in (FedACG(lam=0.7, beta=0.0), FedAvgM(beta=0.7))
    )
    first = weights_after(accelerated, 1)
    np.testing.assert_allclose(first, weights_after(heavy, 1), atol=1e-6)
    for federation in (accelerated, heavy):
        federation.round(1)
    share = (1 - (1 - 0.1 * TWO_CLIENTS.curvatures) ** 5).mean(0)
    difference = (accelerated.server.weights - heavy.server.weights).numpy()
    np.testing.assert_allclose(difference, -share * 0.7 * first, atol=1e-6)
    assert np.abs(difference).max() > 0.01


@pytest.mark.parametrize("beta", [0.0, STRONG])
def test_momentum_changes_the_path_but_not_where_it_ends(
    beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rest, the lookahead is w itself, and the mean displacement from there is zero."""
    stiff = TWO_CLIENTS.curvatures + 2 * beta
    share = (1 - (1 - 0.1 * stiff) ** 5) * TWO_CLIENTS.curvatures / stiff
    limit = (share * TWO_CLIENTS.minima).sum(0) / share.sum(0)
    federation = TWO_CLIENTS.federation(FedACG(lam=0.5, beta=beta), monkeypatch, steps=5)
    np.testing.assert_allclose(weights_after(federation, 30), limit, atol=1e-4)
    assert np.abs(limit - TWO_CLIENTS.optimum).max() > 0.02


# ------------------------------------------------------------------------------------ the penalty
@pytest.mark.parametrize("beta", [0.001, STRONG])
def test_gradient_of_the_penalty(beta: float) -> None:
    """What is added to the gradient is the derivative of beta ||w - r||^2, without a half."""
    method = FedACG(beta=beta)
    received, weights, gradient = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    variable = weights.clone().requires_grad_()
    (expected,) = torch.autograd.grad(method.beta * (variable - received).square().sum(), variable)
    local = local_of(received)
    corrected = method.correct(gradient, weights, local, method.client_init(local))
    torch.testing.assert_close(corrected - gradient, expected, rtol=1e-5, atol=1e-6)


def test_first_step_feels_no_pull_wherever_the_lookahead_is() -> None:
    """The centre is where clients start, so that one local step does not depend on beta."""
    weak, strong = (trained(FedACG(beta=beta), rounds=3, batch_size=FULL_BATCH) for beta in (0.0, 10.0))
    assert torch.equal(weak.server.weights, strong.server.weights)
    assert weak.server.states["fedacg"]["momentum"].norm() > 0.01


# ------------------------------------------------------------------------------------ what is tested
def test_evaluates_the_weights_not_the_lookahead() -> None:
    method = FedACG()
    federation = simulation(method, executor=Tracing)
    for number in range(3):
        rows = federation.round(number)
    server, network = federation.server, federation.network
    losses = []
    for weights in (
        mean_of_weights(federation, False).float(),
        federation.everyone.arrive(federation._at(1), 0, None).local.start,
    ):
        federation.model.load(weights, server.buffers, server.counters)
        losses.append(evaluate(network, federation.data.test).loss)
    (reported,) = [row["loss"] for row in rows if row["kind"] == "evaluation"]
    assert reported == pytest.approx(losses[0], rel=1e-6)
    assert abs(losses[1] - losses[0]) > 1e-4 * losses[0], "the lookahead would have looked the same"


def test_buffers_are_averaged_and_know_no_momentum() -> None:
    federation = trained(FedACG(), rounds=3, executor=Tracing)
    updates = federation.executor.updates
    expected = data_weighted_mean(updates, [update.buffers for update in updates])
    torch.testing.assert_close(federation.server.buffers, expected, rtol=1e-6, atol=1e-7)
    momentum = federation.server.states["fedacg"]["momentum"]
    assert momentum.shape == federation.server.weights.shape
