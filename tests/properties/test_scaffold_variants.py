"""SCAFFOLD's variants: option I, corrections after the step, who counts how much, and clipping."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.augmentation import Augmentation
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.ops.vectors import clip_norm
from fltrain.methods.scaffold import Scaffold
from fltrain.models.base import Model
from fltrain.models.build import build
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.runs.spec import RunSpec

from .helpers import (
    FULL_BATCH,
    Tracing,
    assert_same_model,
    by_name,
    local_of,
    simulation,
    trained,
    update_of,
)
from .quadratics import SIZE, TWO_CLIENTS, LinearModel, Quadratics, weights_after

AFTER_STEP = {"correction": "after_step", "normaliser": "plain"}
PLAIN_SGD = {"momentum": 0.0, "weight_decay": 0.0}
COPIES = (1, 2)
"""How often the clients hold each of their images: the second one has twice as many."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def control_of(federation: Simulation, client: int | None = None) -> np.ndarray:
    """Control of a client, or of the server."""
    states = federation.server.states if client is None else federation.clients[client]
    (method,) = federation.composition.methods
    return states[method.name]["control"].double().numpy()


# ------------------------------------------------------------------------------------ clients of unequal size
@dataclass(frozen=True)
class Sized:
    """Least squares whose clients hold every image several times, which leaves their objectives alone."""

    problem: Quadratics
    copies: Sequence[int]

    @property
    def relative_sizes(self) -> np.ndarray:
        """omega_k = n_k N / n."""
        return np.array(self.copies) / np.mean(self.copies)

    def optimum(self, weights: Sequence[float]) -> np.ndarray:
        """Where the objectives, weighted like this, are least together."""
        h = np.array(weights)[:, None] * self.problem.curvatures
        return (h * self.problem.minima).sum(0) / h.sum(0)

    def federation(
        self, method: Scaffold, monkeypatch: pytest.MonkeyPatch, steps: int, **training: object
    ) -> Simulation:
        """Every client takes full-batch steps, all of them in every round."""
        pixels = np.sqrt(self.problem.curvatures * SIZE)
        halves = np.rint(2 * pixels)
        images = np.concatenate([np.diag(row) for row in halves]).astype(np.uint8).reshape(-1, 1, 2, 2)
        targets = torch.tensor((pixels * self.problem.minima).reshape(-1), dtype=torch.float32)
        labels = np.arange(len(images))
        data = PreparedData(images, labels, images, labels, len(labels), (0.0,), (2 / 255,), digest="")
        held = zip(labels.reshape(-1, SIZE), self.copies, strict=True)

        def loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
            losses = 0.5 * (outputs[:, 0] - targets[labels]).square()
            return losses.sum() if reduction == "sum" else losses.mean()

        monkeypatch.setattr(functional, "cross_entropy", loss)
        return simulation(
            method,
            model=LinearModel(),
            data=data,
            partition=Partition([np.tile(own, copies) for own, copies in held], digest=""),
            fraction=1.0,
            epochs=steps,
            batch_size=FULL_BATCH,
            rounds=10**6,
            evaluate_every=10**6,
            **{"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, **training},
        )


SIZED = Sized(TWO_CLIENTS, COPIES)
ALIKE = Sized(TWO_CLIENTS, (1, 1))
TARGETS = {"uniform": (1.0, 1.0), "weights": (1.0, 1.0), "scaled": COPIES, "data": COPIES}
"""Corrected gradients agree where the mean of all controls is zero, whoever counts for more in weights."""


def reference(
    method: Scaffold, sized: Sized, rounds: int, *, steps: int, momentum: float, lr: float
) -> np.ndarray:
    """The published algorithm with its variants, written down once more, for full participation."""
    h, a, omega = sized.problem.curvatures, sized.problem.minima, sized.relative_sizes
    shares = omega / omega.sum()
    scale = omega if method.weighting == "scaled" else np.ones_like(omega)
    counted = steps
    if method.normaliser == "effective":
        counted = sum(momentum**j for step in range(steps) for j in range(step + 1))
    weights, server, own = np.zeros(SIZE), np.zeros(SIZE), np.zeros_like(h)
    for _ in range(rounds):
        moved, renewed = [], []
        for k in range(len(h)):
            correction = server / scale[k] - own[k]
            here, velocity = weights, np.zeros(SIZE)
            for _ in range(steps):
                gradient = h[k] * (here - a[k])
                if method.correction == "gradient":
                    gradient = gradient + correction
                velocity = momentum * velocity + gradient
                here = here - lr * velocity
                if method.correction == "after_step":
                    here = here - lr * correction
            moved.append(here - weights)
            full = h[k] * (weights - a[k])
            seen = (weights - here) / (lr * counted) - correction
            renewed.append(full if method.option == "I" else seen)
        own = np.array(renewed)
        alike = np.full(len(h), 1 / len(h))
        counts = shares if method.weighting in ("weights", "data") else alike
        weights = weights + method.server_lr * counts @ np.array(moved)
        server = (shares if method.weighting == "data" else alike) @ (scale[:, None] * own)
    return weights


# ------------------------------------------------------------------------------------ checks of a method


def weights_after_another_round(federation: Simulation, rounds: int) -> np.ndarray:
    federation.round(rounds - 1)
    return federation.server.weights.double().numpy()


def check_reaches_its_optimum(
    method: Scaffold, monkeypatch: pytest.MonkeyPatch, momentum: float = 0.0, sized: Sized = SIZED
) -> None:
    """With clients of different sizes: the optimum of the objective that the weighting stands for."""
    lr = 0.2 if momentum else 0.4
    federation = sized.federation(method, monkeypatch, steps=4, momentum=momentum, lr=lr)
    reached = weights_after(federation, 25)
    np.testing.assert_allclose(reached, sized.optimum(TARGETS[method.weighting]), atol=1e-3)


def gradient_of(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    loss = functional.cross_entropy(network(images), labels)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])


def check_control_is_the_full_gradient(method: Scaffold, model: Model, **settings: object) -> None:
    """c_k is the gradient of the mean loss over the client's images at the weights that it received."""
    federation = simulation(method, model=model, **settings)
    received = None
    for number in range(2):
        received = federation.server.weights.clone()
        federation.round(number)
    for client in federation.sample(1):
        network = build(model, 1, int(federation.data.train.images.shape[-1]), 10, seed=0).train()
        nn.utils.vector_to_parameters(received, network.parameters())
        expected = gradient_of(network, *federation.data.train.batch(federation.data.clients[client]))
        assert expected.norm() > 0.1
        np.testing.assert_allclose(control_of(federation, client), expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------ all variants
VARIANTS = [
    Scaffold(**settings, weighting=weighting)
    for settings, weighting in itertools.product(
        (
            {},
            {"normaliser": "plain"},
            {"option": "I"},
            AFTER_STEP,
            {"option": "I", **AFTER_STEP},
            {"server_lr": 0.5},
        ),
        ("uniform", "weights", "scaled", "data"),
    )
]


def told(method: Scaffold) -> str:
    """Test id: what differs from the defaults."""
    return "-".join(map(str, method.model_dump(exclude_defaults=True).values())) or "default"


@pytest.mark.parametrize("method", VARIANTS, ids=told)
def test_variants_agree_with_the_algorithm_written_down_once_more(
    method: Scaffold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real loop and the algorithm written down once more agree round by round."""
    momentum = 0.9
    settings = {"steps": 4, "momentum": momentum, "lr": 0.2}
    federation = SIZED.federation(method, monkeypatch, **settings)
    for rounds in range(1, 6):
        reached = weights_after_another_round(federation, rounds)
        np.testing.assert_allclose(reached, reference(method, SIZED, rounds, **settings), atol=2e-5)


@pytest.mark.parametrize("weighting", ["uniform", "weights", "scaled", "data"])
@pytest.mark.parametrize("settings", [{}, {"option": "I"}, AFTER_STEP], ids=str)
def test_the_optimum_is_that_of_the_weighting(
    settings: dict[str, str], weighting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_reaches_its_optimum(Scaffold(**settings, weighting=weighting), monkeypatch)
    others = [TARGETS[other] for other in TARGETS if TARGETS[other] != TARGETS[weighting]]
    for other in others:
        assert np.abs(SIZED.optimum(other) - SIZED.optimum(TARGETS[weighting])).max() > 0.1


@pytest.mark.parametrize("weighting", ["uniform", "weights", "scaled", "data"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_momentum_does_not_move_the_optimum(
    option: str, weighting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Scaffold(option=option, weighting=weighting)
    check_reaches_its_optimum(method, monkeypatch, momentum=0.9)


@pytest.mark.parametrize("settings", [{}, {"option": "I"}, AFTER_STEP], ids=str)
def test_clients_of_equal_size_are_weighted_alike(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform, weighted, scaled, data = (
        weights_after(
            ALIKE.federation(Scaffold(**settings, weighting=weighting), monkeypatch, steps=5, momentum=0.5), 6
        )
        for weighting in ("uniform", "weights", "scaled", "data")
    )
    assert np.array_equal(scaled, uniform)
    np.testing.assert_allclose(weighted, uniform, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data, uniform, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------ weighting
@pytest.mark.parametrize("weighting", ["uniform", "weights", "scaled", "data"])
@pytest.mark.parametrize("settings", [{}, {"option": "I"}, AFTER_STEP], ids=str)
def test_server_control(settings: dict[str, str], weighting: str) -> None:
    """What c is the mean of, round by round, with some of the clients in each round.

    Over all clients, those that never took part with c_k = 0: c_k, or omega_k c_k if objectives are scaled.
    Over the clients of the round, by data size: c_k.
    """
    method = Scaffold(**settings, weighting=weighting)
    federation = simulation(method, fraction=0.5)
    sizes = np.array([len(images) for images in federation.data.clients])
    omega = sizes / sizes.mean()
    assert omega.max() > 2 * omega.min()
    for number in range(4):
        federation.round(number)
        sampled = federation.sample(number)
        controls = np.zeros((6, federation.model.layout.size))
        for client in federation.clients:
            controls[client] = control_of(federation, client)
        if method.weighting == "data":
            expected = sizes[sampled] / sizes[sampled].sum() @ controls[sampled]
        else:
            expected = (omega if method.weighting == "scaled" else np.ones(6)) @ controls / 6
        assert np.linalg.norm(expected) > 0.1
        np.testing.assert_allclose(control_of(federation), expected, rtol=1e-4, atol=1e-5)
    assert 3 < len(federation.clients) <= 6, "the same clients in every round show nothing"


def test_scaled_objectives_correct_by_the_servers_control_over_the_relative_size() -> None:
    """g + c / omega_k - c_k, omega_k = n_k N / n; and omega_k (c_k_new - c_k) goes up."""
    start, gradient, weights, server, own = drawn(5, 30)
    method, sizes = Scaffold(weighting="scaled"), {"samples": 30, "clients": 10}  # of 100 images
    local = local_of(start, {"control": server}, {"control": own}, lr=0.2, steps=5, **sizes)
    assert local.relative_size == pytest.approx(3)
    step_state = method.client_init(local)
    corrected = method.correct(gradient, weights, local, step_state)
    torch.testing.assert_close(corrected, gradient + server / 3 - own, rtol=1e-5, atol=1e-6)
    update, state = method.client_final(update_of(start, weights), local, step_state)
    expected = own - server / 3 + (start - weights) / (0.2 * 5)
    torch.testing.assert_close(state["control"], expected, rtol=1e-5, atol=1e-6)
    sent = update.extras["scaffold"]["change"]
    torch.testing.assert_close(sent, 3 * (expected - own), rtol=1e-5, atol=1e-5)


def test_a_variant_stands_for_its_options() -> None:
    written = Scaffold.parse({"name": "scaffold", "variant": "ecgr", "server_lr": 0.5}, "method")
    options = {"correction": "after_step", "normaliser": "plain", "weighting": "data"}
    assert written == Scaffold(**options, server_lr=0.5)
    assert Scaffold.parse({"name": "scaffold", "variant": "paper"}, "method") == Scaffold()
    with pytest.raises(FltrainError, match="variant 'ecgr' sets 'weighting'; leave one of the two out"):
        Scaffold.parse({"name": "scaffold", "variant": "ecgr", "weighting": "data"}, "method")
    with pytest.raises(FltrainError, match="unknown variant 'egcr'; write paper, ecgr, fedimpro"):
        Scaffold.parse({"name": "scaffold", "variant": "egcr"}, "method")


# ------------------------------------------------------------------------------------ option I
@pytest.mark.parametrize("model", [LeNet5(), MobileNetTiny()], ids=by_name)
def test_control_is_the_full_gradient(model: Model) -> None:
    """With BatchNorm: in one batch, since batch statistics depend on who else is in it."""
    check_control_is_the_full_gradient(Scaffold(option="I"), model, batch_size=FULL_BATCH, epochs=2)


def test_batches_of_any_size_add_up_to_the_full_gradient() -> None:
    for size in (4, 16):
        assert_batches_keep_all(size)
        check_control_is_the_full_gradient(Scaffold(option="I"), LeNet5(), batch_size=size, fraction=1.0)


def assert_batches_keep_all(size: int) -> None:
    """No client's last batch holds a single image, which local training leaves out."""
    federation = simulation(batch_size=size)
    for own in federation.data.clients:
        assert sum(federation.spec.training.batch_sizes(len(own))) == len(own)


@pytest.mark.parametrize("settings", [{"last_batch": "drop"}, {"batch_size": 25}], ids=str)
def test_images_that_local_training_leaves_out_belong_to_the_full_gradient(
    settings: dict[str, object],
) -> None:
    """A last batch that is dropped holds other images in every epoch; the gradient is that of all."""
    federation = simulation(**settings)
    used = [sum(federation.spec.training.batch_sizes(len(own))) for own in federation.data.clients]
    assert used != [len(own) for own in federation.data.clients]
    check_control_is_the_full_gradient(Scaffold(option="I"), LeNet5(), fraction=1.0, **settings)


def test_the_full_gradient_is_that_of_the_images_as_they_are() -> None:
    changes = Augmentation(crop_padding=2, flip=True)
    check_control_is_the_full_gradient(
        Scaffold(option="I"), LeNet5(), batch_size=FULL_BATCH, augmentation=changes
    )


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_measuring_the_full_gradient_leaves_no_trace(fraction: float) -> None:
    """Round 1 has no corrections yet: batches, weights, running statistics and counters are FedAvg's."""
    settings = {"rounds": 1, "epochs": 2, "fraction": fraction, "executor": Tracing}
    controlled, plain = trained(Scaffold(option="I"), **settings), trained(FedAvg(), **settings)
    for one, other in zip(controlled.executor.steps, plain.executor.steps, strict=True):
        assert torch.equal(one.chosen, other.chosen)
        assert torch.equal(one.weights, other.weights)
    for one, other in zip(controlled.executor.updates, plain.executor.updates, strict=True):
        assert torch.equal(one.buffers, other.buffers)
        assert torch.equal(one.counters, other.counters)
        assert torch.equal(one.loss, other.loss)
    assert torch.equal(controlled.server.buffers, plain.server.buffers)


def test_with_one_full_batch_step_both_options_measure_the_same() -> None:
    """Plain SGD: (r - w) / lr is the gradient that the step took, correction included."""
    settings = {"rounds": 3, "batch_size": FULL_BATCH, "model": LeNet5(), **PLAIN_SGD}
    first, second = (trained(Scaffold(option=option), **settings) for option in ("I", "II"))
    for client in first.clients:
        one, other = (control_of(federation, client) for federation in (first, second))
        np.testing.assert_allclose(one, other, atol=2e-5)


# ------------------------------------------------------------------------------------ after the step
def test_the_correction_after_a_step_is_not_in_the_gradient() -> None:
    """w <- w - lr (c - c_k), with the optimiser none the wiser."""
    start, gradient, weights, server, own = drawn(5, 30)
    method = Scaffold(**AFTER_STEP)
    local = local_of(start, {"control": server}, {"control": own}, lr=0.2)
    step_state = method.client_init(local)
    assert torch.equal(method.correct(gradient, weights, local, step_state), gradient)
    settled = method.post_step(weights, local, step_state)
    torch.testing.assert_close(settled, weights - 0.2 * (server - own), rtol=1e-5, atol=1e-6)
    assert torch.equal(Scaffold().post_step(weights, local, Scaffold().client_init(local)), weights)


def test_without_momentum_it_does_not_matter_where_the_correction_is() -> None:
    before, after = (
        trained(Scaffold(**settings), rounds=3, **PLAIN_SGD, model=LeNet5())
        for settings in ({"normaliser": "plain"}, AFTER_STEP)
    )
    np.testing.assert_allclose(before.server.weights, after.server.weights, atol=1e-5)


@pytest.mark.parametrize("weighting", ["uniform", "weights", "scaled", "data"])
def test_after_the_step_momentum_does_not_matter_where_curvatures_agree(
    weighting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c_k is then what the optimiser moves per step, momentum included."""
    curved = Quadratics(TWO_CLIENTS.curvatures[[1, 1]], TWO_CLIENTS.minima)
    method = Scaffold(**AFTER_STEP, weighting=weighting)
    check_reaches_its_optimum(method, monkeypatch, momentum=0.9, sized=Sized(curved, COPIES))


def test_after_the_step_with_momentum_clients_of_other_curvature_bias_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays bounded and comes to rest, but elsewhere; the correction of the gradient does not.

    Velocity starts anew in every round, so corrections that cancel what momentum adds up to in all steps
    together do not cancel it step by step, and clients leave the optimum on their way back to it.
    """
    settings = {"steps": 10, "momentum": 0.9, "lr": 0.1}
    method = Scaffold(**AFTER_STEP)
    limit = reference(method, ALIKE, 500, **settings)
    np.testing.assert_allclose(limit, reference(method, ALIKE, 400, **settings), atol=1e-6)
    assert np.abs(limit - TWO_CLIENTS.optimum).max() > 0.1
    unbiased = reference(Scaffold(), ALIKE, 400, **settings)
    np.testing.assert_allclose(unbiased, TWO_CLIENTS.optimum, atol=1e-6)
    federation = TWO_CLIENTS.federation(method, monkeypatch, **settings)
    reached = weights_after(federation, 15)
    np.testing.assert_allclose(reached, reference(method, ALIKE, 15, **settings), atol=1e-4)


def test_after_the_step_only_the_plain_count_goes() -> None:
    with pytest.raises(ValueError, match="'after_step' goes with normaliser 'plain'"):
        Scaffold(correction="after_step")
    with pytest.raises(ValueError, match="'after_step' goes with normaliser 'plain'"):
        Scaffold(correction="after_step", normaliser="effective", weighting="data")
    assert Scaffold(correction="after_step", option="I").normaliser == "effective"  # nothing is divided
    spec = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}, "model": "mobilenet_tiny"}
    told = {"name": "scaffold", "correction": "after_step"}
    with pytest.raises(FltrainError, match="method: correction 'after_step' goes with normaliser 'plain'"):
        RunSpec.parse({**spec, "method": told}, "test")
    parsed = RunSpec.parse({**spec, "method": {**told, "normaliser": "plain"}}, "test")
    assert parsed.method == Scaffold(**AFTER_STEP)


# ------------------------------------------------------------------------------------ clipping
@pytest.mark.parametrize("settings", [{}, {"option": "I"}, AFTER_STEP], ids=str)
def test_a_limit_that_is_never_reached_changes_nothing(settings: dict[str, str]) -> None:
    free, limited = (trained(Scaffold(**settings), rounds=3, **limit) for limit in ({}, {"clip_norm": 1e9}))
    assert_same_model(free, limited)


def test_the_corrected_gradient_is_clipped() -> None:
    """The gradient that the optimiser gets has at most the norm 10, correction included."""
    federation = simulation(Scaffold(), model=LeNet5(), epochs=2, clip_norm=10.0, executor=Tracing)
    for client in range(6):
        federation.clients[client] = {"scaffold": {"control": -drawn(federation.model.layout.size)}}
    received = federation.server.weights.clone()
    federation.round(0)
    for update in federation.executor.updates:
        (first, *_) = federation.executor.of(update.client)
        federation.model.load(received, federation.server.buffers, federation.server.counters)
        gradient = gradient_of(federation.network, *federation.data.train.batch(first.chosen))
        corrected = gradient + drawn(len(received))  # c = 0 and c_k = -noise
        assert gradient.norm() < 10 < corrected.norm()
        expected = received - 0.05 * (
            clip_norm(corrected, 10.0) + 1e-3 * received
        )  # weight decay comes after
        torch.testing.assert_close(first.weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_clipping_does_not_move_the_optimum(momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"momentum": momentum, "clip_norm": 0.5}
    federation = TWO_CLIENTS.federation(Scaffold(), monkeypatch, steps=10, **limited)
    start = TWO_CLIENTS.curvatures * TWO_CLIENTS.minima
    assert np.linalg.norm(start, axis=1).min() > 0.5, "nothing is clipped at the start"
    np.testing.assert_allclose(weights_after(federation, 40), TWO_CLIENTS.optimum, atol=1e-3)
