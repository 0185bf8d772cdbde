"""Separation of the classes by the global model's features (FLFA, section 5.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def separability(features: Tensor, labels: Tensor, classes: int) -> dict[str, float]:
    """Measure features ``[n, d]`` with labels ``[n]``; classes without samples do not count.

    The values are mean distances in feature space; the paper calls the first two variances.

    Returns:
        ``intra``: mean over classes of the mean distance of a feature to its class mean (eq. 56);
        ``intra_micro``: the same, as a mean over samples; ``inter``: mean distance between two class means
        (eq. 57); ``ratio``: inter / intra, free of the scale of the features (eq. 58).
    """
    features = features.double()
    counts = torch.bincount(labels, minlength=classes)
    means = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    means /= counts.clamp(min=1)[:, None]
    distances = (features - means[labels]).norm(dim=1)
    per_class = features.new_zeros(classes).index_add_(0, labels, distances) / counts.clamp(min=1)
    present = counts > 0
    intra = float(per_class[present].mean())
    inter = float(torch.nn.functional.pdist(means[present]).mean())
    ratio = inter / intra if intra > 0 else float("inf")
    return {"intra": intra, "intra_micro": float(distances.mean()), "inter": inter, "ratio": ratio}
