"""Measurements of a round in addition to accuracy, as listed in ``evaluation.statistics``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fltrain.core.floats import total
from fltrain.methods.checks import recorded
from fltrain.methods.types import Server, Update
from fltrain.metrics.updates import (
    gradient_variance,
    layer_similarity,
    local_drift,
    skewness,
    weight_divergence,
)
from fltrain.models.flat import Layout, Slot

Row = dict[str, Any]
"""One line of the record: ``round``, ``kind`` and values."""


@dataclass(frozen=True)
class FinishedRound:
    """A finished round: the server afterwards, the updates, and access to gradients.

    ``gradients`` returns the gradient of each client's mean loss at the weights it received, ``[m, P]``.
    """

    layout: Layout
    updates: Sequence[Update]
    after: Server
    gradients: Callable[[], Tensor]

    @cached_property
    def displacements(self) -> Tensor:
        """Uploaded minus received weights, ``[m, P]``."""
        return torch.stack([update.displacement for update in self.updates])

    @property
    def blocks(self) -> dict[str, list[Slot]]:
        """Parameters of each top-level block (stem, stage1, ...)."""
        slots = groupby(self.layout.parameters, lambda slot: slot.name.partition(".")[0])
        return {name: list(group) for name, group in slots}


def _similarity(round: FinishedRound) -> Row:
    similarity = layer_similarity(round.displacements, round.layout.weights)
    by_layer = dict(zip([layer.name for layer in round.layout.layers], similarity, strict=True))
    return {"updates": {"similarity": recorded(by_layer), "skewness": skewness(similarity)}}


def _divergence(round: FinishedRound) -> Row:
    """Return the mean distance of client weights from the new global ones: in total, per layer and block."""
    layout, rows = round.layout, torch.stack([update.trained for update in round.updates])

    def of(slots: Iterable[Slot]) -> float:
        return weight_divergence(rows, round.after.weights, slots)

    layers = {
        layer.name: of(slot for slot in layout.parameters if slot.name.rpartition(".")[0] == layer.name)
        for layer in layout.layers
    }
    blocks = {name: of(slots) for name, slots in round.blocks.items()}
    return {"divergence": {"weights": of(layout.parameters), "layers": layers, "blocks": blocks}}


def _dissimilarity(round: FinishedRound) -> Row:
    """Return the variance of the clients' gradients per block and in total.

    The variance of several blocks is the sum of theirs.
    """
    rows = round.gradients()
    blocks = {name: gradient_variance(rows, slots) for name, slots in round.blocks.items()}
    return {"dissimilarity": {"blocks": blocks, "all": total(blocks.values())}}


STATISTICS: dict[str, Callable[[FinishedRound], Row]] = {
    "drift": lambda round: {"updates": {"drift": local_drift(round.displacements)}},
    "similarity": _similarity,
    "divergence": _divergence,
    "dissimilarity": _dissimilarity,
}


def statistics_rows(names: Iterable[str], round: FinishedRound) -> list[Row]:
    """Return the rows of the named statistics of a round, one per kind."""
    rows: dict[str, Row] = {}
    for name in names:
        if name in STATISTICS:
            for kind, values in STATISTICS[name](round).items():
                rows.setdefault(kind, {}).update(values)
    return [{"kind": kind, **values} for kind, values in rows.items()]
