"""What partition schemes have in common: what they see, how a split is asked for, how images are dealt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.errors import FltrainError
from fltrain.core.registry import Component
from fltrain.core.rng import Purpose, stream

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class TrainingLabels:
    """What a scheme sees of the training split, each int64 ``[n]``.

    ``writers`` holds the id of the person each image comes from, where the data set knows it.
    """

    labels: Indices
    classes: int
    writers: Indices | None = None

    @cached_property
    def class_sizes(self) -> Indices:
        """Images per class, ``[C]``."""
        return np.bincount(self.labels, minlength=self.classes)


class Scheme(Component):
    """A way to divide the training images among ``clients``."""

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

    def check_classes(self, classes: int) -> None:
        """Refuse what cannot be done with so many classes.

        Raises:
            FltrainError: with what is possible.
        """

    def split(
        self, labels: Indices, classes: int, seed: int, writers: Indices | None = None
    ) -> list[Indices]:
        """Return one index array per client; they are disjoint.

        Args:
            labels: Classes of the training images, int64 ``[n]``.
            classes: Number of classes.
            seed: Key of the random stream.
            writers: Who each image comes from, int64 ``[n]``, where the data set knows it.

        Raises:
            FltrainError: if the scheme cannot be satisfied; the message says what could be reached.
        """
        self.check(len(labels))
        return self.divide(TrainingLabels(labels, classes, writers), stream(seed, Purpose.PARTITION))

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        """The scheme itself; the number of clients has been checked."""
        raise TypeError(f"partition scheme {self.name!r} does not say how to divide the images")


class LabelSkew(Scheme):
    """A scheme that decides how many images of each class a client gets; which ones is left to chance.

    Every client gets at least ``min_size`` images, or the scheme refuses.
    """

    min_size: int = Field(default=10, ge=0)

    def check(self, images: int) -> None:
        super().check(images)
        if self.min_size * self.clients > images:
            raise FltrainError(
                f"partition.min_size: {self.clients} clients with at least {self.min_size} images each need "
                f"{self.clients * self.min_size} images, the training split has {images}; "
                "lower min_size or clients"
            )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        return deal(self.counts(data.class_sizes, random), data, random)

    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        """Images by client and class, ``[M, C]``, for classes of the given sizes ``[C]``."""
        raise TypeError(f"partition scheme {self.name!r} does not say how to divide the classes")


def deal(counts: Indices, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
    """Deal the images out at random: ``counts[i, c]`` images of class ``c`` to client ``i``.

    A client's images are in random order. Those that the counts leave over go to nobody.
    """
    clients, classes = counts.shape
    shuffled = random.permutation(len(data.labels))
    by_class = shuffled[np.argsort(data.labels[shuffled], kind="stable")]
    left_over = data.class_sizes - counts.sum(axis=0)
    owners = np.repeat(np.tile(np.arange(clients + 1), classes), np.vstack([counts, left_over]).T.reshape(-1))
    order = random.permutation(len(owners))
    return [by_class[order[part]] for part in grouped(owners[order], clients)]


def grouped(owners: Indices, groups: int) -> list[Indices]:
    """Positions of the owners 0, 1 .. ``groups - 1``, in ascending order; greater owners are left out."""
    ends = np.cumsum(np.bincount(owners, minlength=groups))[:groups]
    return np.split(np.argsort(owners, kind="stable"), ends)[:groups]


def class_counts(clients: Sequence[Indices], labels: Indices, classes: int) -> Indices:
    """Images by client and class, ``[M, C]``; the classes present at client i are where row i is positive."""
    return np.stack([np.bincount(labels[client], minlength=classes) for client in clients])
