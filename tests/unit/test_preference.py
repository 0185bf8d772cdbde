"""Class preferences of neurons against a direct computation, and derived measures by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fltrain.analysis import class_preference as preference
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


def places(network: Network) -> dict[str, nn.Module]:
    """The module whose output is the post-activation of each layer: the ReLU behind it, else the norm."""
    order = [
        (name, module[0] if isinstance(module, PerGroup) else module, module)
        for name, module in network.named_modules()
        if isinstance(module, PerGroup) or not [*module.children()]
    ]
    parts = {id(part) for _, _, module in order if isinstance(module, PerGroup) for part in module}
    modules: dict[str, nn.Module] = {}
    for name, kind, module in order:
        if isinstance(kind, nn.Conv2d | nn.Linear | GroupedClassifier) and id(module) not in parts:
            layer, modules[name], ended = name, module, False
        elif isinstance(kind, nn.BatchNorm2d | nn.GroupNorm | nn.ReLU | nn.ReLU6) and not ended:
            modules[layer] = module
            ended = isinstance(kind, nn.ReLU | nn.ReLU6)
    return modules


def directly(network: Network, split: ImageSet) -> dict[str, Tensor]:
    """Slopes of the logits in a factor of each post-activation, by image and neuron."""
    images, labels = split.batch(torch.arange(len(split)))
    preferences = {}
    for name, module in places(network.eval()).items():
        factors: list[Tensor] = []

        def scaled(_: nn.Module, inputs: Any, output: Tensor, factors: list[Tensor] = factors) -> Tensor:
            factors.append(torch.ones(output.shape[:2], requires_grad=True))
            return output * factors[0].view(*output.shape[:2], *[1] * (output.dim() - 2))

        handle = module.register_forward_hook(scaled)
        (slope,) = torch.autograd.grad(network(images).gather(1, labels[:, None]).sum(), factors)
        handle.remove()
        means = [slope.double()[labels == label].mean(0) for label in range(CLASSES)]
        preferences[name] = torch.stack(means, 1)
    return preferences


NETWORKS: dict[str, Any] = {
    "lenet5": lambda: network_of("lenet5"),
    "vgg9 with dropout": lambda: network_of("vgg9"),
    "ecgr_cnn with BatchNorm": lambda: network_of("ecgr_cnn"),
    "mlp": lambda: network_of("mlp"),
    # A layer without ReLU is measured after its norm, before its block adds the shortcut.
    "mobilenet_tiny": lambda: network_of("mobilenet_tiny"),
    "fed2": lambda: fed2(network_of("lenet5")),
    "fed2 uneven": lambda: fed2(network_of("lenet5"), groups=3, width="uneven", decoupled=4),
}


LARGE = ("vgg9 with dropout", "ecgr_cnn with BatchNorm", "fed2 uneven")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in NETWORKS]
)
def test_preferences_equal_a_direct_computation(
    name: str, split: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preference, "_BATCH", 7)
    network = NETWORKS[name]().train()
    with torch.no_grad():
        network(split.batch(torch.arange(IMAGES))[0])  # running statistics that are not 0 and 1
    measured = class_preference(network, split, CLASSES)
    expected = directly(network, split)
    assert list(measured) == list(expected)
    for layer, wanted in expected.items():
        assert measured[layer].shape == wanted.shape and measured[layer].dtype == torch.float64
        scale = float(wanted.abs().max())
        assert scale > 0
        torch.testing.assert_close(measured[layer], wanted, rtol=1e-3, atol=1e-4 * scale, msg=layer)


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
    first = class_preference(network_of("lenet5"), split, CLASSES)
    other = class_preference(network_of("lenet5", seed=1), split, CLASSES)
    assert set(alignment([first, first, first]).values()) == {1.0}
    measured = alignment([first, other])
    assert list(measured) == list(first)
    assert measured["conv2.0"] < 1 and measured["fc1.0"] < 0.6
