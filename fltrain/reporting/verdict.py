"""Verdicts on published values, by the rule of ``docs/protocol.md``. Numbers in, numbers out.

A cell of a table has one value per seed. Its published value is *reproduced* if the 90 % prediction interval
of the difference lies inside a margin that was declared before the runs, *not reproduced* if it lies wholly
outside, and *inconclusive* otherwise. Gains over a base method have verdicts of their own.
"""

from __future__ import annotations

import bisect
import datetime
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from fltrain.core.statistics import (
    LEVEL,
    OverSeeds,
    Sample,
    Spread,
    Statistic,
    percentile_interval,
    pooled_spreads,
    resampled,
    t_above,
    t_quantile,
)

RULE_DATE = datetime.date(2026, 11, 23)
"""When the rule was last changed. Verdicts on runs that had been seen by then are exploratory."""

Interval = tuple[float, float]

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]
Side = Literal["better", "worse", "more", "less", ""]
GainVerdict = Literal[
    "size reproduced", "direction reproduced", "opposite", "better", "equivalent", "worse", "inconclusive"
]

VERDICTS: dict[Verdict, str] = {
    "reproduced": (
        "the 90 % interval of the difference lies inside the margin; or the paper reports a failure and "
        "most of our runs fail, too"
    ),
    "not reproduced": "the 90 % interval of the difference lies wholly outside the margin",
    "inconclusive": "the interval reaches across the margin, or there are too few seeds for an interval",
    "not run": "none of our runs measured the number",
}
"""Meaning of each verdict on a value."""

GAIN_VERDICTS: dict[GainVerdict, str] = {
    "size reproduced": "the 90 % interval of our gain minus the published one lies inside the gain's margin",
    "direction reproduced": "the one-sided 95 % bound of our gain has the published sign",
    "opposite": "the one-sided 95 % bound of our gain has the other sign",
    "better": "among our own runs: the paired difference is above the declared margin",
    "equivalent": "among our own runs: the paired difference is inside the declared margin",
    "worse": "among our own runs: the paired difference is below the declared margin",
    "inconclusive": "nothing of this is shown, or there are too few seeds for an interval",
}
"""Meaning of each verdict on a gain."""

LEAST_GAIN_MARGIN = 0.25
"""Smallest margin that follows from a published gain, in points."""

POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""

MOST_SEEDS = 1000
"""Largest number of seeds that the search for a deciding number of seeds considers."""

BOOTSTRAP_SEEDS = 5
"""Fewest seeds for the bootstrap of a median or maximum."""


@dataclass(frozen=True)
class CellNumbers:
    """One cell as the rule sees it. All numbers have the unit of the measure.

    Attributes:
        values: one per seed; a diverged seed counts as chance accuracy (rounds to a target: infinite).
        group: equal for cells of one dataset and measure, which share their spread.
        floor: smallest believable standard deviation: one test image.
        over_seeds: summary of the seeds.
        runs: complete runs, of which ``diverged`` ended early.
        gains_diverged: diverged runs among these and those of the base method.
        published: printed value; ``published_std`` is its printed deviation, over ``published_seeds``.
        published_failed: the paper says that its own runs failed.
        margin: around the published value.
        gains: differences to the base method, paired by seed.
        published_gain: published value minus that of the base method, with the deviations of both.
        own_margin: margin of the gain for a comparison among our own runs, without published values.
        averaged: number of rows that gains are averages over.
        points: values are percentages or their differences, so that gains have margins in points. Others
            (rounds, seconds) share their spread as a share of each cell's mean.
    """

    values: tuple[float, ...]
    group: Hashable = None
    floor: float = 0.0
    over_seeds: OverSeeds = "mean"
    runs: int = 0
    diverged: int = 0
    gains_diverged: int = 0
    published: float | None = None
    published_std: float | None = None
    published_seeds: int | None = None
    published_failed: bool = False
    margin: float = 1.0
    gains: tuple[float, ...] = ()
    published_gain: float | None = None
    published_gain_stds: tuple[float | None, float | None] = (None, None)
    own_margin: float | None = None
    averaged: int = 1
    points: bool = True

    @property
    def scale(self) -> float:
        """Divisor that makes spreads comparable between cells: the mean of values that are not in points."""
        mean = float(np.mean(self.values)) if self.values else 0.0
        return abs(mean) if mean and math.isfinite(mean) and not self.points else 1.0

    @property
    def failed(self) -> bool:
        """More than half of the runs diverged or never reached the target."""
        never = sum(map(math.isinf, self.values))
        return 2 * max(self.diverged, never) > self.runs


@dataclass(frozen=True)
class GainJudgement:
    """Our gain and the published one: ``interval`` of our gain, ``differences`` of ours minus theirs.

    For a comparison among our own runs, ``p`` is the one-sided p value against the other side of the margin.
    """

    spread: Spread
    interval: Interval | None
    differences: Interval | None = None
    margin: float | None = None
    verdict: GainVerdict | None = None
    expected: Mapping[str, float] | None = None
    p: float | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict on a cell with all numbers behind it.

    Attributes:
        spread: standard deviation of a single seed.
        mean_interval: 90 % interval of our mean.
        difference: our mean (median, maximum) minus the published value, with its 90 % ``interval``.
        verdict: None without a published value.
        side: side of the miss, if not reproduced: ``better`` or ``worse`` for points, else ``more`` or
            ``less``.
        reason: why there is no interval, if so.
        seeds_needed: seeds of ours that would decide the cell if the difference stays; infinite if none do.
        p: one-sided p value of the null hypothesis that the true difference lies within the margin.
        listed: False if the cell drops out of the list of cells that are not reproduced.
        detectable: difference that would have been called not reproduced with a probability of 80 %.
        expected: probability of each verdict if the published value were true.
        gain: verdict on the gain, if the cell has one.
    """

    spread: Spread
    mean_interval: Interval | None
    difference: float | None = None
    interval: Interval | None = None
    verdict: Verdict | None = None
    side: Side = ""
    reason: str = ""
    seeds_needed: float | None = None
    p: float | None = None
    listed: bool = True
    detectable: float | None = None
    expected: Mapping[str, float] | None = None
    gain: GainJudgement | None = None


def cell_margin(margin: float, published_gain: float | None, points: bool) -> float:
    """Return the margin of a cell; with a plug-in at most half of the published gain, at least 0.25."""
    if published_gain is None or not points:
        return margin
    return min(margin, gain_margin(published_gain))


def gain_margin(published_gain: float) -> float:
    """Return the margin around a published gain: half of it, but at least 0.25 points."""
    return max(LEAST_GAIN_MARGIN, abs(published_gain) / 2)


def compare(cells: Sequence[CellNumbers]) -> list[Judgement]:
    """Judge all cells of a table; they share their spreads and the list of cells that are not reproduced."""
    pooled = pooled_spreads([_sample(cell, cell.values, cell.diverged, cell.scale) for cell in cells])
    spreads = [
        replace(spread, std=spread.std * cell.scale) for cell, spread in zip(cells, pooled, strict=True)
    ]
    gain_spreads = pooled_spreads([_sample(cell, cell.gains, cell.gains_diverged) for cell in cells])
    judged = [
        replace(_judge(cell, spread), gain=_judge_gain(cell, gain_spread, spread))
        for cell, spread, gain_spread in zip(cells, spreads, gain_spreads, strict=True)
    ]
    listed = discoveries([one.p for one in judged])
    shown = discoveries([one.gain.p if one.gain else None for one in judged])
    return [
        replace(
            one,
            listed=one.verdict != "not reproduced" or one.p is None or found,
            gain=replace(one.gain, verdict="inconclusive")
            if one.gain and cell.own_margin and not decided
            else one.gain,
        )
        for cell, one, found, decided in zip(cells, judged, listed, shown, strict=True)
    ]


def discoveries(ps: Sequence[float | None]) -> list[bool]:
    """Select p values at a false discovery rate of 5 % (Benjamini and Hochberg 1995)."""
    given = [p for p in ps if p is not None]
    adjusted = iter(stats.false_discovery_control(given) if given else ())
    return [p is not None and bool(next(adjusted) <= LEVEL) for p in ps]


def count_verdicts(verdicts: Iterable[str], order: Iterable[str] = VERDICTS) -> dict[str, int]:
    """Return how often each verdict was given, in order, without those that were not."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in order if counts[verdict]}


def _sample(cell: CellNumbers, values: tuple[float, ...], diverged: int, scale: float = 1.0) -> Sample:
    # A chance accuracy in place of a diverged seed says nothing about the spread of other cells.
    finite = all(map(math.isfinite, values))
    scaled = tuple(value / scale for value in values) if finite else ()
    return Sample(scaled, (cell.group, cell.averaged), cell.floor / scale, not diverged)


def _quantile(df: int) -> float:
    return t_quantile(1 - LEVEL, df)


def _around(center: float, error: float, df: int) -> Interval:
    half = _quantile(df) * error
    return center - half, center + half


def _within(interval: Interval, margin: float) -> bool:
    return interval[0] >= -margin and interval[1] <= margin


def _too_few(n: int) -> str:
    return "one seed" if n == 1 else "too few seeds"


# ---------------------------------------------------------------- values
def _judge(cell: CellNumbers, spread: Spread) -> Judgement:
    statistic = Statistic.of(cell.values, cell.over_seeds)
    testable = spread.df >= 2 and spread.std > 0 and statistic is not None and cell.over_seeds == "mean"
    judged = Judgement(spread, None)
    if testable and statistic and math.isfinite(statistic.mean):
        judged = replace(judged, mean_interval=_around(statistic.mean, spread.error(statistic.n), spread.df))
    if cell.published_failed:
        return _judge_failure(cell, judged)
    if cell.published is None:
        return judged
    if statistic is None:
        reason = "diverged" if cell.diverged else ""
        return replace(judged, verdict="inconclusive" if reason else "not run", reason=reason)
    judged = replace(judged, difference=statistic.mean - cell.published)
    if cell.over_seeds != "mean":
        return _judge_by_bootstrap(cell, judged)
    if not judged.mean_interval:
        reason = "target not reached" if math.isinf(statistic.mean) else _too_few(statistic.n)
        return replace(judged, verdict="inconclusive", reason=reason)
    return _judge_mean(cell, judged, statistic.n)


def _judge_failure(cell: CellNumbers, judged: Judgement) -> Judgement:
    if not cell.runs:
        return replace(judged, verdict="not run")
    if cell.runs < 2:
        return replace(judged, verdict="inconclusive", reason="one seed")
    if cell.failed:
        return replace(judged, verdict="reproduced")
    if cell.diverged or any(map(math.isinf, cell.values)):
        return replace(judged, verdict="inconclusive", reason="some runs fail")
    return replace(judged, verdict="not reproduced", side=_side(cell, cell.points))


def _side(cell: CellNumbers, larger: bool) -> Side:
    """Return the side of a miss from whether our number is larger than the published one."""
    if cell.points:
        return "better" if larger else "worse"
    return "more" if larger else "less"


def _error(cell: CellNumbers, spread: Spread, n: float) -> float:
    theirs = spread.std if cell.published_std is None else cell.published_std
    return math.hypot(spread.error(n), theirs / math.sqrt(cell.published_seeds or 1))


def _judge_mean(cell: CellNumbers, judged: Judgement, n: int) -> Judgement:
    spread, margin, difference = judged.spread, cell.margin, judged.difference
    assert difference is not None
    error = _error(cell, spread, n)
    quantile = _quantile(spread.df)
    interval = _around(difference, error, spread.df)
    inside = max(0.0, 1 - 2 * t_above(margin / error - quantile, spread.df))
    outside = 2 * t_above(margin / error + quantile, spread.df)
    judged = replace(
        judged,
        interval=interval,
        p=t_above((abs(difference) - margin) / error, spread.df),
        detectable=margin + (quantile + t_quantile(POWER, spread.df)) * error,
        expected={"reproduced": inside, "not reproduced": outside, "inconclusive": 1 - inside - outside},
    )
    judged = _labelled(cell, judged)
    if judged.verdict == "inconclusive":
        return replace(judged, seeds_needed=_seeds_needed(cell, spread, difference, n))
    return judged


def _labelled(cell: CellNumbers, judged: Judgement) -> Judgement:
    assert judged.interval is not None
    if _within(judged.interval, cell.margin):
        return replace(judged, verdict="reproduced")
    if judged.interval[0] > cell.margin or judged.interval[1] < -cell.margin:
        return replace(judged, verdict="not reproduced", side=_side(cell, judged.interval[0] > cell.margin))
    return replace(judged, verdict="inconclusive")


def _seeds_needed(cell: CellNumbers, spread: Spread, difference: float, n: int) -> float:
    """Return the seeds of this cell that would decide it if the difference and the spread stay."""

    def open_with(seeds: int) -> bool:
        half = _quantile(spread.df + seeds - n) * _error(cell, spread, seeds)
        return abs(abs(difference) - cell.margin) < half

    candidates = range(n + 1, MOST_SEEDS + 1)
    place = bisect.bisect_left(candidates, True, key=lambda seeds: not open_with(seeds))
    return candidates[place] if place < len(candidates) else math.inf


def _judge_by_bootstrap(cell: CellNumbers, judged: Judgement) -> Judgement:
    """Judge a median or maximum by a percentile bootstrap; the published one varies like ours."""
    assert cell.published is not None
    if len(cell.values) < BOOTSTRAP_SEEDS:
        return replace(judged, verdict="inconclusive", reason=_too_few(len(cell.values)))
    summary = np.median if cell.over_seeds == "median" else np.max
    draws = np.random.default_rng(0)
    differences = summary(resampled(cell.values, draws), axis=1) - cell.published
    if all(map(math.isfinite, cell.values)):
        theirs = draws.choice(cell.values, (len(differences), cell.published_seeds or 1))
        differences = differences - (summary(theirs, axis=1) - summary(cell.values))
    return _labelled(cell, replace(judged, interval=percentile_interval(differences)))


# ---------------------------------------------------------------- gains
def _judge_gain(cell: CellNumbers, spread: Spread, of_values: Spread) -> GainJudgement | None:
    if not cell.gains:
        return None
    n, mean = len(cell.gains), float(np.mean(cell.gains))
    testable = spread.df >= 2 and spread.std > 0 and math.isfinite(mean)
    judged = GainJudgement(spread, _around(mean, spread.error(n), spread.df) if testable else None)
    if cell.own_margin:
        return (
            _judge_own(judged, mean, cell.own_margin, n)
            if testable
            else replace(judged, margin=cell.own_margin)
        )
    published = cell.published_gain
    if published is None or not cell.points:
        return judged
    margin = gain_margin(published)
    judged = replace(judged, margin=margin, verdict="inconclusive")
    if judged.interval is None:
        return judged
    stds = [of_values.std if std is None else std for std in cell.published_gain_stds]
    theirs = math.hypot(*stds) / math.sqrt((cell.published_seeds or 1) * cell.averaged)
    error = math.hypot(spread.error(n), theirs)
    differences = _around(mean - published, error, spread.df)
    expected = _expected_gains(published, margin, error, spread.error(n), spread.df)
    judged = replace(judged, differences=differences, expected=expected)
    low, high = judged.interval or (0.0, 0.0)
    if _within(differences, margin):
        return replace(judged, verdict="size reproduced")
    if (low > 0 and published > 0) or (high < 0 and published < 0):
        return replace(judged, verdict="direction reproduced")
    if (low > 0 > published) or (high < 0 < published):
        return replace(judged, verdict="opposite")
    return judged


def _judge_own(judged: GainJudgement, mean: float, margin: float, n: int) -> GainJudgement:
    """Judge a gain among our own runs against a margin around zero.

    True gains lie inside or outside the margin. The p value is that of the side on which the mean does not
    lie, so that a verdict at 5 % agrees with the 90 % interval; ``compare`` controls false discoveries.
    """
    spread = judged.spread
    verdict: GainVerdict = "equivalent" if abs(mean) < margin else "better" if mean > 0 else "worse"
    p = t_above(abs(abs(mean) - margin) / spread.error(n), spread.df)
    return replace(judged, margin=margin, verdict=verdict, p=p)


def _expected_gains(
    published: float, margin: float, error: float, own_error: float, df: int
) -> dict[str, float]:
    """Return the probability of each verdict if the published gain were true."""
    quantile, shift = _quantile(df), abs(published) / own_error
    size = max(0.0, 1 - 2 * t_above(margin / error - quantile, df))
    direction = max(0.0, t_above(quantile - shift, df) - size) if published else 0.0
    opposite = t_above(quantile + shift, df) if published else 0.0
    rest = max(0.0, 1 - size - direction - opposite)
    return {
        "size reproduced": size,
        "direction reproduced": direction,
        "opposite": opposite,
        "inconclusive": rest,
    }
