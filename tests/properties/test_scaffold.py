"""SCAFFOLD: control variates, their options, corrections after the step, weighting and clipping."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.augmentation import Augmentation
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.ops.vectors import accumulated_steps, clip_norm
from fltrain.methods.scaffold import Scaffold
from fltrain.models.base import Model, build
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.runs.spec import RunSpec

from .helpers import FULL_BATCH, Tracing, assert_same_steps, drawn, local_of, simulation, trained, update_of
from .ordinary import gradient_of
from .quadratics import SIZE, TWO_CLIENTS, Quadratics, weights_after


def test_displacement_under_a_constant_gradient_gives_that_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a nearly flat objective the new control is the gradient, for any momentum and number of steps."""
    flat = Quadratics(np.full((1, 4), 0.0625), np.array([[1.0, -2.0, 0.5, 0.0]]))
    federation = flat.federation(Scaffold(), monkeypatch, steps=7, momentum=0.9, lr=1e-5)
    federation.round(0)
    gradient = -flat.curvatures[0] * flat.minima[0]
    control = federation.clients[0]["scaffold"]["control"].numpy()
    np.testing.assert_allclose(control, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_client_control_follows_its_definition(momentum: float) -> None:
    """c_k <- c_k - c + (r - w_k) / (lr Q); the client sends the change and stores the new control."""
    start, weights, server, own = drawn(4, 30)
    for method, normaliser in (
        (Scaffold(), accumulated_steps(5, momentum)),
        (Scaffold(normaliser="plain"), 5),
    ):
        local = local_of(start, {"control": server}, {"control": own}, lr=0.2, steps=5, momentum=momentum)
        update, state = method.client_final(update_of(start, weights), local, method.client_init(local))
        expected = own - server + (start - weights) / (0.2 * normaliser)
        torch.testing.assert_close(state["control"], expected, rtol=1e-5, atol=1e-6)
        change = update.extras[method.name]["change"]
        torch.testing.assert_close(change, expected - own, rtol=1e-5, atol=1e-6)


def test_normalisers_agree_without_momentum_bit_for_bit() -> None:
    effective, plain = (
        trained(Scaffold(normaliser=normaliser), rounds=3, momentum=0.0)
        for normaliser in ("effective", "plain")
    )
    assert torch.equal(effective.server.weights, plain.server.weights)
    controls = [run.server.states["scaffold"]["control"] for run in (effective, plain)]
    assert torch.equal(*controls)


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


AFTER_STEP = {"correction": "after_step", "normaliser": "plain"}
PLAIN_SGD = {"momentum": 0.0, "weight_decay": 0.0}
COPIES = (1, 2)
"""Number of copies of each image, by client: the second one has twice as many."""


def control_of(federation: Simulation, client: int | None = None) -> np.ndarray:
    """Control of a client, or of the server if ``client`` is None."""
    states = federation.server.states if client is None else federation.clients[client]
    (method,) = federation.composition.methods
    return states[method.name]["control"].double().numpy()


@dataclass(frozen=True)
class Sized:
    """Least squares with every image several times, which leaves the clients' objectives unchanged."""

    problem: Quadratics
    copies: Sequence[int]

    @property
    def relative_sizes(self) -> np.ndarray:
        """omega_k = n_k N / n."""
        return np.array(self.copies) / np.mean(self.copies)

    def federation(
        self, method: Scaffold, monkeypatch: pytest.MonkeyPatch, steps: int, **training: object
    ) -> Simulation:
        """Every client takes full-batch steps, all of them in every round."""
        images = [np.tile(SIZE * k + np.arange(SIZE), copies) for k, copies in enumerate(self.copies)]
        return self.problem.federation(method, monkeypatch, steps, images_of=images, **training)


SIZED = Sized(TWO_CLIENTS, COPIES)
ALIKE = Sized(TWO_CLIENTS, (1, 1))
TARGETS = {"uniform": (1.0, 1.0), "weights": (1.0, 1.0), "scaled": COPIES, "data": COPIES}
"""The fixed point is at a zero mean of all controls, for any averaging of weights."""


def reference(
    method: Scaffold, sized: Sized, rounds: int, *, steps: int, momentum: float, lr: float
) -> np.ndarray:
    """An independent implementation of the published algorithm with its variants, for full participation."""
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


def check_reaches_its_optimum(
    method: Scaffold, monkeypatch: pytest.MonkeyPatch, momentum: float = 0.0, sized: Sized = SIZED
) -> None:
    """Check that clients of different sizes reach the optimum of the weighting's objective."""
    lr = 0.2 if momentum else 0.4
    federation = sized.federation(method, monkeypatch, steps=4, momentum=momentum, lr=lr)
    reached = weights_after(federation, 25)
    np.testing.assert_allclose(reached, sized.problem.weighted_optimum(TARGETS[method.weighting]), atol=1e-3)


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
        images, labels = federation.data.train.batch(federation.data.clients[client])
        expected = gradient_of(functional.cross_entropy(network(images), labels), network)
        assert expected.norm() > 0.1
        np.testing.assert_allclose(control_of(federation, client), expected, rtol=1e-4, atol=1e-5)


SETTINGS = [{}, {"normaliser": "plain"}, {"option": "I"}, AFTER_STEP, {"server_lr": 0.5}]
WEIGHTINGS = ("uniform", "weights", "scaled", "data")
VARIANTS = [
    *(Scaffold(**settings, weighting="uniform") for settings in SETTINGS),
    *(Scaffold(**settings, weighting=one) for settings in SETTINGS[2:4] for one in WEIGHTINGS[1:]),
    Scaffold(option="I", **AFTER_STEP, weighting="scaled"),
]


def changed_settings(method: Scaffold) -> str:
    """Test ID: the settings that differ from the defaults."""
    return "-".join(map(str, method.model_dump(exclude_defaults=True).values())) or "default"


@pytest.mark.parametrize("method", VARIANTS, ids=changed_settings)
def test_variants_agree_with_an_independent_implementation(
    method: Scaffold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real loop and the reference agree round by round."""
    momentum = 0.9
    settings = {"steps": 4, "momentum": momentum, "lr": 0.2}
    federation = SIZED.federation(method, monkeypatch, **settings)
    for rounds in range(1, 6):
        federation.round(rounds - 1)
        reached = federation.server.weights.double().numpy()
        np.testing.assert_allclose(reached, reference(method, SIZED, rounds, **settings), atol=2e-5)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(
    ("settings", "momentum"), [({}, 0.9), ({"option": "I"}, 0.9), (AFTER_STEP, 0.0)], ids=str
)
def test_each_weighting_reaches_its_optimum_with_and_without_momentum(
    settings: dict[str, str], momentum: float, weighting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_reaches_its_optimum(Scaffold(**settings, weighting=weighting), monkeypatch, momentum)
    optima = [TWO_CLIENTS.weighted_optimum(target) for target in (COPIES, (1.0, 1.0))]
    assert np.abs(optima[0] - optima[1]).max() > 0.1


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_server_control(weighting: str) -> None:
    """The server's control after each round, with some of the clients in each round.

    The mean over all clients, with c_k = 0 for those that never took part: of c_k, or of omega_k c_k if
    objectives are scaled. By data size: the mean of c_k over the clients of the round.
    """
    method = Scaffold(weighting=weighting)
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
    assert 3 < len(federation.clients) <= 6, "the cohorts are equal, so the test has no effect"


def test_a_variant_sets_its_options() -> None:
    written = Scaffold.parse({"name": "scaffold", "variant": "ecgr", "server_lr": 0.5}, "method")
    options = {"correction": "after_step", "normaliser": "plain", "weighting": "data"}
    assert written == Scaffold(**options, server_lr=0.5)
    assert Scaffold.parse({"name": "scaffold", "variant": "paper"}, "method") == Scaffold()
    with pytest.raises(FltrainError, match="variant 'ecgr' sets 'weighting'; leave one of the two out"):
        Scaffold.parse({"name": "scaffold", "variant": "ecgr", "weighting": "data"}, "method")
    with pytest.raises(FltrainError, match="unknown variant 'egcr'; write paper, ecgr, fedimpro"):
        Scaffold.parse({"name": "scaffold", "variant": "egcr"}, "method")


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        # With BatchNorm in one batch: batch statistics depend on the other images in it.
        (MobileNetTiny(), {"batch_size": FULL_BATCH, "epochs": 2}),
        (LeNet5(), {"batch_size": FULL_BATCH, "augmentation": Augmentation(crop_padding=2, flip=True)}),
        (LeNet5(), {"batch_size": 4, "fraction": 1.0}),
        # Local training drops images, different ones in every epoch.
        (LeNet5(), {"batch_size": 25, "fraction": 1.0}),
        (LeNet5(), {"last_batch": "drop", "fraction": 1.0}),
    ],
    ids=str,
)
def test_control_is_the_full_gradient(model: Model, settings: dict[str, object]) -> None:
    """The gradient over all unaugmented images, in batches of any size."""
    check_control_is_the_full_gradient(Scaffold(option="I"), model, **settings)


def test_measuring_the_full_gradient_changes_nothing_else() -> None:
    """Round 1 has no corrections yet: batches, weights, running statistics and counters are FedAvg's."""
    settings = {"rounds": 1, "epochs": 2, "trainer": Tracing}
    controlled, plain = trained(Scaffold(option="I"), **settings), trained(FedAvg(), **settings)
    assert_same_steps(controlled, plain)
    for one, other in zip(controlled.trainer.updates, plain.trainer.updates, strict=True):
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


def test_without_momentum_the_place_of_the_correction_does_not_matter() -> None:
    before, after = (
        trained(Scaffold(**settings), rounds=3, **PLAIN_SGD, model=LeNet5())
        for settings in ({"normaliser": "plain"}, AFTER_STEP)
    )
    np.testing.assert_allclose(before.server.weights, after.server.weights, atol=1e-5)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_corrections_after_the_step_ignore_momentum_if_curvatures_agree(
    weighting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c_k is then the optimiser's displacement per step, including momentum."""
    curved = Quadratics(TWO_CLIENTS.curvatures[[1, 1]], TWO_CLIENTS.minima)
    method = Scaffold(**AFTER_STEP, weighting=weighting)
    check_reaches_its_optimum(method, monkeypatch, momentum=0.9, sized=Sized(curved, COPIES))


def test_corrections_after_the_step_are_biased_if_curvatures_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """With momentum it converges to another point; the correction of the gradient does not.

    Velocity starts at zero in every round. Corrections that cancel the accumulated momentum over all steps do
    not cancel it step by step, so clients leave the optimum and return to another point.
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


def test_corrections_after_the_step_need_the_plain_normaliser() -> None:
    spec = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}, "model": "mobilenet_tiny"}
    written = {"name": "scaffold", "correction": "after_step"}
    with pytest.raises(FltrainError, match="method: correction 'after_step' goes with normaliser 'plain'"):
        RunSpec.parse({**spec, "method": written}, "test")
    assert Scaffold(correction="after_step", option="I").normaliser == "effective"  # nothing is divided
    parsed = RunSpec.parse({**spec, "method": {**written, "normaliser": "plain"}}, "test")
    assert parsed.method == Scaffold(**AFTER_STEP)


def test_the_corrected_gradient_is_clipped() -> None:
    """The optimiser's gradient has at most the norm 10, including the correction."""
    federation = simulation(Scaffold(), model=LeNet5(), epochs=2, clip_norm=10.0, trainer=Tracing)
    for client in range(6):
        federation.clients[client] = {"scaffold": {"control": -drawn(federation.model.layout.size)}}
    received = federation.server.weights.clone()
    federation.round(0)
    for update in federation.trainer.updates:
        (first, *_) = federation.trainer.of(update.client)
        federation.model.load(received, federation.server.buffers, federation.server.counters)
        images, labels = federation.data.train.batch(first.chosen)
        network = federation.network
        gradient = gradient_of(functional.cross_entropy(network(images), labels), network)
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
