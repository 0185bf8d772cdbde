"""One contrast for every difference: moderated spreads, intervals, one-sided tests."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fltrain.core.floats import average
from fltrain.core.lazy import special, stats

LEVEL = 0.05
"""Level of one-sided tests. The matching intervals have a level of 90 %."""

OverSeeds = Literal["mean", "median", "max"]
"""Summary of the values of several seeds."""

Interval = tuple[float, float]


def over_seeds(values: Sequence[float], summary: OverSeeds = "mean") -> tuple[float | None, float | None]:
    """Return the mean (median, maximum) of values, and the sample's deviation for a mean of several."""
    if not values:
        return None, None
    if summary != "mean":
        return max(values) if summary == "max" else float(np.median(values)), None
    # Numbers of rounds can be infinite.
    spread = len(values) > 1 and all(map(math.isfinite, values))
    return average(values), math.sqrt(variance(values)) if spread else None


def variance(values: Sequence[float]) -> float:
    """Return the sample variance, with n - 1 degrees of freedom for n values."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def known(values: Iterable[float]) -> list[float]:
    """Return the values that are not missing (NaN)."""
    return [float(value) for value in values if not math.isnan(value)]


def t_above(value: float, df: float) -> float:
    """Return the probability that Student's t exceeds a value."""
    return float(special.stdtr(df, -value))


# ---------------------------------------------------------------- spreads
LEAST_CELLS = 4
"""Fewest cells from which a prior is estimated; with fewer, each has its own spread."""


@dataclass(frozen=True)
class Prior:
    """A scaled inverse chi-squared prior of the variances of cells that are moderated together.

    It is estimated by empirical Bayes (Smyth 2004, section 6.2, as in limma's ``squeezeVar``). It becomes
    the pooled variance if the variances differ by no more than chance, and loses its weight if they differ
    by much.

    Attributes:
        variance: variance of the prior, s_0^2.
        df: its degrees of freedom, d_0; 0 without a prior, infinite if the cells have equal spreads.
        pooled_df: degrees of freedom of all cells together, which no moderated variance exceeds.
        cells: number of cells behind the prior.
    """

    variance: float = 0.0
    df: float = 0.0
    pooled_df: float = 0.0
    cells: int = 0

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Prior:
        """Estimate the prior from the cells without diverged runs."""
        members = [sample for sample in samples if sample.df and not sample.diverged]
        variances, df = [sample.variance for sample in members], [sample.df for sample in members]
        if len(members) < LEAST_CELLS or not any(variances):
            return cls()
        # Without a floor, variances of zero are offset from it, as in limma.
        least = 1e-5 * (float(np.median(variances)) or 1.0)
        logs = [
            math.log(max(square, least)) - float(special.digamma(d / 2)) + math.log(d / 2)
            for square, d in zip(variances, df, strict=True)
        ]
        excess = variance(logs) - math.fsum(float(special.polygamma(1, d / 2)) for d in df) / len(df)
        if excess <= 0:
            pooled = math.fsum(d * square for d, square in zip(df, variances, strict=True)) / sum(df)
            return cls(pooled, math.inf, sum(df), len(members))
        prior = 2 * inverse_trigamma(excess)
        log = math.fsum(logs) / len(logs) + float(special.digamma(prior / 2)) - math.log(prior / 2)
        return cls(math.exp(log), prior, sum(df), len(members))


@dataclass(frozen=True)
class Spread:
    """Standard deviation over seeds with its degrees of freedom, moderated by a number of ``cells``."""

    std: float
    df: float
    cells: int = 1


@dataclass(frozen=True)
class Sample:
    """Values of one cell, or differences paired by seed: one per seed.

    Attributes:
        values: numbers of the seeds.
        floor: smallest believable standard deviation, in the unit of the values: one test image.
        diverged: a run diverged. A chance accuracy in its place says nothing about the spread of other cells.
        shares: spreads are comparable between cells as a share of the mean: rounds, times, traffic.
        family: equal for cells whose spreads are moderated together.
        base: equal for gains over the same runs. They share its luck, so they are not moderated together;
            None for a base of its own.
        prior: prior of the spread, see ``moderated``; default: the sample has its own spread.
    """

    values: Sequence[float]
    floor: float = 0.0
    diverged: bool = False
    shares: bool = False
    family: Hashable = None
    base: Hashable = None
    prior: Prior = Prior()

    @property
    def df(self) -> int:
        """Degrees of freedom of the sample's own variance; 0 if it has none."""
        return max(len(self.values) - 1, 0) if all(map(math.isfinite, self.values)) else 0

    @property
    def scale(self) -> float:
        """Divisor that makes spreads comparable between cells."""
        mean = float(np.mean(self.values)) if self.shares and self.values else 0.0
        return abs(mean) if mean and math.isfinite(mean) else 1.0

    @property
    def variance(self) -> float:
        """Variance of the values divided by ``scale``; at least a test image's; 0 without one."""
        scale = self.scale
        scaled = [value / scale for value in self.values]
        return max(variance(scaled), (self.floor / scale) ** 2) if self.df else 0.0

    @property
    def spread(self) -> Spread:
        """The moderated spread; a cell with a diverged run has its own, a single seed has none."""
        sample_variance, df, prior = self.variance, self.df, self.prior
        if not df or not prior.df or self.diverged:
            return Spread(math.sqrt(sample_variance) * self.scale, df)
        share = 1.0 if math.isinf(prior.df) else prior.df / (prior.df + df)
        std = max(math.sqrt(share * prior.variance + (1 - share) * sample_variance), self.floor / self.scale)
        return Spread(std * self.scale, min(prior.df + df, prior.pooled_df), prior.cells)


def moderated(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with the priors of their families."""
    seen: Counter[Hashable] = Counter()
    keys: list[Hashable] = []
    members: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        shared = (sample.family, sample.base)
        keys.append((sample.family, seen[shared] if sample.base is not None else 0))
        members.setdefault(keys[-1], []).append(sample)
        seen[shared] += 1
    priors = {key: Prior.of(group) for key, group in members.items()}
    return [replace(sample, prior=priors[key]) for sample, key in zip(samples, keys, strict=True)]


def inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value > 0, by Newton's method on the reciprocal (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-12:
            break
    return x


# ---------------------------------------------------------------- the contrast
Position = Literal["inside", "outside", "across"]
"""Position of an interval against a region; inside a region with two ends, it is two one-sided tests."""

POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""

MOST_SEEDS = 1000
"""Largest number of seeds that the search for a deciding number of seeds considers."""


def around(margin: float | None) -> Interval:
    """Return the region between a margin below zero and one above."""
    return -(margin or 0.0), margin or 0.0


def against(interval: Interval, region: Interval) -> Position:
    """Return the position of an interval against a region."""
    (low, high), (least, largest) = interval, region
    if least <= low and high <= largest:
        return "inside"
    return "outside" if low > largest or high < least else "across"


@dataclass(frozen=True)
class Contrast:
    """A difference with its uncertainty, against a region of differences.

    Attributes:
        estimate: our mean minus the other one.
        spread: moderated spread of one of our seeds.
        n: number of our seeds.
        other_error: standard error of the other mean; 0 if it is exact.
        region: differences that do not matter, or that a claim states; an end can be infinite.
        tries: number of contrasts of which this one was chosen (Bonferroni).
    """

    estimate: float
    spread: Spread
    n: int
    other_error: float = 0.0
    region: Interval = (0.0, 0.0)
    tries: int = 1

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return math.hypot(self.spread.std / math.sqrt(self.n), self.other_error)

    @property
    def quantile(self) -> float:
        """Half the width of the interval in standard errors."""
        return float(special.stdtrit(self.spread.df, 1 - LEVEL / self.tries))

    @property
    def interval(self) -> Interval:
        """90 % interval of the difference."""
        half = self.quantile * self.error
        return self.estimate - half, self.estimate + half

    @property
    def position(self) -> Position:
        """Position of the interval against the region."""
        return against(self.interval, self.region)

    def p_above(self, point: float = 0.0) -> float:
        """Return the one-sided p value of a true difference above a point."""
        return t_above((self.estimate - point) / self.error, self.spread.df)

    def p_below(self, point: float = 0.0) -> float:
        """Return the one-sided p value of a true difference below a point."""
        return t_above((point - self.estimate) / self.error, self.spread.df)

    @property
    def p_inside(self) -> float:
        """P value of a true difference inside the region, the larger of two one-sided ones."""
        low, high = self.region
        return min(1.0, self.tries * max(self.p_above(low), self.p_below(high)))

    @property
    def p_outside(self) -> float:
        """One-sided p value of a true difference outside the region, on the side of the estimate."""
        low, high = self.region
        return min(1.0, self.tries * min(self.p_above(high), self.p_below(low)))

    def chances(self) -> tuple[float, float]:
        """Return the probabilities that the interval lies inside and outside if nothing truly differs."""
        half, df = self.region[1] / self.error, self.spread.df
        return max(0.0, 1 - 2 * t_above(half - self.quantile, df)), 2 * t_above(half + self.quantile, df)

    @property
    def detectable(self) -> float:
        """True difference that is found outside the margin with a probability of 80 %."""
        return self.region[1] + (self.quantile + float(special.stdtrit(self.spread.df, POWER))) * self.error

    @property
    def seeds_needed(self) -> float:
        """Seeds of ours that would decide an inconclusive contrast if the difference and the spread stay."""
        distance = abs(abs(self.estimate) - self.region[1])

        def decides(seeds: int) -> bool:
            more = replace(self, n=seeds, spread=replace(self.spread, df=self.spread.df + seeds - self.n))
            return distance >= more.quantile * more.error

        candidates = range(self.n + 1, MOST_SEEDS + 1)
        place = bisect.bisect_left(candidates, True, key=decides)
        return candidates[place] if place < len(candidates) else math.inf


def contrast(
    ours: Sample,
    other: float = 0.0,
    *,
    seeds: float = math.inf,
    std: float | None = None,
    region: Interval = (0.0, 0.0),
    tries: int = 1,
) -> Contrast | None:
    """Compare the mean of our seeds with another mean. Everything that shows a difference calls this.

    Differences between two lines of ours are one sample, paired by seed, and compared with 0.

    Args:
        ours: our values, or paired differences.
        other: the other mean.
        seeds: number of seeds behind it; infinite for an exact number.
        std: their standard deviation (default: ours).
        region: see ``Contrast``.
        tries: number of contrasts of which this one is the extreme.

    Returns:
        None without a finite mean, or with fewer than two degrees of freedom.
    """
    spread = ours.spread
    if not ours.values or not all(map(math.isfinite, ours.values)) or spread.df < 2 or spread.std == 0:
        return None
    error = (spread.std if std is None else std) / math.sqrt(seeds)
    return Contrast(average(ours.values) - other, spread, len(ours.values), error, region, tries)


def discoveries(ps: Sequence[float | None]) -> list[bool]:
    """Select p values at a false discovery rate of 5 % (Benjamini and Hochberg 1995)."""
    p_values = [p for p in ps if p is not None]
    adjusted = iter(stats.false_discovery_control(p_values) if p_values else ())
    return [p is not None and bool(next(adjusted) <= LEVEL) for p in ps]
