"""Class means of features: the clients' uploads and the server's tables.

A client uploads a description: its ``classes`` int64 ``[k]``, ``counts`` ``[k]`` of its images, and ``means``
``[k, d]`` of their features. On the server descriptions become tables over all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Local, State

Averaging = Literal["weighted", "plain", "fedproto"]
"""``weighted``: by number of images. ``plain``: every holder counts alike. ``fedproto``: weighted, and once
more divided by the number of holders, as the formula is printed in FedProto's paper."""


def class_sums(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the number of images ``[C]`` and the sum ``[C, d]`` of each class, of features ``[n, d]``."""
    one_hot = (labels[:, None] == torch.arange(classes, device=labels.device)).to(features)
    return one_hot.sum(0), one_hot.T @ features


def describe(counts: Tensor, sums: Tensor) -> State:
    """Return the description of a client, from the sums of its features per class."""
    held = counts.nonzero().flatten()
    counts = counts[held]
    return {"classes": held, "counts": counts, "means": sums[held] / counts[:, None]}


def of_client(local: Local) -> State:
    """Return the description of a client by its current model, over all its training images."""
    examples = local.examples
    return describe(*class_sums(examples.features(), examples.labels, local.task.classes))


def table(descriptions: Sequence[State], classes: int) -> tuple[Tensor, Tensor]:
    """Return images ``[m, C]`` and means ``[m, C, d]`` of the classes of m clients; zero for missing ones."""
    like = descriptions[0]["means"]
    counts = like.new_zeros(len(descriptions), classes)
    means = like.new_zeros(len(descriptions), classes, like.shape[1])
    for row, description in enumerate(descriptions):
        counts[row, description["classes"]] = description["counts"]
        means[row, description["classes"]] = description["means"]
    return counts, means


def combine(counts: Tensor, means: Tensor, averaging: Averaging) -> tuple[Tensor, Tensor]:
    """Return the mean over clients ``[C, d]`` of a table, and a flag ``[C]`` for classes with a holder."""
    holders = (counts > 0).sum(0)
    weights = (counts > 0).to(counts) if averaging == "plain" else counts
    shares = weights / weights.sum(0).clamp(min=1e-12)
    if averaging == "fedproto":
        shares = shares / holders.clamp(min=1)
    return (shares[..., None] * means).sum(0), holders > 0


def renewed(state: State, means: Tensor, has_mean: Tensor) -> State:
    """Return the server's ``means`` and ``known``: a class without a description keeps its old mean."""
    if "means" in state:
        means = means.where(has_mean[:, None], state["means"])
        has_mean = has_mean | state["known"]
    return {**state, "means": means, "known": has_mean}


def distance_to_means(features: Tensor, labels: Tensor, means: Tensor, has_mean: Tensor) -> Tensor:
    """Return the squared distance ``[n]`` of each image's features from its class mean, 0 without a mean."""
    deviations = features - means.index_select(0, labels)
    return deviations.square().sum(1) * has_mean.index_select(0, labels)
