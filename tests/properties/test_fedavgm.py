"""FedAvgM: the clients' mean displacement is a pseudo-gradient, the server's step has momentum."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrain.engine.simulation import Simulation
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedavgm import FedAvgM
from fltrain.methods.types import Server
from fltrain.runs.spec import Participation

from .helpers import Tracing, simulation, task_of, trained, update_of
from .quadratics import TWO_CLIENTS, Quadratics, weights_after

FORMS = ("heavy_ball", "dampened", "nesterov")
FOUR_CLIENTS = Quadratics(
    np.concatenate([TWO_CLIENTS.curvatures, TWO_CLIENTS.curvatures[:, ::-1]]),
    np.concatenate([TWO_CLIENTS.minima, TWO_CLIENTS.minima[::-1] + 0.5]),
)
SIZE = 30


def half_of(federation: Simulation) -> Simulation:
    """The federation with half of its clients in each round."""
    participation = Participation(fraction=0.5)
    federation.spec = federation.spec.model_copy(update={"participation": participation})
    return federation


def moved_by(method: FedAvgM, rounds: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> Iterator[Tensor]:
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


# ------------------------------------------------------------------------------------ tests
@pytest.mark.parametrize("form", FORMS)
def test_without_momentum_it_is_federated_averaging(form: str) -> None:
    """In every round up to rounding, as w + sum p_k D_k is added up instead of sum p_k w_k."""
    method = FedAvgM(beta=0.0, form=form)
    federation = simulation(method, executor=Tracing)
    for number in range(3):
        before = federation.server
        federation.round(number)
        updates = federation.executor.updates
        expected = FedAvg().aggregate(federation.task, {}, before, updates).weights
        torch.testing.assert_close(federation.server.weights, expected, rtol=1e-6, atol=1e-6)


def test_without_momentum_it_ends_where_federated_averaging_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, plain = (
        weights_after(half_of(FOUR_CLIENTS.federation(method, monkeypatch, steps=5)), 10)
        for method in (FedAvgM(beta=0.0), FedAvg())
    )
    np.testing.assert_allclose(ended, plain, atol=1e-6)


def test_momentum_sets_in_with_the_second_round() -> None:
    """In the first, the velocity is the displacement itself."""
    with_momentum, plain = (trained(method, rounds=1).server for method in (FedAvgM(), FedAvg()))
    torch.testing.assert_close(with_momentum.weights, plain.weights, rtol=1e-6, atol=1e-6)
    with_momentum, plain = (trained(method, rounds=2).server for method in (FedAvgM(), FedAvg()))
    assert (with_momentum.weights - plain.weights).norm() > 0.1


def test_clients_train_as_in_federated_averaging_bit_for_bit() -> None:
    momentum, plain = (
        trained(method, rounds=1, epochs=2, executor=Tracing) for method in (FedAvgM(), FedAvg())
    )
    pairs = list(zip(momentum.executor.steps, plain.executor.steps, strict=True))
    assert len(pairs) > 6
    assert all(torch.equal(one.weights, other.weights) for one, other in pairs)


@pytest.mark.parametrize("server_lr", [1.0, 0.3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beta", [0.4, 0.9])
def test_constant_displacements_add_up_to_a_geometric_sum(beta: float, form: str, server_lr: float) -> None:
    """v_t = D (1 - beta^t) / (1 - beta), times 1 - beta if dampened; the step is v_t or D + beta v_t."""
    method = FedAvgM(beta=beta, form=form, server_lr=server_lr)
    displacement = torch.linspace(-1, 2, SIZE, dtype=torch.float64)
    expected = torch.zeros(SIZE, dtype=torch.float64)
    rounds = [[displacement.float()]] * 8
    for number, weights in enumerate(moved_by(method, rounds, [1]), start=1):
        velocity = (1 - method.beta**number) / (1 - method.beta) * displacement
        if method.form == "dampened":
            velocity = (1 - method.beta) * velocity
        step = displacement + method.beta * velocity if method.form == "nesterov" else velocity
        expected += method.server_lr * step
        torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)


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


def test_dampened_steps_are_exponential_averages() -> None:
    """v_t = (1 - beta) sum_s beta^(t - s) D_s: also the first displacement counts 1 - beta only."""
    beta, displacements = 0.8, random_rounds(6, 1)
    positions = [torch.zeros(SIZE), *moved_by(FedAvgM(beta=beta, form="dampened"), displacements, [1])]
    for number in range(6):
        ages = torch.arange(number, -1, -1.0)
        expected = (1 - beta) * beta**ages @ displacements[: number + 1, 0]
        step = positions[number + 1] - positions[number]
        torch.testing.assert_close(step, expected, rtol=1e-5, atol=1e-6)


def test_clients_count_by_size() -> None:
    method = FedAvgM()
    displacements = random_rounds(1, 2)
    (weights,) = moved_by(method, displacements, (1, 3))
    torch.testing.assert_close(weights, 0.25 * displacements[0, 0] + 0.75 * displacements[0, 1])


@pytest.mark.parametrize(("beta", "server_lr"), [(0.9, 1.0), (0.4, 0.5)])
def test_trajectory_with_changing_clients(
    beta: float, server_lr: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the clients per round, on a quadratic, against the recursion written out."""
    method = FedAvgM(beta=beta, server_lr=server_lr)
    problem, lr, steps, rounds = FOUR_CLIENTS, 0.1, 5, 8
    federation = half_of(problem.federation(method, monkeypatch, steps=steps, lr=lr))
    share = 1 - (1 - lr * problem.curvatures) ** steps
    weights = velocity = np.zeros(4)
    sampled = [federation.sample(number) for number in range(rounds)]
    assert len(set(map(tuple, sampled))) > 2
    for clients in sampled:
        displacement = (share * (problem.minima - weights))[clients].mean(0)
        velocity = method.beta * velocity + displacement
        weights = weights + method.server_lr * velocity
    np.testing.assert_allclose(weights_after(federation, rounds), weights, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_momentum_changes_the_path_but_not_where_it_ends(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stands still where the mean displacement is zero: at the same biased point as FedAvg."""
    limit = TWO_CLIENTS.fedavg_limit(lr=0.1, steps=10)
    federation = TWO_CLIENTS.federation(FedAvgM(beta=0.5, form=form), monkeypatch, steps=10)
    np.testing.assert_allclose(weights_after(federation, 40), limit, atol=1e-4)
    assert np.abs(limit - TWO_CLIENTS.optimum).max() > 0.05


@pytest.mark.parametrize("form", FORMS)
def test_buffers_are_averaged_without_momentum(form: str) -> None:
    """Running statistics know no momentum: the plain mean by size, and so variances stay positive."""
    method = FedAvgM(form=form)
    federation = simulation(method, executor=Tracing)
    names = [name for name, buffer in federation.network.named_buffers() if buffer.is_floating_point()]
    for number in range(6):
        federation.round(number)
        updates = federation.executor.updates
        samples = torch.tensor([update.samples for update in updates]).double()
        buffers = torch.stack([update.buffers for update in updates]).double()
        expected = (samples / samples.sum()) @ buffers
        torch.testing.assert_close(federation.server.buffers.double(), expected, rtol=1e-6, atol=1e-7)
    variances = [dict(federation.network.named_buffers())[n] for n in names if n.endswith("running_var")]
    assert len(variances) > 4
    assert all((variance > 0).all() for variance in variances)


@pytest.mark.parametrize("form", FORMS)
def test_state_before_the_round_is_left_alone(form: str) -> None:
    """What the round began with is as it was after the server's step."""
    method = FedAvgM(form=form)
    weights, velocity, displacement = random_rounds(1, 3)[0]
    state = {"velocity": velocity}
    server = Server(weights, torch.zeros(0), torch.zeros(0), {method.name: state})
    before = weights.clone(), velocity.clone()
    method.aggregate(task_of(), state, server, [update_of(weights, weights + displacement)])
    assert torch.equal(weights, before[0])
    assert torch.equal(velocity, before[1])
