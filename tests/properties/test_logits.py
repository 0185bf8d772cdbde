"""FedLC and FedRS: logits adjusted in training by the client's class counts and missing classes."""

import numpy as np
import pytest
from torch import Tensor
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.methods.fedlc import FedLC
from fltrain.methods.fedrs import FedRS
from fltrain.models.network import Network
from fltrain.runs.spec import RunSpec

from .helpers import Tiny, Tracing, digits, simulation
from .ordinary import check_round

CHOICES = [
    {"missing": "mask"},
    {"missing": "clamp"},
    {"missing": "eps"},
    {"missing": "clamp", "denominator": "exclusive"},
    {"missing": "eps", "denominator": "exclusive"},
]
choices = pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: "-".join(chosen.values()))


@pytest.mark.parametrize(("missing", "expected"), [("mask", 1), ("clamp", 0)])
def test_clients_of_one_class_are_named_when_a_run_starts(
    missing: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    labels = digits().train_labels
    clients = [np.flatnonzero(labels == label) for label in range(10)]
    partition = Partition(clients, digest="")
    run = simulation(FedLC(missing=missing), model=Tiny(), partition=partition, fraction=0.2)
    warnings = [record.message for record in caplog.records if "10 of 10 clients" in record.message]
    assert len(warnings) == expected
    (row, *_) = run.round(0)
    assert (row["loss"] == 0) is bool(expected)


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


@choices
def test_local_training_minimises_the_naive_loss(chosen: dict[str, str]) -> None:
    method = FedLC(tau=2.0, **chosen)
    federation = simulation(method, trainer=Tracing, fraction=1.0)
    labels = federation.data.train.labels
    counts = [labels[own].bincount(minlength=10).tolist() for own in federation.data.clients]

    def loss(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        return naive_loss(method, network(images), labels, counts[client])

    check_round(federation, 0, loss)


def test_the_exclusive_denominator_is_refused_if_it_would_be_empty() -> None:
    spec = {"dataset": "digits", "partition": {"name": "iid", "clients": 5}, "model": "mobilenet_tiny"}
    method = {"name": "fedlc", "denominator": "exclusive"}
    with pytest.raises(FltrainError, match="method: denominator 'exclusive' needs missing 'clamp' or 'eps'"):
        RunSpec.parse({**spec, "method": method}, "mine.yaml")
    for missing in ("clamp", "eps"):
        RunSpec.parse({**spec, "method": {**method, "missing": missing}}, "mine.yaml")


@pytest.mark.parametrize(
    "method", [FedRS(alpha=0.0), FedRS(alpha=0.5), FedRS(alpha=0.5, mode="frequency")], ids=str
)
def test_local_training_is_cross_entropy_of_restricted_logits(method: FedRS) -> None:
    """Two rounds of cross entropy on restricted logits, with bias, against an ordinary loop."""
    federation = simulation(method, trainer=Tracing)
    factors = []
    for own in federation.data.clients:
        counts = federation.data.train.labels[own].bincount(minlength=10)
        shares = (counts > 0).float() if method.mode == "binary" else counts / counts.max()
        factors.append(method.alpha + (1 - method.alpha) * shares)
    assert len({tuple(own.tolist()) for own in factors}) > 2

    def loss(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(factors[client] * network(images), labels)

    for number in range(2):
        check_round(federation, number, loss)


def test_counts_are_those_of_the_clients_training_images() -> None:
    """Without the client's test images and without the images of other clients."""
    data = digits()
    labels = np.concatenate([data.train_labels, data.test_labels])
    # Client k trains on classes 3k to 3k + 2 and 9, and sets aside images of all classes.
    groups = [np.flatnonzero(np.isin(labels, [3 * k, 3 * k + 1, 3 * k + 2, 9])) for k in range(3)]
    clients = [group[::2] for group in groups]
    tests = [np.concatenate([group[1::2], np.arange(k, 160, 9)]) for k, group in enumerate(groups)]
    run = simulation(partition=Partition(clients, digest="", tests=tests))
    expected = [np.bincount(labels[own], minlength=10).tolist() for own in clients]
    assert run.task.class_counts.tolist() == expected
