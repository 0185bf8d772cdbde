"""Layers that send errors back through other weights than those of the forward pass.

In ordinary backpropagation a Conv2d or Linear module with weight W sends the error delta of its output to its
input through W. In feedback alignment the error goes through a fixed tensor B of the same shape; in direct
feedback alignment the input's error is computed from the error of the logits. The forward pass and the
gradients of the module's own weight and bias do not change. (FLFA, section 4; Lillicrap et al. 2016; Nøkland
2016.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.models.decoupled import GroupedClassifier
from fltrain.models.network import Network

Transport = Callable[[Tensor, Tensor], Tensor]
"""Maps a module's input (for its shape) and output error to the error of its input."""


def _padded(module: nn.Module, input: Tensor) -> Tensor:
    """Apply padding that a convolution cannot express, with ordinary gradients."""
    if not isinstance(module, nn.Conv2d) or not _pads_first(module):
        return input
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(input, module._reversed_padding_repeated_twice, mode)


def _pads_first(module: nn.Conv2d) -> bool:
    return module.padding_mode != "zeros" or isinstance(module.padding, str)


def _arguments(module: nn.Conv2d) -> tuple[list[int], list[int], list[int]]:
    """Return stride, padding (of the padded input) and dilation."""
    padding = [0, 0] if isinstance(module.padding, str) or _pads_first(module) else list(module.padding)
    return list(module.stride), padding, list(module.dilation)


def _output(module: nn.Module, input: Tensor) -> Tensor:
    """Return the output of a module for padded input."""
    if isinstance(module, nn.Conv2d):
        return functional.conv2d(input, module.weight, module.bias, *_arguments(module), module.groups)
    output: Tensor = type(module).forward(module, input)
    return output


def _input_error(module: nn.Module, weight: Tensor, input: Tensor, error: Tensor) -> Tensor:
    """Return the error of a module's input if errors pass through ``weight``."""
    weight = weight.to(error)
    if isinstance(module, nn.Conv2d):
        only_input = (False, [0, 0], module.groups, [True, False, False])
        found: Tensor = torch.ops.aten.convolution_backward(
            error, input.to(error), weight, None, *_arguments(module), *only_input
        )[0]
        return found
    return error @ (module.whole(weight) if isinstance(module, GroupedClassifier) else weight)


class _Rerouted(torch.autograd.Function):
    """Joins an input to an output that was computed without it: its error comes from ``transport``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, output: Tensor, transport: Transport) -> Tensor:
        ctx.save_for_backward(input)
        ctx.transport = transport
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        (input,), (error,) = ctx.saved_tensors, errors
        return ctx.transport(input, error) if ctx.needs_input_grad[0] else None, error, None


@contextmanager
def _rerouted(transports: Mapping[nn.Module, Transport]) -> Iterator[None]:
    """Reroute the modules' errors within the context; afterwards the modules are as before."""

    def forward(module: nn.Module, transport: Transport, input: Tensor) -> Tensor:
        input = _padded(module, input)
        output: Tensor = _Rerouted.apply(input, _output(module, input.detach()), transport)  # type: ignore[no-untyped-call]
        return output

    for module in transports:
        if not isinstance(module, nn.Conv2d | nn.Linear | GroupedClassifier):
            kind = type(module).__name__
            raise TypeError(f"errors can be rerouted in Conv2d and Linear modules, not in {kind}")
    try:
        for module, transport in transports.items():
            # An instance attribute hides the class's method; deleting it restores the method.
            module.__dict__["forward"] = partial(forward, module, transport)
        yield
    finally:
        for module in transports:
            module.__dict__.pop("forward", None)


@contextmanager
def feedback(modules: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Send errors of the given Conv2d and Linear modules back through the given tensors (weight-shaped)."""
    with _rerouted({module: partial(_input_error, module, tensor) for module, tensor in modules.items()}):
        yield


@contextmanager
def direct_feedback(network: Network, modules: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Compute the input errors of the given modules from the error of the network's logits.

    Sample n, channel c of the input gets ``(R e_n)_c``, spread evenly over the pixels; ``e`` is the error of
    the logits ``[n, classes]`` and R the module's tensor ``[input channels, classes]``.
    """
    output_error: list[Tensor] = []  # the backward pass fills it before it reaches the modules

    def watch(_classifier: nn.Module, _args: tuple[Any, ...], logits: Tensor) -> None:
        if logits.requires_grad:
            logits.register_hook(lambda error: output_error.__setitem__(slice(None), [error]))

    def transport(projection: Tensor, input: Tensor, error: Tensor) -> Tensor:
        # A method can add samples to the batch above a cut; they come last.
        projected = (output_error[0][: len(input)] @ projection.T).to(error)
        if input.dim() == 2:
            return projected
        return (projected / (input.shape[2] * input.shape[3]))[:, :, None, None].expand_as(input)

    handle = network.classifier.register_forward_hook(watch)
    try:
        with _rerouted({module: partial(transport, tensor) for module, tensor in modules.items()}):
            yield
    finally:
        handle.remove()
