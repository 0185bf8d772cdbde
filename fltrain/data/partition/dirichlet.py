"""Label skew by Dirichlet shares: each class is divided by shares drawn from Dirichlet(alpha)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.errors import FltrainError
from fltrain.data.partition.base import Indices, LabelSkew

Shares = NDArray[np.float64]

_BATCH = 1_000_000
"""Shares drawn at once at most (partitions x clients x classes): bounds the memory."""

_LOOK = 256
_HOPELESS = 5
"""Once ``_LOOK`` partitions are drawn, more are drawn only while the best leaves at most ``_HOPELESS`` short.

The number of clients that fall short is roughly Poisson. Where it has mean 10, none falls short once in
20,000 draws, but 5 or fewer do once in 15: of 256 draws, one does but for a chance of 2e-8.
"""


class Dirichlet(LabelSkew):
    """Class by class, shares q ~ Dirichlet(alpha) over the clients; the class is cut at floor(cumsum(q) n).

    The whole partition is drawn again until every client holds ``min_size`` images: ``max_draws`` times at
    most, or until it is plain that this will not happen. What keeps the sizes alike while classes are dealt
    in order:

    - ``capped`` (the FedML, MOON, FedMA and PFLlib lineage): a client that holds the average number of images
      gets nothing of the following classes. Without it, this is the scheme of Hsu et al.
    - ``balance_sizes`` (FedImpro's code) takes the place of the cap: the largest share of a class goes to the
      client that holds least, the second largest to the next, and so on.

    ``min_p`` (FedImpro's code) is added to every share, whether the cap has set it to zero or not.
    """

    name: Literal["dirichlet"] = "dirichlet"
    citation: ClassVar[str] = (
        "Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019"
    )
    alpha: float = Field(default=0.3, gt=0, le=1e6)
    capped: bool = True
    balance_sizes: bool = False
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_draws: int = Field(default=20_000, ge=1)

    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        batch = int(np.clip(_BATCH // (self.clients * len(class_sizes)), 1, _LOOK))
        drawn, smallest, fewest_short = 0, -1, self.clients
        while drawn < self.max_draws and (drawn < _LOOK or fewest_short <= _HOPELESS):
            partitions = self._draw(batch, class_sizes, random)[:, : self.max_draws - drawn]
            sizes = partitions.sum(axis=0)
            short = (sizes < self.min_size).sum(axis=1)
            if not short.all():
                accepted: Indices = partitions[:, short.argmin()].T
                return accepted
            drawn += len(sizes)
            smallest = max(smallest, int(sizes.min(axis=1).max()))
            fewest_short = min(fewest_short, int(short.min()))
        raise FltrainError(
            f"partition: in {drawn} draws of dirichlet(alpha={self.alpha}) over {self.clients} clients the "
            f"smallest client got {smallest} images at most, min_size is {self.min_size} (missed by "
            f"{fewest_short} clients or more); raise alpha, or lower min_size or clients"
        )

    def _draw(self, draws: int, class_sizes: Indices, random: np.random.Generator) -> Indices:
        """Sizes of the pieces in many partitions at once, ``[C, draws, M]``."""
        pieces = np.zeros((len(class_sizes), draws, self.clients), np.int64)
        held = np.zeros((draws, self.clients), np.int64)
        capped = self.capped and not self.balance_sizes
        for label in np.flatnonzero(class_sizes):
            # While images are left, someone is below the average.
            open_to = held * self.clients < class_sizes.sum() if capped else np.ones(held.shape, bool)
            shares = dirichlet_shares(self.alpha, open_to, random)
            if self.balance_sizes and held.any():
                shares = _largest_to_smallest(shares, held)
            edges = np.cumsum(shares + self.min_p, axis=1)
            edges = np.floor(edges / edges[:, -1:] * class_sizes[label]).astype(np.int64)
            pieces[label] = np.diff(edges, prepend=0, axis=1)
            held += pieces[label]
        return pieces


class DirichletTopUp(LabelSkew):
    """Plain Dirichlet shares without redrawing; clients below ``min_size`` are topped up by the largest ones.

    Of a class with n images client i gets floor(q_i n), q ~ Dirichlet(alpha); the remainder, fewer images per
    class than there are clients, is dropped. Then, in the order of their ids, the clients below ``min_size``
    receive what they need from the others, largest first, each of which keeps at least ``min_size``.
    ``min_size`` is two batches in the paper. A giver's images are ordered by class, and ``topup_from`` the
    front (as in the authors' code) moves images of mostly one class; ``random`` moves any.
    """

    name: Literal["dirichlet_topup"] = "dirichlet_topup"
    citation: ClassVar[str] = "ECGR, arXiv 2601.03584, 2026"
    alpha: float = Field(default=0.01, gt=0, le=1e6)
    min_size: int = Field(default=256, ge=0)
    topup_from: Literal["front", "random"] = "front"

    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        shares = dirichlet_shares(self.alpha, np.ones((len(class_sizes), self.clients), bool), random)
        counts = np.floor(shares * class_sizes[:, None]).astype(np.int64).T
        kept = int(counts.sum())
        if kept < self.min_size * self.clients:
            raise FltrainError(
                f"partition.min_size: after rounding down {kept} images are left for {self.clients} clients, "
                f"at most {kept // self.clients} for the smallest, min_size is {self.min_size}; "
                "lower min_size or clients"
            )
        sizes = counts.sum(axis=1)
        for poor in np.flatnonzero(sizes < self.min_size):
            for rich in np.argsort(-sizes, kind="stable"):
                moved = min(self.min_size - sizes[poor], sizes[rich] - self.min_size)
                if moved <= 0:
                    break
                pieces = self._taken(counts[rich], moved, random)
                counts[rich] -= pieces
                counts[poor] += pieces
                sizes[[rich, poor]] += [-moved, moved]
        return counts

    def _taken(self, held: Indices, images: int, random: np.random.Generator) -> Indices:
        """How many of the images taken are of each class."""
        if self.topup_from == "random":
            return random.multivariate_hypergeometric(held, images)
        return np.diff(np.minimum(np.cumsum(held), images), prepend=0)


def dirichlet_shares(alpha: float, open_to: NDArray[np.bool_], random: np.random.Generator) -> Shares:
    """Draw rows from Dirichlet(alpha) and set to zero the shares that are not open; ``[rows, clients]``.

    A row is Gamma(alpha) variates over their sum. For small alpha all those that are open can underflow; then
    one of them gets all, each with the same chance, which is the limit for alpha to 0.
    """
    shares: Shares = random.standard_gamma(alpha, open_to.shape)
    total = shares.sum(axis=1, keepdims=True)
    shares *= open_to
    shares /= np.where(total > 0, total, 1)
    lost = np.flatnonzero(~shares.any(axis=1))
    lots = np.where(open_to[lost], random.random((len(lost), open_to.shape[1])), -1.0)
    shares[lost, lots.argmax(axis=1)] = 1.0
    return shares


def _largest_to_smallest(shares: Shares, held: Indices) -> Shares:
    """In each row, the shares rearranged so that they fall as the sizes held rise."""
    arranged = np.empty_like(shares)
    np.put_along_axis(arranged, held.argsort(axis=1, kind="stable"), -np.sort(-shares, axis=1), axis=1)
    return arranged
