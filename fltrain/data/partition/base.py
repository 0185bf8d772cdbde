"""Base classes of partition schemes, and the deal of images for given class counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.config import added
from fltrain.core.errors import FltrainError
from fltrain.core.registry import Component
from fltrain.core.rng import Purpose, stream

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class TrainingLabels:
    """Input of a scheme: labels and writers of the training split, int64 ``[n]``; no writers if unknown."""

    labels: Indices
    classes: int
    writers: Indices | None = None

    @cached_property
    def class_sizes(self) -> Indices:
        """Number of images per class, ``[C]``."""
        return np.bincount(self.labels, minlength=self.classes)


class Scheme(Component):
    """A way to divide the training images among clients.

    Attributes:
        clients: number of clients.
        seed: seed of the partition, and of local test and validation images; the run's seed if None. A fixed
            seed gives runs with different seeds the same partition.
    """

    clients: int = Field(default=100, ge=1)
    seed: int | None = added(None, ge=0, lt=2**63)

    def check(self, images: float, classes: float) -> None:
        """Refuse settings that need more than these numbers of training images and classes.

        Args:
            images: number of training images; infinite if unknown.
            classes: number of classes; infinite if unknown.
        """
        if self.clients > images:
            raise FltrainError(
                f"partition.clients: {self.clients} clients cannot share {images} training images; "
                f"use at most {images}"
            )

    def split(
        self, labels: Indices, classes: int, seed: int, writers: Indices | None = None
    ) -> list[Indices]:
        """Return one index array per client; the arrays are disjoint.

        Args:
            labels: labels of the training images, int64 ``[n]``.
            classes: number of classes.
            seed: key of the random stream.
            writers: writer of each image, int64 ``[n]``; None if unknown.
        """
        self.check(len(labels), classes)
        return self.divide(TrainingLabels(labels, classes, writers), stream(seed, Purpose.PARTITION))

    @abstractmethod
    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        """Return the partition; the number of clients is already checked."""


class LabelSkew(Scheme):
    """A scheme that sets the number of images of each class per client; the images are drawn at random.

    Attributes:
        min_size: minimum number of images per client; the scheme refuses if it cannot be reached.
    """

    min_size: int = Field(default=10, ge=0)

    def check(self, images: float, classes: float) -> None:
        super().check(images, classes)
        if self.min_size * self.clients > images:
            raise FltrainError(
                f"partition.min_size: {self.clients} clients with at least {self.min_size} images each need "
                f"{self.clients * self.min_size} images, the training split has {images}; "
                "lower min_size or clients"
            )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        return deal(self.counts(data.class_sizes, random), data, random)

    @abstractmethod
    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        """Return the number of images by client and class, ``[M, C]``, for class sizes ``[C]``."""


def deal(counts: Indices, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
    """Return ``counts[i, c]`` random images of class ``c`` for each client ``i``, in random order.

    Images beyond the counts are not used.
    """
    clients, classes = counts.shape
    shuffled = random.permutation(len(data.labels))
    by_class = shuffled[np.argsort(data.labels[shuffled], kind="stable")]
    left_over = data.class_sizes - counts.sum(axis=0)
    owners = np.repeat(np.tile(np.arange(clients + 1), classes), np.vstack([counts, left_over]).T.reshape(-1))
    order = random.permutation(len(owners))
    return [by_class[order[part]] for part in grouped(owners[order], clients)]


def grouped(owners: Indices, groups: int) -> list[Indices]:
    """Return the positions of the owners 0, 1 .. ``groups - 1``, ascending; larger owners are left out."""
    ends = np.cumsum(np.bincount(owners, minlength=groups))[:groups]
    return np.split(np.argsort(owners, kind="stable"), ends)[:groups]


def class_counts(clients: Sequence[Indices], labels: Indices, classes: int) -> Indices:
    """Return the number of images by client and class, ``[M, C]``."""
    return np.stack([np.bincount(labels[client], minlength=classes) for client in clients])
