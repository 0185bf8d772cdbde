"""Label skew by shards: images sorted by label, cut into equal parts, a few parts per client."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fltrain.core.errors import FltrainError
from fltrain.data.partition.base import Indices, Scheme, TrainingLabels


class Shards(Scheme):
    """Sort the images by label, cut them into shards of equal size and give each client random ones.

    Images of a class are in random order. Sizes of shards differ by at most one image.

    Attributes:
        shards_per_client: number of shards per client.
    """

    name: Literal["shards"] = "shards"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )
    shards_per_client: int = Field(default=2, ge=1)

    def check(self, images: int) -> None:
        super().check(images)
        if self.clients * self.shards_per_client > images:
            raise FltrainError(
                f"partition.shards_per_client: {self.clients} clients with {self.shards_per_client} shards "
                f"each need {self.clients * self.shards_per_client} images, the training split has {images}; "
                f"use at most {images // self.clients}"
            )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        shuffled = random.permutation(len(data.labels))
        by_class = shuffled[np.argsort(data.labels[shuffled], kind="stable")]
        shards = np.array_split(by_class, self.clients * self.shards_per_client)
        dealt = random.permutation(len(shards)).reshape(self.clients, self.shards_per_client)
        return [random.permutation(np.concatenate([shards[shard] for shard in hand])) for hand in dealt]
