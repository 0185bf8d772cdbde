"""Clients that the data set itself defines."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fltrain.core.errors import FltrainError
from fltrain.data.partition.base import Indices, Scheme, TrainingLabels, grouped


class ByWriter(Scheme):
    """Each writer is a client: Federated EMNIST and the like.

    ``clients`` is how many writers take part (the default is all of Federated EMNIST's), in the order of
    their ids; ``choice`` says which: the ``first`` ones, or ``random`` ones. Images of other writers are
    left out.
    """

    name: Literal["by_writer"] = "by_writer"
    citation: ClassVar[str] = "Caldas et al., LEAF: a benchmark for federated settings, 2018"
    clients: int = Field(default=3400, ge=1)
    choice: Literal["first", "random"] = "first"

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        if data.writers is None:
            raise FltrainError(
                "partition.name: 'by_writer' needs a data set that says who wrote each image; "
                "choose another scheme"
            )
        ids, authors = np.unique(data.writers, return_inverse=True)
        if self.clients > len(ids):
            raise FltrainError(
                f"partition.clients: the data set has {len(ids)} writers, {self.clients} are asked for; "
                f"use at most {len(ids)}"
            )
        chosen = np.arange(self.clients)
        if self.choice == "random":
            chosen = np.sort(random.choice(len(ids), self.clients, replace=False))
        owners = np.full(len(ids), self.clients)
        owners[chosen] = np.arange(self.clients)
        return grouped(owners[authors], self.clients)
