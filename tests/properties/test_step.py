"""The local step as methods see it: gradients of any loss at any weights, and models that stay frozen."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.executors.sequential import FrozenModels, InPlaceStep
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedrs import FedRS
from fltrain.methods.flfa import Flfa
from fltrain.methods.moon import Moon
from fltrain.methods.types import Outputs
from fltrain.models.base import Model
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.part import Part

from .helpers import FORWARD_ORDER, by_name, changed_parameters
from .ordinary import (
    cross_entropy,
    elsewhere,
    entropy,
    features,
    federation_of,
    flat,
    gradient_of,
    replica,
    running,
    step_of,
)

models = pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)
FEEDBACK = [Flfa(strategy="fixed", layers="all", feedback=kind) for kind in ("global", "random", "direct")]


class Doubling(FedAvg):
    """A forward pass of its own, with twice the logits."""

    name: Literal["doubling"] = "doubling"

    def forward(self, network, step, local, step_state):
        said = super().forward(network, step, local, step_state)
        return replace(said, logits=2 * said.logits)


def test_gradients_are_copies() -> None:
    """A later pass does not change a gradient that was handed out."""
    step = step_of(federation_of())
    first, _ = step.differentiate(track=False)
    kept = first.clone()
    step.differentiate(entropy, track=False)
    assert torch.equal(first, kept)


# ------------------------------------------------------------------------------------ tests
@models
def test_gradient_is_that_of_an_ordinary_network(model: Model) -> None:
    """It is that of the client's own loss, or of the one given, on the batch, twice in a row."""
    federation = federation_of(model=model)
    step, server = step_of(federation, kind=InPlaceStep), federation.server
    network = replica(federation, server.weights, server.buffers)
    for _ in range(2):
        for loss, same in (
            (None, cross_entropy(network, step)),
            (entropy, entropy(Outputs(features(network, step.images), network(step.images)))),
        ):
            gradient, value = step.differentiate(loss)
            torch.testing.assert_close(gradient, gradient_of(same, network), rtol=1e-4, atol=1e-6)
            assert float(value) == pytest.approx(same.item(), rel=1e-6)
            assert not value.requires_grad
            assert gradient.norm() > 1e-3


def test_gradient_at_other_weights_leaves_the_weights_as_they_were() -> None:
    """It is taken there, and the weights are what they were, to the last bit."""
    federation = federation_of()
    step, server = step_of(federation, kind=InPlaceStep), federation.server
    here, memory = federation.model.weights.clone(), federation.model.weights.data_ptr()
    for seed in range(3):
        there, _ = elsewhere(federation, seed)
        given = there.clone()
        gradient, value = step.differentiate(at=there, track=False)
        network = replica(federation, there, server.buffers)
        loss = cross_entropy(network, step)
        torch.testing.assert_close(gradient, gradient_of(loss, network), rtol=1e-4, atol=1e-6)
        assert float(value) == pytest.approx(loss.item(), rel=1e-6)
        assert torch.equal(there, given)
        assert torch.equal(federation.model.weights, here)
        assert torch.equal(flat(federation.network.parameters()), here)
        assert federation.model.weights.data_ptr() == memory
    again = step.differentiate(track=False)[0].clone()
    untouched = step_of(federation).differentiate(track=False)[0]
    assert torch.equal(again, untouched)


@models
def test_gradient_in_a_part_of_the_parameters(model: Model) -> None:
    """Bit for bit the whole gradient in the part, zero in all other parameters; statistics alike."""
    federation = federation_of(model=model)
    slots = federation.model.layout.parameters

    def found(part: Part) -> tuple[Tensor, Tensor]:
        step = step_of(federation, kind=InPlaceStep)
        return step.differentiate(part=part)[0].clone(), federation.model.buffers.clone()

    whole, tracked = found("all")
    head = {slot.name for slot in slots if slot.name.startswith("classifier.")}
    assert head == {"classifier.weight", "classifier.bias"}
    for part, own in (("head", head), ("body", {slot.name for slot in slots} - head)):
        gradient, statistics = found(part)
        for slot in slots:
            expected = slot.of(whole) if slot.name in own else torch.zeros(slot.shape)
            assert torch.equal(slot.of(gradient), expected), slot.name
        assert torch.equal(statistics, tracked)


def test_options_act_together() -> None:
    """Head only, elsewhere, untracked: the values that each option has alone."""
    federation = federation_of()
    step, (there, _) = step_of(federation), elsewhere(federation)
    whole = step.differentiate(entropy, at=there, track=False)[0].clone()
    head = step.differentiate(entropy, at=there, track=False, part="head")[0]
    first = federation.model.layout.head
    assert torch.equal(head[first:], whole[first:])
    assert not head[:first].any()
    assert torch.equal(federation.model.buffers, federation.server.buffers)
    assert torch.equal(federation.model.weights, federation.server.weights)


def test_one_pass_is_one_batch_to_the_running_statistics() -> None:
    """With ``track`` a pass is one batch to the running statistics, without it is none."""
    federation = federation_of()
    step, server, model = step_of(federation, kind=InPlaceStep), federation.server, federation.model
    network = replica(federation, server.weights, server.buffers)
    gradient = step.differentiate(track=False)[0].clone()
    assert torch.equal(model.buffers, server.buffers)
    assert torch.equal(model.counters, server.counters)
    for batches in (1, 2):
        assert torch.equal(step.differentiate()[0], gradient)
        network(step.images)
        torch.testing.assert_close(model.buffers, running(network), rtol=1e-5, atol=1e-6)
        assert torch.equal(model.counters, server.counters + batches)
        # Elsewhere, untracked, in between.
        step.differentiate(at=elsewhere(federation)[0], track=False)


@pytest.mark.parametrize("flfa", FEEDBACK, ids=lambda method: method.feedback)
def test_plugins_change_how_errors_travel_only_where_asked(flfa: Flfa) -> None:
    """Without ``route`` errors travel as in a network that no plug-in has changed."""
    federation, plain = federation_of(flfa), federation_of()
    plain.server = replace(plain.server, weights=federation.server.weights, buffers=federation.server.buffers)
    here, _ = elsewhere(federation)
    ordinary = step_of(plain, weights=here).differentiate()[0]
    step = step_of(federation, kind=InPlaceStep, weights=here)
    assert torch.equal(step.differentiate(route=False)[0], ordinary)
    changed = changed_parameters(federation, step.differentiate()[0], ordinary)
    upstream = {name.rpartition(".")[0] for name in changed}
    assert upstream == set(FORWARD_ORDER[:-1])
    assert torch.equal(step.differentiate(route=False)[0], ordinary)


def test_the_clients_own_loss_is_that_of_its_methods() -> None:
    """Without a loss it is the hooks' one, of changed logits here; with one, hooks have no say."""
    federation = federation_of(FedRS(alpha=0.3))
    step, server = step_of(federation), federation.server
    network = replica(federation, server.weights, server.buffers)
    factor = torch.where(federation.data.class_counts[0] > 0, 1.0, 0.3)
    assert 0 < (factor < 1).sum() < 10
    restricted = functional.cross_entropy(network(step.images) * factor, step.labels)
    gradient, value = step.differentiate()
    torch.testing.assert_close(gradient, gradient_of(restricted, network), rtol=1e-4, atol=1e-6)
    assert float(value) == pytest.approx(restricted.item(), rel=1e-6)
    plain = cross_entropy(network, step)
    gradient, value = step.differentiate(
        lambda outputs: functional.cross_entropy(outputs.logits, step.labels)
    )
    torch.testing.assert_close(gradient, gradient_of(plain, network), rtol=1e-4, atol=1e-6)
    assert float(value) == pytest.approx(plain.item(), rel=1e-6)


def test_outputs_of_the_clients_own_loss_are_kept_and_no_others() -> None:
    federation = federation_of()
    step, (there, _) = step_of(federation), elsewhere(federation)
    network = replica(federation, there, federation.server.buffers)
    step.differentiate(entropy)
    assert not step.outputs
    step.differentiate(at=there, track=False)
    ((kept, of),) = step.outputs
    assert of is step
    torch.testing.assert_close(kept.features, features(network, step.images), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(kept.logits, network(step.images), rtol=1e-5, atol=1e-6)


def test_a_methods_own_forward_pass_is_that_of_the_trained_network_only() -> None:
    federation = federation_of(Doubling())
    step, server = step_of(federation), federation.server
    network = replica(federation, server.weights, server.buffers)
    doubled = functional.cross_entropy(2 * network(step.images), step.labels)
    gradient, value = step.differentiate()
    torch.testing.assert_close(gradient, gradient_of(doubled, network), rtol=1e-4, atol=1e-6)
    assert float(value) == pytest.approx(doubled.item(), rel=1e-6)
    said = step.frozen(server.weights, server.buffers)
    with torch.no_grad():
        expected = replica(federation, server.weights, server.buffers).eval()(step.images)
    torch.testing.assert_close(said.logits, expected, rtol=1e-5, atol=1e-6)


@models
def test_frozen_models_say_what_their_weights_say_and_never_change(model: Model) -> None:
    """Frozen models say what a network with their weights says; neither they nor the trained one change."""
    federation = federation_of(model=model)
    step, trained_model = step_of(federation, kind=InPlaceStep, twins=FrozenModels), federation.model
    vectors = ("weights", "buffers", "counters", "gradient")
    step.differentiate()
    before = [getattr(trained_model, name).clone() for name in vectors]
    others = [elsewhere(federation, seed) for seed in range(2)]
    given = [tensor.clone() for other in others for tensor in other]
    for training in (False, True, True, False):
        for weights, buffers in others:
            network = replica(federation, weights, buffers).train(training)
            said = step.frozen(weights, buffers, training=training)
            with torch.no_grad():
                seen = features(network, step.images)
                torch.testing.assert_close(said.features, seen, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(said.logits, network.classifier(seen), rtol=1e-5, atol=1e-6)
            assert not said.features.requires_grad and not said.logits.requires_grad
    for (held, twin), (weights, buffers) in zip(step.others.twins, others, strict=True):
        assert held[0] is weights
        assert held[1] is buffers
        assert torch.equal(twin.weights, weights)
        assert torch.equal(twin.buffers, buffers)
        assert torch.equal(twin.counters, trained_model.counters)
        assert not twin.gradient.any()
    for name, old in zip(vectors, before, strict=True):
        assert torch.equal(getattr(trained_model, name), old), name
    assert federation.network.training
    for tensor, old in zip([tensor for other in others for tensor in other], given, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_frozen_models_are_told_apart(count: int) -> None:
    """Frozen passes depend on the given weights only, not on order or number of calls."""
    federation = federation_of(model=LeNet5())
    step = step_of(federation, twins=FrozenModels, frozen=count)
    others = [elsewhere(federation, seed) for seed in range(3)]

    def check(weights: Tensor, buffers: Tensor) -> None:
        with torch.no_grad():
            expected = replica(federation, weights, buffers)(step.images)
        torch.testing.assert_close(step.frozen(weights, buffers).logits, expected, rtol=1e-5, atol=1e-6)

    for which in (0, 1, 0, 0, 2, 1, 2, 0, 1, 1):
        check(*others[which])
    for seed in range(6):  # new tensors, which may lie where those before them were
        check(*elsewhere(federation, seed))
    check(others[0][0].clone(), others[0][1])


def test_a_frozen_model_that_is_asked_again_is_not_loaded_again() -> None:
    """It stays in its twin until others have been asked for as often as there are twins."""
    federation = federation_of(model=LeNet5())
    twins = FrozenModels(federation.model, 2)
    (first, buffers), (second, _), (third, _) = (elsewhere(federation, seed) for seed in range(3))
    one, two = twins.holding(first, buffers), twins.holding(second, buffers)
    assert one is not two
    one.weights.zero_()  # a load would show
    assert twins.holding(first, buffers) is one
    assert not one.weights.any()
    assert twins.holding(third, buffers) is two
    assert torch.equal(two.weights, third)
    assert twins.holding(first, buffers) is one
    assert not one.weights.any()
    assert twins.holding(second, buffers) is two
    assert torch.equal(two.weights, second)
    assert not torch.equal(federation.model.weights, second)


def test_frozen_models_share_no_memory_with_the_trained_one() -> None:
    federation = federation_of()
    weights, buffers = elsewhere(federation)
    (twin,) = (FrozenModels(federation.model, 1).holding(weights, buffers),)
    for name in ("weights", "buffers", "counters", "gradient"):
        storages = {
            tensor.untyped_storage().data_ptr()
            for tensor in (getattr(twin, name), getattr(federation.model, name), weights, buffers)
        }
        assert len(storages) == 4, name


@pytest.mark.parametrize("flfa", FEEDBACK, ids=lambda method: method.feedback)
def test_plugins_leave_frozen_models_alone(flfa: Flfa) -> None:
    """Within the pass in which errors are rerouted, a frozen model is an ordinary network of its own."""
    federation = federation_of(Moon(first="initial"), flfa)
    here, _ = elsewhere(federation, seed=7)
    step = step_of(federation, twins=FrozenModels, weights=here)
    start, buffers = federation.server.weights, federation.server.buffers
    said: list[tuple[Tensor, Tensor]] = []

    def loss(outputs: Outputs) -> Tensor:
        assert any("forward" in module.__dict__ for module in federation.network.modules())
        for weights in (start, here):
            said.append((weights, step.frozen(weights, buffers).features))
        for _, twin in step.others.twins:
            assert not any("forward" in module.__dict__ for module in twin.network.modules())
            assert not any(module._forward_hooks for module in twin.network.modules())
        return step.hooks.loss(outputs, step)

    step.differentiate(loss)
    for weights, seen in said:
        network = replica(federation, weights, buffers).eval()
        torch.testing.assert_close(seen, features(network, step.images), rtol=1e-5, atol=1e-6)
    assert len(said) == 2
    assert not any("forward" in module.__dict__ for module in federation.network.modules())


def test_the_statistics_of_frozen_models_are_those_given() -> None:
    """Clients may have the same weights and different statistics, as with local BatchNorm."""
    federation = federation_of()
    weights, buffers = federation.server.weights, federation.server.buffers
    others = 3 * buffers + 1
    step = step_of(federation)
    outputs = [step.frozen(weights, statistics).features.clone() for statistics in (buffers, others, buffers)]
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.allclose(outputs[0], outputs[1])
