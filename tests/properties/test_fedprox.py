"""FedProx: the proximal pull (mu/2) ||w - r||^2 towards the received weights r."""

import numpy as np
import pytest
import torch

from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedprox import FedProx

from .helpers import FULL_BATCH, assert_same_model, local_of, trained
from .quadratics import TWO_CLIENTS, weights_after


# ------------------------------------------------------------------------------------ tests
def test_gradient_of_the_penalty() -> None:
    """What is added to the gradient is the derivative of (mu/2) ||w - r||^2."""
    random = torch.Generator().manual_seed(0)
    received, weights, gradient = torch.randn(3, 50, generator=random)
    variable = weights.clone().requires_grad_()
    penalty = 0.3 / 2 * (variable - received).square().sum()
    (expected,) = torch.autograd.grad(penalty, variable)
    corrected = FedProx(mu=0.3).correct(gradient, weights, local_of(received), {})
    torch.testing.assert_close(corrected - gradient, expected, rtol=1e-5, atol=1e-6)


def test_the_larger_mu_the_closer_to_the_received_weights(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_pull_it_is_federated_averaging_bit_for_bit() -> None:
    assert_same_model(trained(FedProx(mu=0.0), rounds=3), trained(FedAvg(), rounds=3))


@pytest.mark.parametrize("mu", [0.01, 1.0, 100.0])
def test_with_one_local_step_it_is_federated_averaging_bit_for_bit(mu: float) -> None:
    proximal = trained(FedProx(mu=mu), rounds=3, batch_size=FULL_BATCH)
    assert_same_model(proximal, trained(FedAvg(), rounds=3, batch_size=FULL_BATCH))


def test_with_two_local_steps_it_is_not() -> None:
    proximal, plain = (
        trained(method, rounds=1, epochs=2, batch_size=FULL_BATCH) for method in (FedProx(), FedAvg())
    )
    assert not torch.equal(proximal.server.weights, plain.server.weights)
