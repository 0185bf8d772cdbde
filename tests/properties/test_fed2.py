"""Fed2: networks in groups of classes, and the average of each group over the clients that hold it."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.engine.simulation import Simulation
from fltrain.methods.fed2 import Fed2
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.types import Update
from fltrain.models.base import Model
from fltrain.models.build import build
from fltrain.models.decoupled import Decoupled, GroupedClassifier, PerGroup, decouple, depth
from fltrain.models.network import Network
from fltrain.models.networks import MODELS
from fltrain.models.networks.fedavg_cnn import FedAvgCnn
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.networks.mobilenetv1 import MobileNetV1
from fltrain.models.networks.vgg import Vgg9, Vgg16

from .helpers import (
    Tracing,
    assert_same_model,
    by_name,
    digits,
    local_of,
    rows_of,
    simulation,
    trained,
    update_of,
)

FEW = {"groups": 4, "decoupled": 3}
"""Four groups (of 3, 3, 2 and 2 of the ten classes) in the last three layers."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def adapted(
    model: Model, side: int, classes: int = 10, channels: int = 1, meta: bool = False, **settings: Any
) -> Network:
    """A model's network as Fed2 makes it; with ``meta`` there is no memory for the weights that it keeps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with torch.device("meta" if meta else "cpu"):
            network = model.network(channels, side, classes)
        return Fed2(**settings).adapt(network, classes)


def parameters(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def two_clients(images: int, side: int = 8) -> dict[str, Any]:
    """Settings of a federation of so many images: one client has the lower classes, the other the upper."""
    data = digits(side, train=images, test=4)
    clients = np.array_split(np.argsort(data.train_labels, kind="stable"), 2)
    return {"data": data, "partition": Partition(clients, digest=""), "fraction": 1.0}


# ------------------------------------------------------------------------------------ which classes
@pytest.mark.parametrize(
    ("classes", "groups", "sizes"),
    [(10, 4, [3, 3, 2, 2]), (10, 10, [1] * 10), (100, 20, [5] * 20), (10, 16, [1] * 10), (10, 2, [5, 5])],
)
def test_class_map(classes: int, groups: int, sizes: list[int]) -> None:
    expected = tuple(group for group, size in enumerate(sizes) for _ in range(size))
    network = adapted(Mlp(), 8, classes, groups=groups)
    assert isinstance(network, Decoupled) and network.class_groups == expected
    shuffled = adapted(Mlp(), 8, classes, groups=groups, class_map="random")
    assert isinstance(shuffled, Decoupled) and shuffled.class_groups != expected
    assert sorted(shuffled.class_groups) == sorted(expected)


def test_random_class_map_belongs_to_the_run() -> None:
    def drawn_for(seed: int) -> tuple[int, ...]:
        network = simulation(Fed2(class_map="random", **FEW), model=LeNet5(), seed=seed).network
        assert isinstance(network, Decoupled)
        return network.class_groups

    assert drawn_for(0) == drawn_for(0) != drawn_for(1)


# ------------------------------------------------------------------------------------ sizes and widths
def sizes_of_vgg9(width: Any, entry: int, pixels: int = 16) -> int:
    """Parameters of VGG-9 with its last 6 layers in 10 groups; ``entry``: of the first of them."""
    shared = width(128) if entry > 1 else 128
    hidden = [width(128), width(256), width(256), width(512), width(512)]
    weights = [
        *(3 * 9 * 32, 32 * 9 * 64, 64 * 9 * shared),
        shared // entry * 9 * hidden[0],
        *(hidden[0] // 10 * 9 * hidden[1], hidden[1] // 10 * 9 * hidden[2]),
        *(hidden[2] // 10 * pixels * hidden[3], hidden[3] // 10 * hidden[4], hidden[4] // 10 * 10),
    ]
    return sum(weights) + 32 + 64 + shared + sum(hidden) + 10


@pytest.mark.parametrize(
    ("entry", "width", "millions"),
    [("grouped", "round_up", 0.45), ("dense", "round_up", 0.58), ("grouped", "round_down", None)],
)
def test_parameters_of_vgg9(entry: str, width: str, millions: float | None) -> None:
    def rounded(channels: int) -> int:
        return channels // 10 * 10 + (10 if width == "round_up" else 0)

    assert parameters(adapted(Vgg9(), 32, channels=3, groups=1, norm="none", meta=True)) == 3_491_530
    settings: dict[str, Any] = {"channels": 3, "entry": entry, "width": width, "meta": True}
    plain = adapted(Vgg9(), 32, norm="none", **settings)
    assert parameters(plain) == sizes_of_vgg9(rounded, 10 if entry == "grouped" else 1)
    if millions:
        assert round(parameters(plain) / 1e6, 2) == millions
    norms = [32, 64, *(plain.get_submodule(f"conv{i}.0").out_channels for i in (3, 4, 5, 6))]
    assert parameters(adapted(Vgg9(), 32, norm="gn", **settings)) == parameters(plain) + 2 * sum(norms)


def widths(network: Network) -> dict[str, tuple[int, int, int]]:
    """Inputs, outputs and groups of every convolution."""
    return {
        name: (module.in_channels, module.out_channels, module.groups)
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d)
    }


@pytest.mark.parametrize(("groups", "wide"), [(10, 520), (20, 520), (100, 600)])
def test_widths_of_vgg16(groups: int, wide: int) -> None:
    found = widths(adapted(Vgg16(initialisation="pytorch"), 32, 100, groups=groups, meta=True))
    assert all(found[f"conv{i}.0"][2] == 1 for i in range(1, 11))
    assert found["conv9.0"] == (512, 512, 1)
    assert found["conv10.0"] == (512, wide, 1)
    grouped = ("conv11.0", "conv12.0", "conv13.0", "fc1.0", "fc2.0")
    assert [found[name] for name in grouped] == [(wide, wide, groups)] * 5


def test_a_separable_block_is_one_layer_or_two() -> None:
    blocks = widths(adapted(MobileNetV1(), 32, meta=True))
    assert blocks["block8.pointwise"] == (512, 520, 1)
    for block, (inputs, outputs) in {9: (520, 520), 12: (520, 1030), 13: (1030, 1030)}.items():
        assert blocks[f"block{block}.depthwise"] == (inputs, inputs, inputs)
        assert blocks[f"block{block}.pointwise"] == (inputs, outputs, 10)
    weights = widths(adapted(MobileNetV1(), 32, count="weight_layers", meta=True))
    assert weights["block10.pointwise"] == (512, 520, 1)
    assert weights["block11.depthwise"] == (520, 520, 520), "shared, but its channels are those below"
    assert [weights[f"block{block}.pointwise"][2] for block in (10, 11, 12, 13)] == [1, 10, 10, 10]
    assert depth(MobileNetV1().network(3, 32, 10)) == 15
    assert depth(MobileNetV1().network(3, 32, 10), "weight_layers") == 28


def test_depthwise_layers_before_a_dense_entry_stay_shared() -> None:
    network = adapted(MobileNetV1(), 32, entry="dense", meta=True)
    found = widths(network)
    assert found["block9.depthwise"] == (512, 512, 512)
    assert found["block9.pointwise"] == (512, 520, 1)
    assert isinstance(network, Decoupled)
    assert "block9.depthwise.weight" not in network.structure_groups
    assert "block9.pointwise.weight" in network.structure_groups


def test_uneven_groups() -> None:
    network = adapted(Vgg9(), 8, width="uneven")
    parts = network.get_submodule("conv4.0")
    assert isinstance(parts, PerGroup)
    assert [(part.in_channels, part.out_channels) for part in parts] == [(13, 13)] * 8 + [(12, 12)] * 2
    assert sum(part.out_channels for part in network.get_submodule("conv5.0")) == 256
    assert network.get_submodule("conv3.0").out_channels == 128
    assert network.classifier.weight.shape == (10, 52)
    assert [int(row.count_nonzero()) for row in network.classifier.weight] == [52] * 2 + [51] * 8


# ------------------------------------------------------------------------------------ norms, kept weights
def norms(network: Network) -> list[str]:
    """Kind of norm behind each convolution, with the groups of GroupNorm."""
    leaves = [module for module in network.modules() if not list(module.children())]
    found = []
    for module, following in pairwise(leaves):
        if isinstance(module, nn.Conv2d):
            groups = f" {following.num_groups}" if isinstance(following, nn.GroupNorm) else ""
            found.append(f"{type(following).__name__}{groups}")
    return found


def test_norms() -> None:
    def of(model: Model, side: int = 8, **settings: Any) -> list[str]:
        return norms(adapted(model, side, meta=True, **settings))

    linear = ["ReLU"] * 2  # the hidden layers that were linear maps have no norm
    shared, decoupled = ["GroupNorm 2", "GroupNorm 4", "GroupNorm 5"], ["GroupNorm 10"] * 3
    assert of(Vgg9()) == of(Vgg9(norm="bn")) == [*shared, *decoupled, *linear]
    assert of(Vgg9(), norm="bn") == ["BatchNorm2d"] * 6 + linear
    assert of(Vgg9(), norm="none") == of(Vgg9(norm="bn"), norm="none") == ["Identity"] * 6 + linear
    assert of(Vgg9(), norm="keep") == of(Vgg9(), norm="none")
    assert of(Vgg9(norm="bn"), norm="keep") == of(Vgg9(), norm="bn")
    # Groups of a plain network's GroupNorm would mix those of the structure.
    plain = Vgg9(norm="gn", norm_groups=1)
    assert of(plain, norm="keep") == ["GroupNorm 1"] * 2 + ["GroupNorm 5", *decoupled, *linear]
    assert of(LeNet5(), 16, decoupled=3) == ["GroupNorm 1"] * 2 + linear
    assert of(LeNet5(), 16, decoupled=3, norm="keep") == ["ReLU"] * 2 + linear
    tiny = of(MobileNetTiny(), decoupled=2)
    assert tiny == [f"GroupNorm {groups}" for groups in (1, 2, 2, 1, 2, 2, 1, 10)]


def test_shared_layers_keep_the_weights_that_were_drawn_for_them() -> None:
    plain, federation = build(Vgg9(), 1, 8, 10, seed=0), simulation(Fed2(), model=Vgg9(), data=digits(8))
    for name, parameter in plain.named_parameters():
        if name.startswith(("conv1.", "conv2.")):
            assert torch.equal(parameter, federation.network.get_parameter(name)), name
    dense = simulation(Fed2(entry="dense"), model=Vgg9(), data=digits(8)).network
    assert torch.equal(plain.get_parameter("conv3.0.weight"), dense.get_parameter("conv3.0.weight"))


def test_new_weights_are_drawn_as_pytorch_draws_them() -> None:
    """Uniform within one over the square root of the inputs that a neuron reads."""
    network = adapted(Vgg9(), 16)
    for name, inputs in (
        *(("conv3.0", 64 * 9), ("conv4.0", 13 * 9), ("fc1.1", 26 * 4)),
        *(("fc2.0", 52), ("classifier", 52)),
    ):
        weight, bias = network.get_parameter(f"{name}.weight"), network.get_parameter(f"{name}.bias")
        assert 0.97 * inputs**-0.5 < weight.abs().max() <= inputs**-0.5
        assert 0.5 * inputs**-0.5 < bias.abs().max() <= inputs**-0.5
        assert abs(weight.mean()) < 0.1 * inputs**-0.5


# ------------------------------------------------------------------------------------ one group
@pytest.mark.parametrize("settings", [{"groups": 1}, {"decoupled": 0}], ids=["one group", "all shared"])
@pytest.mark.parametrize(
    "model", [Vgg9(), LeNet5(), MobileNetV1(), MobileNetTiny(), FedAvgCnn()], ids=by_name
)
def test_with_one_group_the_network_stays_the_same(model: Model, settings: dict[str, Any]) -> None:
    network = model.network(1, 32, 10)
    assert Fed2(norm="keep", **settings).adapt(network, 10) is network


@pytest.mark.parametrize(
    ("norm", "plain"), [("keep", Vgg9()), ("gn", Vgg9(norm="gn"))], ids=["keep", "GroupNorm"]
)
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_with_one_group_it_is_federated_averaging_bit_for_bit(
    norm: Any, plain: Model, weighting: Any
) -> None:
    settings = {**two_clients(20), "rounds": 2}
    fed2 = trained(Fed2(groups=1, norm=norm, weighting=weighting), model=Vgg9(), **settings)
    assert_same_model(fed2, trained(FedAvg(), model=plain, **settings))


# ------------------------------------------------------------------------------------ independence
def groups_of_channels(channels: int, groups: int) -> np.ndarray:
    blocks = np.array_split(np.arange(channels), groups)
    return np.repeat(np.arange(groups), [len(block) for block in blocks])


def layer_outputs(network: Network, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What leaves each convolution, linear map and norm, groups side by side taken as one, and the logits."""
    found: dict[str, Tensor] = {}
    inside = {path for path, module in network.named_modules() if isinstance(module, PerGroup)}
    handles = [
        module.register_forward_hook(lambda _m, _a, output, path=path: found.__setitem__(path, output))
        for path, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear | nn.GroupNorm | nn.BatchNorm2d | PerGroup)
        and path.rpartition(".")[0] not in inside
    ]
    logits = network(images)
    for handle in handles:
        handle.remove()
    return found, logits


def check_jacobian(network: Network, side: int, first: str) -> None:
    """From the layer ``first`` on, a logit depends on the channels of its own group, and on no others."""
    assert isinstance(network, Decoupled)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout
        found, logits = layer_outputs(network, drawn(6, 1, side, side))
    groups = max(network.class_groups) + 1
    decoupled = list(found)[list(found).index(first) :]
    depends = {name: torch.zeros(10, found[name].shape[1], dtype=torch.bool) for name in found}
    for label in range(10):
        gradients = torch.autograd.grad(logits[:, label].sum(), list(found.values()), retain_graph=True)
        for name, gradient in zip(found, gradients, strict=True):
            depends[name][label] = (gradient != 0).reshape(*gradient.shape[:2], -1).any(2).any(0)
    for name, mask in depends.items():
        if name not in decoupled:
            assert mask.any(1).all(), name
            continue
        if name == "classifier":
            continue
        owners = torch.tensor(groups_of_channels(mask.shape[1], groups))
        allowed = torch.tensor(network.class_groups)[:, None] == owners
        assert not (mask & ~allowed).any(), name
        assert (mask & allowed).any(1).all(), name


STRUCTURES: dict[str, tuple[Model, int, str, dict[str, Any]]] = {
    "vgg9": (Vgg9(), 8, "conv4.0", {"groups": 10}),
    "vgg9 four groups": (Vgg9(), 16, "conv4.0", {"groups": 4, "class_map": "random"}),
    "vgg9 dense": (Vgg9(), 8, "conv4.0", {"entry": "dense"}),
    "vgg9 bn": (Vgg9(), 8, "conv4.0", {"norm": "bn"}),
    "vgg9 uneven": (Vgg9(), 16, "conv4.0", {"width": "uneven"}),
    "vgg9 two": (Vgg9(), 8, "fc2.1", {"decoupled": 2}),
    "vgg9 keep gn": (Vgg9(norm="gn"), 8, "conv4.0", {"norm": "keep", "groups": 3}),
    "lenet5": (LeNet5(), 16, "fc1.0", {"decoupled": 3}),
    "lenet5 all": (LeNet5(), 16, "conv1.0", {}),
    "ecgr_cnn": (MODELS["ecgr_cnn"](), 16, "block2.3", {"decoupled": 4}),
    "fedavg_cnn": (FedAvgCnn(), 20, "conv2.0", {"decoupled": 3, "groups": 7}),
    "mlp": (Mlp(), 8, "fc1.0", {}),
    "mobilenetv1": (MobileNetV1(), 8, "block9.depthwise", {"groups": 4}),
    "mobilenetv1 dense": (MobileNetV1(), 8, "block9.pointwise", {"entry": "dense"}),
    "mobilenet_tiny": (MobileNetTiny(), 8, "stem.0", {}),
    "mobilenet_tiny some": (MobileNetTiny(), 8, "stage2.expand", {"groups": 4, "decoupled": 3}),
    "mobilenet_tiny uneven": (
        MobileNetTiny(),
        8,
        "stage2.project",
        {
            "decoupled": 3,
            "count": "weight_layers",
            "width": "uneven",
        },
    ),
}
structures = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)


@structures
def test_logits_depend_on_their_own_group_only(structure: tuple[Model, int, str, dict[str, Any]]) -> None:
    model, side, first, settings = structure
    check_jacobian(adapted(model, side, **settings), side, first)


@structures
def test_weights_of_a_group_get_their_gradient_from_its_classes_only(
    structure: tuple[Model, int, str, dict[str, Any]],
) -> None:
    """Which rows the network says belong to which group; all others learn from every class."""
    model, side, _, settings = structure
    network = adapted(model, side, **settings)
    assert isinstance(network, Decoupled)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits = network(drawn(6, 1, side, side))
    moved: dict[str, dict[int, Tensor]] = {name: {} for name, _ in network.named_parameters()}
    for label in range(10):
        gradients = torch.autograd.grad(logits[:, label].sum(), list(network.parameters()), retain_graph=True)
        for name, gradient in zip(moved, gradients, strict=True):
            moved[name][label] = (gradient != 0).reshape(len(gradient), -1).any(1)
    for name, rows in moved.items():
        learned = torch.stack([rows[label] for label in range(10)])
        if name not in network.structure_groups:
            assert learned.any(1).all(), name
            continue
        owners = torch.tensor(network.structure_groups[name])
        own = torch.tensor(network.class_groups)[:, None] == owners
        assert not (learned & ~own).any(), name
        assert learned.any(), name
    assert {name.partition(".")[0] for name in network.structure_groups} >= {"classifier"}


def test_a_groups_norm_does_not_see_the_others() -> None:
    for settings in ({}, {"width": "uneven"}):
        norm = adapted(Vgg9(), 8, **settings).get_submodule("conv4.1")
        maps = drawn(2, 128 if settings else 130, 4, 4)
        owner = torch.tensor(groups_of_channels(maps.shape[1], 10))
        changed = maps.clone()
        changed[:, owner == 3] = 7 * drawn(*maps[:, owner == 3].shape, seed=1)
        before, after = norm(maps), norm(changed)
        assert torch.equal(before[:, owner != 3], after[:, owner != 3])
        assert not torch.allclose(before[:, owner == 3], after[:, owner == 3])


# ------------------------------------------------------------------------------------ naive networks
def test_hidden_layers_are_independent_linear_maps() -> None:
    """Channel-major: group k of the flattened maps is a run of features, whatever the size of the maps."""
    settings = {"groups": 4, "decoupled": 3, "norm": "none"}
    network = adapted(LeNet5(), 24, **settings).eval()
    plain = adapted(LeNet5(), 24, groups=1, norm="none").eval()
    assert [name for name, _ in network.named_children()] == [
        *("conv1", "conv2", "fc1", "fc2", "flatten", "classifier")
    ]
    images = drawn(3, 1, 24, 24)
    with torch.no_grad():
        maps = network.conv2(network.conv1(images))
        features = plain.flatten(maps)
        assert maps.shape == (3, 16, 4, 4)
        for module in (network.fc1[0], network.fc2[0]):
            shares = features.chunk(4, dim=1)
            made = zip(shares, module.weight.chunk(4), module.bias.chunk(4), strict=True)
            features = torch.cat(
                [share @ weight.flatten(1).T + bias for share, weight, bias in made], 1
            ).relu()
        torch.testing.assert_close(network.features(images), features, rtol=1e-5, atol=1e-6)
        shares = features.chunk(4, dim=1)
        logits = torch.stack(
            [
                shares[group] @ network.classifier.weight[label] + network.classifier.bias[label]
                for label, group in enumerate([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
            ],
            dim=1,
        )
        torch.testing.assert_close(network(images), logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_grouped_classifier(bias: bool) -> None:
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


def test_the_network_can_be_cut_as_before() -> None:
    plain, network = Vgg9().network(1, 8, 10), adapted(Vgg9(), 8).eval()
    assert {count: name for count, name in network.splits.items() if count < 6} == {
        count: name for count, name in plain.splits.items() if count < 6
    }
    assert list(network.splits.values()) == [*(f"conv{i}" for i in range(1, 7)), "fc1", "flatten"]
    images = drawn(2, 1, 8, 8)
    with torch.no_grad():
        for split in network.splits:
            assert torch.equal(network.upper(network.lower(images, split), split), network(images))


# ------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (MODELS["resnet18"](), {}, "this network is no chain of layers: 'stage1.0' is a BasicBlock"),
        (
            MODELS["mobilenetv2"](variant="b", shortcut_projection=True),
            {},
            "this network is no chain of layers: 'stage1.0' is a Projected",
        ),
        (MobileNetTiny(), {"decoupled": 3}, "in 10 groups, 'stage1' would add 16 to 20 channels"),
        (LeNet5(), {"width": "uneven"}, "'conv1.0' has 6 channels, too few for 10 groups"),
    ],
    ids=["resnet18", "projected", "residual", "too narrow"],
)
def test_networks_that_cannot_be_cut_are_refused(
    model: Model, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FltrainError, match=message):
        adapted(model, 16, meta=True, **settings)


def test_networks_without_a_linear_classifier_are_refused() -> None:
    network = Network(stem=nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), classifier=nn.Flatten())
    with pytest.raises(FltrainError, match="ends in one linear classifier"):
        decouple(network, 0, [0, 1])


# ------------------------------------------------------------------------------------ checks of the average
def naive_average(
    federation: Simulation, previous: Tensor, updates: list[Update], held: np.ndarray, shares: np.ndarray
) -> Tensor:
    """Row by row of every tensor: the mean over the clients that hold its group, else the previous row."""
    network, average = federation.network, previous.double().clone()
    assert isinstance(network, Decoupled)
    for slot in federation.model.layout.parameters:
        target, rows = slot.of(average), [slot.of(update.weights).double() for update in updates]
        for row in range(slot.shape[0]):
            group = (
                network.structure_groups[slot.name][row] if slot.name in network.structure_groups else None
            )
            counted = shares * (held[:, group] if group is not None else 1.0)
            if counted.sum() > 0:
                parts = [share * one[row] for share, one in zip(counted / counted.sum(), rows, strict=True)]
                target[row] = torch.stack(parts).sum(0)
    return average


HELD = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]])
"""Three clients, four groups: all hold the first, nobody the last."""


def check_average(method: Fed2) -> None:
    """Of groups that all, one, some and none of the clients hold."""
    federation = simulation(method, model=LeNet5())
    size = federation.model.layout.size
    samples = np.array([4, 1, 3])
    updates = [
        update_of(
            torch.zeros(size),
            drawn(size, seed=client),
            client,
            int(samples[client]),
            extras={method.name: {"held": torch.tensor(HELD[client], dtype=torch.bool)}},
        )
        for client in range(3)
    ]
    before = replace(federation.server, weights=drawn(size, seed=9))
    result = method.aggregate(federation.task, {}, before, updates)
    averaged = result.weights
    shares = samples / 8 if method.weighting == "size" else np.ones(3) / 3
    expected = naive_average(federation, before.weights, updates, HELD, shares)
    assert result.state == {} and averaged.dtype == torch.float32
    torch.testing.assert_close(averaged.double(), expected, rtol=1e-6, atol=1e-7)

    network = federation.network
    assert isinstance(network, Decoupled)
    for slot in federation.model.layout.parameters:
        owners = torch.tensor(network.structure_groups.get(slot.name, [-1] * slot.shape[0]))
        for group, source in ((1, updates[0].weights), (3, before.weights)):
            assert torch.equal(slot.of(averaged)[owners == group], slot.of(source)[owners == group])
    turned = method.aggregate(federation.task, {}, before, updates[::-1]).weights
    torch.testing.assert_close(turned, averaged, rtol=1e-6, atol=1e-7)


def check_round(method: Fed2, **settings: Any) -> None:
    """A round of the real loop: who holds what is read off the clients' labels."""
    federation = simulation(method, model=LeNet5(), executor=Tracing, fraction=0.5, **settings)
    network = federation.network
    assert isinstance(network, Decoupled)
    previous = federation.server.weights.clone()
    (train, *_) = federation.round(0)
    labels = federation.data.train.labels
    classes = [set(labels[federation.data.clients[client]].tolist()) for client in train["clients"]]
    members = [
        {label for label in range(10) if network.class_groups[label] == group}
        for group in range(max(network.class_groups) + 1)
    ]
    decide = {"any": lambda own, all_: bool(own & all_), "all": lambda own, all_: own >= all_}[method.pair]
    held = np.array([[decide(own, group) for group in members] for own in classes], dtype=float)
    assert held.min() == 0, "every client holds every group: nothing is shown"
    sizes = np.array([update.samples for update in federation.executor.updates], dtype=float)
    shares = sizes / sizes.sum() if method.weighting == "size" else np.ones(len(sizes)) / len(sizes)
    expected = naive_average(federation, previous, federation.executor.updates, held, shares)
    torch.testing.assert_close(federation.server.weights.double(), expected, rtol=1e-6, atol=1e-7)
    extras = [update.extras[method.name]["held"] for update in federation.executor.updates]
    assert torch.equal(torch.stack(extras).double(), torch.tensor(held))
    model = len(previous) + len(federation.server.buffers)
    assert federation.bytes_up == 3 * (4 * model + held.shape[1])


def own_classes() -> Partition:
    """Six clients with three classes each, but for the last, which has all ten."""
    labels = digits(16).train_labels
    few = [np.flatnonzero((labels - start) % 10 < 3)[start::5] for start in (0, 2, 4, 6, 7)]
    return Partition([*few, np.arange(0, 120, 7)], digest="")


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_average(weighting: Any) -> None:
    check_average(Fed2(weighting=weighting, **FEW))
    check_average(Fed2(weighting=weighting, class_map="random", **FEW))


@pytest.mark.parametrize("pair", ["any", "all"])
@pytest.mark.parametrize("settings", [FEW, {"groups": 10, "decoupled": 2, "class_map": "random"}])
def test_rounds_of_clients_with_some_classes(pair: Any, settings: dict[str, Any]) -> None:
    check_round(Fed2(pair=pair, **settings), partition=own_classes())


def test_uneven_groups_are_averaged_alike() -> None:
    check_round(Fed2(width="uneven", norm="bn", weighting="uniform", **FEW), partition=own_classes())


def test_where_all_clients_hold_all_classes_it_is_the_plain_mean() -> None:
    by_label = np.argsort(digits(16).train_labels, kind="stable")
    alike = Partition([np.sort(by_label[client::3]) for client in range(3)], digest="")
    for weighting in ("size", "uniform"):
        paired, plain = (
            trained(
                Fed2(pair=pair, weighting=weighting, **FEW), model=LeNet5(), partition=alike, fraction=1.0
            )
            for pair in ("any", "off")
        )
        torch.testing.assert_close(paired.server.weights, plain.server.weights, rtol=1e-5, atol=1e-6)


def test_pairing_changes_only_the_decoupled_weights() -> None:
    settings = {"model": LeNet5(), "partition": own_classes(), "rounds": 1}
    paired, plain = (trained(Fed2(pair=pair, **FEW), **settings) for pair in ("any", "off"))
    network = paired.network
    assert isinstance(network, Decoupled)
    for slot in paired.model.layout.parameters:
        first, second = slot.of(paired.server.weights), slot.of(plain.server.weights)
        if slot.name in network.structure_groups:
            assert not torch.allclose(first, second, atol=1e-6), slot.name
        else:
            torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)


def test_statistics_of_batchnorm_are_averaged_by_size() -> None:
    settings = {"model": LeNet5(), "partition": own_classes(), "executor": Tracing}
    federation = trained(Fed2(norm="bn", weighting="uniform", **FEW), rounds=1, **settings)
    updates = federation.executor.updates
    samples = torch.tensor([update.samples for update in updates]).double()
    buffers = torch.stack([update.buffers for update in updates]).double()
    expected = (samples / samples.sum()) @ buffers
    torch.testing.assert_close(federation.server.buffers.double(), expected, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------ absent classes
def test_absent_classes_can_be_left_out_of_the_loss() -> None:
    """The loss is the cross entropy over the classes that the client has."""
    counts = torch.tensor([3.0, 0.0, 2.0, 1.0])
    logits, labels = drawn(6, 4).requires_grad_(), torch.tensor([0, 2, 3, 0, 0, 2])
    method = Fed2(mask_absent=True)
    local = local_of(torch.zeros(1), counts=counts)
    loss = method.criterion(logits, labels, local, method.client_init(local))
    kept = torch.tensor([0, 2, 3])
    expected = functional.cross_entropy(logits[:, kept], torch.searchsorted(kept, labels))
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient[:, 1].any() and gradient[:, kept].all()


@pytest.mark.parametrize("mask_absent", [True, False])
def test_groups_of_absent_classes_train_on_negative_evidence_unless_it_is_masked(mask_absent: bool) -> None:
    method = Fed2(mask_absent=mask_absent, decoupled=3)
    settings = {"model": LeNet5(), "partition": own_classes(), "fraction": 1.0, "weight_decay": 0.0}
    federation = trained(method, rounds=1, executor=Tracing, **settings)
    slots = {slot.name: slot for slot in federation.model.layout.parameters}
    network = federation.network
    assert isinstance(network, Decoupled)
    for update in federation.executor.updates[:5]:
        held = update.extras["fed2"]["held"]
        assert 0 < held.sum() < 10
        for name in ("fc1.0.weight", "classifier.weight", "classifier.bias"):
            absent = ~held[torch.tensor(network.structure_groups[name])]
            moved = slots[name].of(update.displacement)[absent]
            assert bool(moved.any()) != mask_absent, name


# ------------------------------------------------------------------------------------ training
@pytest.mark.parametrize(
    ("model", "side"),
    [(Vgg9(), 8), (MobileNetV1(), 8), (Vgg16(), 32), (MODELS["ecgr_cnn"](), 8)],
    ids=lambda value: by_name(value) if isinstance(value, Model) else str(value),
)
def test_the_networks_of_the_paper_train(model: Model, side: int) -> None:
    settings = {**two_clients(8, side), "model": model, "rounds": 2, "lr": 0.02}
    federation = trained(Fed2(), **settings)
    first, second = (row["loss"] for row in rows_of(federation, "train"))
    assert second < first


def test_it_learns_from_clients_with_few_classes() -> None:
    federation = trained(
        Fed2(decoupled=2),
        model=LeNet5(),
        partition=own_classes(),
        fraction=1.0,
        epochs=3,
        lr=0.1,
        rounds=12,
    )
    *_, tested = rows_of(federation, "evaluation")
    assert tested["accuracy"] > 0.5
