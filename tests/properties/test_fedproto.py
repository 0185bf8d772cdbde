"""FedProto: class means against naive sums, the pull towards them, and nearest-mean decisions."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.engine.evaluation import test_clients as decisions_of_all
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedproto import FedProto
from fltrain.models.network import Network

from .helpers import digits, local_of, skewed, with_tests
from .ordinary import cross_entropy, features, replica
from .test_local import check_own_round, initial_models, taking_part

Means = dict[int, Tensor]
"""Mean features by class."""

FEW = ([0, 1], [0, 1, 2], [0, 3], [1, 2])
"""Clients 0 and 1 lack classes 3, 7 and 8; in the last round no client has 8, which client 3 had before."""


def describe(network: Network, images: Tensor, labels: Tensor, sums: Means, counts: dict[int, int]) -> None:
    """Add the features of images to the sums of their classes, one by one; the network's mode stays."""
    with torch.no_grad():
        seen = features(network, images)
    for feature, label in zip(seen.double(), labels.tolist(), strict=True):
        sums[label] = sums.get(label, 0) + feature
        counts[label] = counts.get(label, 0) + 1


def check_description(sent: dict[str, Tensor], sums: Means, counts: dict[int, int]) -> None:
    """A client's upload: classes that it has seen, number and mean."""
    assert sent.keys() == {"classes", "counts", "means"}
    assert sent["classes"].tolist() == sorted(sums)
    assert sent["counts"].tolist() == [counts[label] for label in sorted(sums)]
    expected = torch.stack([sums[label] / counts[label] for label in sorted(sums)])
    torch.testing.assert_close(sent["means"].double(), expected, rtol=1e-4, atol=1e-5)


def known_means(federation: Simulation, name: str) -> Means:
    """The server's means, by class."""
    state = federation.server.states[name]
    if not state:
        return {}
    return {label: state["means"][label] for label in state["known"].nonzero().flatten().tolist()}


def pulled(method: FedProto, means: Means) -> Callable[[int, Network, Tensor, Tensor], Tensor]:
    """Cross entropy and lambda times the squared distances, image by image and element by element."""

    def loss(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        seen = features(network, images)
        total = functional.cross_entropy(network.classifier(seen), labels)
        for feature, label in zip(seen, labels.tolist(), strict=True):
            if label in means:
                distance = sum((a - b) ** 2 for a, b in zip(feature, means[label], strict=True))
                total = total + method.weight * distance / len(feature) / len(labels)
        return total

    return loss


every_source = pytest.mark.parametrize("source", ["post", "running", "last_epoch"])


@every_source
def test_local_training_is_cross_entropy_and_the_pull_to_the_means(source: str) -> None:
    """An ordinary loop with the pull written out, before and after classes are known."""
    method = FedProto(weight=5.0, source=source)
    federation = taking_part(method, rounds=FEW, epochs=1)
    models, unknown = initial_models(federation), []
    for number in range(len(FEW)):
        means = known_means(federation, method.name)
        unknown.append(set(range(10)) - set(means))
        check_own_round(federation, number, models, pulled(method, means) if means else cross_entropy)
    assert unknown == [set(range(10)), {3, 7, 8}, {8}, set()]
    assert len(known_means(federation, method.name)) == 10, "a mean stays without a client that has the class"


@every_source
def test_uploads_are_class_means_of_the_features(source: str) -> None:
    """Naive sums of features in evaluation mode after training, or in training mode before every step."""
    method = FedProto(source=source)
    partition = with_tests(skewed(digits()))
    federation = taking_part(
        method, rounds=([3, 5], [3, 5]), partition=partition, epochs=3, batch_size=4, last_batch="drop"
    )
    data = federation.data
    for number in range(2):
        federation.round(number)
        for update in federation.trainer.updates:
            sums, counts = {}, {}
            if method.source == "post":
                network = replica(federation, update.trained, update.buffers).eval()
                describe(network, *data.train.batch(data.clients[update.client]), sums, counts)
                every = data.class_counts[update.client]
                assert counts == {label: int(count) for label, count in enumerate(every) if count}
            else:
                steps = federation.trainer.of(update.client, number)
                before = [update.start, *(step.weights for step in steps)]
                first = 2 * len(steps) // 3 if method.source == "last_epoch" else 0
                for weights, step in list(zip(before, steps, strict=False))[first:]:
                    network = replica(federation, weights, update.buffers).train()
                    describe(network, *data.train.batch(step.chosen), sums, counts)
                epochs = 1 if method.source == "last_epoch" else 3
                assert sum(counts.values()) == epochs * (update.samples - update.samples % 4)
            check_description(update.extras[method.name], sums, counts)
    assert any(len(images) % 4 for images in (data.clients[3], data.clients[5]))


def test_the_nearest_known_mean_decides() -> None:
    """The nearest of the newest means, for all images of all clients, sampled or not."""
    method = FedProto()
    federation = taking_part(method, rounds=FEW)
    models = initial_models(federation)
    for number in range(len(FEW)):
        row = federation.round(number)[-1]
        for update in federation.trainer.updates:
            models[update.client] = update.trained, update.buffers
        means, correct = known_means(federation, method.name), []
        for client, images in enumerate(federation.data.tests):
            images, labels = federation.data.train.batch(images)
            own = replica(federation, *models[client]).eval()
            with torch.no_grad():
                for feature, label in zip(features(own, images), labels.tolist(), strict=True):
                    distances = {known: (feature - mean).norm() for known, mean in means.items()}
                    correct.append(min(distances, key=distances.get) == label)
        assert row["accuracy"] == pytest.approx(sum(correct) / len(correct))
        assert 0 < row["loss"] < 100


def test_unknown_classes_are_never_chosen() -> None:
    """Even if the placeholder of the class is the nearest; losses stay finite."""
    random = torch.Generator().manual_seed(1)
    means, known = torch.randn(10, 8, generator=random), torch.arange(10) > 3
    means[~known] = 0
    network = Network(classifier=torch.nn.Linear(8, 10))
    local = local_of(torch.zeros(1), {"means": means, "known": known})
    for seen in (torch.zeros(3, 8), torch.randn(40, 8, generator=random), 1e4 + torch.zeros(2, 8)):
        with torch.no_grad():
            decided = FedProto().predict(network, seen, local)
        assert known[decided.argmax(1)].all()
        labels = torch.arange(len(seen)) % 10
        assert functional.cross_entropy(decided, labels, reduction="none").isfinite().all()


@pytest.mark.parametrize("inference", ["nearest", "head"])
def test_before_there_are_means_the_classifier_decides(inference: str) -> None:
    method = FedProto(inference=inference)
    federation = taking_part(method)
    result = decisions_of_all(federation.trainer.clients, federation.at(0), {}, federation.data.tests)
    tests = federation.data.train.batch(torch.cat(federation.data.tests))
    network = copy.deepcopy(federation.network).eval()
    with torch.no_grad():
        losses = functional.cross_entropy(network(tests[0]), tests[1], reduction="none")
    torch.testing.assert_close(result.losses, losses, rtol=1e-4, atol=1e-5)
