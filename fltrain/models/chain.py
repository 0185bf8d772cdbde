"""Networks that are a plain chain of layers, and the places of their neurons in the weight vector.

The hidden neurons of a chain (output channels of a convolution, units of a linear layer) have no fixed order:
any order gives the same function if the next layer takes its inputs in the same order.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.models.flat import Layout, Slot
from fltrain.models.network import Network, chain

ORDERLESS = (
    *(nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Identity),
)
"""Modules allowed between layers: they treat all channels alike and keep zeros."""

BIAS_MEAN = 0.1
"""Prior mean of biases in the matching with growth; the prior mean of weights is zero."""


def chained(network: Network) -> dict[str, nn.Conv2d | nn.Linear]:
    """Return the layers of a network that is a chain of layers, in order, by name.

    Raises:
        FltrainError: if it is not a chain, or if the outputs of a layer have a fixed order.
    """
    layers: dict[str, nn.Conv2d | nn.Linear] = {}
    for name, module, _ in chain(network) if type(network) is Network else [("", network, network)]:
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
            layers[name] = module
        elif not isinstance(module, ORDERLESS):
            kind = "grouped convolution" if isinstance(module, nn.Conv2d) else type(module).__name__
            raise FltrainError(
                "method 'fedma' matches the neurons of plain chains of convolutions and linear layers, "
                f"without norm layers, branches or grouped convolutions; this network has a {kind} "
                f"({name or 'as a whole'}); use lenet5, fedavg_cnn or mlp, or vgg9, vgg11 or vgg16 with "
                "norm: none"
            )
    return layers


@dataclass(frozen=True)
class Chain:
    """Positions of a chain's layers in its weight vector ``[P]``; layers count from 0.

    Attributes:
        slots: slots of each layer's weight and, if it has one, its bias.
    """

    slots: tuple[tuple[Slot, ...], ...]

    @classmethod
    def of(cls, network: Network, layout: Layout) -> Chain:
        """Return the chain of a network; refuse other networks."""
        names = [(f"{name}.weight", f"{name}.bias") for name in chained(network)]
        return cls(tuple(tuple(slot for slot in layout.parameters if slot.name in pair) for pair in names))

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def last(self) -> int:
        """The output layer, whose neurons are the classes."""
        return len(self) - 1

    @property
    def widths(self) -> list[int]:
        """Number of neurons of each hidden layer."""
        return [weight.shape[0] for weight, *_ in self.slots[:-1]]

    def start(self, layer: int) -> int:
        """Return the first position of a layer in the vector; the layers below it come before."""
        return self.slots[layer][0].start

    def parts(self, vector: Tensor, layer: int) -> list[Tensor]:
        """Return views of a layer's weights ``[neurons, ...]`` and its biases ``[neurons]``, if any."""
        return [slot.of(vector) for slot in self.slots[layer]]

    def incoming(self, vector: Tensor, layer: int) -> Tensor:
        """Return a view of a layer's weights, ``[neurons, inputs, block]``.

        A block connects two neurons: it is one number, a kernel, or the H x W consecutive inputs of a linear
        layer that come from one channel of the maps before it.
        """
        weight = self.parts(vector, layer)[0]
        inputs = self.widths[layer - 1] if layer else weight.shape[1]
        return weight.view(len(weight), inputs, -1)

    def neurons(self, vector: Tensor, layer: int) -> Tensor:
        """Return the vectors to match, ``[neurons, D]`` in double precision: incoming weights and bias."""
        return torch.cat([part.reshape(len(part), -1) for part in self.parts(vector, layer)], 1).double()

    def prior(self, vector: Tensor, layer: int) -> Tensor:
        """Return the prior mean of a layer's neurons ``[D]``, see ``Pool``."""
        weight, *biases = self.parts(vector, layer)
        means = [0.0] * weight[0].numel() + [BIAS_MEAN] * len(biases)
        return torch.tensor(means, dtype=torch.float64, device=vector.device)

    def write(self, vector: Tensor, layer: int, neurons: Tensor) -> None:
        """Write neurons ``[n, D]`` into the first places of a layer, and zeros into the others."""
        parts = self.parts(vector, layer)
        columns = neurons.split([part[0].numel() for part in parts], 1)
        for part, values in zip(parts, columns, strict=True):
            part.zero_()[: len(neurons)] = values.reshape(-1, *part.shape[1:])

    def reorder_outputs(self, vector: Tensor, layer: int, order: Tensor) -> None:
        """Reorder a layer's neurons in place: the new i-th neuron is the old neuron ``order[i]``."""
        for part in self.parts(vector, layer):
            part.copy_(part[order])

    def reorder_inputs(self, vector: Tensor, layer: int, sources: Tensor) -> None:
        """Reorder a layer's inputs in place; inputs whose source is -1 get zero weights."""
        incoming = self.incoming(vector, layer)
        reordered = incoming.index_select(1, sources.clamp(min=0))
        incoming.copy_(reordered.masked_fill_((sources < 0)[:, None], 0.0))

    def restricted(self, vector: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return the network with only some hidden neurons; the others have no weights.

        Args:
            vector: weights ``[P]``.
            masks: for each hidden layer, True for the neurons that stay, bool ``[neurons]``.
        """
        vector = vector.clone()
        for layer, mask in enumerate(masks):
            for part in self.parts(vector, layer):
                part[~mask] = 0.0
            self.incoming(vector, layer + 1)[:, ~mask] = 0.0
        return vector

    def set_rows(self, into: Tensor, vectors: Sequence[Tensor], rows: Tensor) -> None:
        """Set the last layer to the mean of the vectors' last layers with weights ``[vectors, classes]``."""
        for slot in self.slots[-1]:
            total = torch.zeros(slot.shape, dtype=torch.float64, device=into.device)
            for vector, weights in zip(vectors, rows, strict=True):
                total += weights.view(-1, *[1] * (len(slot.shape) - 1)) * slot.of(vector)
            slot.of(into).copy_(total)


def widened(network: Network, growth: float) -> Network:
    """Return the network with room for at least one more neuron in each hidden layer.

    All weights and biases of the new neurons are zero, so the function is the same and they get no
    gradient. Networks that are not a chain are refused.
    """
    network = copy.deepcopy(network)
    layers = list(chained(network).values())
    before = [layer.weight.shape[0] for layer in layers]
    after = [*(max(width + 1, int(growth * width)) for width in before[:-1]), before[-1]]
    for index, layer in enumerate(layers):
        weight, bias = layer.weight.detach(), layer.bias
        inputs = (before[index - 1], after[index - 1]) if index else (weight.shape[1],) * 2
        blocks = weight.reshape(len(weight), inputs[0], -1)
        wide = blocks.new_zeros(after[index], inputs[1], blocks.shape[2])
        wide[: len(weight), : inputs[0]] = blocks
        layer.weight = nn.Parameter(wide.view(after[index], -1, *weight.shape[2:]))
        if bias is not None:
            layer.bias = nn.Parameter(
                torch.cat([bias.detach(), bias.new_zeros(after[index] - before[index])])
            )
        if isinstance(layer, nn.Conv2d):
            layer.in_channels, layer.out_channels = layer.weight.shape[1], after[index]
        else:
            layer.in_features, layer.out_features = layer.weight.shape[1], after[index]
    return network
