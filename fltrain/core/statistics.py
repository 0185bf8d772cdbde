"""Means, intervals and tests over seeds; pooled spreads, bootstraps and aggregates over many cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fltrain.core.floats import average, total
from fltrain.core.lazy import special, stats

LEVEL = 0.05
"""Level at which tests reject; intervals match the tests."""

OverSeeds = Literal["mean", "median", "max"]
"""Summary of the values of several seeds."""


@dataclass(frozen=True)
class Statistic:
    """Mean (or median, or maximum) over ``n`` seeds; a mean of two or more has the sample's deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float], over_seeds: OverSeeds = "mean") -> Statistic | None:
        """Summarise the present values; None if there are none."""
        present = known(values)
        if not present:
            return None
        if over_seeds != "mean":
            value = max(present) if over_seeds == "max" else float(np.median(present))
            return cls(value, None, len(present))
        # Numbers of rounds can be infinite.
        spread = len(present) > 1 and all(map(math.isfinite, present))
        std = math.sqrt(variance(present)) if spread else None
        return cls(average(present), std, len(present))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean over seeds; None with fewer than two seeds."""
        if self.std is None:
            return None
        half = self.std / math.sqrt(self.n) * t_quantile(1 - LEVEL / 2, self.n - 1)
        return self.mean - half, self.mean + half

    def text(self, decimals: int, sign: str = "") -> str:
        """Format mean and deviation."""
        return number_text(self.mean, decimals, sign, self.std)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance, with n - 1 degrees of freedom for n values."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def known(values: Iterable[float]) -> list[float]:
    """Return the values that are not missing (NaN)."""
    return [float(value) for value in values if not math.isnan(value)]


def interval_text(interval: tuple[float, float], decimals: int, sign: str = "") -> str:
    """Format an interval, for example ``[66.05, 68.63]``."""
    low, high = interval
    return f"[{low:{sign}.{decimals}f}, {high:{sign}.{decimals}f}]"


def number_text(
    value: float | None,
    decimals: int,
    sign: str = "",
    std: float | None = None,
    interval: tuple[float, float] | None = None,
) -> str:
    """Format a number, for example ``67.34 ± 0.52``, ``67.34 [66.05, 68.63]``, or ``never`` (infinite)."""
    if value is None:
        return ""
    text = "never" if math.isinf(value) else f"{value:{sign}.{decimals}f}"
    if interval:
        return f"{text} {interval_text(interval, decimals, sign)}"
    return text if std is None else f"{text} ± {std:.{decimals}f}"


def p_text(p: float) -> str:
    """Format a p value, for example ``p 0.032`` or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def t_quantile(share: float, df: float) -> float:
    """Return the quantile of Student's t below which this share lies."""
    return float(special.stdtrit(df, share))


def t_above(value: float, df: float) -> float:
    """Return the probability that Student's t exceeds a value."""
    return float(special.stdtr(df, -value))


@dataclass(frozen=True)
class Sides:
    """One-sided p values of a t test: the mean is ``above``, or ``below``, the given number."""

    above: float
    below: float


def one_sided(values: Iterable[float], point: float = 0.0, floor: float = 0.0) -> Sides | None:
    """Test on which side of a number the mean lies.

    Args:
        values: one value per seed.
        point: the number.
        floor: smallest believable standard deviation of the values.

    Returns:
        None with fewer than two values, with infinite ones, or without any spread.
    """
    present = known(values)
    if len(present) < 2 or not all(map(math.isfinite, present)):
        return None
    std = max(math.sqrt(variance(present)), floor)
    if std == 0:
        return None
    t = (average(present) - point) / (std / math.sqrt(len(present)))
    return Sides(t_above(t, len(present) - 1), t_above(-t, len(present) - 1))


def mean_interval(values: Sequence[float], floor: float = 0.0) -> tuple[float, float] | None:
    """Return the 90 % interval of the mean, which matches a one-sided test at 5 %; None without a test."""
    values = known(values)
    if one_sided(values, 0.0, floor) is None:
        return None
    std = max(math.sqrt(variance(values)), floor)
    half = t_quantile(1 - LEVEL, len(values) - 1) * std / math.sqrt(len(values))
    mean = average(values)
    return mean - half, mean + half


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Correct the present p values for their number (Holm 1979); None stays None."""
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - rank)))
        corrected[place] = least
    return corrected


# ---------------------------------------------------------------- many cells
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Values of one cell, one per seed.

    Attributes:
        values: finite numbers.
        group: equal for cells that share their spread.
        floor: smallest believable standard deviation, in the unit of the values.
        shared: False keeps the cell out of the pool, for example because one of its seeds diverged.
    """

    values: tuple[float, ...]
    group: Hashable = None
    floor: float = 0.0
    shared: bool = True


@dataclass(frozen=True)
class Spread:
    """Standard deviation over seeds with its degrees of freedom, pooled over a number of ``cells``."""

    std: float
    df: int
    cells: int

    def error(self, n: float) -> float:
        """Return the standard error of a mean over ``n`` seeds."""
        return self.std / math.sqrt(n)


OUTLIER_LEVEL = 0.01
"""Level of the test that takes a cell out of the pool."""


def pooled_spreads(samples: Sequence[Sample]) -> list[Spread]:
    """Return the spread of each cell, pooled over the cells of its group.

    ``s^2 = sum (n_i - 1) s_i^2 / sum (n_i - 1)``, never below a cell's floor. Cells that are not shared keep
    their own spread. So do cells whose variance is larger than that of the rest (one-sided F test at 1 %,
    Bonferroni over the cells of the group, the largest first, as in Cochran's test of ISO 5725-2).
    """
    pools: dict[Hashable, list[int]] = {}
    for place, sample in enumerate(samples):
        if sample.shared:
            pools.setdefault(sample.group, []).append(place)
    df = [max(len(sample.values) - 1, 0) for sample in samples]
    squares = [variance(sample.values) if len(sample.values) > 1 else 0.0 for sample in samples]
    spreads = [_spread([place], squares, df) for place in range(len(samples))]
    for members in pools.values():
        pool = _without_outliers(members, squares, df)
        common = _spread(pool, squares, df)
        for place in pool:
            spreads[place] = common
    return [
        replace(spread, std=max(spread.std, sample.floor))
        for spread, sample in zip(spreads, samples, strict=True)
    ]


def _spread(pool: Sequence[int], squares: Sequence[float], df: Sequence[int]) -> Spread:
    freedom = sum(df[place] for place in pool)
    square = total(df[place] * squares[place] for place in pool) / freedom if freedom else 0.0
    return Spread(math.sqrt(square), freedom, sum(df[place] > 0 for place in pool))


def _without_outliers(members: Sequence[int], squares: Sequence[float], df: Sequence[int]) -> list[int]:
    pool = list(members)
    while True:
        testable = [place for place in pool if df[place] > 0]
        if len(testable) < 3:
            return pool
        largest = max(testable, key=squares.__getitem__)
        rest = _spread([place for place in testable if place != largest], squares, df)
        if rest.std == 0:
            return pool
        p = special.fdtrc(df[largest], rest.df, squares[largest] / rest.std**2)
        if p * len(testable) >= OUTLIER_LEVEL:
            return pool
        pool.remove(largest)


def interquartile_mean(values: Floats, axis: int | None = None) -> Floats:
    """Return the mean without the lowest and the highest quarter of the values."""
    trimmed: Floats = np.asarray(stats.trim_mean(values, 0.25, axis=axis))
    return trimmed


@dataclass(frozen=True)
class CellAggregate:
    """A number over many cells with its 90 % bootstrap interval, from resampled seeds within each cell."""

    estimate: float
    low: float
    high: float
    cells: int


RESAMPLES = 2000


def resampled(values: Sequence[float], draws: np.random.Generator) -> Floats:
    """Draw ``RESAMPLES`` samples with replacement: one row each."""
    picked: Floats = draws.choice(np.asarray(values, float), (RESAMPLES, len(values)))
    return picked


def percentile_interval(values: Floats) -> tuple[float, float]:
    """Return the central 90 % of bootstrap values; infinite ones count as largest."""
    low, high = np.quantile(values, [LEVEL, 1 - LEVEL], method="closest_observation")
    return float(low), float(high)


def aggregate(
    cells: Sequence[Sequence[Sequence[float]]], of_cell: Callable[..., Floats], over: Callable[..., Floats]
) -> CellAggregate | None:
    """Aggregate over cells, with an interval from a bootstrap stratified by cell (Agarwal et al. 2021).

    Args:
        cells: samples of each cell; each sample is resampled independently.
        of_cell: returns the number (or numbers) of a cell from arrays of its samples, along their last axis.
        over: aggregates the numbers of all cells, along the last axis.
    """
    if not cells:
        return None
    draws = np.random.default_rng(0)
    points, columns = [], []
    for place, parts in enumerate(cells):
        points.append(np.ravel(of_cell(place, *(np.asarray(part, float) for part in parts))))
        numbers = of_cell(place, *(resampled(part, draws) for part in parts))
        columns.append(numbers.reshape(RESAMPLES, -1))
    low, high = percentile_interval(over(np.concatenate(columns, axis=1), axis=1))
    return CellAggregate(float(over(np.concatenate(points), axis=0)), low, high, len(cells))


def share_of_larger(first: Floats, second: Floats) -> Floats:
    """Return the share of all pairs in which the first value is larger; ties count half."""
    larger = first[..., :, None] - second[..., None, :]
    shares: Floats = ((larger > 0) + 0.5 * (larger == 0)).mean(axis=(-2, -1))
    return shares
