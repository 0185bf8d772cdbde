"""Clients defined by the dataset."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fltrain.core.errors import FltrainError
from fltrain.data.partition.base import Indices, Scheme, TrainingLabels, grouped


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
                f"partition.clients: {self.clients} clients, but the dataset has {len(ids)} writers; "
                f"use at most {len(ids)}"
            )
        chosen = np.arange(self.clients)
        if self.choice == "random":
            chosen = np.sort(random.choice(len(ids), self.clients, replace=False))
        owners = np.full(len(ids), self.clients)
        owners[chosen] = np.arange(self.clients)
        return grouped(owners[authors], self.clients)
