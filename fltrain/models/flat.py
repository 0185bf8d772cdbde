"""Flat vectors: a network whose parameters, gradients and buffers are views into a few tensors.

Methods and aggregation work on whole vectors (one fused operation instead of one per tensor), and sending
a model to a client is one copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fltrain.models.base import Part, Private
from fltrain.models.network import Layer, Network, layers


@dataclass(frozen=True)
class Slot:
    """Position of a named tensor in a flat vector."""

    name: str
    shape: torch.Size
    start: int

    @property
    def stop(self) -> int:
        """Position after the last element."""
        return self.start + math.prod(self.shape)

    def of(self, vector: Tensor) -> Tensor:
        """Return a view of this tensor's part of a vector ``[P]``, in the tensor's own shape."""
        return vector[self.start : self.stop].view(self.shape)


def slots(tensors: Iterable[tuple[str, Tensor]]) -> tuple[Slot, ...]:
    """Return the slots of named tensors that follow one another."""
    laid_out: list[Slot] = []
    for name, tensor in tensors:
        laid_out.append(Slot(name, tensor.shape, laid_out[-1].stop if laid_out else 0))
    return tuple(laid_out)


def pack(tensors: Iterable[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Concatenate tensors into one vector (of length 0 if there are none)."""
    parts = [tensor.detach().reshape(-1).to(device, dtype) for tensor in tensors]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=dtype, device=device)


@dataclass(frozen=True)
class Layout:
    """Positions of all tensors in the flat vectors of a network.

    Attributes:
        parameters: slots of the weight vector ``[P]``.
        buffers: slots of the floating-point buffers ``[B]`` (BatchNorm running statistics).
        counters: slots of the integer buffers.
        layers: Conv2d and Linear modules in order, see ``fltrain.models.network.layers``.
        weights: slot of each layer's weight.
        batchnorm: slots of the scales and shifts of BatchNorm.
        device: device of the vectors.
    """

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    counters: tuple[Slot, ...]
    layers: tuple[Layer, ...]
    weights: tuple[Slot, ...]
    batchnorm: tuple[Slot, ...] = ()
    device: torch.device | None = None

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.parameters[-1].stop

    @cached_property
    def head(self) -> int:
        """Position of the classifier's first parameter in the weight vector; they reach to its end."""
        return next(slot.start for slot in self.parameters if slot.name.startswith("classifier."))

    @cached_property
    def classifier(self) -> tuple[Slot, ...]:
        """Slots of the classifier's parameters by their local names, in a vector ``[H]`` without others."""
        return tuple(
            Slot(slot.name.removeprefix("classifier."), slot.shape, slot.start - self.head)
            for slot in self.parameters
            if slot.start >= self.head
        )

    def part(self, part: Part) -> slice:
        """Return the positions of some of the parameters in the weight vector."""
        return {"all": slice(None), "head": slice(self.head, None), "body": slice(0, self.head)}[part]

    def private(self, part: Private | None) -> slice | Tensor:
        """Return the positions of private parameters in the weight vector; none if ``part`` is None."""
        if part is None:
            return slice(0, 0)
        return self._batchnorm if part == "batchnorm" else self.part(part)

    @cached_property
    def _batchnorm(self) -> Tensor:
        return torch.cat([torch.arange(slot.start, slot.stop, device=self.device) for slot in self.batchnorm])


class FlatModel:
    """A network bound to flat vectors: it computes with the current values of the vectors.

    Attributes:
        weights: trainable parameters ``[P]``.
        gradient: gradient ``[P]``; ``differentiate`` sets it, ``backward`` adds to it.
        buffers: floating-point buffers ``[B]``.
        counters: integer buffers.
    """

    def __init__(self, network: Network, example: Tensor) -> None:
        """Bind ``network`` (moved to the device of ``example``, a batch of images that it accepts)."""
        self.network = network = network.to(example.device)
        wired, device = layers(network, example), example.device
        parameters, buffers = dict(network.named_parameters()), list(network.named_buffers())
        floats = [(name, buffer) for name, buffer in buffers if buffer.is_floating_point()]
        integers = [(name, buffer) for name, buffer in buffers if not buffer.is_floating_point()]
        norms = {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
        by_name = {slot.name: slot for slot in slots(parameters.items())}
        self.layout = Layout(
            parameters=tuple(by_name.values()),
            buffers=slots(floats),
            counters=slots(integers),
            layers=wired,
            weights=tuple(by_name[f"{layer.name}.weight"] for layer in wired),
            batchnorm=tuple(slot for name, slot in by_name.items() if name.rpartition(".")[0] in norms),
            device=device,
        )
        self._tracking = list(norms.values())
        self.weights = pack(parameters.values(), torch.float32, device)
        self.gradient = torch.zeros_like(self.weights)
        self.buffers = pack((buffer for _, buffer in floats), torch.float32, device)
        self.counters = pack((buffer for _, buffer in integers), torch.int64, device)
        for slot in self.layout.parameters:
            parameter = parameters[slot.name]
            parameter.data = slot.of(self.weights)
            parameter.grad = slot.of(self.gradient)
        count = len(self.layout.parameters) - len(self.layout.classifier)
        pairs = [(parameters[slot.name], slot.of(self.gradient)) for slot in self.layout.parameters]
        parts: dict[Part, Any] = {"all": pairs, "head": pairs[count:], "body": pairs[:count]}
        self._parts = {part: tuple(zip(*chosen, strict=True)) for part, chosen in parts.items()}
        for vector, laid_out in ((self.buffers, self.layout.buffers), (self.counters, self.layout.counters)):
            for slot in laid_out:
                owner, _, name = slot.name.rpartition(".")
                network.get_submodule(owner)._buffers[name] = slot.of(vector)

    def load(self, weights: Tensor, buffers: Tensor, counters: Tensor) -> None:
        """Copy the given vectors into the network."""
        self.weights.copy_(weights)
        self.buffers.copy_(buffers)
        self.counters.copy_(counters)

    def differentiate(self, value: Tensor, part: Part) -> None:
        """Set ``gradient`` to the gradient of a scalar in one part, and to zero in all other parameters."""
        if part != "all":
            self.gradient.zero_()
        parameters, gradients = self._parts[part]
        torch._foreach_copy_(gradients, torch.autograd.grad(value, parameters, materialize_grads=True))

    @contextmanager
    def untracked(self) -> Iterator[None]:
        """Let BatchNorm use batch statistics in training mode without updating running ones."""
        try:
            for module in self._tracking:
                module.track_running_stats = False
            yield
        finally:
            for module in self._tracking:
                module.track_running_stats = True
