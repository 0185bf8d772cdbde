"""Verdicts on published values, by the rule of ``docs/protocol.md``.

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

import numpy as np

from fltrain.core.floats import total
from fltrain.core.lazy import stats
from fltrain.core.statistics import (
    LEVEL,
    Sample,
    Spread,
    percentile_interval,
    pooled_spreads,
    resampled,
    t_above,
    t_quantile,
)
from fltrain.reporting.tables.table_cell import GainVerdict, Interval, Side, TableCell, Verdict

RULE_DATE = datetime.date(2026, 11, 23)
"""When the rule was last changed. Verdicts on runs that had been seen by then are exploratory."""

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

EXPECTED = {"reproduced": "expected_reproduced", "not reproduced": "expected_not_reproduced"}
EXPECTED_GAINS = {
    "size reproduced": "expected_size",
    "direction reproduced": "expected_direction",
    "opposite": "expected_opposite",
}
"""Columns with the probability of each verdict if the published value or gain were true."""

AMONG_OWN: tuple[GainVerdict, ...] = ("better", "equivalent", "worse")
"""Verdicts of comparisons among our own runs."""

LEAST_GAIN_MARGIN = 0.25
"""Smallest margin that follows from a published gain, in points."""

POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""

MOST_SEEDS = 1000
"""Largest number of seeds that the search for a deciding number of seeds considers."""

BOOTSTRAP_SEEDS = 5
"""Fewest seeds for the bootstrap of a median or maximum."""


@dataclass(frozen=True)
class Basis:
    """Facts that the rule needs about a cell, in addition to its row in the CSV file.

    Attributes:
        group: equal for cells of one dataset and measure, which share their spread.
        floor: smallest believable standard deviation: one test image.
        gains_diverged: diverged runs among the cell's and those of the base method.
        published_gain_stds: deviations of the two values whose difference is the published gain.
        averaged: number of rows that gains are averages over.
        points: values are percentages or their differences, so that gains have margins in points. Others
            (rounds, seconds) share their spread as a share of each cell's mean.
        accuracy: larger values are better.
        compared: False if there is no verdict on published values: at a reduced scale, for example.
    """

    group: Hashable = None
    floor: float = 0.0
    gains_diverged: int = 0
    published_gain_stds: tuple[float | None, float | None] = (None, None)
    averaged: int = 1
    points: bool = True
    accuracy: bool = True
    compared: bool = True


def cell_margin(margin: float, published_gain: float | None, points: bool) -> float:
    """Return the margin of a cell; with a plug-in at most half of the published gain, at least 0.25."""
    if published_gain is None or not points:
        return margin
    return min(margin, gain_margin(published_gain))


def gain_margin(published_gain: float) -> float:
    """Return the margin around a published gain: half of it, but at least 0.25 points."""
    return max(LEAST_GAIN_MARGIN, abs(published_gain) / 2)


def compare(cells: Sequence[tuple[TableCell, Basis]]) -> list[TableCell]:
    """Judge all cells of a table; they share their spreads and the list of cells that are not reproduced.

    Args:
        cells: our numbers, the published ones and margins. A diverged seed counts as chance accuracy (rounds
            to a target: infinite). ``gain_margin`` is that of a comparison among our own runs.

    Returns:
        The cells with intervals, verdicts and the numbers behind them.
    """
    scales = [_scale(cell, basis) for cell, basis in cells]
    pooled = pooled_spreads(
        [
            _sample(cell.values, basis, cell.diverged, scale)
            for (cell, basis), scale in zip(cells, scales, strict=True)
        ]
    )
    of_gains = pooled_spreads([_sample(cell.gains, basis, basis.gains_diverged) for cell, basis in cells])
    judged: list[TableCell] = []
    for (cell, basis), spread, scale, of_gain in zip(cells, pooled, scales, of_gains, strict=True):
        spread = replace(spread, std=spread.std * scale)
        judged.append(_judge_gain(_judge(cell, basis, spread), basis, of_gain, spread))
    listed = discoveries([cell.p for cell in judged])
    shown = discoveries([_p_among_own(cell, spread) for cell, spread in zip(judged, of_gains, strict=True)])
    found: list[TableCell] = []
    for cell, in_list, is_shown in zip(judged, listed, shown, strict=True):
        open_gain = cell.gain_verdict in AMONG_OWN and not is_shown
        found.append(
            cell.having(
                listed=cell.verdict != "not reproduced" or cell.p is None or in_list,
                gain_verdict="inconclusive" if open_gain else cell.gain_verdict,
            )
        )
    return found


def discoveries(ps: Sequence[float | None]) -> list[bool]:
    """Select p values at a false discovery rate of 5 % (Benjamini and Hochberg 1995)."""
    given = [p for p in ps if p is not None]
    adjusted = iter(stats.false_discovery_control(given) if given else ())
    return [p is not None and bool(next(adjusted) <= LEVEL) for p in ps]


def count_verdicts(verdicts: Iterable[str], order: Iterable[str] = VERDICTS) -> dict[str, int]:
    """Return how often each verdict was given, in order, without those that were not."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in order if counts[verdict]}


def expected_counts(cells: Iterable[TableCell], probabilities: Mapping[str, str]) -> dict[str, float]:
    """Return the number of cells with each verdict if every published value (or gain) were true.

    Only cells with an interval count, as no probability is known for others.

    Args:
        cells: judged cells.
        probabilities: columns with the probability of each verdict, ``EXPECTED`` or ``EXPECTED_GAINS``; the
            rest is the probability of ``inconclusive``.
    """
    first, *_ = probabilities.values()
    known = [cell for cell in cells if getattr(cell, first) is not None]
    expected = {
        verdict: total(getattr(cell, column) for cell in known) for verdict, column in probabilities.items()
    }
    return {**expected, "inconclusive": len(known) - total(expected.values())} if known else {}


def _scale(cell: TableCell, basis: Basis) -> float:
    """Return a divisor that makes spreads comparable between cells: the mean of values not in points."""
    mean = float(np.mean(cell.values)) if cell.values else 0.0
    return abs(mean) if mean and math.isfinite(mean) and not basis.points else 1.0


def _sample(values: tuple[float, ...], basis: Basis, diverged: int, scale: float = 1.0) -> Sample:
    # A chance accuracy in place of a diverged seed says nothing about the spread of other cells.
    finite = all(map(math.isfinite, values))
    scaled = tuple(value / scale for value in values) if finite else ()
    return Sample(scaled, (basis.group, basis.averaged), basis.floor / scale, not diverged)


def _testable(mean: float, spread: Spread) -> bool:
    return math.isfinite(mean) and spread.df >= 2 and spread.std > 0


def _quantile(df: int) -> float:
    return t_quantile(1 - LEVEL, df)


def _around(center: float, error: float, df: int) -> Interval:
    half = _quantile(df) * error
    return center - half, center + half


def _within(interval: Interval, margin: float) -> bool:
    return interval[0] >= -margin and interval[1] <= margin


# ---------------------------------------------------------------- values
def _judge(cell: TableCell, basis: Basis, spread: Spread) -> TableCell:
    mean = cell.mean
    if mean is not None and cell.over_seeds == "mean":
        if spread.df:
            cell = cell.having(spread=spread.std, spread_df=spread.df, spread_cells=spread.cells)
        if _testable(mean, spread):
            low, high = _around(mean, spread.error(cell.n), spread.df)
            cell = cell.having(low=low, high=high)
    if not basis.compared:
        return cell
    if cell.published_failed:
        return _judge_failure(cell, basis)
    if cell.published is None:
        return cell
    if mean is None:
        return _inconclusive(cell, "diverged") if cell.diverged else cell.having(verdict="not run")
    cell = cell.having(difference=mean - cell.published)
    if cell.over_seeds != "mean":
        return _judge_by_bootstrap(cell, basis)
    if cell.interval is None:
        return _inconclusive(cell, "target not reached" if math.isinf(mean) else _too_few(cell))
    return _judge_mean(cell, basis, spread)


def _inconclusive(cell: TableCell, reason: str) -> TableCell:
    return cell.having(verdict="inconclusive", reason=reason)


def _too_few(cell: TableCell) -> str:
    return "one seed" if cell.n == 1 else "too few seeds"


def _judge_failure(cell: TableCell, basis: Basis) -> TableCell:
    if not cell.complete:
        return cell.having(verdict="not run")
    if cell.complete < 2:
        return _inconclusive(cell, "one seed")
    if cell.failed:
        return cell.having(verdict="reproduced")
    if cell.diverged or any(map(math.isinf, cell.values)):
        return _inconclusive(cell, "some runs fail")
    return cell.having(verdict="not reproduced", side=_side(basis, basis.accuracy))


def _side(basis: Basis, larger: bool) -> Side:
    """Return the side of a miss from whether our number is larger than the published one."""
    if basis.accuracy:
        return "better" if larger else "worse"
    return "more" if larger else "less"


def _error(cell: TableCell, spread: Spread, n: float) -> float:
    theirs = spread.std if cell.published_std is None else cell.published_std
    return math.hypot(spread.error(n), theirs / math.sqrt(cell.published_seeds or 1))


def _judge_mean(cell: TableCell, basis: Basis, spread: Spread) -> TableCell:
    difference, margin = cell.difference or 0.0, cell.margin or 0.0
    error, quantile = _error(cell, spread, cell.n), _quantile(spread.df)
    judged = _labelled(cell, basis, _around(difference, error, spread.df)).having(
        p=t_above((abs(difference) - margin) / error, spread.df),
        detectable=margin + (quantile + t_quantile(POWER, spread.df)) * error,
        expected_reproduced=max(0.0, 1 - 2 * t_above(margin / error - quantile, spread.df)),
        expected_not_reproduced=2 * t_above(margin / error + quantile, spread.df),
    )
    undecided = judged.verdict == "inconclusive"
    return judged.having(seeds_needed=_seeds_needed(cell, spread)) if undecided else judged


def _labelled(cell: TableCell, basis: Basis, interval: Interval) -> TableCell:
    (low, high), margin = interval, cell.margin or 0.0
    verdict: Verdict = "reproduced" if _within(interval, margin) else "inconclusive"
    missed = low > margin or high < -margin
    return cell.having(
        difference_low=low,
        difference_high=high,
        verdict="not reproduced" if missed else verdict,
        side=_side(basis, low > margin) if missed else "",
    )


def _seeds_needed(cell: TableCell, spread: Spread) -> float:
    """Return the seeds of this cell that would decide it if the difference and the spread stay."""
    distance = abs(abs(cell.difference or 0.0) - (cell.margin or 0.0))

    def decides(seeds: int) -> bool:
        return distance >= _quantile(spread.df + seeds - cell.n) * _error(cell, spread, seeds)

    candidates = range(cell.n + 1, MOST_SEEDS + 1)
    place = bisect.bisect_left(candidates, True, key=decides)
    return candidates[place] if place < len(candidates) else math.inf


def _judge_by_bootstrap(cell: TableCell, basis: Basis) -> TableCell:
    """Judge a median or maximum by a percentile bootstrap; the published one varies like ours."""
    if cell.n < BOOTSTRAP_SEEDS:
        return _inconclusive(cell, _too_few(cell))
    summary = np.median if cell.over_seeds == "median" else np.max
    draws = np.random.default_rng(0)
    differences = summary(resampled(cell.values, draws), axis=1) - (cell.published or 0.0)
    if all(map(math.isfinite, cell.values)):
        theirs = draws.choice(cell.values, (len(differences), cell.published_seeds or 1))
        differences = differences - (summary(theirs, axis=1) - summary(cell.values))
    return _labelled(cell, basis, percentile_interval(differences))


# ---------------------------------------------------------------- gains
def _judge_gain(cell: TableCell, basis: Basis, spread: Spread, of_values: Spread) -> TableCell:
    mean, published, n = cell.gain, cell.published_gain, len(cell.gains)
    if mean is None:
        return cell
    interval = _around(mean, spread.error(n), spread.df) if _testable(mean, spread) else None
    if interval:
        cell = cell.having(gain_low=interval[0], gain_high=interval[1])
    if cell.gain_margin:
        # True gains lie inside or outside the margin; ``compare`` controls false discoveries.
        inside = abs(mean) < cell.gain_margin
        return cell.having(gain_verdict="equivalent" if inside else "better" if mean > 0 else "worse")
    if published is None or not basis.points or not basis.compared:
        return cell
    margin = gain_margin(published)
    cell = cell.having(gain_margin=margin, gain_verdict="inconclusive")
    if interval is None:
        return cell
    low, high = interval
    stds = [of_values.std if std is None else std for std in basis.published_gain_stds]
    theirs = math.hypot(*stds) / math.sqrt((cell.published_seeds or 1) * basis.averaged)
    error = math.hypot(spread.error(n), theirs)
    differences = _around(mean - published, error, spread.df)
    verdict: GainVerdict = "inconclusive"
    if _within(differences, margin):
        verdict = "size reproduced"
    elif (low > 0 and published > 0) or (high < 0 and published < 0):
        verdict = "direction reproduced"
    elif (low > 0 > published) or (high < 0 < published):
        verdict = "opposite"
    # The probability of each verdict if the published gain were true.
    quantile, shift = _quantile(spread.df), abs(published) / spread.error(n)
    size = max(0.0, 1 - 2 * t_above(margin / error - quantile, spread.df))
    return cell.having(
        gain_verdict=verdict,
        gain_difference_low=differences[0],
        gain_difference_high=differences[1],
        expected_size=size,
        expected_direction=max(0.0, t_above(quantile - shift, spread.df) - size) if published else 0.0,
        expected_opposite=t_above(quantile + shift, spread.df) if published else 0.0,
    )


def _p_among_own(cell: TableCell, spread: Spread) -> float | None:
    """Return the p value of a comparison among our own runs, against the other side of the margin.

    It is that of the side on which the mean does not lie, so that a verdict at 5 % agrees with the 90 %
    interval. None without an interval.
    """
    if cell.gain_verdict not in AMONG_OWN or cell.gain_low is None:
        return None
    distance = abs(abs(cell.gain or 0.0) - (cell.gain_margin or 0.0))
    return t_above(distance / spread.error(len(cell.gains)), spread.df)
