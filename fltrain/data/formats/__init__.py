"""File formats of data sets, a family per module. A module dropped in here is a reader that entries name."""

from fltrain.component import catalogue
from fltrain.data.formats.base import Facts, Images, Labels, RawSplits, Reader, observed, statistics

READERS: dict[str, type[Reader]] = catalogue(Reader, package="fltrain.data.formats")
"""Every reader by name."""

__all__ = ["READERS", "Facts", "Images", "Labels", "RawSplits", "Reader", "observed", "statistics"]
