"""Sums of floats: the same bits under every version of Python."""

import functools
import operator

from hypothesis import given
from hypothesis import strategies as st

from fltrain.core.floats import average, total


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_a_sum_is_rounded_after_each_addition(values: list[float]) -> None:
    """Since Python 3.12, the built-in ``sum`` is not."""
    assert total(values) == functools.reduce(operator.add, values, 0.0)
    assert average(values) == total(values) / len(values)


def test_the_last_digit_is_that_of_older_versions_of_python() -> None:
    assert (total([0.1] * 10), total([])) == (0.9999999999999999, 0.0)
    assert average([0.1] * 10) == 0.09999999999999999
