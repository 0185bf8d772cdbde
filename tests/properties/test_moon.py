"""MOON: the contrastive loss against naive copies, and which model is a client's previous one."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.engine.executors.sequential import InPlaceStep
from fltrain.engine.simulation import Simulation
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.moon import Moon
from fltrain.methods.types import Local, Outputs, State
from fltrain.models.base import Model
from fltrain.models.build import build
from fltrain.models.feedback import feedback
from fltrain.models.network import Network
from fltrain.models.networks.ecgr_cnn import EcgrCnn
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import Tracing, assert_same_model, by_name, rows_of, simulation, trained
from .ordinary import check_round, elsewhere, features, gradient_of, replica, step_of

Weights = tuple[Tensor, Tensor]
"""Weights and buffers of a model."""

models = pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)


# ------------------------------------------------------------------------------------ the loss, naively
def contrast(own: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """-log[ exp(cos_g / tau) / (exp(cos_g / tau) + exp(cos_p / tau)) ], mean over the batch."""

    def alike(other: Tensor) -> Tensor:
        return (own * other).sum(1) / (own.norm(dim=1) * other.norm(dim=1))

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
        return total + method.mu * contrast(own, *others, method.tau)

    return loss


# ------------------------------------------------------------------------------------ checks of a method
def check_local_training(method: Moon, model: Model | None = None) -> None:
    """Three rounds against an ordinary loop; the previous model is that of the last participation."""
    federation = simulation(method, model=model, executor=Tracing, fraction=2 / 3)
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
        for update in federation.executor.updates:
            previous[update.client] = update.trained.clone(), update.buffers.clone()


def check_frozen_models_do_not_change(method: Moon) -> None:
    """Nor does anything they were loaded from: what was received, what clients keep."""
    federation = trained(method, rounds=2, fraction=1.0)
    server, states = federation.server, dict(federation.clients)
    held = [server.weights, server.buffers, server.counters]
    held += [tensor for state in states.values() for tensor in state[method.name].values()]
    copies = [tensor.clone() for tensor in held]
    federation.round(2)
    for tensor, before in zip(held, copies, strict=True):
        assert torch.equal(tensor, before)
    buffers = {id(server.weights): server.buffers}
    buffers |= {
        id(kept["weights"]): kept["buffers"] for kept in (state[method.name] for state in states.values())
    }
    for (weights, _), twin in federation.executor.frozen.twins:
        assert torch.equal(twin.weights, weights)
        assert torch.equal(twin.buffers, buffers[id(weights)])
        assert not twin.network.training
        assert not twin.gradient.any()


@dataclass
class Setting:
    """A client at other weights than it received, who has a previous model of yet other weights."""

    federation: Simulation
    step: InPlaceStep
    local: Local
    previous: Weights

    @property
    def step_state(self) -> State:
        return dict(zip(("weights", "buffers"), self.previous, strict=True))

    def naive(self, own: Network, tau: float) -> Tensor:
        """The contrastive loss in double precision."""
        server, images = self.federation.server, self.step.images.double()
        received, previous = (
            replica(self.federation, *model).eval().double()
            for model in ((server.weights, server.buffers), self.previous)
        )
        with torch.no_grad():
            others = features(received, images), features(previous, images)
        return contrast(features(own, images), *others, tau)


def setting_of(method: Moon, model: Model | None = None, distance: float = 0.05) -> Setting:
    federation = trained(method, model=model, rounds=1)
    step = step_of(federation, weights=elsewhere(federation, 3, distance)[0])
    local = step.hooks.locals_[method.name]
    return Setting(federation, step, local, elsewhere(federation, 5, distance))


def added_to(method: Moon, outputs: Outputs, setting: Setting, step_state: State) -> Tensor:
    """What the method adds to a loss that is zero."""
    return method.loss(torch.zeros(()), outputs, setting.step, setting.local, step_state)


def check_penalty(method: Moon, model: Model | None = None, distance: float = 0.05) -> None:
    """Value and gradient of mu L_con, and that the length of the own representation is no matter."""
    setting = setting_of(method, model, distance)
    seen: list[Tensor] = []

    def loss(outputs: Outputs) -> Tensor:
        scaled = Outputs(10 * outputs.features, outputs.logits)
        own, tenfold = (added_to(method, one, setting, setting.step_state) for one in (outputs, scaled))
        seen.extend([own, tenfold])
        return own

    gradient, value = setting.step.differentiate(loss)
    student = replica(setting.federation, setting.federation.model.weights, setting.federation.server.buffers)
    expected = method.mu * setting.naive(student.double(), method.tau)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert abs(expected.item() - method.mu * math.log(2)) > 1e-3
    torch.testing.assert_close(gradient.double(), gradient_of(expected, student), rtol=1e-3, atol=1e-5)
    assert seen[1].item() == pytest.approx(seen[0].item(), rel=1e-5)


# ------------------------------------------------------------------------------------ tests of the loss
@pytest.mark.parametrize("settings", [{}, {"mu": 5.0}, {"tau": 0.1}, {"mu": 0.1, "tau": 1.0}], ids=str)
def test_penalty_is_the_naive_one_whatever_the_length_of_the_representation(settings: dict) -> None:
    check_penalty(Moon(**settings))


def test_a_small_temperature_does_not_overflow() -> None:
    """At tau = 0.01, exp(cos / tau) of alike representations is more than a float32 can hold."""
    check_penalty(Moon(tau=0.01), LeNet5(), distance=0.003)


@pytest.mark.parametrize("tau", [0.01, 0.5, 1.0])
def test_against_the_received_model_itself_it_is_the_logarithm_of_two_without_gradient(tau: float) -> None:
    method = Moon(tau=tau)
    setting = setting_of(method)
    start, buffers = setting.local.start, setting.local.buffers
    for previous in ((start, buffers), (start.clone(), buffers.clone())):
        step_state = dict(zip(("weights", "buffers"), previous, strict=True))
        gradient, value = setting.step.differentiate(
            lambda outputs, step_state=step_state: added_to(method, outputs, setting, step_state)
        )
        assert value.item() == pytest.approx(math.log(2), rel=1e-6)
        assert gradient.abs().max() < 1e-6


@models
def test_local_training_is_that_of_deep_copies_in_evaluation_mode(model: Model) -> None:
    check_local_training(Moon(), model)


@pytest.mark.parametrize(
    "method", [Moon(mu=5.0, tau=0.1), Moon(first="initial"), Moon(first="random")], ids=str
)
def test_local_training_with_other_settings(method: Moon) -> None:
    check_local_training(method)


def test_frozen_models_do_not_change() -> None:
    check_frozen_models_do_not_change(Moon())
    check_frozen_models_do_not_change(Moon(head="mlp", first="random"))


def test_feedback_alignment_acts_on_both_terms_and_not_on_the_frozen_models() -> None:
    """One backward pass for cross entropy and contrastive loss, errors of both rerouted."""
    flfa = Flfa(strategy="fixed", layers=("stage1.project", "head_conv1.0"), feedback="random")
    federation = trained(Moon(first="initial"), flfa, rounds=1)
    step = step_of(federation, weights=elsewhere(federation, seed=3)[0])
    server, hooks = federation.server, step.hooks
    names = [layer.name for layer in federation.model.layout.layers]
    student = replica(federation, federation.model.weights, server.buffers)
    received = replica(federation, server.weights, server.buffers).eval()
    initial = replica(federation, *federation.task.initialise()).eval()
    routed = {
        student.get_submodule(name): hooks.step_states["flfa"][f"feedback.{names.index(name)}"]
        for name in flfa.layers
    }

    def gradient(mu: float) -> Tensor:
        own = features(student, step.images)
        with torch.no_grad():
            others = [features(other, step.images) for other in (received, initial)]
        loss = functional.cross_entropy(student.classifier(own), step.labels) + mu * contrast(
            own, *others, 0.5
        )
        return gradient_of(loss, student)

    found = step.differentiate()[0]
    with feedback(routed):
        expected = gradient(mu=1.0)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        assert (gradient(mu=0.0) - expected).norm() > 0.01 * expected.norm()
    assert (gradient(mu=1.0) - expected).norm() > 0.1 * expected.norm()


# ------------------------------------------------------------------------------------ the previous model
def test_previous_model_is_the_one_that_the_client_trained_last() -> None:
    """The step state holds the weights that the client trained last, not those uploaded; bit for bit."""
    method = Moon()
    federation = simulation(method, Ecgr(), executor=Tracing, fraction=0.5)
    previous: dict[int, Weights] = {}
    replaced = returned = 0
    for number in range(5):
        federation.round(number)
        for update in federation.executor.updates:
            step_states = [
                step.step_states[method.name] for step in federation.executor.of(update.client, number)
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


def test_first_participation_is_federated_averaging_bit_for_bit() -> None:
    """Bit for bit federated averaging for clients that are new, in any round, and for no others."""
    method = Moon()
    federation, plain = (simulation(one, executor=Tracing, fraction=0.5) for one in (method, FedAvg()))
    known: set[int] = set()
    late = 0
    for number in range(4):
        plain.server = replace(federation.server, states=plain.server.states)
        federation.round(number)
        plain.round(number)
        for ours, theirs in zip(federation.executor.updates, plain.executor.updates, strict=True):
            same = torch.equal(ours.weights, theirs.weights) and torch.equal(ours.buffers, theirs.buffers)
            assert same == (ours.client not in known)
            assert torch.equal(ours.loss, theirs.loss) == same
            late += number > 0 and same
        known |= {update.client for update in federation.executor.updates}
    assert late, "no client came late"


def test_first_round_is_federated_averaging_bit_for_bit() -> None:
    plain = trained(FedAvg(), rounds=1, fraction=1.0)
    for method in (Moon(), Moon(first="random")):
        ours = trained(method, rounds=1, fraction=1.0)
        assert_same_model(ours, plain)
        assert rows_of(ours, "train") == rows_of(plain, "train")


@pytest.mark.parametrize("first", ["skip", "initial", "random"])
def test_without_weight_it_is_federated_averaging_bit_for_bit(first: str) -> None:
    ours = trained(Moon(mu=0.0, first=first), rounds=3)
    assert_same_model(ours, trained(FedAvg(), rounds=3))
    assert not any(state["moon"] for state in ours.clients.values()), "clients keep what nobody uses"


def carries_of_new_clients(first: str, head: str = "none", seed: int = 0) -> dict[tuple[int, int], State]:
    """What stands in for the previous model of clients that have none, by round and client."""
    federation = trained(Moon(first=first, head=head), rounds=4, fraction=1 / 3, seed=seed, executor=Tracing)
    step_states: dict[int, dict[tuple[int, int], State]] = {}
    for step in federation.executor.steps:
        step_states.setdefault(step.client, {}).setdefault(
            (step.round, step.client), step.step_states["moon"]
        )
    return {
        key: step_state for by_round in step_states.values() for key, step_state in [min(by_round.items())]
    }


def test_initial_stand_in_is_the_model_the_run_started_from() -> None:
    federation = simulation()
    step_states = carries_of_new_clients("initial")
    assert {number for number, _ in step_states} > {0}
    for step_state in step_states.values():
        assert torch.equal(step_state["weights"], federation.server.weights)
        assert torch.equal(step_state["buffers"], federation.server.buffers)


@pytest.mark.parametrize("head", ["none", "mlp"])
def test_random_stand_in_is_each_clients_own_from_the_second_round_on(head: str) -> None:
    step_states = carries_of_new_clients("random", head)
    assert not any(step_state for (number, _), step_state in step_states.items() if number == 0)
    late = {client: step_state for (number, client), step_state in step_states.items() if number > 0}
    assert len(late) >= 2
    federation = simulation(Moon(head=head))
    drawn = [federation.server.weights, *(step_state["weights"] for step_state in late.values())]
    for index, one in enumerate(drawn):
        for slot in federation.model.layout.weights:
            values = slot.of(one)
            bound = values[0].numel() ** -0.5  # PyTorch draws uniformly in +-1/sqrt(fan in)
            assert 0.9 * bound < values.abs().max() <= bound
            for other in drawn[:index]:
                assert (values == slot.of(other)).double().mean() < 0.01, slot.name
    for step_state in late.values():
        assert torch.equal(step_state["buffers"], federation.server.buffers)

    again, seeded = carries_of_new_clients("random", head), carries_of_new_clients("random", head, seed=1)
    for key, step_state in step_states.items():
        assert step_state.keys() == again[key].keys()
        assert all(torch.equal(step_state[name], again[key][name]) for name in step_state)
    others = [step_state["weights"] for step_state in seeded.values() if step_state]
    assert others
    assert not any(torch.equal(other, one) for other in others for one in drawn)


def test_drawing_a_stand_in_changes_nothing_else() -> None:
    """Clients sampled, batches and dropout are those of a run that draws none."""
    one, two = (trained(Moon(first=first), rounds=3, executor=Tracing) for first in ("skip", "random"))
    assert [row["clients"] for row in rows_of(one, "train")] == [
        row["clients"] for row in rows_of(two, "train")
    ]
    for first, second in zip(one.executor.steps, two.executor.steps, strict=True):
        assert torch.equal(first.chosen, second.chosen)


# ------------------------------------------------------------------------------------ the projection head
@pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5(), EcgrCnn()], ids=by_name)
def test_projection_head_is_two_linear_layers_before_the_classifier(model: Model) -> None:
    plain, projected = (simulation(Moon(head=head), model=model) for head in ("none", "mlp"))
    width = plain.network.classifier.in_features
    *before, (name, head), (last, classifier) = projected.network.named_children()
    assert [block for block, _ in before] == [block for block, _ in plain.network.named_children()][:-1]
    assert (name, last) == ("projection", "classifier")
    assert [type(module) for module in head] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [head[0].weight.shape, head[2].weight.shape] == [(width, width), (256, width)]
    assert head[0].bias is not None and head[2].bias is not None
    assert isinstance(classifier, nn.Linear)
    assert classifier.weight.shape == (10, 256)
    images, _ = projected.data.train.batch(torch.arange(3))
    assert projected.network.features(images).shape == (3, 256)
    own = plain.network.classifier.weight.numel() + (10 if plain.network.classifier.bias is not None else 0)
    added = width * width + width + 256 * width + 256 + 10 * 256 + 10
    assert len(projected.server.weights) == len(plain.server.weights) - own + added


@models
def test_projection_head_does_not_change_how_other_layers_are_drawn(model: Model) -> None:
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


@models
def test_with_the_head_projected_representations_are_compared(model: Model) -> None:
    check_local_training(Moon(head="mlp"), model)


def test_the_head_is_trained_sent_and_averaged() -> None:
    federation = simulation(Moon(head="mlp"), executor=Tracing)
    start = federation.server.weights
    federation.round(0)
    shares = torch.tensor([update.samples for update in federation.executor.updates]).double()
    mean = (shares / shares.sum()) @ torch.stack([u.weights for u in federation.executor.updates]).double()
    for slot in federation.model.layout.parameters:
        if slot.name.startswith("projection."):
            assert not torch.equal(slot.of(federation.server.weights), slot.of(start)), slot.name
            torch.testing.assert_close(
                slot.of(federation.server.weights).double(), slot.of(mean), rtol=1e-6, atol=1e-7
            )
