"""Means over clients, taken in one fixed order and in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fltrain.methods.base import Update


def data_weighted_mean(updates: Sequence[Update], vectors: Sequence[Tensor]) -> Tensor:
    """Return sum_k p_k v_k with p_k = n_k / sum n, in the vectors' own type."""
    total = sum(update.samples for update in updates)
    mean = torch.zeros_like(vectors[0], dtype=torch.float64)
    for update, vector in zip(updates, vectors, strict=True):
        mean.add_(vector, alpha=update.samples / total)
    return mean.to(vectors[0].dtype)


def average_buffers(updates: Sequence[Update]) -> tuple[Tensor, Tensor]:
    """Policy ``average``: running statistics by data-weighted mean, counters by maximum."""
    buffers = data_weighted_mean(updates, [update.buffers for update in updates])
    counters = torch.stack([update.counters for update in updates]).amax(0)
    return buffers, counters
