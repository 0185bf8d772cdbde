"""Matching of neurons: orders that preserve functions, assignments by enumeration, growing pools."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.methods.ops.neuron_matching import Pool, align
from fltrain.models.base import Model, build
from fltrain.models.chain import Chain, chained, widened
from fltrain.models.flat import FlatModel
from fltrain.models.network import Network
from fltrain.models.networks.fedavg_cnn import FedAvgCnn
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.networks.resnet import ResNet18
from fltrain.models.networks.vgg import Vgg9, Vgg11, Vgg16

SIDE = 16
"""At this image size, LeNet-5 and VGG-9 flatten maps of 2 x 2."""


class Unbiased(Model):
    """Convolutions and classifier without biases, 8 x 8 pixels per channel before the classifier."""

    name: Literal["unbiased"] = "unbiased"
    min_side: ClassVar[int] = 1

    def network(self, channels: int, side: int, classes: int) -> Network:
        return Network(
            conv1=nn.Sequential(nn.Conv2d(channels, 5, 3, padding=1, bias=False), nn.ReLU()),
            conv2=nn.Sequential(nn.Conv2d(5, 7, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
            flatten=nn.Flatten(),
            classifier=nn.Linear(7 * (side // 2) ** 2, classes, bias=False),
        )


MODELS = pytest.mark.parametrize("model", [LeNet5(), Vgg9(), Unbiased()], ids=lambda model: model.name)


def flat(model: Model, side: int = SIDE) -> FlatModel:
    return FlatModel(build(model, 1, side, 10, seed=0).eval(), torch.zeros(1, 1, side, side))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def logits(model: FlatModel, weights: Tensor) -> Tensor:
    """Logits of random images for these weights; about 1 in size."""
    model.load(weights, model.buffers, model.counters)
    with torch.no_grad():
        return model.network(random(8, 1, SIDE, SIDE, seed=1))


@pytest.mark.parametrize(
    "model", [LeNet5(), Mlp(), FedAvgCnn(), Vgg9(), Vgg11(), Vgg16(fc_layers=1)], ids=lambda model: model.name
)
def test_chains_of_layers_are_recognised(model: Model) -> None:
    network = model.network(3, 32, 10)
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert list(chained(network)) == names


class CustomNetwork(Network):
    """A custom network: its forward pass cannot be derived from its modules."""


@pytest.mark.parametrize(
    ("network", "culprit"),
    [
        (MobileNetTiny().network(1, 8, 10), r"BatchNorm2d \(stem.1\)"),
        (ResNet18(norm="gn").network(1, 8, 10), r"GroupNorm \(stem.1\)"),
        (Network(stem=nn.Conv2d(2, 4, 3, groups=2)), r"grouped convolution \(stem\)"),
        (Network(stem=nn.Conv2d(1, 4, 3), unit=nn.Softmax(dim=1)), r"Softmax \(unit\)"),
        (CustomNetwork(classifier=nn.Linear(3, 2)), r"CustomNetwork \(as a whole\)"),
    ],
)
def test_other_networks_are_refused_in_one_line(network: Network, culprit: str) -> None:
    with pytest.raises(FltrainError, match=culprit) as refusal:
        chained(network)
    assert "norm layers, branches or grouped convolutions" in str(refusal.value)
    assert "use lenet5, fedavg_cnn or mlp, or vgg9, vgg11 or vgg16 with norm: none" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_matching_keeps_the_function_of_every_network() -> None:
    """Unrelated networks, with and without a separate reference."""
    model = flat(Unbiased())
    chain = Chain.of(model.network, model.layout)
    networks = [0.3 * random(model.layout.size, seed=seed) for seed in range(3)]
    for reference in (networks[0].flip(0), 1):
        aligned = align(chain, networks, reference, [0.5, 0.2, 0.3], sweeps=5)
        assert sum(map(torch.equal, networks, aligned)) <= 1, "only the reference may stay unchanged"
        for before, after in zip(networks, aligned, strict=True):
            expected = logits(model, before)
            torch.testing.assert_close(
                logits(model, after) / expected.std(), expected / expected.std(), atol=1e-5, rtol=0
            )


@MODELS
def test_room_for_more_neurons_changes_nothing(model: Model) -> None:
    narrow = flat(model)
    before = {name: value.clone() for name, value in narrow.network.state_dict().items()}
    wide = FlatModel(widened(narrow.network, 1.25).eval(), torch.zeros(1, 1, SIDE, SIDE))
    widths, wider = (Chain.of(flat_model.network, flat_model.layout).widths for flat_model in (narrow, wide))
    assert wider == [max(width + 1, width * 5 // 4) for width in widths]
    torch.testing.assert_close(
        logits(wide, wide.weights.clone()), logits(narrow, narrow.weights.clone()), rtol=1e-5, atol=1e-6
    )
    assert wide.weights.count_nonzero() == narrow.weights.count_nonzero()
    for name, value in narrow.network.state_dict().items():
        assert torch.equal(value, before[name])
    for layer in chained(wide.network).values():
        outputs, inputs = layer.weight.shape[:2]
        declared = (
            (layer.out_channels, layer.in_channels)
            if isinstance(layer, nn.Conv2d)
            else (layer.out_features, layer.in_features)
        )
        assert declared == (outputs, inputs)


SIZES, CLIENTS, DIMENSIONS = (3, 2, 3), 3, 4
SETTINGS = {"sigma": 0.7, "sigma0": 1.6, "gamma": 5.0}


def some_clients(seed: int) -> list[Tensor]:
    return [2 * random(size, DIMENSIONS, seed=10 * seed + n).double() for n, size in enumerate(SIZES)]


def pool_for(pool_type: type[Pool], capacity: int = 8, clients: int = CLIENTS, **settings: float) -> Pool:
    prior = torch.tensor([0.0, 0.0, 0.0, 0.1]).double()
    return pool_type(clients, capacity, prior, **{**SETTINGS, **settings})


def energy(pool: Pool, members: Sequence[Tensor]) -> float:
    """Sum of ||s0 mu0 + s sum v||^2 / (s0 + m s) for a global neuron with these members, by hand."""
    s, s0 = 1 / pool.sigma, 1 / pool.sigma0
    total = s0 * pool.prior
    for member in members:
        total = total + s * member
    return float(sum(value**2 for value in total.tolist()) / (s0 + s * len(members)))


def expected_gain(pool: Pool, groups: Sequence[Sequence[Tensor]], neuron: Tensor, place: int) -> float:
    """The gain of one neuron at one place, from the definition."""
    if place < len(groups):
        group, popular = groups[place], min(len(groups[place]), 10)
        prior = np.log(popular / (pool.clients - popular))
    else:
        group, number = [], place - len(groups) + 1
        prior = 2 * np.log(pool.gamma / pool.clients) - 2 * np.log(number)
    return energy(pool, [*group, neuron]) - energy(pool, group) + prior


def grouped(pool: Pool, clients: Sequence[Tensor]) -> list[list[Tensor]]:
    """The members of each global neuron."""
    groups: list[list[Tensor]] = [[] for _ in range(len(pool.counts))]
    for client, places in pool.members.items():
        for neuron, place in zip(clients[client], places.tolist(), strict=True):
            groups[place].append(neuron)
    return groups


def test_gains_follow_their_definition_and_the_best_assignment_is_taken() -> None:
    for seed in range(3):
        clients = some_clients(seed)
        pool = pool_for(Pool)
        for client in (0, 1):
            pool.join(client, clients[client])
        gains = pool.gains(clients[2])
        groups = grouped(pool, clients)
        assert gains.shape == (SIZES[2], len(groups) + min(SIZES[2], 8 - len(groups)))
        expected = [
            [expected_gain(pool, groups, row, place) for place in range(gains.shape[1])] for row in clients[2]
        ]
        np.testing.assert_allclose(gains.numpy(), expected, rtol=1e-9, atol=1e-9)
        best = linear_sum_assignment(expected, maximize=True)[1]
        pool.join(2, clients[2])  # the order of the new ones does not matter
        assert gains[range(3), pool.members[2]].sum() == pytest.approx(gains[range(3), best].sum())


def test_popularity_is_limited_to_ten() -> None:
    """With 12 clients, a neuron shared by 11 has the same gain as one shared by 10."""
    pool = pool_for(Pool, clients=12, capacity=2)
    neuron = random(1, DIMENSIONS).double()
    for client in range(11):
        pool.join(client, neuron)
    assert pool.counts.tolist() == [11]
    data = energy(pool, [neuron[0]] * 12) - energy(pool, [neuron[0]] * 11)
    assert float(pool.gains(neuron)[0, 0]) - data == pytest.approx(np.log(10 / 2), abs=1e-9)
