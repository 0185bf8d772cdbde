"""Which neurons of networks that were trained apart belong together.

The hidden neurons of a chain of layers (output channels of a convolution, units of a linear layer) may stand
in any order, as long as the next layer takes its inputs in the same order. So an average of several networks
makes sense only once their neurons are in one order. FedMA (Wang et al., ICLR 2020) finds it layer by layer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.methods.ops.vectors import mean
from fltrain.models.flat import Layout, Slot
from fltrain.models.network import Network

ORDERLESS = (
    *(nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Identity),
)
"""What may stand between layers: it treats all channels alike and keeps zeros."""

BIAS_MEAN = 0.1
"""Prior mean of biases in the matching with growth; that of weights is zero."""

POPULAR = 10
"""A neuron that more clients share is no more attractive to further ones."""


# ------------------------------------------------------------------------------------ chains of layers
def chained(network: Network) -> dict[str, nn.Conv2d | nn.Linear]:
    """Return the layers of a network that is a chain of them, in order, by name.

    Raises:
        FltrainError: if it is none, or has layers whose outputs cannot be put in any order.
    """
    found: dict[str, nn.Conv2d | nn.Linear] = {}
    for name, module in network.named_modules():
        chain = type(module) is Network or isinstance(module, nn.Sequential)
        dense = isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
        if dense and isinstance(module, nn.Conv2d | nn.Linear):
            found[name] = module
        elif not chain and not isinstance(module, ORDERLESS):
            what = "grouped convolution" if isinstance(module, nn.Conv2d) else type(module).__name__
            raise FltrainError(
                "method 'fedma' matches the neurons of plain chains of convolutions and linear layers, "
                f"without norm layers, branches or grouped convolutions; this network has a {what} "
                f"({name or 'as a whole'}); use lenet5, fedavg_cnn or mlp, or vgg9, vgg11 or vgg16 with "
                "norm: none"
            )
    return found


@dataclass(frozen=True)
class Chain:
    """Where the layers of a chain lie in its weight vector ``[P]``; layers count from 0.

    Attributes:
        weights: slot of each layer's weight.
        biases: slot of each layer's bias; None if it has none.
    """

    weights: tuple[Slot, ...]
    biases: tuple[Slot | None, ...]

    @classmethod
    def of(cls, network: Network, layout: Layout) -> Chain:
        """Return the chain of a network.

        Raises:
            FltrainError: if it is none.
        """
        by_name = {slot.name: slot for slot in layout.parameters}
        names = chained(network)
        return cls(
            tuple(by_name[f"{name}.weight"] for name in names),
            tuple(by_name.get(f"{name}.bias") for name in names),
        )

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def last(self) -> int:
        """The layer whose outputs are the classes."""
        return len(self) - 1

    @property
    def widths(self) -> list[int]:
        """Number of neurons of each hidden layer."""
        return [slot.shape[0] for slot in self.weights[:-1]]

    def start(self, layer: int) -> int:
        """Where a layer begins in the vector; all before it is of the layers below."""
        return self.weights[layer].start

    def incoming(self, vector: Tensor, layer: int) -> Tensor:
        """View of a layer's weights, ``[neurons, inputs, block]``.

        A block is what connects two neurons: one number, a kernel, or the H x W consecutive inputs of a
        linear layer that come from one channel of the maps before it.
        """
        weight = self.weights[layer].of(vector)
        inputs = self.weights[layer - 1].shape[0] if layer else weight.shape[1]
        return weight.view(len(weight), inputs, -1)

    def bias(self, vector: Tensor, layer: int) -> Tensor | None:
        """View of a layer's biases, ``[neurons]``."""
        slot = self.biases[layer]
        return None if slot is None else slot.of(vector)

    def neurons(self, vector: Tensor, layer: int) -> Tensor:
        """What neurons are compared by, ``[neurons, D]`` in double precision: incoming weights and bias."""
        rows, bias = self.incoming(vector, layer).flatten(1), self.bias(vector, layer)
        return (rows if bias is None else torch.cat([rows, bias[:, None]], 1)).double()

    def prior(self, vector: Tensor, layer: int) -> Tensor:
        """Prior mean of a layer's neurons ``[D]``, see ``Pool``."""
        weights = vector.new_zeros(self.incoming(vector, layer)[0].numel(), dtype=torch.float64)
        return (
            weights if self.biases[layer] is None else torch.cat([weights, weights.new_tensor([BIAS_MEAN])])
        )

    def write(self, vector: Tensor, layer: int, neurons: Tensor) -> None:
        """Put neurons ``[n, D]`` into the first places of a layer, and zeros into the others."""
        incoming, bias = self.incoming(vector, layer), self.bias(vector, layer)
        incoming.zero_()[: len(neurons)] = neurons[:, : incoming[0].numel()].view(-1, *incoming.shape[1:])
        if bias is not None:
            bias.zero_()[: len(neurons)] = neurons[:, -1]

    def reorder_outputs(self, vector: Tensor, layer: int, order: Tensor) -> None:
        """Put a layer's neurons in another order, in place: the i-th is what ``order[i]`` was."""
        for values in (self.incoming(vector, layer), self.bias(vector, layer)):
            if values is not None:
                values.copy_(values[order])

    def reorder_inputs(self, vector: Tensor, layer: int, sources: Tensor) -> None:
        """Put a layer's inputs in another order, in place; those whose source is -1 get zero weights."""
        incoming = self.incoming(vector, layer)
        found = incoming.index_select(1, sources.clamp(min=0))
        incoming.copy_(found.masked_fill_((sources < 0)[:, None], 0.0))

    def restricted(self, vector: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """Return the network without some hidden neurons: their weights, in and out, are zero."""
        vector = vector.clone()
        for layer, keeps in enumerate(kept):
            for values in (self.incoming(vector, layer), self.bias(vector, layer)):
                if values is not None:
                    values[~keeps] = 0.0
            self.incoming(vector, layer + 1)[:, ~keeps] = 0.0
        return vector

    def set_rows(self, into: Tensor, vectors: Sequence[Tensor], rows: Tensor) -> None:
        """Set the last layer to the mean of the vectors' with weights ``rows``, ``[vectors, classes]``."""
        for slot in (self.weights[-1], self.biases[-1]):
            if slot is not None:
                total = torch.zeros(slot.shape, dtype=torch.float64, device=into.device)
                for vector, weights in zip(vectors, rows, strict=True):
                    total += weights.view(-1, *[1] * (len(slot.shape) - 1)) * slot.of(vector)
                slot.of(into).copy_(total)


def row_weights(counts: Tensor, shares: Sequence[float]) -> Tensor:
    """What each client counts for each class, ``[clients, classes]``: its share of the images of the class.

    Args:
        counts: images of each class that each client has, ``[clients, classes]``.
        shares: what the clients count for classes that none of them has.
    """
    counts = counts.double()
    held = counts.sum(0)
    return torch.where(held > 0, counts / held.where(held > 0, 1.0), counts.new_tensor(shares)[:, None])


def widened(network: Network, growth: float) -> Network:
    """Return the network with room for more neurons in each hidden layer, at least one.

    Weights of the new neurons, in and out, and their biases are zero, so that the function is the same. No
    gradient reaches them.

    Raises:
        FltrainError: if the network is no chain.
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


# ------------------------------------------------------------------------------------ same width
def match(clients: Sequence[Tensor], reference: Tensor, shares: Sequence[float], sweeps: int) -> list[Tensor]:
    """Return the order that brings each client's neurons ``[L, D]`` in line with those of the reference.

    Assignments of least squared distance to the reference, and the mean of the neurons assigned as the new
    reference, take turns. Neither can increase the clients' distance from the mean.

    Args:
        clients: neurons of each client.
        reference: neurons to start from.
        shares: what each client counts in the mean.
        sweeps: how many times neurons are assigned at most; fewer if assignments repeat.
    """
    orders: list[Tensor] = []
    for _ in range(sweeps):
        found = [_nearest(reference, own) for own in clients]
        if orders and all(map(torch.equal, orders, found)):
            break
        orders = found
        reference = mean([own[order] for own, order in zip(clients, orders, strict=True)], shares)
    return orders


def _nearest(reference: Tensor, own: Tensor) -> Tensor:
    """Place of the neuron that goes with each of the reference: the assignment of least squared distance."""
    distances = reference.square().sum(1)[:, None] - 2 * reference @ own.T + own.square().sum(1)
    order = linear_sum_assignment(distances.cpu().numpy())[1]
    return torch.from_numpy(order).to(own.device)


def align(
    chain: Chain, vectors: Sequence[Tensor], reference: Tensor | int, shares: Sequence[float], sweeps: int
) -> list[Tensor]:
    """Return networks with the same functions whose hidden neurons are in one order.

    Args:
        chain: their structure.
        vectors: their weights ``[P]``.
        reference: weights whose order is taken, or the number of one of the networks.
        shares: what each network counts in the mean.
        sweeps: see ``match``.
    """
    aligned = [vector.clone() for vector in vectors]
    target = aligned[reference] if isinstance(reference, int) else reference
    for layer in range(chain.last):
        neurons = [chain.neurons(vector, layer) for vector in aligned]
        orders = match(neurons, chain.neurons(target, layer), shares, sweeps)
        for vector, order in zip(aligned, orders, strict=True):
            chain.reorder_outputs(vector, layer, order)
            chain.reorder_inputs(vector, layer + 1, order)
    return aligned


# ------------------------------------------------------------------------------------ growing width
@dataclass
class Pool:
    """Global neurons that clients share, or have for themselves: a Beta-Bernoulli process with Gaussians.

    Each client's neuron is a global one plus noise of variance ``sigma``; global neurons are Gaussian around
    ``prior`` ``[D]`` with variance ``sigma0``. Clients join one by one, each with the assignment of its
    neurons that is most probable given the others'.

    Attributes:
        clients: how many there are.
        capacity: largest number of global neurons.
        gamma: how readily new neurons are opened.
        members: place of each neuron of each client that joined.
    """

    clients: int
    capacity: int
    prior: Tensor
    sigma: float
    sigma0: float
    gamma: float
    members: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sums = self.prior.new_zeros(0, len(self.prior))
        self.counts = self.prior.new_zeros(0)

    @property
    def means(self) -> Tensor:
        """Posterior means of the global neurons ``[n, D]``."""
        return (self.prior / self.sigma0 + self.sums) / (1 / self.sigma0 + self.counts / self.sigma)[:, None]

    def gains(self, own: Tensor) -> Tensor:
        """Log probability gained by each possible place of each of a client's neurons.

        Places are those of the global neurons, then as many new ones as there may be.
        """
        precision, before = 1 / self.sigma, 1 / self.sigma0
        room = min(len(own), self.capacity - len(self.counts))
        new = self.prior.new_zeros(room)
        # A new neuron is one that nobody has: prior mean and precision only.
        sums = torch.cat([self.sums, self.sums.new_zeros(min(room, 1), len(self.prior))])
        sums = sums + self.prior * before
        precisions = before + precision * torch.cat([self.counts, new[:1]])
        squares = sums.square().sum(1)
        fitted = squares + 2 * precision * own @ sums.T + precision**2 * own.square().sum(1)[:, None]
        gains = fitted / (precisions + precision) - squares / precisions
        popular = self.counts.clamp(max=POPULAR)
        known = gains[:, : len(popular)] + (popular / (self.clients - popular)).log()
        numbers = torch.arange(1, room + 1, dtype=own.dtype, device=own.device)
        opened = 2 * np.log(self.gamma / self.clients) - 2 * numbers.log()
        return torch.cat([known, gains[:, len(popular) :] + opened], 1)

    def join(self, client: int, own: Tensor) -> None:
        """Assign the neurons ``[L, D]`` of a client."""
        if len(self.counts):
            places = linear_sum_assignment(self.gains(own).cpu().numpy(), maximize=True)[1]
        else:  # all are new, in whatever order
            places = np.arange(len(own))
        self.members[client] = torch.from_numpy(places).to(own.device)
        grown = max(int(places.max()) + 1 - len(self.counts), 0)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(grown, len(self.prior))])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(grown)])
        self._add(client, own, 1.0)

    def leave(self, client: int, own: Tensor) -> None:
        """Take a client's neurons out again."""
        self._add(client, own, -1.0)
        del self.members[client]
        kept = self.counts > 0
        self.sums, self.counts = self.sums[kept], self.counts[kept]
        places = kept.cumsum(0) - 1
        self.members = {other: places[held] for other, held in self.members.items()}

    def _add(self, client: int, own: Tensor, sign: float) -> None:
        places = self.members[client]
        self.sums.index_add_(0, places, own, alpha=sign / self.sigma)
        self.counts[places] += sign


def grow(pool: Pool, clients: Sequence[Tensor], sweeps: int, random: np.random.Generator) -> None:
    """Let clients with neurons ``[L, D]`` join the pool, then each leave and join again, in random order."""
    # The widest first, the others as they come.
    for client in sorted(range(len(clients)), key=lambda one: -len(clients[one])):
        pool.join(client, clients[client])
    for _ in range(sweeps):
        for client in random.permutation(len(clients)).tolist():
            pool.leave(client, clients[client])
            pool.join(client, clients[client])
