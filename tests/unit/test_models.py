"""The networks, their construction, and the flat vectors that hold their parameters."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.models.base import Model, build
from fltrain.models.flat import FlatModel, pack, slots
from fltrain.models.network import Network, layers
from fltrain.models.networks import MODELS
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mlp import Mlp
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny


def images(count: int = 2, channels: int = 1, side: int = 8) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def flat(model: Model | None = None, side: int = 8, seed: int = 0) -> FlatModel:
    network = build(model or MobileNetTiny(), 1, side, 10, seed)
    return FlatModel(network, images(1, side=side))


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


def test_a_network_without_its_smallest_image_is_refused() -> None:
    name = {"__annotations__": {"name": Literal["custom"]}, "name": "custom", "__module__": __name__}
    with pytest.raises(TypeError, match=r"abstract class Custom .*min_side"):
        type("Custom", (Model,), {**name, "blocks": Mlp.blocks})()


def test_slots_are_contiguous() -> None:
    laid_out = slots([("a", torch.zeros(2, 3)), ("b", torch.zeros(())), ("c", torch.zeros(4))])
    assert [(slot.name, slot.start, slot.stop) for slot in laid_out] == [
        ("a", 0, 6),
        ("b", 6, 7),
        ("c", 7, 11),
    ]
    vector = torch.arange(11.0)
    assert laid_out[0].of(vector).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert laid_out[1].of(vector).tolist() == 6
    stacked = torch.stack([vector, -vector])
    assert laid_out[0].of(stacked).shape == (2, 2, 3) and laid_out[1].of(stacked).tolist() == [6, -6]


def test_gradients_add_up_in_the_flat_gradient() -> None:
    plain, model = build(MobileNetTiny(), 1, 8, 10, seed=0).eval(), flat()
    model.network.eval()
    for _ in range(2):
        for network in (plain, model.network):
            network(images()).logsumexp(1).sum().backward()
    expected = pack([parameter.grad for parameter in plain.parameters()], torch.float32, torch.device("cpu"))
    assert expected.any() and torch.equal(model.gradient, expected)
    model.gradient.zero_()
    assert not any(parameter.grad.any() for parameter in model.network.parameters())
