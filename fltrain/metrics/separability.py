"""Separation of the classes by the global model's features (FLFA, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Separability:
    """Mean distances in feature space; the paper calls the first two variances.

    Attributes:
        intra: mean over classes of the mean distance of a feature to its class mean (eq. 56).
        intra_micro: the same, as a mean over samples.
        inter: mean distance between two class means (eq. 57).
        ratio: inter / intra, free of the scale of the features (eq. 58).
    """

    intra: float
    intra_micro: float
    inter: float
    ratio: float


def separability(features: Tensor, labels: Tensor, classes: int) -> Separability:
    """Measure features ``[n, d]`` with labels ``[n]``; classes without samples do not count."""
    features = features.double()
    counts = torch.bincount(labels, minlength=classes)
    means = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    means /= counts.clamp(min=1)[:, None]
    distances = (features - means[labels]).norm(dim=1)
    per_class = features.new_zeros(classes).index_add_(0, labels, distances) / counts.clamp(min=1)
    present = counts > 0
    intra = float(per_class[present].mean())
    inter = float(torch.nn.functional.pdist(means[present]).mean())
    return Separability(intra, float(distances.mean()), inter, inter / intra if intra > 0 else float("inf"))
