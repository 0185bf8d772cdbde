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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.models.decoupled import GroupedClassifier
from fltrain.models.network import Network

Transport = Callable[[Tensor, Tensor], Tensor]
"""Maps a module's input (for its shape) and output error to the error of its input."""


class _Linear:
    """The operation of a Linear module: y = x W^T + b, x ``[n, inputs]``."""

    def __init__(self, module: nn.Linear) -> None:
        self.module = module

    def prepare(self, input: Tensor) -> Tensor:
        return input

    def forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(input, weight, bias)

    def input_gradient(self, error: Tensor, input: Tensor, weight: Tensor) -> Tensor:
        return error @ weight

    def own_gradients(self, error: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        # The same operations as in autograd, so that the result is equal to the last bit.
        return error.T @ input, error.sum(0) if self.module.bias is not None else None


class _Grouped:
    """The operation of a grouped classifier: a linear map with most weights fixed at zero."""

    def __init__(self, module: GroupedClassifier) -> None:
        self.module = module

    def prepare(self, input: Tensor) -> Tensor:
        return input

    def forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(input, self.module.whole(weight), bias)

    def input_gradient(self, error: Tensor, input: Tensor, weight: Tensor) -> Tensor:
        return error @ self.module.whole(weight)

    def own_gradients(self, error: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        whole = functional.pad(error.T @ input, (0, 1))
        return whole.gather(1, self.module.columns), error.sum(0) if self.module.bias is not None else None


class _Conv2d:
    """The operation of a Conv2d module with any stride, padding, dilation and groups."""

    def __init__(self, module: nn.Conv2d) -> None:
        self.module = module
        # Padding modes that the convolution cannot express run before it, with ordinary gradients.
        self.pad_first = module.padding_mode != "zeros" or isinstance(module.padding, str)
        padding = (0, 0) if isinstance(module.padding, str) or self.pad_first else module.padding
        self.arguments = (list(module.stride), list(padding), list(module.dilation))

    def prepare(self, input: Tensor) -> Tensor:
        if not self.pad_first:
            return input
        mode = "constant" if self.module.padding_mode == "zeros" else self.module.padding_mode
        return functional.pad(input, self.module._reversed_padding_repeated_twice, mode)

    def forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation = self.arguments
        return functional.conv2d(input, weight, bias, stride, padding, dilation, self.module.groups)

    def _backward(
        self, error: Tensor, input: Tensor, weight: Tensor, wanted: list[bool]
    ) -> tuple[Tensor, ...]:
        bias_sizes = [weight.shape[0]] if wanted[2] else None
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            error, input, weight, bias_sizes, *self.arguments, False, [0, 0], self.module.groups, wanted
        )
        return gradients

    def input_gradient(self, error: Tensor, input: Tensor, weight: Tensor) -> Tensor:
        return self._backward(error, input, weight, [True, False, False])[0]

    def own_gradients(self, error: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        has_bias = self.module.bias is not None
        _, grad_weight, grad_bias = self._backward(error, input, weight, [False, True, has_bias])
        return grad_weight, grad_bias if has_bias else None


_Operation = _Linear | _Grouped | _Conv2d


def _operation(module: nn.Module) -> _Operation:
    if isinstance(module, GroupedClassifier):
        return _Grouped(module)
    if isinstance(module, nn.Conv2d):
        return _Conv2d(module)
    if isinstance(module, nn.Linear):
        return _Linear(module)
    raise TypeError(f"errors can be rerouted in Conv2d and Linear modules, not in {type(module).__name__}")


class _Rerouted(torch.autograd.Function):
    """The operation of a module; its backward pass gets the error of the input from ``transport``."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        operation: _Operation,
        transport: Transport,
    ) -> Tensor:
        kind = input.device.type
        if torch.is_autocast_enabled(kind):  # cast here, because the backward pass runs without autocast
            dtype = torch.get_autocast_dtype(kind)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = bias if bias is None else bias.to(dtype)
        ctx.save_for_backward(input, weight)
        ctx.operation, ctx.transport = operation, transport
        return operation.forward(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        grad_input = ctx.transport(input, errors[0]) if ctx.needs_input_grad[0] else None
        return grad_input, *ctx.operation.own_gradients(errors[0], input, weight), None, None


@contextmanager
def _rerouted(transports: Mapping[nn.Module, Callable[[_Operation], Transport]]) -> Iterator[None]:
    """Reroute the modules' errors within the context; afterwards the modules are as before."""

    def forward_of(operation: _Operation, transport: Transport) -> Callable[[Tensor], Tensor]:
        module = operation.module

        def forward(input: Tensor) -> Tensor:
            output: Tensor = _Rerouted.apply(  # type: ignore[no-untyped-call]
                operation.prepare(input), module.weight, module.bias, operation, transport
            )
            return output

        return forward

    try:
        for module, transport_of in transports.items():
            operation = _operation(module)
            # An instance attribute hides the class's method; deleting it restores the method.
            module.__dict__["forward"] = forward_of(operation, transport_of(operation))
        yield
    finally:
        for module in transports:
            module.__dict__.pop("forward", None)


@contextmanager
def feedback(modules: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Send errors of the given Conv2d and Linear modules back through the given tensors (weight-shaped)."""

    def through(tensor: Tensor) -> Callable[[_Operation], Transport]:
        return lambda operation: lambda input, error: operation.input_gradient(error, input, tensor.to(error))

    with _rerouted({module: through(tensor) for module, tensor in modules.items()}):
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

    def from_output(projection: Tensor) -> Callable[[_Operation], Transport]:
        def transport(input: Tensor, error: Tensor) -> Tensor:
            # A method can add samples to the batch above a cut; they come last.
            projected = (output_error[0][: len(input)] @ projection.T).to(error)
            if input.dim() == 2:
                return projected
            return (projected / (input.shape[2] * input.shape[3]))[:, :, None, None].expand_as(input)

        return lambda _operation: transport

    handle = network.classifier.register_forward_hook(watch)
    try:
        with _rerouted({module: from_output(projection) for module, projection in modules.items()}):
            yield
    finally:
        handle.remove()
