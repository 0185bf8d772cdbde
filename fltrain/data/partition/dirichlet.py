"""Label and quantity skew: proportions drawn from Dirichlet(alpha) divide each class, or the dataset."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.errors import FltrainError, count
from fltrain.data.partition.base import Indices, LabelSkew, class_counts

Shares = NDArray[np.float64]

_BATCH = 1_000_000
"""Maximum number of shares drawn at once (partitions x clients x classes); bounds the memory."""

_LOOK = 256
_HOPELESS = 5
"""After ``_LOOK`` draws, drawing stops if more than ``_HOPELESS`` clients are too small in the best draw.

The number of clients below ``min_size`` is roughly Poisson. At a mean of 10 it is zero once in 20,000 draws,
but at most 5 once in 15 draws. So 256 draws without such a draw have a chance of 2e-8.
"""


class Dirichlet(LabelSkew):
    """Shares q ~ Dirichlet(alpha) of each class over the clients; a class of n is cut at floor(cumsum(q) n).

    The whole partition is drawn again until every client has ``min_size`` images. It is refused early if the
    draws stay far from that.

    Attributes:
        alpha: concentration; smaller values give more skew.
        capped: a client with the average number of images gets nothing of the following classes, as in FedML,
            MOON, FedMA and PFLlib. False: the scheme of Hsu et al.
        balance_sizes, min_p: always this value; kept because run IDs contain it.
        max_draws: maximum number of draws.
    """

    name: Literal["dirichlet"] = "dirichlet"
    citation: ClassVar[str] = (
        "Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019"
    )
    alpha: float = Field(default=0.3, gt=0, le=1e6)
    capped: bool = True
    balance_sizes: Literal[False] = False
    min_p: float = Field(default=0.0, ge=0, le=0)
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
            f"partition: in {count(drawn, 'draw')} of {self.name}(alpha={self.alpha}) over {self.clients} "
            f"clients the smallest client got {count(smallest, 'image')} at most, min_size is "
            f"{self.min_size} (missed by {count(fewest_short, 'client')} or more); raise alpha, or lower "
            "min_size or clients"
        )

    def _draw(self, draws: int, class_sizes: Indices, random: np.random.Generator) -> Indices:
        """Return class counts of many partitions at once, ``[C, draws, M]``."""
        pieces = np.zeros((len(class_sizes), draws, self.clients), np.int64)
        held = np.zeros((draws, self.clients), np.int64)
        for label in np.flatnonzero(class_sizes):
            # At least one client is open: while images remain, some client is below the average.
            open_to = held * self.clients < class_sizes.sum() if self.capped else np.ones(held.shape, bool)
            shares = dirichlet_shares(self.alpha, open_to, random)
            edges = np.cumsum(shares, axis=1)
            edges = np.floor(edges / edges[:, -1:] * class_sizes[label]).astype(np.int64)
            pieces[label] = np.diff(edges, prepend=0, axis=1)
            held += pieces[label]
        return pieces


class DirichletTopUp(LabelSkew):
    """Plain Dirichlet shares, drawn once; clients below ``min_size`` get images from the largest clients.

    Client i gets floor(q_i n) images of a class with n images, q ~ Dirichlet(alpha); the remainder is
    dropped. Then the clients below ``min_size``, by ID, take images from the others, largest first: the first
    images of a donor, ordered by class (the authors' code). Every donor keeps ``min_size`` images.

    Attributes:
        alpha: concentration; smaller values give more skew.
        min_size: minimum number of images per client; two batches in the paper.
        topup_from: a constant; run IDs contain it.
    """

    name: Literal["dirichlet_topup"] = "dirichlet_topup"
    citation: ClassVar[str] = "ECGR, arXiv 2601.03584, 2026"
    alpha: float = Field(default=0.01, gt=0, le=1e6)
    min_size: int = Field(default=256, ge=0)
    topup_from: Literal["front"] = "front"

    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        shares = dirichlet_shares(self.alpha, np.ones((len(class_sizes), self.clients), bool), random)
        counts = np.floor(shares * class_sizes[:, None]).astype(np.int64).T
        size = int(counts.sum())
        if size < self.min_size * self.clients:
            raise FltrainError(
                f"partition.min_size: after rounding down {size} images are left for {self.clients} clients, "
                f"at most {size // self.clients} for the smallest, min_size is {self.min_size}; "
                "lower min_size or clients"
            )
        sizes = counts.sum(axis=1)
        for receiver in np.flatnonzero(sizes < self.min_size):
            for donor in np.argsort(-sizes, kind="stable"):
                moved = min(self.min_size - sizes[receiver], sizes[donor] - self.min_size)
                if moved <= 0:
                    break
                pieces = np.diff(np.minimum(np.cumsum(counts[donor]), moved), prepend=0)
                counts[donor] -= pieces
                counts[receiver] += pieces
                sizes[[donor, receiver]] += [-moved, moved]
        return counts


class QuantitySkew(LabelSkew):
    """Quantity skew: clients hold shares q ~ Dirichlet(alpha) of all images, whatever their class.

    Shares are drawn again until every client has ``min_size`` images. They are refused early if the draws
    stay far from that.

    Attributes:
        alpha: concentration; smaller values give sizes that differ more. The paper calls it beta.
    """

    name: Literal["quantity"] = "quantity"
    citation: ClassVar[str] = "Li et al., Federated learning on non-IID data silos, ICDE 2022"
    alpha: float = Field(default=0.5, gt=0, le=1e6)

    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        shares = Dirichlet(clients=self.clients, alpha=self.alpha, min_size=self.min_size)
        shares = shares.model_copy(update={"name": self.name})  # for messages
        sizes = shares.counts(class_sizes.sum(keepdims=True), random)
        classes = np.arange(len(class_sizes))
        labels = random.permutation(np.repeat(classes, class_sizes))
        return class_counts(np.split(labels, np.cumsum(sizes)[:-1]), classes, len(classes))


def dirichlet_shares(alpha: float, open_to: NDArray[np.bool_], random: np.random.Generator) -> Shares:
    """Return rows of Dirichlet(alpha) shares, ``[rows, clients]``; shares that are not open are zero.

    A row is Gamma(alpha) variates divided by their sum. For small alpha all open ones can underflow. Then one
    of them, with equal chances, gets everything, which is the limit for alpha to 0.
    """
    shares: Shares = random.standard_gamma(alpha, open_to.shape)
    total = shares.sum(axis=1, keepdims=True)
    shares *= open_to
    shares /= np.where(total > 0, total, 1)
    lost = np.flatnonzero(~shares.any(axis=1))
    lots = np.where(open_to[lost], random.random((len(lost), open_to.shape[1])), -1.0)
    shares[lost, lots.argmax(axis=1)] = 1.0
    return shares
