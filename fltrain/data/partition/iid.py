"""Independent and identically distributed clients."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fltrain.data.partition.base import Indices, Scheme, TrainingLabels


class Iid(Scheme):
    """A random permutation, cut into parts whose sizes differ by at most one."""

    name: Literal["iid"] = "iid"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )

    def divide(self, data: TrainingLabels, random: np.random.Generator) -> list[Indices]:
        return np.array_split(random.permutation(len(data.labels)), self.clients)
