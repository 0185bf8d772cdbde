"""Feedback alignment as an operation: only the error sent to the input changes, and by the right formula."""

import copy
import itertools
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.models.base import build
from fltrain.models.feedback import direct_feedback, feedback
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import drawn

CHANNELS = 4


def convolutions() -> Iterator[nn.Conv2d]:
    """All combinations of these settings: 4 input channels, so groups=4 is depthwise."""
    settings = (1, 2, (3, 2)), (1, (2, 1)), (0, (2, 1)), (1, 2), (1, 2, CHANNELS), (True, False)
    keys = ("kernel_size", "stride", "padding", "dilation", "groups", "bias")
    for values in itertools.product(*settings):
        yield nn.Conv2d(CHANNELS, 8, **dict(zip(keys, values, strict=True)))


def cases() -> Iterator[tuple[nn.Module, Tensor]]:
    """Modules and inputs; images have odd sizes, which strides do not divide."""
    modules = [(module, drawn(2, CHANNELS, 9, 10, seed=2)) for module in convolutions()]
    for samples, inputs, outputs, bias in itertools.product((1, 33), (3, 64), (1, 10), (True, False)):
        modules.append((nn.Linear(inputs, outputs, bias=bias), drawn(samples, inputs, seed=2)))
    for module, input in modules:
        with torch.no_grad():
            for index, parameter in enumerate(module.parameters()):
                parameter.copy_(drawn(*parameter.shape, seed=index))
        yield module, input


def outputs_and_gradients(module: nn.Module, input: Tensor, feedback_tensor: Tensor | None = None):
    """Output, input gradient and parameter gradients for a random error of the output."""
    input = input.clone().requires_grad_()
    with nullcontext() if feedback_tensor is None else feedback({module: feedback_tensor}):
        output = module(input)
    error = drawn(*output.shape, seed=9)
    return output.detach(), *torch.autograd.grad(output, [input, *module.parameters()], error)


def test_random_feedback_equals_the_surrogate_expression() -> None:
    """y = f(stopgrad(x); W, b) + s - stopgrad(s), s = f(x; B), has the same gradients."""
    for module, input in cases():
        through = copy.deepcopy(module).requires_grad_(False)
        through.weight.copy_(drawn(*module.weight.shape, seed=5))
        leaf = input.clone().requires_grad_()
        detour = through(leaf)
        output = module(leaf.detach()) + (detour - detour.detach())
        error = drawn(*output.shape, seed=9)
        expected = torch.autograd.grad(output, [leaf, *module.parameters()], error)
        plain, *actual = outputs_and_gradients(module, input, through.weight)
        assert torch.equal(plain, module(input))
        assert all(map(torch.equal, actual, expected)), module


def mobilenet():
    return build(MobileNetTiny(), channels=1, side=8, classes=10, seed=0)


def gradients(network: nn.Module) -> tuple[Tensor, ...]:
    loss = functional.cross_entropy(network(drawn(6, 1, 8, 8)), torch.arange(6))
    return torch.autograd.grad(loss, list(network.parameters()))


def test_feedback_is_not_part_of_the_model_and_is_removed_afterwards() -> None:
    network = mobilenet()
    keys, fields, expected = list(network.state_dict()), dict(vars(network.stage1.expand)), gradients(network)
    module = network.stage1.expand
    for context in (
        feedback({module: drawn(*module.weight.shape)}),
        direct_feedback(network, {module: drawn(16, 10)}),
    ):
        with pytest.raises(KeyError), context:
            assert list(network.state_dict()) == keys
            raise KeyError
        assert vars(network.stage1.expand) == fields
        assert not network._forward_hooks
    assert all(map(torch.equal, gradients(network), expected))


@pytest.mark.parametrize("wrong", [nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding="same")], ids=str)
def test_modules_are_restored_if_one_cannot_be_rerouted(wrong: nn.Module) -> None:
    conv = nn.Conv2d(1, 4, 3)
    tensors = {module: drawn(*module.weight.shape) for module in (conv, wrong)}
    with pytest.raises(FltrainError, match=r"errors cannot be rerouted in .*4"), feedback(tensors):
        pass
    assert "forward" not in vars(conv)


class TwoLayers(nn.Module):
    """conv 3x3 - ReLU - strided conv 3x3 - pixels - linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3)
        self.second = nn.Conv2d(3, 2, 3, stride=2)
        self.classifier = nn.Linear(2 * 2 * 3, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.second(torch.relu(self.first(images))).flatten(1))


def test_direct_feedback_against_a_computation_by_hand() -> None:
    network, images, labels = TwoLayers(), drawn(5, 1, 8, 9), torch.arange(5) % 4
    projection = drawn(3, 4, seed=3)
    with direct_feedback(network, {network.second: projection}):
        functional.cross_entropy(network(images), labels).backward()

    hidden = torch.relu(network.first(images))  # [5, 3, 6, 7]
    logits = network(images).detach()
    error = (logits.softmax(1) - functional.one_hot(labels, 4)) / len(labels)
    by_hand = torch.einsum("cz,nz->nc", projection, error)[:, :, None, None] / (6 * 7)
    expected = torch.autograd.grad(hidden, network.first.parameters(), by_hand.expand(hidden.shape))
    for parameter, gradient in zip(network.first.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)

    plain = TwoLayers()
    plain.load_state_dict(network.state_dict())
    functional.cross_entropy(plain(images), labels).backward()
    for name in ("second", "classifier"):
        for parameter, other in zip(
            network.get_submodule(name).parameters(), plain.get_submodule(name).parameters(), strict=True
        ):
            assert torch.equal(parameter.grad, other.grad)
