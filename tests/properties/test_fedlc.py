"""FedLC: tau n_c^(-1/4) off each logit, by the client's own counts, and classes that it lacks."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedlc import FedLC
from fltrain.models.network import Network
from fltrain.runs.spec import RunSpec

from .helpers import (
    FULL_BATCH,
    Tracing,
    assert_same_model,
    digits,
    local_of,
    simulation,
    trained,
)
from .ordinary import check_round, check_testing, step_of

POOR = 0
"""A client of the small federation that has images of classes 0, 1 and 2 only."""

CHOICES = [
    {"missing": "mask"},
    {"missing": "clamp"},
    {"missing": "eps"},
    {"missing": "clamp", "denominator": "exclusive"},
    {"missing": "eps", "denominator": "exclusive"},
]
choices = pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: "-".join(chosen.values()))


def equal_counts() -> Partition:
    """Two clients with four images of each class."""
    labels = digits().train_labels
    of_class = [np.flatnonzero(labels == label)[:8] for label in range(10)]
    assert {len(own) for own in of_class} == {8}
    return Partition([np.concatenate([own[part::2] for own in of_class]) for part in (0, 1)], digest="")


def one_class_each() -> Partition:
    """Ten clients, each with the images of one class."""
    labels = digits().train_labels
    return Partition([np.flatnonzero(labels == label) for label in range(10)], digest="")


# ------------------------------------------------------------------------------------ the loss, naively
def naive_loss(method: FedLC, logits: Tensor, labels: Tensor, counts: list[int]) -> Tensor:
    """-log[ e^(z_y - tau n_y^(-1/4)) / sum of the same over classes ], mean over the batch."""
    least = {"mask": 0, "clamp": 1, "eps": 1e-8}[method.missing]
    losses = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        terms = {
            c: (row[c] - method.tau / max(counts[c], least) ** 0.25).exp()
            for c in range(len(counts))
            if max(counts[c], least) > 0
        }
        others = [term for c, term in terms.items() if c != label or method.denominator == "full"]
        losses.append(-(terms[label] / sum(others)).log())
    return sum(losses) / len(losses)


# ------------------------------------------------------------------------------------ checks of a method
def check_local_training(method: FedLC) -> None:
    """A round of the naive loss against an ordinary loop, counts found in the client's training labels."""
    federation = simulation(method, executor=Tracing, fraction=1.0)
    labels = federation.data.train.labels
    counts = [labels[own].bincount(minlength=10).tolist() for own in federation.data.clients]

    def loss(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        return naive_loss(method, network(images), labels, counts[client])

    check_round(federation, 0, loss)


# What is taken off is 2, 1 and 2/3; for the missing class nothing is left, 2, or 200.
BY_HAND = {
    "mask-full": np.log(np.exp(-1) + np.exp(1) + np.exp(7 / 3)) - 1,
    "clamp-full": np.log(np.exp(-1) + np.exp(1) + np.exp(7 / 3) + np.exp(2)) - 1,
    "eps-full": np.log(np.exp(-1) + np.exp(1) + np.exp(7 / 3) + np.exp(-196)) - 1,
    "clamp-exclusive": np.log(np.exp(-1) + np.exp(7 / 3) + np.exp(2)) - 1,
    "eps-exclusive": np.log(np.exp(-1) + np.exp(7 / 3) + np.exp(-196)) - 1,
}


# ------------------------------------------------------------------------------------ tests
@choices
def test_local_training_is_that_of_the_naive_loss(chosen: dict[str, str]) -> None:
    check_local_training(FedLC(**chosen))


@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_local_training_with_other_calibrations(tau: float) -> None:
    check_local_training(FedLC(tau=tau))


def test_loss_by_hand() -> None:
    """Logits 1, 2, 3, 4, counts 1, 16, 81 and 0, label 1, tau 2: offsets 2, 1, 2/3 and what is missing."""
    counts = torch.tensor([1.0, 16.0, 81.0, 0.0])
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    for choice, value in BY_HAND.items():
        missing, denominator = choice.split("-")
        calibrated = FedLC(tau=2.0, missing=missing, denominator=denominator)
        local = local_of(torch.zeros(1), counts=counts)
        step_state = calibrated.client_init(local)
        loss = calibrated.criterion(logits, torch.tensor([1]), local, step_state)
        assert loss.item() == pytest.approx(value, rel=1e-6), choice


def test_size_of_the_calibration() -> None:
    """n^(-1/4) is 1, 0.56, 0.32 and 0.18 for 1, 10, 100 and 1000 images; 100 for 1e-8."""
    counts = torch.tensor([1.0, 10.0, 100.0, 1000.0, 0.0])
    for missing, last in (("mask", float("inf")), ("clamp", 1.0), ("eps", 100.0)):
        method = FedLC(missing=missing)
        offset = method.client_init(local_of(torch.zeros(1), counts=counts))["offset"]
        assert offset.tolist() == pytest.approx([1, 0.56234, 0.31623, 0.17783, last], rel=1e-4)


@choices
def test_without_calibration_it_is_federated_averaging_bit_for_bit(chosen: dict[str, str]) -> None:
    """No class leaves the softmax, either: plain cross entropy, whatever else is chosen."""
    assert_same_model(trained(FedLC(tau=0.0, **chosen), rounds=2), trained(FedAvg(), rounds=2))


@pytest.mark.parametrize("missing", ["mask", "clamp", "eps"])
def test_with_equal_counts_it_is_federated_averaging(missing: str) -> None:
    """A constant is taken off all logits: federated averaging up to rounding, in one step of every client."""
    method = FedLC(missing=missing)
    settings = {"partition": equal_counts(), "rounds": 1, "fraction": 1.0, "batch_size": FULL_BATCH}
    ours, plain = (trained(one, executor=Tracing, **settings) for one in (method, FedAvg()))
    for own, other in zip(ours.executor.updates, plain.executor.updates, strict=True):
        torch.testing.assert_close(own.weights, other.weights, rtol=0, atol=1e-6)
        assert own.loss.item() == pytest.approx(other.loss.item(), abs=1e-6)


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
def test_rows_of_missing_classes_have_no_gradient_under_mask(tau: float) -> None:
    """Under ``mask`` the loss has no gradient in them; it has in all others."""
    method = FedLC(tau=tau)
    federation = trained(method, rounds=1)
    gradient, loss = step_of(federation, client=POOR).differentiate()
    assert loss.isfinite() and gradient.isfinite().all()
    for slot in federation.model.layout.parameters[-2:]:
        rows = slot.of(gradient)
        assert not rows[3:].any(), slot.name
        assert all(row.any() for row in rows[:3]), slot.name


def test_rows_of_missing_classes_have_a_gradient_under_clamp() -> None:
    federation = trained(FedLC(missing="clamp"), rounds=1)
    gradient, _ = step_of(federation, client=POOR).differentiate()
    for slot in federation.model.layout.parameters[-2:]:
        assert all(row.any() for row in slot.of(gradient)), slot.name


@choices
def test_losses_of_all_batches_are_finite(chosen: dict[str, str]) -> None:
    """Also with a single class, of which there is nothing to learn under ``mask``."""
    settings = {"rounds": 1, "fraction": 1.0, "batch_size": 8, "executor": Tracing}
    for partition in (None, one_class_each()):
        federation = trained(FedLC(tau=10.0, **chosen), partition=partition, **settings)
        for update in federation.executor.updates:
            assert update.loss.isfinite()
            assert update.weights.isfinite().all()
            if partition and chosen["missing"] == "mask":
                assert update.loss == 0


def test_counts_are_those_of_the_clients_own_training_images() -> None:
    """Not of the test images that it has set aside, nor of all clients together."""
    data = digits()
    labels = np.concatenate([data.train_labels, data.test_labels])
    groups = [np.flatnonzero(np.isin(labels, [3 * k, 3 * k + 1, 3 * k + 2, 9])) for k in range(3)]
    clients = [group[::2] for group in groups]
    tests = [np.concatenate([group[1::2], np.arange(k, 160, 9)]) for k, group in enumerate(groups)]
    federation = simulation(
        FedLC(), partition=Partition(clients, digest="", tests=tests), fraction=1.0, executor=Tracing
    )
    federation.round(0)
    for client, own in enumerate(clients):
        counts = np.bincount(labels[own], minlength=10)
        expected = [count**-0.25 if count else float("inf") for count in counts.astype(float)]
        assert float("inf") in expected
        for step in federation.executor.of(client):
            assert step.step_states["fedlc"]["offset"].tolist() == pytest.approx(expected, rel=1e-6)


def test_testing_does_not_calibrate() -> None:
    check_testing(FedLC(tau=5.0, missing="clamp"))


def test_the_exclusive_denominator_is_refused_where_nothing_would_be_left_in_it() -> None:
    with pytest.raises(ValidationError, match="needs missing 'clamp' or 'eps'"):
        FedLC(denominator="exclusive")
    spec = {
        "dataset": "digits",
        "partition": {"name": "iid", "clients": 5},
        "model": "mobilenet_tiny",
        "training": {"augmentation": {"crop_padding": 0, "flip": False}},
    }
    with pytest.raises(FltrainError) as caught:
        RunSpec.parse({**spec, "method": {"name": "fedlc", "denominator": "exclusive"}}, "mine.yaml")
    message = str(caught.value)
    assert message.startswith("mine.yaml: method: denominator 'exclusive' needs missing 'clamp' or 'eps'")
    assert "\n" not in message
    for missing in ("clamp", "eps"):
        method = {"name": "fedlc", "denominator": "exclusive", "missing": missing}
        assert RunSpec.parse({**spec, "method": method}, "mine.yaml").method.missing == missing
