"""Partition schemes: assign the training images to clients.

A partition is a list of disjoint index arrays into the training split, one per client. It depends only on
labels, writers, scheme and seed. Add a module to this package to add a scheme.
"""

from fltrain.core.registry import catalogue
from fltrain.data.partition.base import Division, Indices, LocalTest, Scheme, class_counts

__all__ = ["SCHEMES", "Division", "Indices", "LocalTest", "Scheme", "class_counts"]

SCHEMES: dict[str, type[Scheme]] = catalogue(Scheme, package="fltrain.data.partition", own="partitions")  # type: ignore[type-abstract]
"""Every partition scheme, by name."""
