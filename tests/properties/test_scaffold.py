"""SCAFFOLD, option II: control variates on clients and server."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fltrain.engine.simulation import Diverged
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.ops.vectors import accumulated_steps
from fltrain.methods.scaffold import Scaffold

from .helpers import Tracing, local_of, simulation, trained, update_of
from .quadratics import TWO_CLIENTS, Quadratics, weights_after

# ------------------------------------------------------------------------------------ checks of a method


def check_reaches_the_optimum(method: Scaffold, monkeypatch: pytest.MonkeyPatch, momentum: float) -> None:
    """Two clients that pull apart, many local steps: still the optimum of the mean objective."""
    federation = TWO_CLIENTS.federation(method, monkeypatch, steps=10, momentum=momentum)
    reached = weights_after(federation, 40)
    np.testing.assert_allclose(reached, TWO_CLIENTS.optimum, atol=1e-4)


def check_client_control(method: Scaffold, momentum: float, normaliser: float) -> None:
    """c_k <- c_k - c + (r - w_k) / (lr Q); the change is sent, the new control kept."""
    start, weights, server, own = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    local = local_of(start, {"control": server}, {"control": own}, lr=0.2, steps=5, momentum=momentum)
    update, state = method.client_final(update_of(start, weights), local, method.client_init(local))
    expected = own - server + (start - weights) / (0.2 * normaliser)
    torch.testing.assert_close(state["control"], expected, rtol=1e-5, atol=1e-6)
    change = update.extras[method.name]["change"]
    torch.testing.assert_close(change, expected - own, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------ the step count
def accumulated(steps: int, momentum: float) -> float:
    """Displacement of SGD with momentum under a constant gradient of 1 and learning rate 1, step by step."""
    velocity = displacement = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        displacement += velocity
    return displacement


def test_accumulated_steps_known_values() -> None:
    assert accumulated_steps(5, 0.9) == pytest.approx(13.1441, abs=1e-9)
    assert accumulated_steps(2, 0.5) == pytest.approx(2.5, abs=1e-12)
    # What the plain count misses, by number of steps, at momentum 0.9.
    for steps, ratio in ((4, 2.26), (10, 4.1), (40, 7.8)):
        assert accumulated_steps(steps, 0.9) / steps == pytest.approx(ratio, abs=0.05)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_accumulated_steps_is_what_momentum_adds_up_to(steps: int, momentum: float) -> None:
    assert accumulated_steps(steps, momentum) == pytest.approx(accumulated(steps, momentum), rel=1e-9)


def test_displacement_under_a_constant_gradient_gives_that_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a nearly flat objective the new control is the gradient, whatever momentum and number of steps."""
    flat = Quadratics(np.full((1, 4), 0.0625), np.array([[1.0, -2.0, 0.5, 0.0]]))
    federation = flat.federation(Scaffold(), monkeypatch, steps=7, momentum=0.9, lr=1e-5)
    federation.round(0)
    gradient = -flat.curvatures[0] * flat.minima[0]
    control = federation.clients[0]["scaffold"]["control"].numpy()
    np.testing.assert_allclose(control, gradient, rtol=1e-3, atol=1e-6)


# ------------------------------------------------------------------------------------ controls
def test_first_round_trains_locally_as_federated_averaging_bit_for_bit() -> None:
    controlled, plain = (
        trained(method, rounds=1, epochs=2, executor=Tracing) for method in (Scaffold(), FedAvg())
    )
    pairs = list(zip(controlled.executor.steps, plain.executor.steps, strict=True))
    assert len(pairs) > 6
    assert all(torch.equal(one.weights, other.weights) for one, other in pairs)


def test_second_round_does_not() -> None:
    controlled, plain = (trained(method, rounds=2, executor=Tracing) for method in (Scaffold(), FedAvg()))
    last = controlled.executor.steps[-1], plain.executor.steps[-1]
    assert not torch.equal(last[0].weights, last[1].weights)


def test_server_control_is_the_mean_of_all_clients() -> None:
    """c = (1/N) sum over ALL clients of c_k, with c_k = 0 for those that never took part."""
    method = Scaffold()
    federation = simulation(method, fraction=0.34)
    participants = set()
    for number in range(4):
        federation.round(number)
        participants |= set(federation.sample(number))
        zero = torch.zeros_like(federation.server.weights)
        controls = [
            federation.clients[client][method.name]["control"] if client in participants else zero
            for client in range(6)
        ]
        assert set(federation.clients) == participants
        control = federation.server.states[method.name]["control"]
        assert control.norm() > 0.1
        expected = torch.stack(controls).double().mean(0)
        torch.testing.assert_close(control.double(), expected, rtol=1e-5, atol=1e-6)
    assert len(participants) > len(federation.sample(0)), "the same clients in every round show nothing"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_client_control(momentum: float) -> None:
    check_client_control(Scaffold(), momentum, accumulated(5, momentum))
    check_client_control(Scaffold(normaliser="plain"), momentum, 5)


def test_controls_are_added_before_momentum_and_weight_decay() -> None:
    """The corrected gradient is g + c - c_k; the optimiser is not concerned."""
    start, gradient, weights, server, own = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    local = local_of(start, {"control": server}, {"control": own})
    corrected = Scaffold().correct(gradient, weights, local, Scaffold().client_init(local))
    torch.testing.assert_close(corrected, gradient + server - own, rtol=1e-5, atol=1e-6)


def test_clients_count_alike_whatever_their_size() -> None:
    start = torch.randn(30, generator=torch.Generator().manual_seed(0))
    displacements = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    updates = [
        update_of(start, start + displacement, samples=samples)
        for displacement, samples in zip(displacements, (1, 99), strict=True)
    ]
    federation = simulation(Scaffold())
    server, state = replace(federation.server, weights=start), {"control": torch.zeros(30)}
    sent = [replace(update, extras={"scaffold": {"change": torch.zeros(30)}}) for update in updates]
    for server_lr in (1.0, 0.5):
        moved = Scaffold(server_lr=server_lr).aggregate(federation.task, state, server, sent).weights
        torch.testing.assert_close(moved, start + server_lr * displacements.mean(0), rtol=1e-5, atol=1e-6)


def test_buffers_are_averaged_by_size_and_have_no_controls() -> None:
    federation = trained(Scaffold(), rounds=3, executor=Tracing)
    samples = torch.tensor([update.samples for update in federation.executor.updates]).double()
    buffers = torch.stack([update.buffers for update in federation.executor.updates]).double()
    torch.testing.assert_close(
        federation.server.buffers.double(), (samples / samples.sum()) @ buffers, rtol=1e-6, atol=1e-7
    )
    assert federation.server.states["scaffold"]["control"].shape == federation.server.weights.shape


def test_normalisers_agree_without_momentum_bit_for_bit() -> None:
    effective, plain = (
        trained(Scaffold(normaliser=normaliser), rounds=3, momentum=0.0)
        for normaliser in ("effective", "plain")
    )
    assert torch.equal(effective.server.weights, plain.server.weights)
    controls = [run.server.states["scaffold"]["control"] for run in (effective, plain)]
    assert torch.equal(*controls)


# ------------------------------------------------------------------------------------ quadratics
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_clients_reach_the_common_optimum(monkeypatch: pytest.MonkeyPatch, momentum: float) -> None:
    check_reaches_the_optimum(Scaffold(), monkeypatch, momentum)
    federation = TWO_CLIENTS.federation(FedAvg(), monkeypatch, steps=10, momentum=momentum)
    assert np.abs(weights_after(federation, 20) - TWO_CLIENTS.optimum).max() > 0.05


def test_plain_normaliser_diverges_with_momentum_and_the_effective_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"steps": 40, "momentum": 0.9, "lr": 0.02}
    effective = TWO_CLIENTS.federation(Scaffold(), monkeypatch, **settings)
    np.testing.assert_allclose(weights_after(effective, 20), TWO_CLIENTS.optimum, atol=1e-2)
    plain = TWO_CLIENTS.federation(Scaffold(normaliser="plain"), monkeypatch, **settings)
    with pytest.raises(Diverged):
        for number in range(40):
            plain.round(number)
            if plain.server.weights.norm() > 1e9:
                raise Diverged


def test_identical_clients_need_no_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = Quadratics(TWO_CLIENTS.curvatures[[0, 0, 0]], TWO_CLIENTS.minima[[0, 0, 0]])
    controlled, plain = (
        weights_after(alike.federation(method, monkeypatch, steps=5, momentum=0.5), 6)
        for method in (Scaffold(), FedAvg())
    )
    np.testing.assert_allclose(controlled, plain, rtol=1e-5)
