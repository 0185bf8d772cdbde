"""FedDyn: clients' objectives f_k(w) - <lam_k, w> + (alpha_k / 2) ||w - r||^2, corrected by h on the server.

The server stores the collected displacements instead of h, which is -alpha times them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fltrain.methods.feddyn import FedDyn

from .helpers import Tracing, drawn, local_of, simulation
from .quadratics import FOUR_CLIENTS, SIZE, TWO_CLIENTS, Quadratics, weights_after

COPIES = np.array([3, 1])
"""Number of copies of each image, by client, if sizes differ."""


def locally(
    problem: Quadratics,
    client: int,
    received: np.ndarray,
    linear: np.ndarray,
    alpha: float,
    steps: int,
    momentum: float,
) -> np.ndarray:
    """SGD with rate 0.1 on f_k(w) - <linear, w> + (alpha / 2) ||w - received||^2."""
    weights, velocity = received, np.zeros(SIZE)
    for _ in range(steps):
        gradient = problem.curvatures[client] * (weights - problem.minima[client])
        gradient = gradient - linear + alpha * (weights - received)
        velocity = momentum * velocity + gradient
        weights = weights - 0.1 * velocity
    return weights


@pytest.mark.parametrize("clip", [10.0, 0.5, 1e-4])
def test_clipping_applies_to_the_gradient_only(clip: float) -> None:
    """The regularised gradient is scaled to the norm ``clip`` if it is longer, else left bit for bit."""
    method = FedDyn(clip=clip)
    received, weights, gradient, dual = drawn(4, 50)
    local = local_of(received, state={"dual": dual})
    free = method.model_copy(update={"clip": None})
    for scale in (1e-3, 1.0, 1e3):
        arguments = scale * gradient, received + scale * (weights - received)
        local = local_of(received, state={"dual": scale * dual})
        wanted = free.correct(*arguments, local, method.client_init(local))
        clipped = method.correct(*arguments, local, method.client_init(local))
        if wanted.norm() <= method.clip:
            assert torch.equal(clipped, wanted)
        else:
            torch.testing.assert_close(clipped, method.clip / wanted.norm() * wanted, rtol=1e-5, atol=1e-7)
    assert wanted.norm() > method.clip


@pytest.mark.parametrize("alpha_mode", ["uniform", "data"])
def test_clipping_as_in_the_authors_code(alpha_mode: str) -> None:
    """They clip the gradient of f_k + alpha_k <w, c_k - r>, c_k = -lam_k / alpha_k; SGD adds alpha_k w.

    Source: alpemreacar/FedDyn, commit 48a19fa, utils_general.py, train_feddyn_mdl.
    """
    received, weights, gradient, dual = (10 * vector for vector in drawn(4, 50))
    local = replace(local_of(received, state={"dual": dual}), samples=30)
    for clip in (1e4, 1.0):
        method = FedDyn(clip=clip, clipped="except_decay", alpha_mode=alpha_mode)
        alpha = method.alpha / local.relative_size if alpha_mode == "data" else method.alpha
        parameter = torch.nn.Parameter(weights.clone())
        loss = gradient @ parameter + alpha * (parameter @ (-dual / alpha - received))
        optimiser = torch.optim.SGD([parameter], lr=1.0, weight_decay=alpha)
        loss.backward()
        length = torch.nn.utils.clip_grad_norm_([parameter], clip)
        optimiser.step()
        assert (length > clip) == (clip == 1.0)
        corrected = method.correct(gradient, weights, local, method.client_init(local))
        torch.testing.assert_close(corrected, weights - parameter.detach(), rtol=1e-4, atol=1e-4)
    whole = FedDyn(clip=1.0, alpha_mode=alpha_mode).correct(gradient, weights, local, {"dual": dual})
    assert (whole - corrected).norm() > 0.1


@pytest.mark.parametrize(("alpha", "momentum"), [(0.1, 0.9), (1.0, 0.0)])
def test_published_algorithm(alpha: float, momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the clients per round, in the paper's notation: duals lam_k, h, and -h / alpha."""
    method = FedDyn(alpha=alpha)
    problem, alpha, steps, rounds = FOUR_CLIENTS, method.alpha, 5, 8
    federation = problem.federation(method, monkeypatch, steps=steps, momentum=momentum, fraction=0.5)
    sampled = [federation.sample(number) for number in range(rounds)]
    assert len(set(map(tuple, sampled))) > 2
    weights, h, duals = np.zeros(SIZE), np.zeros(SIZE), np.zeros((problem.clients, SIZE))
    for clients in sampled:
        ends = [locally(problem, k, weights, duals[k], alpha, steps, momentum) for k in clients]
        for client, end in zip(clients, ends, strict=True):
            duals[client] -= alpha * (end - weights)
            h = h - alpha / problem.clients * (end - weights)
        weights = np.mean(ends, axis=0) - h / alpha
    np.testing.assert_allclose(weights_after(federation, rounds), weights, atol=1e-5)


@pytest.mark.parametrize(("alpha", "alpha_mode"), [(0.5, "data"), (0.0, "uniform"), (1e-7, "uniform")])
def test_clients_of_different_size_in_the_form_without_h(
    alpha: float, alpha_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a_k = -lam_k / alpha_k collects displacements; this form allows alpha = 0."""
    method = FedDyn(alpha=alpha, alpha_mode=alpha_mode)
    federation = TWO_CLIENTS.federation(method, monkeypatch, steps=5, copies=COPIES)
    alphas = alpha / (COPIES / COPIES.mean() if alpha_mode == "data" else np.ones(2))
    weights, collected = np.zeros(SIZE), np.zeros((2, SIZE))
    for _ in range(8):
        ends = np.array(
            [locally(TWO_CLIENTS, k, weights, -alphas[k] * collected[k], alphas[k], 5, 0.0) for k in (0, 1)]
        )
        collected += ends - weights
        weights = ends.mean(0) + collected.mean(0)
    np.testing.assert_allclose(weights_after(federation, 8), weights, atol=1e-5)


def test_without_alpha_and_server_correction_it_is_the_uniform_mean() -> None:
    bare = FedDyn(alpha=0.0, server_correction=False, clip=None)
    federation = simulation(bare, trainer=Tracing)
    for number in range(3):
        federation.round(number)
        expected = torch.stack([update.weights for update in federation.trainer.updates]).mean(0)
        torch.testing.assert_close(federation.server.weights, expected, rtol=1e-6, atol=1e-6)
