"""Layers that send errors back through other weights than the forward pass uses.

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

from fltrain.core.errors import FltrainError
from fltrain.models.decoupled import GroupedClassifier
from fltrain.models.network import Network


def _can_reroute(module: nn.Module) -> bool:
    """Return True for linear modules, and for convolutions that pad with a number of zeros."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear | GroupedClassifier)


def _input_error(module: nn.Module, weight: Tensor, input: Tensor, error: Tensor) -> Tensor:
    """Return the error of a module's input if errors pass through ``weight``."""
    weight = weight.to(error)
    if isinstance(module, nn.Conv2d):
        form = list(module.stride), list(module.padding), list(module.dilation)
        only_input = (False, [0, 0], module.groups, [True, False, False])
        input_error: Tensor = torch.ops.aten.convolution_backward(
            error, input.to(error), weight, None, *form, *only_input
        )[0]
        return input_error
    return error @ (module.dense_weight(weight) if isinstance(module, GroupedClassifier) else weight)


class _Rerouted(torch.autograd.Function):
    """Joins an input to an output that was computed without it: its error passes through ``weight``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, output: Tensor, weight: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(input, weight)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        (input, weight), (error,) = ctx.saved_tensors, errors
        input_error = _input_error(ctx.module, weight, input, error) if ctx.needs_input_grad[0] else None
        return input_error, error, None, None


class _Shortcut(torch.autograd.Function):
    """Zeros ``[n, classes]``, to be added to the logits: their error e reaches the input as R e.

    Sample n, channel c of the input gets ``(R e_n)_c``, spread evenly over the pixels.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, projection: Tensor) -> Tensor:
        ctx.save_for_backward(input, projection)
        return projection.new_zeros(len(input), projection.shape[1])

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor, None]:
        (input, projection), (error,) = ctx.saved_tensors, errors
        projected = (error @ projection.T).to(input)
        if input.dim() == 2:
            return projected, None
        return (projected / (input.shape[2] * input.shape[3]))[:, :, None, None].expand_as(input), None


@contextmanager
def _replaced(forwards: Mapping[nn.Module, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the forward pass of modules within the context; afterwards the modules are as before.

    Passes without gradients stay ordinary: there are no errors to reroute.
    """

    def replacement(module: nn.Module, forward: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return forward(input)
        output: Tensor = type(module).forward(module, input)
        return output

    for module in forwards:
        if not _can_reroute(module):
            raise FltrainError(
                f"errors cannot be rerouted in {module}; use Linear modules, and Conv2d modules that pad "
                "with a number of zeros"
            )
    try:
        for module, forward in forwards.items():
            # An instance attribute hides the class's method; deleting it restores the method.
            module.__dict__["forward"] = partial(replacement, module, forward)
        yield
    finally:
        for module in forwards:
            module.__dict__.pop("forward", None)


@contextmanager
def feedback(modules: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Send errors of the given Conv2d and Linear modules back through the given tensors (weight-shaped)."""

    def forward(module: nn.Module, weight: Tensor, input: Tensor) -> Tensor:
        output: Tensor = type(module).forward(module, input.detach())
        rerouted: Tensor = _Rerouted.apply(input, output, weight, module)  # type: ignore[no-untyped-call]
        return rerouted

    with _replaced({module: partial(forward, module, weight) for module, weight in modules.items()}):
        yield


@contextmanager
def direct_feedback(network: Network, modules: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Compute the input errors of the given modules from the error of the network's logits.

    Sample n, channel c of the input gets ``(R e_n)_c``, spread evenly over the pixels; ``e`` is the error of
    the logits ``[n, classes]`` and R the module's tensor ``[input channels, classes]``.
    """
    shortcuts: list[Tensor] = []

    def forward(module: nn.Module, projection: Tensor, input: Tensor) -> Tensor:
        shortcuts.append(_Shortcut.apply(input, projection))  # type: ignore[no-untyped-call]
        output: Tensor = type(module).forward(module, input.detach())
        return output

    def joined(_classifier: nn.Module, _args: tuple[Any, ...], logits: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return logits
        for shortcut in shortcuts:
            # A method can add samples to the batch above a cut; they come last.
            missing = len(logits) - len(shortcut)
            logits = logits + functional.pad(shortcut, (0, 0, 0, missing)) if missing else logits + shortcut
        shortcuts.clear()
        return logits

    forwards = {module: partial(forward, module, tensor) for module, tensor in modules.items()}
    with network.classifier.register_forward_hook(joined), _replaced(forwards):
        yield
