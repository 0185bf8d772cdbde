"""Class preferences of neurons against a direct computation, and derived measures by hand."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fltrain.analysis.class_preference import (
    alignment,
    class_preference,
    shared_depth,
    top_classes,
    total_variance,
)
from fltrain.core.errors import FltrainError
from fltrain.data.partition.plain import Iid
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.data import FederatedData, ImageSet
from fltrain.methods.fed2 import Fed2
from fltrain.models.decoupled import Decoupled, GroupedClassifier, PerGroup
from fltrain.models.network import Network
from fltrain.models.networks import MODELS

from .helpers import CPU

IMAGES = 12
CLASSES = 4


def network_of(name: str, side: int = 16, seed: int = 0, **options: Any) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].parse({"name": name, **options}, "model").network(1, side, CLASSES)


def fed2(network: Network, **settings: Any) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Fed2(**{"groups": 2, "decoupled": 3, **settings}).adapt(network, CLASSES)


@pytest.fixture(scope="module")
def split() -> ImageSet:
    """Noise of 16 x 16 pixels; the classes have 5, 4, 2 and 1 images."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 1, 16, 16), dtype=torch.uint8, generator=random).numpy()
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor([5, 4, 2, 1]))
    labels = labels[torch.randperm(IMAGES, generator=random)].numpy()
    data = PreparedData(images, labels, images, labels, CLASSES, (0.5,), (0.3,), digest="")
    partition = Partition(Iid(clients=1).split(data.train_labels, CLASSES, seed=0), digest="")
    return FederatedData.of(data, partition, CPU).test


def leaves(module: nn.Module) -> list[nn.Module]:
    """The modules of a chain, in the order of the forward pass."""
    children = [] if isinstance(module, PerGroup) else list(module.children())
    return [leaf for child in children for leaf in leaves(child)] if children else [module]


def cuts(network: Network) -> dict[str, int]:
    """Number of leaves before the post-activations of each layer of a chain."""
    order = leaves(network)
    names = {module: name for name, module in network.named_modules()}
    layers = [
        index
        for index, module in enumerate(order)
        if isinstance(module, nn.Conv2d | nn.Linear | GroupedClassifier)
        or (isinstance(module, PerGroup) and isinstance(module[0], nn.Conv2d))
    ]
    found = {}
    for layer, following in pairwise([*layers, len(order)]):
        relu = [index for index in range(layer, following) if isinstance(order[index], nn.ReLU)]
        found[names[order[layer]]] = (relu[0] if relu else layer) + 1
    return found


def directly(network: Network, split: ImageSet) -> dict[str, Tensor]:
    """Image by image: run the chain up to the layer, then differentiate the rest with respect to its maps."""
    network = network.eval()
    order = leaves(network)
    preferences = {}
    for name, cut in cuts(network).items():
        per_class: list[list[Tensor]] = [[] for _ in range(CLASSES)]
        for index in range(len(split)):
            image, label = split.batch(torch.tensor([index]))
            with torch.no_grad():
                maps = image
                for module in order[:cut]:
                    maps = module(maps)
            variable = maps.clone().requires_grad_()
            logits = variable
            for module in order[cut:]:
                logits = module(logits)
            (slope,) = torch.autograd.grad(logits[0, label], variable)
            each = (maps[0] * slope[0]).reshape(maps.shape[1], -1)
            per_class[int(label)].append(each.sum(1).double())
        preferences[name] = torch.stack([torch.stack(values).mean(0) for values in per_class], 1)
    return preferences


CHAINS: dict[str, Any] = {
    "lenet5": lambda: network_of("lenet5"),
    "vgg9 with dropout": lambda: network_of("vgg9"),
    "ecgr_cnn with BatchNorm": lambda: network_of("ecgr_cnn"),
    "mlp": lambda: network_of("mlp"),
    "fed2": lambda: fed2(network_of("lenet5")),
    "fed2 uneven": lambda: fed2(network_of("lenet5"), groups=3, width="uneven", decoupled=4),
}


LARGE = ("vgg9 with dropout", "ecgr_cnn with BatchNorm", "fed2 uneven")


@pytest.mark.parametrize(
    "chain", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in CHAINS]
)
def test_preferences_equal_a_direct_computation(chain: str, split: ImageSet) -> None:
    network = CHAINS[chain]()
    measured = class_preference(network, split, CLASSES, batch=7)
    expected = directly(network, split)
    assert list(measured) == list(expected)
    for name, wanted in expected.items():
        assert measured[name].shape == wanted.shape and measured[name].dtype == torch.float64
        scale = float(wanted.abs().max())
        assert scale > 0
        torch.testing.assert_close(measured[name], wanted, rtol=1e-3, atol=1e-4 * scale, msg=name)


def test_preferences_in_projections_and_residual_blocks(split: ImageSet) -> None:
    """A layer without ReLU is measured after its norm, before its block adds the shortcut."""
    network = network_of("mobilenet_tiny").train()
    with torch.no_grad():
        network(split.batch(torch.arange(IMAGES))[0])  # running statistics that are not 0 and 1
    measured = class_preference(network, split, CLASSES)
    assert list(measured) == [
        *("stem.0", "stage1.expand", "stage1.depthwise", "stage1.project"),
        *("stage2.expand", "stage2.depthwise", "stage2.project", "head_conv1.0", "classifier"),
    ]
    network.eval()
    images, labels = split.batch(torch.arange(IMAGES))
    own = labels[:, None]

    def preferences(maps: Tensor, rest: Any) -> Tensor:
        variable = maps.detach().requires_grad_()
        (slope,) = torch.autograd.grad(rest(variable).gather(1, own).sum(), variable)
        each = (variable * slope).sum((2, 3)).double()
        return torch.stack([each[labels == label].mean(0) for label in range(CLASSES)], 1)

    def after(block: int) -> Any:
        return lambda maps: nn.Sequential(*list(network.children())[block:])(maps)

    stem = network.get_submodule("stem")(images)
    inside = nn.Sequential(*network.get_submodule("stage1").children())(stem)
    second = network.get_submodule("stage2")(stem + inside)
    head = network.get_submodule("head_conv1")(second)
    for name, expected in {
        "stem.0": preferences(stem, after(1)),
        "stage1.project": preferences(inside, lambda maps: after(2)(stem.detach() + maps)),
        "stage2.project": preferences(second, after(3)),
        "head_conv1.0": preferences(head, after(4)),
    }.items():
        torch.testing.assert_close(measured[name], expected.detach(), rtol=1e-4, atol=1e-6, msg=name)


def test_a_class_without_images_is_an_error(split: ImageSet) -> None:
    with pytest.raises(FltrainError, match="there are none of 4"):
        class_preference(network_of("mlp"), split, CLASSES + 1)
    with pytest.raises(FltrainError, match="there are none of 0"):
        class_preference(network_of("mlp"), split, CLASSES, (split.labels > 0).nonzero()[:, 0])


@pytest.mark.parametrize("training", [True, False])
def test_measuring_preferences_does_not_change_the_network(split: ImageSet, training: bool) -> None:
    network = network_of("ecgr_cnn").train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator = torch.get_rng_state()
    with torch.no_grad():
        class_preference(network, split, CLASSES)
    assert torch.equal(torch.get_rng_state(), generator)
    assert {module.training for module in network.modules()} == {training}
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_decoupled_neurons_have_preferences_within_their_group_only(split: ImageSet) -> None:
    network = fed2(network_of("lenet5"))
    assert isinstance(network, Decoupled) and network.class_groups == (0, 0, 1, 1)
    measured = class_preference(network, split, CLASSES)
    for name in ("fc1.0", "fc2.0"):
        first, second = measured[name].chunk(2)
        assert not first[:, 2:].any() and not second[:, :2].any(), name
        assert first.any() and second.any()
    # Each group reads its own share of the last shared maps, and all earlier maps.
    first, second = measured["conv2.0"].chunk(2)
    assert not first[:, 2:].any() and not second[:, :2].any()
    assert measured["conv1.0"].all(1).any()
    dense = class_preference(fed2(network_of("lenet5"), entry="dense"), split, CLASSES)
    assert dense["conv2.0"].all(1).any()


def test_the_top_class_has_the_largest_preference() -> None:
    preferences = torch.tensor([[0.0, 3.0, 1.0], [-1.0, -2.0, -3.0], [2.0, 5.0, 5.0], [0.0, 0.0, 0.0]])
    assert top_classes(preferences).tolist() == [1, 0, 1, -1]
    assert top_classes(torch.tensor([[0.0, -1.0, 0.0]])).tolist() == [-1]


def test_total_variance_by_hand() -> None:
    # Mean (2, 1): squared distances 5 and 5. Scaled: (1, 0), (3/5, 4/5), mean (0.8, 0.4), 0.2 each.
    preferences = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    expected = ((1 - 2) ** 2 + (0 - 2) ** 2 + (3 - 2) ** 2 + (4 - 2) ** 2) / 2
    assert total_variance(preferences) == pytest.approx(expected)
    assert total_variance(preferences, unit_norm=True) == pytest.approx(0.2)


def test_total_variance_of_special_layers() -> None:
    alike = torch.tensor([[1.0, 2.0, 3.0]]).expand(5, -1)
    assert total_variance(alike) == 0
    assert total_variance(alike, unit_norm=True) == pytest.approx(0, abs=1e-20)
    # One neuron for each of C classes: mean 1/C everywhere.
    scales = torch.tensor([[0.5], [4.0], [2.0], [8.0]])
    assert total_variance(scales * torch.eye(4), unit_norm=True) == pytest.approx(1 - 1 / 4)
    # A dead neuron stays at zero: vectors (1, 0) and (0, 0), mean (1/2, 0).
    dead = torch.tensor([[7.0, 0.0], [0.0, 0.0]])
    assert total_variance(dead, unit_norm=True) == pytest.approx(1 / 4)
    assert math.isfinite(total_variance(torch.zeros(3, 2), unit_norm=True))


@pytest.mark.parametrize(
    ("variances", "depth"),
    [
        ([0.1, 0.2, 0.3, 0.8, 0.9], 3),
        ([0.1, 0.2, 0.6, 0.2, 1.0], 2),
        ([0.1, 0.5, 0.2, 1.0], 1),
        ([0.9, 0.1, 0.1, 1.0], 0),
        ([0.1, 0.2, 0.3, 1.0], 3),
    ],
)
def test_shared_depth_of_variances(variances: list[float], depth: int) -> None:
    assert shared_depth(variances) == depth


def test_identical_clients_are_aligned_and_others_are_not(split: ImageSet) -> None:
    one = class_preference(network_of("lenet5"), split, CLASSES)
    other = class_preference(network_of("lenet5", seed=1), split, CLASSES)
    assert set(alignment([one, one, one]).values()) == {1.0}
    measured = alignment([one, other])
    assert list(measured) == list(one)
    assert measured["conv2.0"] < 1 and measured["fc1.0"] < 0.6
