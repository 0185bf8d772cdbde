"""Partition schemes: which client holds which training images.

A partition is a list of index arrays, one per client, disjoint, into the training split. It depends on the
labels, the scheme, the number of clients and the seed, and on nothing else.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.component import Component, catalogue
from fltrain.errors import FltrainError
from fltrain.randomness import Purpose, stream

Indices = NDArray[np.int64]


class Scheme(Component):
    """A way to divide ``labels`` (int64 ``[n]``) among ``clients``."""

    clients: int = Field(default=100, ge=1)

    def check(self, images: int) -> None:
        """Refuse what cannot be done with so many training images.

        Raises:
            FltrainError: with what is possible.
        """
        if self.clients > images:
            raise FltrainError(
                f"partition.clients: {self.clients} clients cannot share {images} training images; "
                f"use at most {images}"
            )

    def split(self, labels: Indices, classes: int, seed: int) -> list[Indices]:
        """Return one index array per client.

        Raises:
            FltrainError: if the scheme cannot be satisfied; the message says what could be reached.
        """
        self.check(len(labels))
        return self.divide(labels, classes, stream(seed, Purpose.PARTITION))

    def divide(self, labels: Indices, classes: int, random: np.random.Generator) -> list[Indices]:
        """The scheme itself; the number of clients has been checked."""
        raise TypeError(f"partition scheme {self.name!r} does not say how to divide labels")


class Iid(Scheme):
    """A random permutation cut into parts whose sizes differ by one at most."""

    name: Literal["iid"] = "iid"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )

    def divide(self, labels: Indices, classes: int, random: np.random.Generator) -> list[Indices]:
        return [np.asarray(part) for part in np.array_split(random.permutation(len(labels)), self.clients)]


class Dirichlet(Scheme):
    """Label skew: each class is divided by shares drawn from Dirichlet(alpha).

    With ``capped`` (the FedML / MOON / FedMA lineage) a client that already holds the average number of
    images gets nothing of the following classes, which evens out sizes; without it, this is the scheme of
    Hsu et al. The whole partition is drawn again until every client holds ``min_size`` images, at most
    ``max_draws`` times.
    """

    name: Literal["dirichlet"] = "dirichlet"
    citation: ClassVar[str] = (
        "Hsu, Qi and Brown, Measuring the effects of non-identical data distribution, 2019"
    )
    alpha: float = Field(default=0.3, gt=0)
    capped: bool = True
    min_size: int = Field(default=10, ge=0)
    max_draws: int = Field(default=20_000, ge=1)

    def check(self, images: int) -> None:
        super().check(images)
        if self.min_size * self.clients > images:
            raise FltrainError(
                f"partition.min_size: {self.clients} clients with at least {self.min_size} images each need "
                f"{self.clients * self.min_size} images, the training split has {images}; "
                "lower min_size or clients"
            )

    def divide(self, labels: Indices, classes: int, random: np.random.Generator) -> list[Indices]:
        members = [np.flatnonzero(labels == label) for label in range(classes)]
        best = -1
        for _ in range(self.max_draws):
            # Only the sizes decide whether a draw is kept, so the images are dealt out once, at the end.
            cuts, sizes = self._draw_cuts([len(m) for m in members], len(labels), random)
            if sizes.min() >= self.min_size:
                return self._deal(members, cuts, random)
            best = max(best, int(sizes.min()))
        raise FltrainError(
            f"partition: in {self.max_draws} draws of dirichlet(alpha={self.alpha}) over {self.clients} "
            f"clients the smallest client got {best} images at most, min_size is {self.min_size}; "
            "raise alpha, or lower min_size or clients"
        )

    def _draw_cuts(
        self, class_sizes: list[int], total: int, random: np.random.Generator
    ) -> tuple[list[Indices], Indices]:
        """Draw, per class, the positions at which its images are cut; and the resulting client sizes."""
        sizes = np.zeros(self.clients, np.int64)
        cuts: list[Indices] = []
        for class_size in class_sizes:
            share = random.dirichlet(np.full(self.clients, self.alpha))
            if self.capped:
                share = np.where(sizes >= total / self.clients, 0.0, share)
            # For tiny alpha the shares of the clients with room can all be zero (or not a number).
            if not share.sum() > 0:
                share = (sizes < total / self.clients).astype(float) if self.capped else np.ones(self.clients)
                share = np.eye(self.clients)[random.choice(self.clients, p=share / share.sum())]
            inner = np.floor(np.cumsum(share / share.sum())[:-1] * class_size).astype(np.int64)
            cuts.append(inner)
            sizes += np.diff(inner, prepend=0, append=class_size)
        return cuts, sizes

    def _deal(
        self, members: list[Indices], cuts: list[Indices], random: np.random.Generator
    ) -> list[Indices]:
        pieces = [
            np.split(random.permutation(images), cut) for images, cut in zip(members, cuts, strict=True)
        ]
        return [random.permutation(np.concatenate(parts)) for parts in zip(*pieces, strict=True)]


SCHEMES = catalogue(Scheme)
