"""Which layer feeds which, as found by ``layers``, against what the networks' definitions say."""

import torch
from torch import Tensor, nn

from fltrain.models.build import build
from fltrain.models.network import layers
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import LAYERS


def wiring(network: nn.Module, example: Tensor) -> dict[str, tuple[set[str], set[str]]]:
    """Names of producers and consumers by layer."""
    found = layers(network, example)
    names = [layer.name for layer in found]
    return {
        layer.name: ({names[index] for index in layer.producers}, {names[index] for index in layer.consumers})
        for layer in found
    }


def test_mobilenet_tiny() -> None:
    network = build(MobileNetTiny(), channels=1, side=8, classes=10, seed=0)
    found = layers(network, torch.zeros(1, 1, 8, 8))
    assert [layer.name for layer in found] == LAYERS
    stem, expand1, depthwise1, project1, expand2, depthwise2, project2, head, classifier = range(9)
    # Stage 1 is residual: what follows it reads the sum of the stem's and the block's output.
    assert [layer.producers for layer in found] == [
        (),
        (stem,),
        (expand1,),
        (depthwise1,),
        (stem, project1),
        (expand2,),
        (depthwise2,),
        (project2,),
        (head,),
    ]
    assert [layer.consumers for layer in found] == [
        (expand1, expand2),
        (depthwise1,),
        (project1,),
        (expand2,),
        (depthwise2,),
        (project2,),
        (head,),
        (classifier,),
        (),
    ]
    assert [layer.inputs for layer in found] == [1, 16, 32, 32, 16, 32, 32, 24, 64]
    assert [layer.block for layer in found] == [name.split(".")[0] for name in LAYERS]


def test_lenet() -> None:
    network = build(LeNet5(), channels=3, side=16, classes=10, seed=0)
    found = layers(network, torch.zeros(1, 3, 16, 16))
    assert [layer.block for layer in found] == ["conv1", "conv2", "fc1", "fc2", "classifier"]
    assert [layer.producers for layer in found] == [(), (0,), (1,), (2,), (3,)]
    assert [layer.consumers for layer in found] == [(1,), (2,), (3,), (4,), ()]
    assert [layer.inputs for layer in found] == [3, 6, 16 * 2 * 2, 120, 84]


class Branching(nn.Module):
    """Two branches that are concatenated, and a long skip connection; registered in no useful order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.left = nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
        self.right = nn.Sequential(nn.Conv2d(4, 2, 1), nn.MaxPool2d(3, 1, 1))
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.merge = nn.Conv2d(4, 4, 1)
        self.unused = nn.Linear(2, 2)
        self.side = nn.Linear(1, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        stem = torch.relu(self.stem(images))
        merged = self.merge(torch.cat([self.left(stem), self.right(self.dropout(stem))], 1))
        # The second path from the images, by their mean; and one that step_states no error back.
        gate = torch.sigmoid(self.side(images.mean((2, 3))))
        pooled = (merged * torch.tanh(stem)).mean((2, 3)) * gate + merged.detach().amax((2, 3))
        return self.out(pooled)


def test_branching_network() -> None:
    assert wiring(Branching(), torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))) == {
        "out": ({"merge", "stem", "side"}, set()),
        "left.0": ({"stem"}, {"merge"}),
        "right.0": ({"stem"}, {"merge"}),
        "stem": (set(), {"out", "left.0", "right.0"}),
        "merge": ({"left.0", "right.0"}, {"out"}),
        "unused": (set(), set()),
        "side": (set(), {"out"}),
    }


def test_finding_the_wiring_leaves_the_network_as_it_was() -> None:
    for training in (True, False):
        network = Branching().train(training)
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        with torch.no_grad():
            layers(network, torch.ones(2, 1, 6, 6))
        for name, tensor in network.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert network.training == training
        assert all(parameter.grad is None for parameter in network.parameters())
        assert not any(module._forward_hooks for module in network.modules())
