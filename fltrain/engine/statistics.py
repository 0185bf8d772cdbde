"""Measurements of a round in addition to accuracy, as listed in ``evaluation.statistics``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fltrain.core.floats import total
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


def _grouped(slots: Iterable[Slot], name_of: Callable[[str], str]) -> dict[str, list[Slot]]:
    """Return slots grouped by a part of their names; slots of a module follow one another."""
    return {name: list(group) for name, group in groupby(slots, lambda slot: name_of(slot.name))}


def _blocks(layout: Layout) -> dict[str, list[Slot]]:
    """Return the parameters of each top-level block (stem, stage1, ...)."""
    return _grouped(layout.parameters, lambda name: name.partition(".")[0])


def _similarity(round: FinishedRound) -> Row:
    similarity = layer_similarity(round.displacements, round.layout.weights)
    names = [layer.name for layer in round.layout.layers]
    by_layer = {name: finite_or_none(value) for name, value in zip(names, similarity, strict=True)}
    return {"updates": {"similarity": by_layer, "skewness": skewness(similarity)}}


def _divergence(round: FinishedRound) -> Row:
    """Return the mean distance of client weights from the new global ones: in total, per layer and block."""
    layout, rows = round.layout, torch.stack([update.trained for update in round.updates])
    modules = _grouped(layout.parameters, lambda name: name.rpartition(".")[0])
    layers = {layer.name: modules[layer.name] for layer in layout.layers}

    def of(groups: Mapping[str, Sequence[Slot]]) -> dict[str, float]:
        return {name: weight_divergence(rows, round.after.weights, slots) for name, slots in groups.items()}

    return {
        "divergence": {
            **of({"weights": layout.parameters}),
            "layers": of(layers),
            "blocks": of(_blocks(layout)),
        }
    }


def _dissimilarity(round: FinishedRound) -> Row:
    """Return the variance of the clients' gradients per block and in total.

    The variance of several blocks is the sum of theirs.
    """
    rows = round.gradients()
    blocks = {name: gradient_variance(rows, slots) for name, slots in _blocks(round.layout).items()}
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


def finite_or_none(value: float) -> float | None:
    """Return the value, or None for infinity and NaN, which JSON lacks."""
    return value if math.isfinite(value) else None
