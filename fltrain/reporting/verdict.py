"""Verdicts on published values, by the rule of ``docs/protocol.md``.

A cell of a table has one value per seed. Its published value is *reproduced* if the 90 % interval of the
contrast (``fltrain.core.statistics``) lies inside a margin that was declared before the runs, *not
reproduced* if it lies wholly outside, and *inconclusive* otherwise. Gains over a base method have verdicts of
their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fltrain.core.statistics import (
    LEVEL,
    Contrast,
    Interval,
    Sample,
    against,
    around,
    contrast,
    discoveries,
    moderated,
    over_seeds,
    t_above,
)
from fltrain.reporting.tables.table_cell import CORRECTED, GainVerdict, Side, TableCell
from fltrain.runs.measures import measure

MISSED = "target missed"
"""Reason of an inconclusive cell."""
WITH_MISSES, NO_INTERVAL = f"inconclusive ({MISSED})", "inconclusive (no interval)"
"""Names under which pages count cells without an interval apart."""

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

BOOTSTRAP_SEEDS, RESAMPLES = 5, 2000
"""Fewest seeds for the bootstrap of a median or maximum, and its samples."""


@dataclass(frozen=True)
class Judgeable:
    """A cell without intervals and verdicts, and the facts to judge it.

    Attributes:
        cell: the cell with our values and gains, the published ones and margins. A diverged seed counts as
            chance accuracy (rounds to a target: infinite).
        values: the cell's values and the facts about their spread. Cells of one dataset and measure are a
            family, averages another one.
        gains: the same for its gains, whose families also have one plug-in.
        published_gain_stds: deviations of the two values whose difference is the published gain.
        averaged: number of rows that gains are averages over.
        compared: False if there is no verdict on published values: at a reduced scale, for example.
        gain_margin: margin around no gain, if the table declares one. A published gain has its own margin.
    """

    cell: TableCell
    values: Sample
    gains: Sample
    published_gain_stds: tuple[float | None, float | None] = (None, None)
    averaged: int = 1
    compared: bool = True
    gain_margin: float | None = None


def gain_margin(published_gain: float) -> float:
    """Return the margin around a published gain: half of it, but at least 0.25 points."""
    return max(LEAST_GAIN_MARGIN, abs(published_gain) / 2)


def compare(cells: Sequence[Judgeable]) -> list[TableCell]:
    """Judge all cells of a table; they moderate their spreads and share the list of cells not reproduced.

    Returns:
        The cells with intervals, verdicts and the numbers behind them.
    """
    values = moderated([case.values for case in cells])
    gains = moderated([case.gains for case in cells])
    judged: list[TableCell] = []
    for case, ours, gained in zip(cells, values, gains, strict=True):
        mean, std = over_seeds(case.cell.values, case.cell.over_seeds)
        gain, gain_std = over_seeds(case.cell.gains)
        cell = case.cell.replace(n=len(case.cell.values), mean=mean, std=std, gain=gain, gain_std=gain_std)
        cell = cell.replace(gain_margin=case.gain_margin if cell.published_gain is None else None)
        diff = contrast(gained, region=around(cell.gain_margin))
        judged.append(
            cell.replace(
                **_interval(cell, ours), **_verdict(cell, case, ours), **_gain_verdict(cell, case, diff, ours)
            )
        )
    discovered = discoveries([cell.p for cell in judged])
    significant = discoveries([cell.gain_p if cell.gain_verdict in AMONG_OWN else None for cell in judged])
    return [_corrected(*row) for row in zip(judged, discovered, significant, strict=True)]


def _corrected(cell: TableCell, discovered: bool, significant: bool) -> TableCell:
    """Return a cell after the corrections of the table's values and of the differences among our own runs."""
    dropped = cell.verdict == "not reproduced" and cell.p is not None and not discovered
    cell = cell.replace(dropped=dropped)
    if cell.gain_verdict not in AMONG_OWN or significant:
        return cell
    alone = cell.gain_p is not None and cell.gain_p <= LEVEL
    return cell.replace(gain_verdict="inconclusive", reason=CORRECTED if alone else cell.reason)


def without_interval(reason: str) -> str:
    """Return the name under which pages count a cell without an interval; empty if it has one."""
    return {"": "", CORRECTED: "", MISSED: WITH_MISSES}.get(reason, NO_INTERVAL)


def repeated(cells: Iterable[TableCell]) -> int:
    """Return the number of differences among our own runs that have the same runs as another one.

    For example, the selected settings of a method can be its default ones.
    """
    runs = Counter((cell.item, cell.label, cell.runs) for cell in cells if cell.among_own)
    return runs.total() - len(runs)


def expected_counts(cells: Iterable[TableCell], probabilities: Mapping[str, str]) -> dict[str, float]:
    """Return the number of cells with each verdict if every published value (or gain) were true.

    Only cells with an interval count, as no probability is known for others.

    Args:
        cells: judged cells.
        probabilities: columns with the probability of each verdict, ``EXPECTED`` or ``EXPECTED_GAINS``; the
            rest is the probability of ``inconclusive``.
    """
    first, *_ = probabilities.values()
    counted = [cell for cell in cells if getattr(cell, first) is not None]
    expected = {
        verdict: math.fsum(getattr(cell, column) for cell in counted)
        for verdict, column in probabilities.items()
    }
    return {**expected, "inconclusive": len(counted) - math.fsum(expected.values())} if counted else {}


# ---------------------------------------------------------------- values
Columns = dict[str, Any]
"""Some columns of a cell."""


def _interval(cell: TableCell, ours: Sample) -> Columns:
    """Return the spread of our values, and the interval of their mean."""
    spread, estimate = ours.spread, contrast(ours)
    if cell.over_seeds != "mean" or not spread.df:
        return {}
    low, high = estimate.interval if estimate else (None, None)
    moderation = {"spread": spread.std, "spread_df": spread.df, "spread_cells": spread.cells}
    return {**moderation, "low": low, "high": high}


def _verdict(cell: TableCell, inputs: Judgeable, ours: Sample) -> Columns:
    """Return the verdict on our value and the numbers behind it."""
    mean, published = cell.mean, cell.published
    if not inputs.compared or (published is None and not cell.published_failed):
        return {}
    if cell.published_failed:
        return _of_failure(cell)
    if mean is None or published is None:
        return _inconclusive("diverged") if cell.diverged else {"verdict": "not run"}
    columns, region = {"difference": mean - published}, around(cell.margin)
    if cell.over_seeds != "mean":
        interval = _bootstrapped(cell, published)
        return {**columns, **(_labelled(cell, interval, region) if interval else _too_few(cell))}
    offset = contrast(ours, published, seeds=cell.published_seeds or 1, std=cell.published_std, region=region)
    if offset is None:
        return {**columns, **(_inconclusive(MISSED) if math.isinf(mean) else _too_few(cell))}
    inside, outside = offset.chances()
    return {
        **columns,
        **_labelled(cell, offset.interval, region),
        "seeds_needed": offset.seeds_needed if offset.position == "across" else None,
        "p": offset.p_outside,
        "detectable": offset.detectable,
        "expected_reproduced": inside,
        "expected_not_reproduced": outside,
    }


def _inconclusive(reason: str) -> Columns:
    return {"verdict": "inconclusive", "reason": reason}


def _too_few(cell: TableCell) -> Columns:
    return _inconclusive("one seed" if cell.n == 1 else "too few seeds")


def _of_failure(cell: TableCell) -> Columns:
    """Return the verdict on a published failure."""
    if not cell.complete:
        return {"verdict": "not run"}
    if cell.complete < 2:
        return _inconclusive("one seed")
    if cell.failed:
        return {"verdict": "reproduced"}
    if cell.diverged or any(map(math.isinf, cell.values)):
        return _inconclusive("some runs fail")
    return {"verdict": "not reproduced", "side": _side(cell, measure(cell.measure).accuracy)}


def _side(cell: TableCell, larger: bool) -> Side:
    """Return the side of a miss from whether our number is larger than the published one."""
    if measure(cell.measure).accuracy:
        return "better" if larger else "worse"
    return "more" if larger else "fewer" if "rounds" in cell.measure else "less"


def _labelled(cell: TableCell, interval: Interval, region: Interval) -> Columns:
    """Return the verdict on a value by the position of the interval of its difference."""
    verdicts = {"inside": "reproduced", "outside": "not reproduced", "across": "inconclusive"}
    position, (low, high) = against(interval, region), interval
    side = _side(cell, low > 0) if position == "outside" else ""
    return {"difference_low": low, "difference_high": high, "verdict": verdicts[position], "side": side}


def _bootstrapped(cell: TableCell, published: float) -> Interval | None:
    """Return the interval of a median or maximum by a bootstrap; the published one varies like ours."""
    if cell.n < BOOTSTRAP_SEEDS:
        return None
    summary = np.median if cell.over_seeds == "median" else np.max
    draws = np.random.default_rng(0)
    samples = draws.choice(np.asarray(cell.values, float), (RESAMPLES, cell.n))
    differences = summary(samples, axis=1) - published
    if all(map(math.isfinite, cell.values)):
        their_draws = draws.choice(cell.values, (len(differences), cell.published_seeds or 1))
        differences = differences - (summary(their_draws, axis=1) - summary(cell.values))
    # Infinite values count as largest.
    low, high = np.quantile(differences, [LEVEL, 1 - LEVEL], method="closest_observation")
    return float(low), float(high)


# ---------------------------------------------------------------- gains
def _gain_verdict(cell: TableCell, inputs: Judgeable, ours: Contrast | None, values: Sample) -> Columns:
    """Return the verdict on our gain, a contrast with zero; the paper's numbers vary like our ``values``."""
    mean, published = cell.gain, cell.published_gain
    verdict: GainVerdict
    if mean is None:
        return {}
    low, high = ours.interval if ours else (None, None)
    columns: Columns = {"gain_low": low, "gain_high": high}
    if cell.lost_gain:
        return columns
    if cell.gain_margin:
        # True gains lie inside or outside the margin; ``compare`` controls false discoveries.
        inside = abs(mean) < cell.gain_margin
        p = min(ours.p_outside, 1 - ours.p_outside) if ours else None
        verdict = "equivalent" if inside else "better" if mean > 0 else "worse"
        return {**columns, "gain_verdict": verdict, "gain_p": p}
    if published is None or measure(cell.measure).margin.relative or not inputs.compared:
        return columns
    columns |= {"gain_margin": gain_margin(published), "gain_verdict": "inconclusive"}
    if ours is None or low is None or high is None:
        return columns
    difference = replace(
        ours,
        estimate=mean - published,
        other_error=_published_gain_error(cell, inputs, ours, values),
        region=around(gain_margin(published)),
    )
    verdict = "inconclusive"
    if difference.position == "inside":
        verdict = "size reproduced"
    elif (low > 0 and published > 0) or (high < 0 and published < 0):
        verdict = "direction reproduced"
    elif (low > 0 > published) or (high < 0 < published):
        verdict = "opposite"
    # The probability of each verdict if the published gain were true.
    (size, _), shift, df = difference.chances(), abs(published) / ours.error, ours.spread.df
    return {
        **columns,
        "gain_verdict": verdict,
        **dict(zip(("gain_difference_low", "gain_difference_high"), difference.interval, strict=True)),
        "gain_p": difference.p_outside,
        "expected_size": size,
        "expected_direction": max(0.0, t_above(ours.quantile - shift, df) - size) if published else 0.0,
        "expected_opposite": t_above(ours.quantile + shift, df) if published else 0.0,
    }


def _published_gain_error(cell: TableCell, inputs: Judgeable, ours: Contrast, values: Sample) -> float:
    """Return the standard error of a published gain: that of two means, as printed or as ours vary."""
    seeds = cell.published_seeds or 1
    if not cell.values:  # an average of gains, of which the paper prints no parts
        return ours.spread.std / math.sqrt(seeds)
    base = replace(values, values=cell.base_values, diverged=bool(cell.base_diverged))
    our_stds = (values.spread.std, base.spread.std)
    pairs = zip(our_stds, inputs.published_gain_stds, strict=True)
    stds = [(spread or max(our_stds)) if std is None else std for spread, std in pairs]
    return math.hypot(*stds) / math.sqrt(seeds * inputs.averaged)
