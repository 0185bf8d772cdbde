"""FedRS: the logits of classes that a client lacks are restricted, in training only and by its own counts."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.data.prepared import Partition
from fltrain.engine.executors.sequential import InPlaceStep
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedrs import FedRS
from fltrain.models.network import Network

from .helpers import Tracing, assert_same_model, digits, local_of, simulation, trained
from .ordinary import check_round, check_testing, replica, step_of

POOR = 0
"""A client of the small federation that has images of classes 0, 1 and 2 only."""


def everyone_has_all_classes() -> Partition:
    """Three clients with images of each class, in different numbers."""
    labels = digits().train_labels
    by_label = np.argsort(labels, kind="stable")
    clients = [by_label[0::4], by_label[1::4], np.concatenate([by_label[2::4], by_label[3::4]])]
    assert all(len(set(labels[own])) == 10 for own in clients)
    return Partition(clients, digest="")


def factors(federation: Simulation, alpha: float) -> list[Tensor]:
    """Of each client: 1 for the classes that it has training images of, else alpha."""
    labels = federation.data.train.labels.tolist()
    owned = [{labels[image] for image in images.tolist()} for images in federation.data.clients]
    return [torch.tensor([1.0 if label in own else alpha for label in range(10)]) for own in owned]


# ------------------------------------------------------------------------------------ checks of a method


def gradient_of_the_classifier(method: FedRS) -> tuple[Tensor, Tensor, InPlaceStep, Simulation]:
    """Gradient of the classifier's weight and bias in a step of the client that lacks classes."""
    federation = trained(method, rounds=1)
    step = step_of(federation, client=POOR)
    gradient, _ = step.differentiate()
    slots = {slot.name: slot for slot in federation.model.layout.parameters}
    rows = [slots[f"classifier.{name}"].of(gradient).clone() for name in ("weight", "bias")]
    return *rows, step, federation


# ------------------------------------------------------------------------------------ tests
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9])
def test_local_training_is_cross_entropy_of_restricted_logits(alpha: float) -> None:
    """Two rounds of cross entropy on restricted logits, bias included, against an ordinary loop."""
    method = FedRS(alpha=alpha)
    federation = simulation(method, executor=Tracing)
    factor = factors(federation, method.alpha)
    assert len({tuple(own.tolist()) for own in factor}) > 2

    def loss(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(factor[client] * network(images), labels)

    for number in range(2):
        check_round(federation, number, loss)


@pytest.mark.parametrize("mode", ["binary", "frequency"])
def test_without_restriction_it_is_federated_averaging_bit_for_bit(mode: str) -> None:
    assert_same_model(trained(FedRS(alpha=1.0, mode=mode), rounds=3), trained(FedAvg(), rounds=3))


def test_without_restriction_all_factors_are_one_bit_for_bit() -> None:
    """Whatever the counts, also where 1 - n / max n is rounded."""
    counts = torch.arange(4097, dtype=torch.float32)
    for mode in ("binary", "frequency"):
        step_state = FedRS(alpha=1.0, mode=mode).client_init(local_of(torch.zeros(1), counts=counts))
        assert torch.equal(step_state["factor"], torch.ones(4097))


def test_clients_with_all_classes_are_federated_averaging_bit_for_bit_in_binary_mode() -> None:
    settings = {"partition": everyone_has_all_classes(), "rounds": 3, "fraction": 1.0}
    plain = trained(FedAvg(), **settings)
    for alpha in (0.0, 0.5):
        assert_same_model(trained(FedRS(alpha=alpha), **settings), plain)
    by_frequency = trained(FedRS(mode="frequency"), **settings)
    assert not torch.equal(by_frequency.server.weights, plain.server.weights)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_rows_of_missing_classes_are_pushed_by_alpha(alpha: float) -> None:
    """alpha mean(prob'_c h), and alpha mean(prob'_c) for the bias, where prob' are restricted predictions."""
    method = FedRS(alpha=alpha)
    weight, bias, step, federation = gradient_of_the_classifier(method)
    server, (factor, *_) = federation.server, factors(federation, method.alpha)
    network = replica(federation, server.weights, server.buffers)
    with torch.no_grad():
        seen = network.features(step.images)
        restricted = factor * (seen @ network.classifier.weight.T + network.classifier.bias)
        probabilities = restricted.exp() / restricted.exp().sum(1, keepdim=True)
    missing = [label for label in range(10) if label not in (0, 1, 2)]
    for label in missing:
        pushed = probabilities[:, label]
        expected = method.alpha * (pushed[:, None] * seen).mean(0)
        torch.testing.assert_close(weight[label], expected, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(bias[label], method.alpha * pushed.mean(), rtol=1e-4, atol=1e-7)
        assert weight[label].any() == (method.alpha > 0)
        assert bias[label].any() == (method.alpha > 0)
    for label in (0, 1, 2):
        assert weight[label].any()


def test_full_restriction_leaves_rows_of_missing_classes_alone_but_for_weight_decay() -> None:
    """A gradient of exactly zero from the loss; weight decay still shrinks the rows."""
    settings = {"fraction": 1.0, "executor": Tracing}
    for decay, shrunk in ((0.0, 1.0), (0.1, 1 - 0.05 * 0.1)):
        federation = simulation(FedRS(alpha=0.0), weight_decay=decay, momentum=0.0, **settings)
        start = federation.server.weights
        federation.round(0)
        step = federation.executor.of(POOR)[0]
        for slot in federation.model.layout.parameters[-2:]:
            rows, before = slot.of(step.weights), slot.of(start)
            if not decay:
                assert torch.equal(rows[3:], before[3:])
            torch.testing.assert_close(rows[3:], shrunk * before[3:], rtol=1e-6, atol=0)
            assert not torch.equal(rows[:3], before[:3])


def test_factors() -> None:
    """By hand, for 4, 2, 1 and no images of a class."""
    counts = torch.tensor([4.0, 2.0, 1.0, 0.0])
    logits = torch.tensor([[1.0, -2.0, 3.0, -4.0]])
    for mode, expected in (
        ("binary", [1.0, -2.0, 3.0, -1.0]),
        # 1/4 + 3/4 n / 4: 1, 5/8, 7/16, 1/4
        ("frequency", [1.0, -1.25, 1.3125, -1.0]),
    ):
        restricted = FedRS(alpha=0.25, mode=mode)
        local = local_of(torch.zeros(1), counts=counts)
        step_state = restricted.client_init(local)
        for label in range(4):
            found = restricted.criterion(logits, torch.tensor([label]), local, step_state)
            wanted = functional.cross_entropy(torch.tensor([expected]), torch.tensor([label]))
            assert float(found) == pytest.approx(float(wanted), rel=1e-6)


def test_counts_are_those_of_the_clients_own_training_images() -> None:
    """They are those of the client's own training images, not of its test images, nor of other clients."""
    method = FedRS(alpha=0.25)
    data = digits()
    labels = np.concatenate([data.train_labels, data.test_labels])
    # Client k trains on classes 3k to 3k + 3 and sets aside images of all classes; class 9 is with all.
    groups = [np.flatnonzero(np.isin(labels, [3 * k, 3 * k + 1, 3 * k + 2, 9])) for k in range(3)]
    clients = [group[::2] for group in groups]
    tests = [np.concatenate([group[1::2], np.arange(k, 160, 9)]) for k, group in enumerate(groups)]
    assert all(len(set(labels[own])) > 4 for own in tests)
    federation = simulation(
        method, partition=Partition(clients, digest="", tests=tests), fraction=1.0, executor=Tracing
    )
    federation.round(0)
    for client in range(3):
        own = {3 * client, 3 * client + 1, 3 * client + 2, 9}
        expected = [1.0 if label in own else method.alpha for label in range(10)]
        steps = federation.executor.of(client)
        assert steps
        for step in steps:
            assert step.step_states[method.name]["factor"].tolist() == expected


@pytest.mark.parametrize("method", [FedRS(alpha=0.0), FedRS(alpha=0.1), FedRS(mode="frequency")], ids=str)
def test_predictions_in_testing_do_not_depend_on_alpha(method: FedRS) -> None:
    check_testing(method)
