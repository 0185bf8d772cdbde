"""Base classes of partition schemes, and the division of a dataset with local test and validation images."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.config import Settings, added
from fltrain.core.errors import FltrainError, count
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

    @abstractmethod
    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        """Return the number of images by client and class, ``[M, C]``, for class sizes ``[C]``."""

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        """Return ``counts[i, c]`` random images of class ``c`` for each client ``i``, in random order.

        Images beyond the counts are not used.
        """
        counts = self.counts(data.class_sizes, random)
        by_class = shuffled_by_class(data.labels, random)
        unused = data.class_sizes - counts.sum(axis=0)
        clients = np.arange(self.clients + 1)  # the last one stands for nobody
        owners = np.repeat(np.tile(clients, data.classes), np.vstack([counts, unused]).T.reshape(-1))
        order = random.permutation(len(owners))
        return [by_class[order[part]] for part in grouped(owners[order], self.clients)]


def shuffled_by_class(labels: Indices, random: np.random.Generator) -> Indices:
    """Return the positions of all labels, ordered by label and random within a label."""
    shuffled = random.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def grouped(owners: Indices, groups: int) -> list[Indices]:
    """Return the positions of the owners 0, 1 .. ``groups - 1``, ascending; larger owners are left out."""
    ends = np.cumsum(np.bincount(owners, minlength=groups))[:groups]
    return np.split(np.argsort(owners, kind="stable"), ends)[:groups]


def class_counts(clients: Sequence[Indices], labels: Indices, classes: int) -> Indices:
    """Return the number of images by client and class, ``[M, C]``."""
    return np.stack([np.bincount(labels[client], minlength=classes) for client in clients])


class LocalTest(Settings):
    """A share of each client's images for testing, as in PFLlib and FedFCD for personalised methods.

    Official training and test images are merged and partitioned among the clients; then each client's images
    are split.

    Attributes:
        fraction: share of a client's images that are test images.
        stratify: keep the class shares of the client in both parts.
    """

    fraction: float = Field(default=0.25, gt=0, lt=1)
    stratify: bool = False


@dataclass(frozen=True)
class Division:
    """Settings of a partition.

    Attributes:
        scheme: division of the training images among the clients.
        local_test: share of each client's images for testing; None: the dataset's test images.
        seed: key of the random streams.
        validation: share of the training images that is set aside: before they are partitioned, or of each
            client's own images with local test splits.
    """

    scheme: Scheme
    local_test: LocalTest | None = None
    seed: int = 0
    validation: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """Everything except the data that a partition depends on, as plain data."""
        return {
            "scheme": self.scheme.model_dump(mode="json"),
            "revision": self.scheme.revision,
            "local_test": self.local_test.model_dump(mode="json") if self.local_test else None,
            "seed": self.seed,
            "validation": self.validation,
        }

    def parts(
        self, labels: Indices, classes: int, writers: Indices | None = None
    ) -> dict[str, list[Indices]]:
        """Divide images with these labels and writers, int64 ``[n]``.

        Returns:
            index arrays of the clients: for training (``""``), and, if there are any, for tests (``test_``)
            and validation (``validation_``; one array for all clients without local test splits).
        """
        parts: dict[str, list[Indices]] = {}
        images, random = np.arange(len(labels)), stream(self.seed, Purpose.VALIDATION_SPLIT)
        if self.validation and self.local_test is None:
            (images,), parts["validation_"] = local_split([images], self.validation, random, labels)
            images.sort()
        authors = None if writers is None else writers[images]
        clients = [images[part] for part in self.scheme.split(labels[images], classes, self.seed, authors)]
        if local := self.local_test:
            strata = labels if local.stratify else None
            tests = stream(self.seed, Purpose.TEST_SPLIT)
            clients, parts["test_"] = local_split(clients, local.fraction, tests, strata)
            if self.validation:
                clients, parts["validation_"] = local_split(clients, self.validation, random, labels)
        return {"": clients, **parts}


def local_split(
    clients: Sequence[Indices], fraction: float, random: np.random.Generator, strata: Indices | None = None
) -> tuple[list[Indices], list[Indices]]:
    """Return training and test indices of each client, in random order.

    Of n images ceil(fraction n) are for testing, but at least one remains for training. If stratified, each
    class contributes its proportional number, rounded up or down.

    Args:
        clients: image indices of each client.
        fraction: share of a client's images that are test images.
        random: random generator.
        strata: labels of all images, int64 ``[n]``; None: not stratified.
    """
    train: list[Indices] = []
    test: list[Indices] = []
    for client, images in enumerate(clients):
        if len(images) < 2:
            raise FltrainError(
                f"partition: client {client} has {count(len(images), 'image')}, a local test split needs 2; "
                "raise partition.min_size or lower partition.clients"
            )
        shuffled = random.permutation(images)
        # The small number undoes floating-point excess, as in 0.1 * 30 > 3.
        number = min(max(1, math.ceil(fraction * len(images) - 1e-9)), len(images) - 1)
        # Every (n / number)-th of the shuffled images (in the order of their classes), from a random start.
        picked = (np.arange(number) * len(images) + random.integers(len(images))) // number
        if strata is not None:
            picked = np.argsort(strata[shuffled], kind="stable")[picked]
        chosen = np.zeros(len(images), bool)
        chosen[picked] = True
        train.append(shuffled[~chosen])
        test.append(shuffled[chosen])
    return train, test
