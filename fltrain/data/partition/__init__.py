"""Partition schemes: which client holds which training images.

A partition is a list of index arrays, one per client, disjoint, into the training split. It depends on the
labels (and writers, where clients are given by the data set), the scheme, the number of clients and the
seed, and on nothing else. A module dropped in here is a scheme that configs can name.
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
