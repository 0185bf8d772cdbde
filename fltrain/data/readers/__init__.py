"""Readers of dataset files. Add a module to this package to add a reader."""

from fltrain.core.registry import catalogue
from fltrain.data.readers.base import ClassLabels, Facts, Images, RawSplits, Reader, statistics

READERS: dict[str, type[Reader]] = catalogue(Reader, package="fltrain.data.readers", own="readers")  # type: ignore[type-abstract]
"""Every reader by name."""

__all__ = ["READERS", "ClassLabels", "Facts", "Images", "RawSplits", "Reader", "statistics"]
