"""Ditto: the global model is FedAvg's; personal models against closed forms and local-only training."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrain.engine.clients import OWN, SECOND
from fltrain.engine.simulation import Simulation
from fltrain.methods.ditto import Ditto
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.local import LocalOnly
from fltrain.methods.types import Update

from .helpers import Tracing, assert_same_model, digits, simulation, skewed, trained, with_tests
from .ordinary import check_tests
from .quadratics import FOUR_CLIENTS


@pytest.mark.parametrize("weight", [0.0, 0.3, 4.0])
def test_personal_models_on_quadratics(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """K steps from v on h/2 (v - a)^2 + lambda/2 (v - w)^2, of half of the clients per round.

    They leave (1 - lr (h + lambda))^K of the distance to the minimum (h a + lambda w) / (h + lambda).
    """
    problem, lr, steps = FOUR_CLIENTS, 0.1, 3
    federation = problem.federation(
        Ditto(weight=weight, passes=2), monkeypatch, steps=steps, lr=lr, fraction=0.5
    )
    plain = problem.federation(FedAvg(), monkeypatch, steps=steps, lr=lr, fraction=0.5)
    personal: dict[int, np.ndarray] = {}
    for number in range(8):
        received = federation.server.weights.double().numpy()
        for client in federation.sample(number):
            h, a = problem.curvatures[client], problem.minima[client]
            minimum = (h * a + weight * received) / (h + weight)
            left = (1 - lr * (h + weight)) ** (2 * steps)
            personal[client] = minimum + left * (personal.get(client, received) - minimum)
        federation.round(number)
        plain.round(number)
    assert torch.equal(federation.server.weights, plain.server.weights)
    assert federation.clients.keys() == personal.keys()
    for client, expected in personal.items():
        np.testing.assert_allclose(federation.clients[client][SECOND]["weights"], expected, atol=1e-5)
    assert federation.costs.samples == 3 * plain.costs.samples
    assert (federation.bytes_down, federation.bytes_up) == (plain.bytes_down, plain.bytes_up)


def personal_models(federation: Simulation, name: str) -> dict[int, dict[str, Tensor]]:
    return {client: kept[name] for client, kept in federation.clients.items()}


def test_without_pull_personal_models_are_trained_locally_bit_for_bit() -> None:
    """With BatchNorm and momentum; all clients take part, so that all begin with the initial weights."""
    settings = {"rounds": 3, "fraction": 1.0, "partition": with_tests(skewed(digits()))}
    ditto = trained(Ditto(weight=0.0), **settings)
    found = personal_models(ditto, SECOND)
    expected = personal_models(trained(LocalOnly(), **settings), OWN)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert_same_model(ditto, trained(FedAvg(), **settings))
    pulled = personal_models(trained(Ditto(weight=0.5), **settings), SECOND)
    assert not torch.equal(pulled[0]["weights"], found[0]["weights"])


@pytest.mark.parametrize("point", ["after_download", "after_local"])
def test_clients_are_tested_with_their_personal_model(point: str) -> None:
    """A client that has never trained has the global model."""
    federation = simulation(Ditto(), trainer=Tracing, fraction=0.34, point=point)

    def model_of(client: int, update: Update | None) -> tuple[Tensor, Tensor]:
        if update is None:
            return federation.server.weights, federation.server.buffers
        own = federation.clients[client][SECOND]
        return own["weights"], own["buffers"]

    assert 2 < len(check_tests(federation, 3, model_of)) < 6
