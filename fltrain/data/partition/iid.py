"""Clients that are alike."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fltrain.data.partition.base import Indices, Scheme, TrainingLabels


class Iid(Scheme):
    """A random permutation cut into parts whose sizes differ by one at most."""

    name: Literal["iid"] = "iid"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        return np.array_split(random.permutation(len(data.labels)), self.clients)
