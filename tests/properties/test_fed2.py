"""Fed2: networks in groups of classes, and the average of each group over the clients that hold it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.experiments.work import network_work
from fltrain.methods.fed2 import Fed2
from fltrain.methods.fedma import FedMA
from fltrain.methods.types import Update
from fltrain.models.base import Model, build
from fltrain.models.decoupled import Decoupled, GroupedClassifier, decouple
from fltrain.models.network import Network
from fltrain.models.networks import MODELS
from fltrain.models.networks.fedavg_cnn import FedAvgCnn
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.networks.mobilenetv1 import MobileNetV1
from fltrain.models.networks.vgg import Vgg9, VggTiny

from .helpers import digits, drawn, simulation
from .reference import Reference, check

FEW = {"groups": 4, "decoupled": 3}
"""Four groups (of 3, 3, 2 and 2 of the ten classes) in the last three layers."""


def adapted(
    model: Model, side: int, classes: int = 10, channels: int = 1, meta: bool = False, **settings: Any
) -> Network:
    """A model's network after Fed2's changes; with ``meta`` its weights take no memory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with torch.device("meta" if meta else "cpu"):
            network = model.network(channels, side, classes)
        return Fed2(**settings).adapt(network, classes)


@pytest.mark.parametrize(
    ("classes", "groups", "sizes"), [(10, 4, [3, 3, 2, 2]), (100, 20, [5] * 20), (10, 16, [1] * 10)]
)
def test_the_class_map_has_groups_of_the_expected_sizes(classes: int, groups: int, sizes: list[int]) -> None:
    expected = tuple(group for group, size in enumerate(sizes) for _ in range(size))
    network = adapted(Mlp(), 8, classes, groups=groups)
    assert isinstance(network, Decoupled) and network.class_groups == expected
    shuffled = adapted(Mlp(), 8, classes, groups=groups, class_map="random")
    assert isinstance(shuffled, Decoupled) and shuffled.class_groups != expected
    assert sorted(shuffled.class_groups) == sorted(expected)


@pytest.mark.parametrize(
    ("settings", "millions"),
    [({"groups": 1}, 3.49), ({"entry": "grouped"}, 0.45), ({"entry": "dense"}, 0.58)],
    ids=str,
)
def test_parameters_of_vgg9(settings: dict[str, Any], millions: float) -> None:
    network = adapted(Vgg9(), 32, channels=3, norm="none", meta=True, **settings)
    assert round(sum(parameter.numel() for parameter in network.parameters()) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("model", "share"), [(Vgg9(), 0.36), (MobileNetV1(), 0.64)], ids=["vgg9", "mobilenet"]
)
def test_share_of_the_multiply_adds_of_the_plain_network(model: Model, share: float) -> None:
    pair = [adapted(model, 32, channels=3, meta=True, **case).to("meta") for case in ({}, {"decoupled": 0})]
    images = torch.zeros(2, 3, 32, 32, device="meta")
    fed2, plain = (network_work(network, images, 10) for network in pair)
    assert round((fed2.features + fed2.head) / (plain.features + plain.head), 2) == share


def test_fewer_numbers_are_sent_than_by_fedavg_and_fedma() -> None:
    def numbers(network: Network) -> int:
        return sum(parameter.numel() for parameter in network.parameters())

    for model in (Vgg9(), MobileNetV1()):
        plain = adapted(model, 32, channels=3, meta=True, decoupled=0, norm="keep")
        assert numbers(adapted(model, 32, channels=3, meta=True)) < numbers(plain)
        if isinstance(model, Vgg9):  # FedMA takes no norm layers
            assert numbers(plain) <= numbers(FedMA(mode="bbp_map").adapt(plain, 10))


def test_shared_layers_have_the_original_initial_weights() -> None:
    plain, federation = build(Vgg9(), 1, 8, 10, seed=0), simulation(Fed2(), model=Vgg9(), data=digits(8))
    for name, parameter in plain.named_parameters():
        if name.startswith(("conv1.", "conv2.")):
            assert torch.equal(parameter, federation.network.get_parameter(name)), name
    dense = simulation(Fed2(entry="dense"), model=Vgg9(), data=digits(8)).network
    assert torch.equal(plain.get_parameter("conv3.0.weight"), dense.get_parameter("conv3.0.weight"))


def test_ten_groups_keep_the_widths_of_vgg_tiny() -> None:
    """So the replications' Fed2 and FedAvg start from the same shared layers."""
    model = VggTiny(norm="none")
    plain, grouped = (
        adapted(model, 16, channels=3, groups=1, norm="keep"),
        adapted(model, 16, channels=3, decoupled=4),
    )
    for name in ("conv1.0", "conv2.0", "conv3.0"):
        assert torch.equal(plain.get_parameter(f"{name}.weight"), grouped.get_parameter(f"{name}.weight"))
    outputs = {name: len(layer.weight) for name, layer in plain.named_modules() if hasattr(layer, "weight")}
    assert [len(grouped.get_parameter(f"{name}.weight")) for name in outputs] == [*outputs.values()]


@pytest.mark.parametrize("settings", [{"groups": 1}, {"decoupled": 0}], ids=["one group", "all shared"])
def test_one_group_leaves_the_network_unchanged(settings: dict[str, Any]) -> None:
    network = MobileNetTiny().network(1, 32, 10)
    assert Fed2(norm="keep", **settings).adapt(network, 10) is network


STRUCTURES: dict[str, tuple[Model, int, str, dict[str, Any]]] = {
    "vgg9 four groups": (Vgg9(), 16, "conv4.0", {"groups": 4, "class_map": "random"}),
    "vgg9 dense": (Vgg9(), 8, "conv4.0", {"entry": "dense"}),
    "vgg9 bn": (Vgg9(), 8, "conv4.0", {"norm": "bn"}),
    "vgg9 uneven": (Vgg9(), 16, "conv4.0", {"width": "uneven"}),
    "vgg9 keep gn": (Vgg9(norm="gn"), 8, "conv4.0", {"norm": "keep", "groups": 3}),
    "lenet5": (LeNet5(), 16, "fc1.0", {"decoupled": 3}),
    "ecgr_cnn": (MODELS["ecgr_cnn"](), 16, "block2.3", {"decoupled": 4}),
    "fedavg_cnn": (FedAvgCnn(), 20, "conv2.0", {"decoupled": 3, "groups": 7}),
    "mlp": (Mlp(), 8, "fc1.0", {}),
    "mobilenetv1 dense": (MobileNetV1(), 8, "block9.pointwise", {"entry": "dense"}),
    "mobilenet_tiny": (MobileNetTiny(), 8, "stem.0", {}),
    "mobilenet_tiny uneven": (
        MobileNetTiny(),
        8,
        "stage2.project",
        {"decoupled": 3, "count": "weight_layers", "width": "uneven"},
    ),
}


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_logit_depends_on_its_own_group_only(structure: tuple[Model, int, str, dict[str, Any]]) -> None:
    """From the first decoupled layer on, it depends on no weights of other groups."""
    model, side, first, settings = structure
    network = adapted(model, side, **settings)
    assert isinstance(network, Decoupled)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout
        logits = network(drawn(6, 1, side, side))
    parameters = dict(network.named_parameters())
    depends: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for label in range(10):
        gradients = torch.autograd.grad(logits[:, label].sum(), list(parameters.values()), retain_graph=True)
        for name, gradient in zip(depends, gradients, strict=True):
            depends[name].append((gradient != 0).reshape(len(gradient), -1).any(1))
    for name, rows in depends.items():
        dependence = torch.stack(rows)
        if name in network.structure_groups:
            owners = torch.as_tensor(network.structure_groups[name])
            others = torch.tensor(network.class_groups)[:, None] != owners
            assert not (dependence & others).any() and dependence.any(), name
        else:
            assert dependence.any(1).all(), name
    assert next(name for name in parameters if name in network.structure_groups).startswith(f"{first}.")
    assert "classifier.weight" in network.structure_groups


@pytest.mark.parametrize("bias", [True, False])
def test_the_grouped_classifier_equals_separate_ones(bias: bool) -> None:
    """Groups of unequal widths, and classes in any order."""
    spans, owners = [(0, 5), (5, 9), (9, 12)], [2, 0, 1, 0, 2, 2]
    classifier = GroupedClassifier([5, 4, 3], owners, bias)
    features = drawn(7, 12)
    for label, group in enumerate(owners):
        start, stop = spans[group]
        expected = features[:, start:stop] @ classifier.weight[label, : stop - start]
        expected = expected + classifier.bias[label] if bias else expected
        torch.testing.assert_close(classifier(features)[:, label], expected, rtol=1e-5, atol=1e-6)
    classifier(features).square().sum().backward()
    reached = torch.tensor(
        [[column < spans[group][1] - spans[group][0] for column in range(5)] for group in owners]
    )
    assert torch.equal(classifier.weight.grad != 0, reached)
    assert torch.equal(classifier.weight != 0, reached)
    assert not list(classifier.buffers())
    double = classifier.double()
    assert double(features.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (MODELS["resnet18"](), {}, "this network is not a chain of layers: 'stage1.0' is a BasicBlock"),
        (MobileNetTiny(), {"decoupled": 3}, "in 10 groups, 'stage1' would add 16 to 20 channels"),
        (LeNet5(), {"width": "uneven"}, "'conv1.0' has 6 channels, too few for 10 groups"),
    ],
    ids=["resnet18", "residual", "too narrow"],
)
def test_networks_that_cannot_be_divided_into_groups_are_refused(
    model: Model, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FltrainError, match=message):
        adapted(model, 16, meta=True, **settings)


def test_networks_without_a_linear_classifier_are_refused() -> None:
    network = Network(stem=nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), classifier=nn.Flatten())
    with pytest.raises(FltrainError, match="ends in one linear classifier"):
        decouple(network, 0, [0, 1])


class Grouped(Reference):
    """Fed2: each group is averaged over the clients that hold it; without a holder it keeps its weights."""

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        classes = torch.arange(10)
        if self.method.mask_absent:  # the cross entropy over the classes that the client has
            classes = torch.tensor(self.counts(self.client)).nonzero().flatten()
        return functional.cross_entropy(network(images)[:, classes], torch.searchsorted(classes, labels))

    def serve(self, updates: Sequence[Update]) -> Tensor:
        """Row by row of every tensor."""
        network, average = self.run.network, self.weights.double().clone()
        assert isinstance(network, Decoupled)
        groups = torch.tensor(network.class_groups)
        sizes = torch.tensor([float(update.samples) for update in updates]).double()
        client_weights = sizes if self.method.weighting == "size" else torch.ones_like(sizes)
        held = []
        for update in updates:
            has_class = torch.tensor(self.counts(update.client)) > 0
            parts = [has_class[groups == group] for group in range(int(groups.max()) + 1)]
            held.append([float(part.any() if self.method.pair == "any" else part.all()) for part in parts])
        self.held = torch.tensor(held).double()
        for slot in self.run.model.layout.parameters:
            values, target = [slot.of(update.weights).double() for update in updates], slot.of(average)
            owners = network.structure_groups.get(slot.name, [None] * slot.shape[0])
            for row, group in enumerate(owners):
                shares = client_weights * (1.0 if group is None else self.held[:, group])
                if shares.sum() > 0:
                    target[row] = sum(
                        share * value[row] for share, value in zip(shares / shares.sum(), values, strict=True)
                    )
        return average


def few_classes() -> Partition:
    """Six clients; five have three classes each, the last has all ten."""
    labels = digits(16).train_labels
    few = [np.flatnonzero((labels - start) % 10 < 3)[start::5] for start in (0, 2, 4, 6, 7)]
    return Partition([*few, np.arange(0, 120, 7)], digest="")


@pytest.mark.parametrize(
    "settings",
    [
        {"pair": "any", **FEW},
        {"pair": "all", "mask_absent": True, **FEW},
        {"pair": "any", "groups": 10, "decoupled": 2, "class_map": "random"},
        {"width": "uneven", "norm": "bn", "weighting": "uniform", **FEW},
    ],
    ids=str,
)
def test_groups_are_averaged_over_the_clients_with_their_classes(settings: dict[str, Any]) -> None:
    method = Fed2(**settings)
    reference = check(Grouped, method, model=LeNet5(), partition=few_classes(), cohorts=([0, 1, 5], [2, 4]))
    assert reference.held.min() == 0, "every client holds every group: the test has no effect"
    assert method.pair == "any" or reference.held.sum(0).min() == 0, "no group is without a holder"
