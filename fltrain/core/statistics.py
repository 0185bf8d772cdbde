"""Means, intervals and tests over seeds. All tests are t tests, for which two seeds are the least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

LEVEL = 0.05
"""Tests reject, and intervals leave out, at this level."""

OverSeeds = Literal["mean", "median", "max"]
"""What sums up the values of several seeds."""


@dataclass(frozen=True)
class Statistic:
    """Mean (or median, or maximum) over ``n`` seeds; a mean of two or more has the sample's deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float], over_seeds: OverSeeds = "mean") -> Statistic | None:
        """Summarise the values that are there; None if there are none."""
        present = known(values)
        if not present:
            return None
        if over_seeds != "mean":
            value = max(present) if over_seeds == "max" else float(np.median(present))
            return cls(value, None, len(present))
        # Numbers of rounds can be infinite.
        spread = len(present) > 1 and all(map(math.isfinite, present))
        std = float(np.std(present, ddof=1)) if spread else None
        return cls(float(np.mean(present)), std, len(present))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean over seeds, if there are two."""
        if self.std is None:
            return None
        return _t_test("", self.mean, self.std / math.sqrt(self.n), self.n - 1).interval

    def text(self, decimals: int, sign: str = "", interval: bool = False) -> str:
        """For example ``67.34 ± 0.52``; ``never`` for an infinite number of rounds."""
        if math.isinf(self.mean):
            return "never"
        mean = f"{self.mean:{sign}.{decimals}f}"
        if interval and self.interval:
            return f"{mean} {interval_text(self.interval, decimals, sign)}"
        return mean if self.std is None else f"{mean} ± {self.std:.{decimals}f}"


@dataclass(frozen=True)
class Outcome:
    """What a test of a difference against zero found: its two-sided p and the 95 % interval."""

    test: str
    interval: tuple[float, float] | None = None
    p: float | None = None


UNTESTED = Outcome("none")


def known(values: Iterable[float]) -> list[float]:
    """The values without those that are missing (NaN)."""
    return [float(value) for value in values if not math.isnan(value)]


def interval_text(interval: tuple[float, float], decimals: int, sign: str = "") -> str:
    """For example ``[66.05, 68.63]``."""
    low, high = interval
    return f"[{low:{sign}.{decimals}f}, {high:{sign}.{decimals}f}]"


def p_text(p: float) -> str:
    """For example ``p 0.032`` or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def against_point(values: Iterable[float], point: float, test: str = "one-sample t") -> Outcome:
    """Test whether the values' mean is a given number; differences of pairs against 0 are a paired t test."""
    present = known(values)
    if len(present) < 2 or not all(map(math.isfinite, present)):
        return UNTESTED
    error = float(np.std(present, ddof=1)) / math.sqrt(len(present))
    return _t_test(test, float(np.mean(present)) - point, error, len(present) - 1)


def against_sample(values: Iterable[float], mean: float, std: float, n: int) -> Outcome:
    """Welch's test of the values against a sample of which mean, deviation and size are known (each 2 up)."""
    ours = Statistic.of(values)
    if ours is None or ours.std is None or n < 2:
        return UNTESTED
    squares = ours.std**2 / ours.n, std**2 / n
    error = math.sqrt(sum(squares))
    # Welch and Satterthwaite; without any spread it does not matter.
    freedom = error**4 / (squares[0] ** 2 / (ours.n - 1) + squares[1] ** 2 / (n - 1)) if error else 1.0
    return _t_test("Welch t", ours.mean - mean, error, freedom)


def _t_test(test: str, difference: float, error: float, freedom: float) -> Outcome:
    """The t test behind all others; seeds without any spread leave no doubt."""
    if error == 0:
        return Outcome(test, (difference, difference), float(difference == 0))
    half = error * float(stats.t.isf(LEVEL / 2, freedom))
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom))
    return Outcome(test, (difference - half, difference + half), p)


@dataclass(frozen=True)
class Sides:
    """One-sided p values of a t test: that the mean is ``above``, and that it is ``below``, a number."""

    above: float
    below: float


def one_sided(values: Iterable[float], point: float = 0.0) -> Sides | None:
    """Test on which side of a number the mean lies; None with fewer than two values."""
    present = known(values)
    outcome = against_point(present, point)
    if outcome.p is None:
        return None
    half = outcome.p / 2
    difference = float(np.mean(present)) - point
    if difference == 0:
        return Sides(0.5, 0.5)
    return Sides(half, 1 - half) if difference > 0 else Sides(1 - half, half)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Correct the p values that are there for their number (Holm)."""
    given = [p for p in ps if p is not None]
    if len(given) < 2:
        return list(ps)
    corrected = iter(multipletests(given, method="holm")[1])
    return [None if p is None else float(next(corrected)) for p in ps]
