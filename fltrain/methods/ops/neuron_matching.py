"""Common order of the neurons of separately trained networks (FedMA).

An average of several networks makes sense only if their hidden neurons have the same order. FedMA (Wang et
al., ICLR 2020) finds this order layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fltrain import models
from fltrain.core.lazy import Tensor, optimize, torch
from fltrain.methods.ops.vectors import mean

POPULAR = 10
"""Number of clients above which further clients no longer make a neuron more attractive."""


def row_weights(counts: Tensor, shares: Sequence[float]) -> Tensor:
    """Return each client's weight for each class, ``[clients, classes]``: its share of the class's images.

    Args:
        counts: images of each class that each client has, ``[clients, classes]``.
        shares: weights of the clients for classes that none of them has.
    """
    counts = counts.double()
    held = counts.sum(0)
    return torch.where(held > 0, counts / held.where(held > 0, 1.0), counts.new_tensor(shares)[:, None])


# ------------------------------------------------------------------------------------ same width
def match(clients: Sequence[Tensor], reference: Tensor, shares: Sequence[float], sweeps: int) -> list[Tensor]:
    """Return, for each client, the order of its neurons ``[L, D]`` that matches the reference.

    Assignments of least squared distance to the reference, and the mean of the neurons assigned as the new
    reference, take turns. Neither can increase the clients' distance from the mean.

    Args:
        clients: neurons of each client.
        reference: neurons to start from.
        shares: weight of each client in the mean.
        sweeps: maximum number of assignments; fewer if assignments repeat.
    """
    orders: list[Tensor] = []
    for _ in range(sweeps):
        previous, orders = orders, [_nearest(reference, neurons) for neurons in clients]
        if previous and all(map(torch.equal, previous, orders)):
            break
        reference = mean([neurons[order] for neurons, order in zip(clients, orders, strict=True)], shares)
    return orders


def _nearest(reference: Tensor, neurons: Tensor) -> Tensor:
    """Return, for each reference neuron, the place of its neuron: the assignment of least distance."""
    distances = reference.square().sum(1)[:, None] - 2 * reference @ neurons.T + neurons.square().sum(1)
    order = optimize.linear_sum_assignment(distances.cpu().numpy())[1]
    return torch.from_numpy(order).to(neurons.device)


def align(
    chain: models.chain.Chain,
    vectors: Sequence[Tensor],
    reference: Tensor | int,
    shares: Sequence[float],
    sweeps: int,
) -> list[Tensor]:
    """Return networks with the same functions whose hidden neurons have a common order.

    Args:
        chain: structure of the networks.
        vectors: weights ``[P]`` of the networks.
        reference: weights whose order is used, or the number of one of the networks.
        shares: weight of each network in the mean.
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
    """Global neurons, shared by clients or not: a Beta-Bernoulli process with Gaussians.

    Each client's neuron is a global one plus noise of variance ``sigma``; global neurons are Gaussian around
    ``prior`` ``[D]`` with variance ``sigma0``. Clients join one after the other, each with the most probable
    assignment of its neurons given the others'.

    Attributes:
        clients: number of clients.
        capacity: maximum number of global neurons.
        gamma: mass parameter; larger values open more new neurons.
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
        """Return the posterior means of the global neurons ``[n, D]``."""
        return (self.prior / self.sigma0 + self.sums) / (1 / self.sigma0 + self.counts / self.sigma)[:, None]

    def gains(self, neurons: Tensor) -> Tensor:
        """Return the gain of log probability for each place of each of a client's neurons.

        The places are first the global neurons, then the possible new ones.
        """
        precision, before = 1 / self.sigma, 1 / self.sigma0
        room = min(len(neurons), self.capacity - len(self.counts))
        new = self.prior.new_zeros(room)
        # A new neuron has no members: prior mean and precision only.
        sums = torch.cat([self.sums, self.sums.new_zeros(min(room, 1), len(self.prior))])
        sums = sums + self.prior * before
        precisions = before + precision * torch.cat([self.counts, new[:1]])
        squares = sums.square().sum(1)
        fitted = squares + 2 * precision * neurons @ sums.T + precision**2 * neurons.square().sum(1)[:, None]
        gains = fitted / (precisions + precision) - squares / precisions
        popular = self.counts.clamp(max=POPULAR)
        existing = gains[:, : len(popular)] + (popular / (self.clients - popular)).log()
        numbers = torch.arange(1, room + 1, dtype=neurons.dtype, device=neurons.device)
        opened = 2 * np.log(self.gamma / self.clients) - 2 * numbers.log()
        return torch.cat([existing, gains[:, len(popular) :] + opened], 1)

    def join(self, client: int, neurons: Tensor) -> None:
        """Assign the neurons ``[L, D]`` of a client."""
        if len(self.counts):
            places = optimize.linear_sum_assignment(self.gains(neurons).cpu().numpy(), maximize=True)[1]
        else:  # all neurons are new, in any order
            places = np.arange(len(neurons))
        self.members[client] = torch.from_numpy(places).to(neurons.device)
        grown = max(int(places.max()) + 1 - len(self.counts), 0)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(grown, len(self.prior))])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(grown)])
        self._add(client, neurons, 1.0)

    def leave(self, client: int, neurons: Tensor) -> None:
        """Remove a client's neurons."""
        self._add(client, neurons, -1.0)
        del self.members[client]
        used = self.counts > 0
        self.sums, self.counts = self.sums[used], self.counts[used]
        places = used.cumsum(0) - 1
        self.members = {other: places[held] for other, held in self.members.items()}

    def _add(self, client: int, neurons: Tensor, sign: float) -> None:
        places = self.members[client]
        self.sums.index_add_(0, places, neurons, alpha=sign / self.sigma)
        self.counts[places] += sign


def grow(pool: Pool, clients: Sequence[Tensor], sweeps: int, random: np.random.Generator) -> None:
    """Let clients with neurons ``[L, D]`` join the pool, then each leave and join again, in random order."""
    # The widest first, the others in their order.
    for client in sorted(range(len(clients)), key=lambda client: -len(clients[client])):
        pool.join(client, clients[client])
    for _ in range(sweeps):
        for client in random.permutation(len(clients)).tolist():
            pool.leave(client, clients[client])
            pool.join(client, clients[client])
