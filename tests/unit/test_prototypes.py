"""Class means of features, and separate classifiers, by hand and against ordinary loops."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.methods.fedgh import FedGh
from fltrain.methods.ops import classifier_head as heads
from fltrain.methods.ops.prototypes import class_sums, combine, describe, distance_to_means, renewed, table
from fltrain.models.flat import FlatModel, Layout
from fltrain.models.network import Network

from .helpers import CPU

LABELS = torch.tensor([3, 0, 3, 3, 0])
FEATURES = torch.tensor([[1.0, 2.0], [5.0, 7.0], [3.0, 4.0], [8.0, 0.0], [1.0, -1.0]])

# Two clients have class 0, one class 1, no client class 2, and two class 3, whose means agree.
COUNTS = torch.tensor([[1.0, 0.0, 0.0, 2.0], [3.0, 2.0, 0.0, 5.0]])
MEANS = torch.tensor(
    [[[2.0, 0.0], [0.0, 0.0], [0.0, 0.0], [8.0, -2.0]], [[6.0, 4.0], [1.0, 1.0], [0.0, 0.0], [8.0, -2.0]]]
)
AVERAGES = {
    "weighted": [[5.0, 3.0], [1.0, 1.0], [0.0, 0.0], [8.0, -2.0]],
    "plain": [[4.0, 2.0], [1.0, 1.0], [0.0, 0.0], [8.0, -2.0]],
    "fedproto": [[2.5, 1.5], [1.0, 1.0], [0.0, 0.0], [4.0, -1.0]],
}


def test_a_client_describes_the_classes_that_it_has() -> None:
    counts, sums = class_sums(FEATURES, LABELS, classes=5)
    assert counts.tolist() == [2, 0, 0, 3, 0]
    assert sums.tolist() == [[6, 6], [0, 0], [0, 0], [12, 6], [0, 0]]
    sent = describe(counts, sums)
    assert {name: value.tolist() for name, value in sent.items()} == {
        "classes": [0, 3],
        "counts": [2, 3],
        "means": [[3, 3], [4, 2]],
    }


def test_descriptions_become_a_table_with_zeros_where_a_client_has_no_images() -> None:
    sent = [describe(own, own[:, None] * means) for own, means in zip(COUNTS, MEANS, strict=True)]
    assert [one["classes"].tolist() for one in sent] == [[0, 3], [0, 1, 3]]
    counts, means = table(sent, classes=4)
    assert torch.equal(counts, COUNTS)
    assert torch.equal(means, MEANS)


def test_the_average_by_images_is_the_mean_of_all_images() -> None:
    """For any division over clients; the plain average is not."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(60, 4, generator=random), torch.arange(60) % 3
    clients = torch.split(torch.randperm(60, generator=random), [10, 30, 20])
    sent = [describe(*class_sums(features[own], labels[own], 3)) for own in clients]
    expected = torch.stack([features[labels == label].mean(0) for label in range(3)])
    torch.testing.assert_close(combine(*table(sent, 3), "weighted")[0], expected)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(combine(*table(sent, 3), "plain")[0], expected)


def test_classes_without_a_description_keep_their_mean() -> None:
    first = renewed({"other": torch.ones(1)}, *combine(COUNTS, MEANS, "weighted"))
    assert first["known"].tolist() == [True, True, False, True]
    counts = torch.tensor([[0.0, 4.0, 1.0, 0.0]])
    means = torch.tensor([[[0.0, 0.0], [7.0, 7.0], [9.0, 9.0], [0.0, 0.0]]])
    second = renewed(first, *combine(counts, means, "weighted"))
    assert second["means"].tolist() == [[5, 3], [7, 7], [9, 9], [8, -2]]
    assert second["known"].tolist() == [True] * 4
    assert second["other"].tolist() == [1]
    assert first["means"].tolist() == AVERAGES["weighted"]


def test_distances_from_the_means_by_hand() -> None:
    features = FEATURES.clone().requires_grad_()
    means, known = torch.ones(4, 2), torch.tensor([True, False, False, True])
    labels = torch.tensor([3, 0, 1, 3, 2])
    distances = distance_to_means(features, labels, means, known)
    assert distances.tolist() == [1, 52, 0, 50, 0]
    distances.sum().backward()
    assert features.grad.tolist() == [[0, 2], [8, 12], [0, 0], [14, -2], [0, 0]]


def classifier_of(kind: str) -> tuple[nn.Module, Layout]:
    """The classifier of a network with 5 features and 3 classes, and the layout of its parameters."""
    torch.manual_seed(0)
    classifier = {
        "linear": lambda: nn.Linear(5, 3),
        "without bias": lambda: nn.Linear(5, 3, bias=False),
        "two layers": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
    }[kind]()
    network = Network(flatten=nn.Flatten(), body=nn.Linear(4, 5), classifier=classifier)
    model = FlatModel(network, torch.zeros(1, 1, 2, 2, device=CPU))
    return network.classifier, model.layout


def ordinary(classifier: nn.Module, head: Tensor) -> nn.Module:
    """A copy of the classifier with these parameters."""
    other = copy.deepcopy(classifier)
    nn.utils.vector_to_parameters(head.clone(), other.parameters())
    return other


kinds = pytest.mark.parametrize("kind", ["linear", "without bias", "two layers"])


def some_head(classifier: nn.Module, seed: int = 1) -> Tensor:
    size = sum(parameter.numel() for parameter in classifier.parameters())
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@kinds
def test_a_classifier_can_be_applied_with_other_parameters(kind: str) -> None:
    """Gradients reach the features and the given parameters, not the classifier's own ones."""
    classifier, layout = classifier_of(kind)
    head, before = some_head(classifier), copy.deepcopy(classifier.state_dict())
    other = ordinary(classifier, head)
    features = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    ours, theirs = (features.clone().requires_grad_() for _ in range(2))
    logits, expected = heads.logits(classifier, heads.parameters(layout, head), ours), other(theirs)
    torch.testing.assert_close(logits, expected)
    assert not torch.allclose(logits, classifier(features))
    for parameter in classifier.parameters():
        parameter.grad = None
    logits.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert all(parameter.grad is None for parameter in classifier.parameters())
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())


def server_of(classifier: nn.Module, layout: Layout, head: Tensor) -> tuple[SimpleNamespace, dict]:
    """A minimal task for training, and the state of a server that has trained three times."""
    network = SimpleNamespace(classifier=classifier)
    return SimpleNamespace(network=network, layout=layout, seed=5), {"head": head, "trained": torch.tensor(3)}


@kinds
@pytest.mark.parametrize(("batch", "epochs"), [(4, 1), (4, 3), (None, 2), (100, 1)])
def test_training_a_classifier_is_ordinary_sgd(kind: str, batch: int | None, epochs: int) -> None:
    """Equal to ``torch.optim.SGD`` on a copy with the same shuffles; inputs are unchanged."""
    classifier, layout = classifier_of(kind)
    head = some_head(classifier)
    given, other = head.clone(), ordinary(classifier, head)
    features = torch.randn(11, 5, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(11) % 3
    settings = {"lr": 0.3, "epochs": epochs, "batch": batch}
    task, state = server_of(classifier, layout, head)
    after = heads.train(FedGh(), task, state, features, labels, **settings)
    found, random = after["head"], FedGh().random(task, round=3)
    optimiser = torch.optim.SGD(other.parameters(), lr=0.3)
    for _ in range(epochs):
        order = random.permutation(11)
        for first in range(0, 11, batch or 11):
            chosen = order[first : first + (batch or 11)]
            optimiser.zero_grad()
            functional.cross_entropy(other(features[chosen]), labels[chosen]).backward()
            optimiser.step()
    torch.testing.assert_close(found, nn.utils.parameters_to_vector(other.parameters()).detach())
    assert torch.equal(head, given)
    assert not found.requires_grad
    assert after["trained"] == 4
