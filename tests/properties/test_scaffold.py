"""SCAFFOLD: control variates, their options, corrections after the step, weighting and clipping."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.augmentation import Augmentation
from fltrain.engine.simulation import Simulation
from fltrain.methods.ops.vectors import clip_norm
from fltrain.methods.scaffold import Scaffold
from fltrain.models.base import Model
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.runs.spec import RunSpec

from .helpers import FULL_BATCH, Tracing, drawn, simulation
from .ordinary import gradient_of, replica
from .quadratics import SIZE, TWO_CLIENTS

AFTER_STEP = {"correction": "after_step", "normaliser": "plain"}
COPIES = (1, 2)
"""Number of copies of each image, by client: the second one has twice as many."""


def control_of(federation: Simulation, client: int | None = None) -> np.ndarray:
    """Control of a client, or of the server if ``client`` is None."""
    states = federation.server.states if client is None else federation.clients[client]
    (method,) = federation.composition.methods
    return states[method.name]["control"].double().numpy()


def reference(method: Scaffold, rounds: int, *, steps: int, momentum: float, lr: float) -> np.ndarray:
    """An independent implementation of the published algorithm with its variants, for full participation."""
    h, a, omega = TWO_CLIENTS.curvatures, TWO_CLIENTS.minima, np.array(COPIES) / np.mean(COPIES)
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


SETTINGS = [{}, {"normaliser": "plain"}, {"option": "I"}, AFTER_STEP, {"server_lr": 0.5}]
WEIGHTINGS = ("uniform", "weights", "scaled", "data")
VARIANTS = [
    *(Scaffold(**settings, weighting="uniform") for settings in SETTINGS),
    *(Scaffold(**settings, weighting=one) for settings in SETTINGS[2:4] for one in WEIGHTINGS[1:]),
    Scaffold(option="I", **AFTER_STEP, weighting="scaled"),
]


@pytest.mark.parametrize("method", VARIANTS, ids=str)
def test_variants_agree_with_an_independent_implementation(
    method: Scaffold, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"steps": 4, "momentum": 0.9, "lr": 0.2}
    federation = TWO_CLIENTS.federation(method, monkeypatch, copies=COPIES, **settings)
    for rounds in range(1, 6):
        federation.round(rounds - 1)
        reached = federation.server.weights.double().numpy()
        np.testing.assert_allclose(reached, reference(method, rounds, **settings), atol=2e-5)


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
    """c_k is the gradient over all unaugmented images, in batches of any size, at the received weights."""
    federation = simulation(Scaffold(option="I"), model=model, **settings)
    for number in range(2):
        received = federation.server
        federation.round(number)
    for client in federation.sample(1):
        network = replica(federation, received.weights, received.buffers)
        images, labels = federation.data.train.batch(federation.data.clients[client])
        expected = gradient_of(functional.cross_entropy(network(images), labels), network)
        assert expected.norm() > 0.1
        np.testing.assert_allclose(control_of(federation, client), expected, rtol=1e-4, atol=1e-5)


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
