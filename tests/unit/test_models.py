"""The networks, their construction, and the flat vectors that hold their parameters."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.models.base import build
from fltrain.models.flat import FlatModel
from fltrain.models.network import Network, layers
from fltrain.models.networks import MODELS
from fltrain.models.networks.lenet5 import LeNet5


def images(count: int = 2, channels: int = 1, side: int = 8) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_lenet_has_the_layers_of_its_definition() -> None:
    network = build(LeNet5(), channels=1, side=28, classes=10, seed=0).eval()
    weights = {name: tensor for name, tensor in network.state_dict().items()}
    conv1, conv2, fc1, fc2, classifier = (
        (weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"])
        for layer in layers(network, images(1, side=28))
    )
    hidden = images(side=28)
    hidden = functional.max_pool2d(functional.conv2d(hidden, *conv1, padding=2).relu(), 2)
    hidden = functional.max_pool2d(functional.conv2d(hidden, *conv2).relu(), 2)
    hidden = functional.linear(functional.linear(hidden.flatten(1), *fc1).relu(), *fc2).relu()
    assert torch.equal(network.features(images(side=28)), hidden)
    assert torch.equal(network(images(side=28)), functional.linear(hidden, *classifier))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "larger"), [(1, 0), pytest.param(3, 5, marks=pytest.mark.slow)])
def test_networks_accept_images_from_their_minimum_size(name: str, channels: int, larger: int) -> None:
    model = MODELS[name]()
    side = model.min_side + larger
    network = build(model, channels, side, 7, seed=0)
    assert isinstance(network, Network)
    batch = images(3, channels, side)
    features = network.eval().features(batch)
    assert (features.dim(), len(features)) == (2, 3)
    assert network(batch).shape == (3, 7)
    assert torch.equal(network.classifier(features), network(batch))
    layout = FlatModel(network, batch[:1]).layout
    assert layout.size == sum(parameter.numel() for parameter in network.parameters())
    assert layout.size - layout.head == sum(tensor.numel() for tensor in network.classifier.parameters())
