"""Local test splits: test images of each client, from its own distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError
from fltrain.core.rng import Purpose, stream
from fltrain.data.partition.base import Indices, Scheme


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

    def split(
        self, clients: Sequence[Indices], labels: Indices, seed: int
    ) -> tuple[list[Indices], list[Indices]]:
        """Return training and test indices of each client; see ``local_split``."""
        random = stream(seed, Purpose.TEST_SPLIT)
        return local_split(clients, self.fraction, random, labels if self.stratify else None)


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
            "validation": self.validation or None,
        }


def validation_split(
    groups: Sequence[Indices], fraction: float, labels: Indices, seed: int
) -> tuple[list[Indices], list[Indices]]:
    """Return training and validation indices of each group of images, stratified; see ``local_split``."""
    return local_split(groups, fraction, stream(seed, Purpose.VALIDATION_SPLIT), labels)


def local_split(
    clients: Sequence[Indices],
    fraction: float,
    random: np.random.Generator,
    stratified_by: Indices | None = None,
) -> tuple[list[Indices], list[Indices]]:
    """Return training and test indices of each client, in random order.

    Of n images ceil(fraction n) are for testing, but at least one remains for training. If stratified, each
    class contributes its proportional number, rounded up or down.

    Args:
        clients: image indices of each client.
        fraction: share of a client's images that are test images.
        random: random generator.
        stratified_by: labels of all images, int64 ``[n]``; None: not stratified.
    """
    train: list[Indices] = []
    test: list[Indices] = []
    for client, images in enumerate(clients):
        if len(images) < 2:
            raise FltrainError(
                f"partition: client {client} has {len(images)} images, a local test split needs 2; "
                "raise partition.min_size or lower partition.clients"
            )
        shuffled = random.permutation(images)
        # The small number undoes floating-point excess, as in 0.1 * 30 > 3.
        count = min(max(1, math.ceil(fraction * len(images) - 1e-9)), len(images) - 1)
        # Every (n / count)-th of the shuffled images (in the order of their classes), from a random start.
        picked = (np.arange(count) * len(images) + random.integers(len(images))) // count
        if stratified_by is not None:
            picked = np.argsort(stratified_by[shuffled], kind="stable")[picked]
        chosen = np.zeros(len(images), bool)
        chosen[picked] = True
        train.append(shuffled[~chosen])
        test.append(shuffled[chosen])
    return train, test
