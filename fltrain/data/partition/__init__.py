"""Partition schemes: assign the training images to clients.

A partition is a list of disjoint index arrays into the training split, one per client. It depends only on
labels, writers, scheme and seed. Add a module to this package to add a scheme.
"""

from fltrain.core.registry import catalogue
from fltrain.data.partition.base import Indices, Scheme, TrainingLabels, class_counts
from fltrain.data.partition.by_writer import ByWriter
from fltrain.data.partition.dirichlet import Dirichlet, DirichletTopUp
from fltrain.data.partition.fixed_classes import NByC, Pathological
from fltrain.data.partition.iid import Iid
from fltrain.data.partition.local import LocalTest, local_split

__all__ = [
    "SCHEMES",
    "ByWriter",
    "Dirichlet",
    "DirichletTopUp",
    "Iid",
    "Indices",
    "LocalTest",
    "NByC",
    "Pathological",
    "Scheme",
    "TrainingLabels",
    "class_counts",
    "local_split",
]

SCHEMES: dict[str, type[Scheme]] = catalogue(Scheme, package="fltrain.data.partition")
"""Every partition scheme by name."""
