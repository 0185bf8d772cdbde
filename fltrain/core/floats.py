"""Sums of Python floats that every version of Python rounds in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def total(values: Iterable[float]) -> float:
    """Add from left to right, with a rounding after each addition; 0 for no values.

    The built-in ``sum`` compensates these roundings since Python 3.12, and so gives other last digits.
    """
    result = 0.0
    for value in values:
        result += value
    return result


def average(values: Sequence[float]) -> float:
    """Return the mean of one or more values, with ``total`` as their sum."""
    return total(values) / len(values)
