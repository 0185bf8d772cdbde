"""Label skew by a fixed number of classes per client."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fltrain.core.errors import FltrainError, count
from fltrain.data.partition.base import Indices, LabelSkew

Held = NDArray[np.bool_]
"""True where client i holds class c, ``[M, C]``."""


def random_balanced(clients: int, quota: int, classes: int, random: np.random.Generator) -> Held:
    """Give each client ``quota`` random classes; the numbers of holders of the classes differ by at most one.

    Each client draws from the remaining places, so a class with twice the places is twice as likely. A class
    with as many places as remaining clients must be taken. There are never more than ``quota`` such classes,
    and always enough classes with places, so that every draw is possible.
    """
    places = np.full(classes, clients * quota // classes)
    places[random.permutation(classes)[: clients * quota % classes]] += 1
    held = np.zeros((clients, classes), bool)
    for client in range(clients):
        # The smallest values of Exp(1) / weight are a weighted draw without replacement.
        with np.errstate(divide="ignore"):
            lots = random.exponential(size=classes) / places
        lots[places == clients - client] = 0
        held[client, np.argsort(lots, kind="stable")[:quota]] = True
        places -= held[client]
    return held


def contiguous(clients: int, quota: int, classes: int, random: np.random.Generator) -> Held:
    """Give each class in turn to the first ceil(M k / C) clients that hold fewer than ``quota`` classes."""
    held = np.zeros((clients, classes), bool)
    for label in range(classes):
        takers = np.flatnonzero(held.sum(axis=1) < quota)
        held[takers[: math.ceil(clients * quota / classes)], label] = True
    return held


def cyclic(clients: int, quota: int, classes: int, random: np.random.Generator) -> Held:
    """Give client i the classes perm[(i s + j) mod C], j < ``quota``, with the stride s = max(1, C // M)."""
    starts = np.arange(clients) * max(1, classes // clients)
    held = np.zeros((clients, classes), bool)
    np.put_along_axis(
        held, random.permutation(classes)[(starts[:, None] + np.arange(quota)) % classes], True, axis=1
    )
    return held


_ASSIGNMENTS: dict[str, Callable[[int, int, int, np.random.Generator], Held]] = {
    assign.__name__: assign for assign in (random_balanced, contiguous, cyclic)
}


class FixedClasses(LabelSkew):
    """Base of schemes in which each client holds ``classes_per_client`` classes."""

    classes_per_client: int = Field(default=2, ge=1)
    assignment: str

    def check(self, images: float, classes: float) -> None:
        super().check(images, classes)
        if self.classes_per_client > classes:
            raise FltrainError(
                f"partition.classes_per_client: got {self.classes_per_client}, but the dataset has {classes} "
                f"classes; use at most {classes}"
            )

    def counts(self, class_sizes: Indices, random: np.random.Generator) -> Indices:
        classes = len(class_sizes)
        held = _ASSIGNMENTS[self.assignment](self.clients, self.classes_per_client, classes, random)
        holders = held.sum(axis=0)
        if not holders.all():
            raise FltrainError(
                f"partition.classes_per_client: {self.clients} clients with {self.classes_per_client} of "
                f"{classes} classes each leave class {holders.argmin()} without a client (assignment "
                f"{self.assignment!r}); use at least {math.ceil(classes / self.clients)} classes per client "
                "with assignment 'random_balanced', or more clients"
            )
        scarce = int((class_sizes / holders).argmin())
        if not class_sizes[scarce]:
            raise FltrainError(
                f"partition: class {scarce} has no training images, but each class needs a client that "
                "holds it; correct 'classes' of the dataset, or choose another scheme, such as dirichlet"
            )
        if class_sizes[scarce] < holders[scarce]:
            raise FltrainError(
                f"partition: class {scarce} has {count(class_sizes[scarce], 'training image')} for the "
                f"{holders[scarce]} clients that should hold it; lower clients or classes_per_client, or "
                "choose another scheme"
            )
        smallest = int((held @ (class_sizes // holders)).min())
        if smallest < self.min_size:
            raise FltrainError(
                f"partition.min_size: equal shares of its classes give the smallest client "
                f"{count(smallest, 'image')} at most, min_size is {self.min_size}; lower min_size or clients"
            )
        return self.shared_out(class_sizes, held, random)

    @abstractmethod
    def shared_out(self, class_sizes: Indices, held: Held, random: np.random.Generator) -> Indices:
        """Return images by client and class; with equal shares every client would reach ``min_size``."""


class Pathological(FixedClasses):
    """Few classes per client, with shares of uneven size.

    Let a be an equal share of a class, and e the images of a client if all its shares were equal. All holders
    except one get a uniform integer number of images in [max(a / 10, floor(a) min_size / e), a), so every
    client reaches ``min_size``. The last holder gets the rest of the class. (PFLlib's second bound is
    min_size / C; neither matters at the sizes of the paper.)

    Attributes:
        classes_per_client: number of classes per client.
        assignment: ``random_balanced`` (FedFCD paper), with a random last holder; ``contiguous`` (PFLlib),
            where clients with neighbouring IDs hold the same classes and the largest ID is the last holder.
    """

    name: Literal["pathological"] = "pathological"
    citation: ClassVar[str] = (
        "Zhang et al., PFLlib: a beginner-friendly personalized federated learning library, JMLR 2025"
    )
    assignment: Literal["random_balanced", "contiguous"] = "random_balanced"

    def shared_out(self, class_sizes: Indices, held: Held, random: np.random.Generator) -> Indices:
        counts = np.zeros(held.shape, np.int64)
        shares = class_sizes // held.sum(axis=0)
        equal = held @ shares
        for label, images in enumerate(class_sizes):
            holders = np.flatnonzero(held[:, label])
            if self.assignment == "random_balanced":
                holders = random.permutation(holders)
            *others, last = holders
            share = images / len(holders)
            lowest = np.ceil(np.maximum(share / 10, shares[label] * self.min_size / equal[others]))
            lowest = np.minimum(lowest, shares[label]).astype(np.int64)
            counts[others, label] = random.integers(lowest, np.maximum(lowest + 1, math.ceil(share)))
            counts[last, label] = images - counts[:, label].sum()
        return counts


class NByC(FixedClasses):
    """N nodes with C classes each, in equal shares: a class of n images with h holders is cut into n / h.

    Shares of a class differ by at most one image.

    Attributes:
        classes_per_client: number of classes per client.
        assignment: ``random_balanced``: all classes have equally many holders; ``cyclic``: node i holds the
            classes perm[(i s + j) mod C], j < ``classes_per_client``, with the stride s = max(1, C // N). The
            Fed2 paper does not state the assignment.
    """

    name: Literal["n_by_c"] = "n_by_c"
    citation: ClassVar[str] = "Yu et al., Fed2: feature-aligned federated learning, KDD 2021"
    assignment: Literal["random_balanced", "cyclic"] = "random_balanced"

    def shared_out(self, class_sizes: Indices, held: Held, random: np.random.Generator) -> Indices:
        share, remainder = np.divmod(class_sizes, held.sum(axis=0))
        # The rest of a class goes to the first of its holders.
        return np.where(held, share + (np.cumsum(held, axis=0) <= remainder), 0)
