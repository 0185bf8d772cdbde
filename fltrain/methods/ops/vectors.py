"""Arithmetic on the flat vectors of several clients, for the engine and the methods."""

from __future__ import annotations

from collections.abc import Sequence

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Update

COLUMNS = 1 << 18
"""Entries of long vectors in one multiplication."""


def mean(vectors: Sequence[Tensor], shares: Sequence[float] | None = None) -> Tensor:
    """Return sum_k p_k v_k, with p_k = 1/m if no shares are given, in the vectors' own type.

    Vectors are added in their order and in double precision.
    """
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, share in zip(vectors, shares or [1 / len(vectors)] * len(vectors), strict=True):
        total.add_(vector, alpha=share)
    return total.to(vectors[0].dtype)


def data_shares(updates: Sequence[Update]) -> list[float]:
    """Return p_k = n_k / sum n of the clients of the cohort."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def data_weighted_mean(updates: Sequence[Update], vectors: Sequence[Tensor]) -> Tensor:
    """Return the mean of one vector per client by data size."""
    return mean(vectors, data_shares(updates))


def clip_norm(vector: Tensor, limit: float) -> Tensor:
    """Return the vector, scaled down to the norm ``limit`` if it is longer."""
    factor: Tensor = (limit / vector.norm()).clamp(max=1.0)
    return vector * factor


def pull(weights: Tensor, towards: Tensor, weight: float | Tensor) -> Tensor:
    """Return the gradient of the proximal term (mu/2) ||w - r||^2, for mu the ``weight``: mu (w - r)."""
    return weight * (weights - towards)


def accumulated_steps(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return the movement of SGD after ``steps`` steps with a constant unit gradient, per learning rate.

    Equal to ``steps`` for plain SGD. With momentum it is (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho), with
    a proximal term [1 - (1 - eta mu)^K] / (eta mu); the recursion covers both at once (Wang et al., FedNova,
    2020, section 4.2).

    Args:
        steps: number of steps K.
        momentum: rho.
        pull: learning rate times the weight of the proximal term, eta mu.
    """
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * moved
        moved += velocity
    return moved


def gram(rows: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the inner products of all pairs of vectors, float64 ``[m, m]``, from m rows ``[P]``.

    The products are computed in single precision, some columns at a time.
    """
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows[0].device)
    for start in range(0, len(rows[0]), COLUMNS):
        part = torch.stack([row[start : start + COLUMNS].to(torch.float32) for row in rows])
        products += part @ part.T
    return products
