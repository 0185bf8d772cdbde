"""Differences between the clients of a round: drift, and similarity of their updates layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fltrain.core.floats import average
from fltrain.core.lazy import Tensor, torch

if TYPE_CHECKING:
    from fltrain.models.flat import Slot

COLUMNS = 1 << 18
"""Parameters at once in double precision."""


def local_drift(displacements: Tensor) -> float:
    """Return the mean distance of the clients' displacements ``[m, P]`` from their mean (FLFA, eq. 59)."""
    # Some columns, then one row at a time: a copy of all in double precision would need twice their memory.
    mean = torch.cat([part.double().mean(0) for part in displacements.split(COLUMNS, 1)])
    return float(torch.stack([(row.double() - mean).norm() for row in displacements]).mean())


def weight_divergence(weights: Tensor, mean: Tensor, slots: Iterable[Slot]) -> float:
    """Return the mean distance of the clients' weights ``[m, P]`` from the new global weights ``[P]``.

    Only parameters in ``slots`` count. Source: FedImpro, figures 3 and 7.
    """
    squared = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for slot in slots:
        part = slice(slot.start, slot.stop)
        squared += (weights[:, part].double() - mean[part].double()).square().sum(1)
    return float(squared.sqrt().mean())


def gradient_variance(gradients: Tensor, slots: Iterable[Slot]) -> float:
    """Return the mean squared distance of the clients' gradients ``[m, P]`` from their mean.

    Only parameters in ``slots`` count. Source: FedImpro, section 4.2 (gradient dissimilarity; a network's
    value is the sum over its parts).
    """
    total = 0.0
    for slot in slots:
        rows = gradients[:, slot.start : slot.stop].double()
        total += float((rows - rows.mean(0)).square().sum(1).mean())
    return total


def layer_similarity(
    displacements: Tensor, weights: Sequence[Slot], shares: Sequence[float] | None = None
) -> list[float]:
    """Return the mean cosine between the clients' updates of a layer and their mean update (FLFA, eq. 14).

    Args:
        displacements: ``[m, P]``, one row per client.
        weights: slot of each layer's weight.
        shares: weights of the mean over clients; equal if not given.

    Returns:
        One value per layer; NaN where some norm is zero or not finite.
    """
    shared = torch.as_tensor(
        shares or [1.0] * len(displacements), dtype=torch.float64, device=displacements.device
    )
    shared = shared / shared.sum()
    similarities: list[Tensor] = []
    for slot in weights:
        rows = displacements[:, slot.start : slot.stop].double()
        mean = shared @ rows
        norms = rows.norm(dim=1) * mean.norm()
        valid = (norms > 0).all() & norms.isfinite().all()
        similarities.append(torch.where(valid, (rows @ mean / norms).mean(), torch.nan))
    values: list[float] = torch.stack(similarities).tolist()
    return values


def skewness(values: Sequence[float]) -> float:
    """Return the population skewness m3 / m2^(3/2) of the finite values; 0 if they are all equal."""
    numbers = [value for value in values if value == value]
    if not numbers:
        return 0.0
    mean = average(numbers)
    second = average([(value - mean) ** 2 for value in numbers])
    third = average([(value - mean) ** 3 for value in numbers])
    return third / second**1.5 if second > 0 else 0.0
