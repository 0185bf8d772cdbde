"""Schemes that do not set the number of images of a class: at random, by shard, by writer."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fltrain.core.errors import FltrainError, count
from fltrain.data.partition.base import Indices, Scheme, TrainingLabels, grouped, shuffled_by_class


class Iid(Scheme):
    """A random permutation, cut into parts whose sizes differ by at most one."""

    name: Literal["iid"] = "iid"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        return np.array_split(random.permutation(len(data.labels)), self.clients)


class Shards(Scheme):
    """Sort the images by label, cut them into shards of equal size and give each client random ones.

    Images of a class are in random order. Sizes of shards differ by at most one image.

    Attributes:
        shards_per_client: number of shards per client.
    """

    name: Literal["shards"] = "shards"
    citation: ClassVar[str] = Iid.citation
    shards_per_client: int = Field(default=2, ge=1)

    def check(self, images: float, classes: float) -> None:
        super().check(images, classes)
        if self.clients * self.shards_per_client > images:
            raise FltrainError(
                f"partition.shards_per_client: {self.clients} clients with "
                f"{count(self.shards_per_client, 'shard')} each need "
                f"{self.clients * self.shards_per_client} images, the training split has {images}; "
                f"use at most {images // self.clients}"
            )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        by_class = shuffled_by_class(data.labels, random)
        shards = np.array_split(by_class, self.clients * self.shards_per_client)
        dealt = random.permutation(len(shards)).reshape(self.clients, self.shards_per_client)
        return [random.permutation(np.concatenate([shards[shard] for shard in hand])) for hand in dealt]


class ByWriter(Scheme):
    """Each writer is a client, as in Federated EMNIST.

    Attributes:
        clients: number of writers, in the order of their ids (default: all of Federated EMNIST).
        choice: the ``first`` writers, or ``random`` ones. Images of other writers are not used.
    """

    name: Literal["by_writer"] = "by_writer"
    citation: ClassVar[str] = "Caldas et al., LEAF: a benchmark for federated settings, 2018"
    clients: int = Field(default=3400, ge=1)
    choice: Literal["first", "random"] = "first"

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        if data.writers is None:
            raise FltrainError(
                "partition.name: 'by_writer' needs a dataset with known writers; choose another scheme"
            )
        ids, authors = np.unique(data.writers, return_inverse=True)
        if self.clients > len(ids):
            raise FltrainError(
                f"partition.clients: {self.clients} clients, but the dataset has "
                f"{count(len(ids), 'writer')}; use at most {len(ids)}"
            )
        chosen = np.arange(self.clients)
        if self.choice == "random":
            chosen = np.sort(random.choice(len(ids), self.clients, replace=False))
        owners = np.full(len(ids), self.clients)
        owners[chosen] = np.arange(self.clients)
        return grouped(owners[authors], self.clients)
