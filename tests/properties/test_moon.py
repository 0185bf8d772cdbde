"""MOON: the contrastive loss against naive copies, and the choice of a client's previous model."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.simulation import Simulation
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.moon import Moon
from fltrain.models.base import Model, build
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5

from .helpers import Tiny, Tracing, assert_same_model, by_name, simulation
from .ordinary import check_round, features, replica

Weights = tuple[Tensor, Tensor]
"""Weights and buffers of a model."""

models = pytest.mark.parametrize("model", [Tiny(), LeNet5()], ids=by_name)


def contrast(own: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """-log[ exp(cos_g / tau) / (exp(cos_g / tau) + exp(cos_p / tau)) ], mean over the batch.

    In double precision: at tau = 0.01, exponentials of similar representations overflow a float32.
    """

    def alike(other: Tensor) -> Tensor:
        return (own * other).sum(1).double() / (own.norm(dim=1) * other.norm(dim=1))

    positive, negative = (alike(received) / tau).exp(), (alike(previous) / tau).exp()
    return -(positive / (positive + negative)).log().mean()


def naive_loss(
    federation: Simulation, method: Moon, previous: Callable[[int], Weights | None]
) -> Callable[[int, Network, Tensor, Tensor], Tensor]:
    """Cross entropy and mu times the contrastive loss, with deep copies in evaluation mode."""
    server = federation.server
    received = replica(federation, server.weights, server.buffers).eval()

    def loss(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        own = features(network, images)
        total = functional.cross_entropy(network.classifier(own), labels)
        last = previous(client)
        if last is None:
            return total
        with torch.no_grad():
            others = [features(other, images) for other in (received, replica(federation, *last).eval())]
        return total + method.mu * contrast(own, *others, method.tau).float()

    return loss


SETTINGS = [
    {},
    {"mu": 5.0, "tau": 0.1, "first": "initial"},
    {"tau": 0.01},
    {"first": "random"},
    {"head": "mlp"},
]
CASES = [(Tiny(), settings) for settings in SETTINGS] + [(LeNet5(), {})]


@pytest.mark.parametrize(("model", "settings"), CASES, ids=str)
def test_local_training_equals_a_loop_over_deep_copies_in_evaluation_mode(
    model: Model, settings: dict[str, object]
) -> None:
    """Three rounds against an ordinary loop; the previous model comes from the last participation."""
    method = Moon(**settings)
    federation = simulation(method, model=model, trainer=Tracing, fraction=2 / 3)
    federation.sample = [[0, 2, 4, 5], [1, 2, 5], [0, 2, 3]].__getitem__
    initial = federation.server.weights.clone(), federation.server.buffers.clone()
    previous: dict[int, Weights] = {}

    def model_before(client: int) -> Weights | None:
        if client in previous:
            return previous[client]
        if method.first == "initial":
            return initial
        if method.first == "random" and number > 0:
            return federation.task.initialise(client)
        return None

    for number in range(3):
        check_round(federation, number, naive_loss(federation, method, model_before))
        for update in federation.trainer.updates:
            previous[update.client] = update.trained.clone(), update.buffers.clone()


def test_previous_model_is_the_one_that_the_client_trained_last() -> None:
    """The step state holds the weights that the client trained last, not those uploaded; bit for bit."""
    method = Moon()
    federation = simulation(method, Ecgr(), trainer=Tracing, fraction=0.5)
    previous: dict[int, Weights] = {}
    replaced = returned = 0
    for number in range(5):
        federation.round(number)
        for update in federation.trainer.updates:
            step_states = [
                step.step_states[method.name] for step in federation.trainer.of(update.client, number)
            ]
            for step_state in step_states:
                if update.client not in previous:
                    assert not step_state
                    continue
                weights, buffers = previous[update.client]
                assert torch.equal(step_state["weights"], weights)
                assert torch.equal(step_state["buffers"], buffers)
                returned += 1
            previous[update.client] = update.trained.clone(), update.buffers.clone()
            replaced += not torch.equal(update.weights, update.trained)
    assert replaced and returned


@models
def test_the_projection_head_does_not_change_other_initial_weights(model: Model) -> None:
    side = 16 if isinstance(model, LeNet5) else 8
    plain = dict(build(model, 1, side, 10, seed=0).named_parameters())
    federation = simulation(Moon(head="mlp"), model=model)
    slots = {slot.name: slot.of(federation.server.weights) for slot in federation.model.layout.parameters}
    new = {name for name in slots if name.split(".")[0] in ("projection", "classifier")}
    assert slots.keys() - new == {name for name in plain if not name.startswith("classifier.")}
    for name in slots.keys() - new:
        assert torch.equal(slots[name], plain[name]), name
    for name in new:  # PyTorch draws a linear layer's weight and bias uniformly in +-1/sqrt(fan in)
        bound = slots[name.replace("bias", "weight")].shape[1] ** -0.5
        assert 0.5 * bound < slots[name].abs().max() <= bound, name
    assert_same_model(federation, simulation(Moon(head="mlp"), model=model))
    assert not torch.equal(
        federation.server.weights, simulation(Moon(head="mlp"), model=model, seed=1).server.weights
    )
