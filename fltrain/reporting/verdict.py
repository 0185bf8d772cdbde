"""Verdicts on published values, by the rule of ``docs/protocol.md``.

A cell of a table has one value per seed. Its published value is *reproduced* if the 90 % interval of the
contrast (``fltrain.core.statistics``) lies inside a margin that was declared before the runs, *not
reproduced* if it lies wholly outside, and *inconclusive* otherwise. Gains over a base method have verdicts of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fltrain.core.statistics import (
    LEVEL,
    Contrast,
    Interval,
    Sample,
    against,
    contrast,
    discoveries,
    moderated,
    over_seeds,
    t_above,
)
from fltrain.reporting.tables.table_cell import GainVerdict, Side, TableCell, Verdict

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

INTENDED = {"not reproduced (as intended)": "a control made the value false, and the rule rejects it"}

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

BOOTSTRAP_SEEDS, RESAMPLES = 5, 2000
"""Fewest seeds for the bootstrap of a median or maximum, and its samples."""


@dataclass(frozen=True)
class RuleInputs:
    """Facts that the rule needs about a cell, in addition to its row in the CSV file.

    Attributes:
        family: equal for cells that moderate each other's spreads: those of one dataset and measure.
        gain_family: the same for gains: also of one plug-in.
        base: equal for gains over the same runs. They share its luck, so they do not moderate each other.
        floor: smallest believable standard deviation: one test image.
        published_gain_stds: deviations of the two values whose difference is the published gain.
        averaged: number of rows that gains are averages over.
        points: values are percentages or their differences, so that gains have margins in points. Others
            (rounds, seconds) share their spread as a share of each cell's mean.
        accuracy: larger values are better.
        compared: False if there is no verdict on published values: at a reduced scale, for example.
    """

    family: Hashable = None
    gain_family: Hashable = None
    base: Hashable = None
    floor: float = 0.0
    published_gain_stds: tuple[float | None, float | None] = (None, None)
    averaged: int = 1
    points: bool = True
    accuracy: bool = True
    compared: bool = True


Judgeable = tuple[TableCell, RuleInputs]
"""A cell without intervals and verdicts, and the facts to judge it."""


def gain_margin(published_gain: float) -> float:
    """Return the margin around a published gain: half of it, but at least 0.25 points."""
    return max(LEAST_GAIN_MARGIN, abs(published_gain) / 2)


def compare(cells: Sequence[Judgeable]) -> list[TableCell]:
    """Judge all cells of a table; they moderate their spreads and share the list of cells not reproduced.

    Args:
        cells: our values and gains, the published ones and margins. A diverged seed counts as chance accuracy
            (rounds to a target: infinite). ``gain_margin`` is that of a comparison among our own runs.

    Returns:
        The cells with intervals, verdicts and the numbers behind them.
    """
    cells = [(_summarised(cell), inputs) for cell, inputs in cells]
    # An average has another spread than its rows.
    values = moderated(
        [
            Sample(cell.values, inputs.floor, cell.diverged > 0, shares=not inputs.points)
            for cell, inputs in cells
        ],
        [(inputs.family, inputs.averaged) for _, inputs in cells],
    )
    gains = moderated(
        [
            Sample(cell.gains, inputs.floor, bool(cell.diverged or cell.base_diverged))
            for cell, inputs in cells
        ],
        [(inputs.gain_family, inputs.averaged) for _, inputs in cells],
        [inputs.base for _, inputs in cells],
    )
    judged: list[TableCell] = []
    among_own: list[float | None] = []
    for (cell, inputs), ours, gained in zip(cells, values, gains, strict=True):
        gain = contrast(gained, margin=cell.gain_margin or 0.0)
        judged.append(_judge_gain(_judge(cell, inputs, ours), inputs, gain, ours))
        own = gain is not None and judged[-1].gain_verdict in AMONG_OWN
        among_own.append(min(gain.p_outside, 1 - gain.p_outside) if gain and own else None)
    discovered, shown = discoveries([cell.p for cell in judged]), discoveries(among_own)
    return [
        cell.replace(
            dropped=cell.verdict == "not reproduced" and cell.p is not None and not is_discovered,
            gain_verdict="inconclusive"
            if cell.gain_verdict in AMONG_OWN and not is_shown
            else cell.gain_verdict,
        )
        for cell, is_discovered, is_shown in zip(judged, discovered, shown, strict=True)
    ]


def _summarised(cell: TableCell) -> TableCell:
    mean, std = over_seeds(cell.values, cell.over_seeds)
    gain, gain_std = over_seeds(cell.gains)
    return cell.replace(n=len(cell.values), mean=mean, std=std, gain=gain, gain_std=gain_std)


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
        verdict: math.fsum(getattr(cell, column) for cell in known)
        for verdict, column in probabilities.items()
    }
    return {**expected, "inconclusive": len(known) - math.fsum(expected.values())} if known else {}


# ---------------------------------------------------------------- values
def _judge(cell: TableCell, inputs: RuleInputs, ours: Sample) -> TableCell:
    mean, published = cell.mean, cell.published
    if mean is not None and cell.over_seeds == "mean":
        spread = ours.spread
        if spread.df:
            cell = cell.replace(spread=spread.std, spread_df=spread.df, spread_cells=spread.cells)
        if found := contrast(ours):
            low, high = found.interval
            cell = cell.replace(low=low, high=high)
    if not inputs.compared:
        return cell
    if cell.published_failed:
        return _judge_failure(cell, inputs)
    if published is None:
        return cell
    if mean is None:
        return _inconclusive(cell, "diverged") if cell.diverged else cell.replace(verdict="not run")
    cell, margin = cell.replace(difference=mean - published), cell.margin or 0.0
    if cell.over_seeds != "mean":
        return _judge_by_bootstrap(cell, inputs)
    found = contrast(ours, published, seeds=cell.published_seeds or 1, std=cell.published_std, margin=margin)
    if found is None:
        return _inconclusive(cell, "target not reached" if math.isinf(mean) else _too_few(cell))
    inside, outside = found.chances()
    judged = _labelled(cell, inputs, found.interval).replace(
        p=found.p_outside,
        detectable=found.detectable,
        expected_reproduced=inside,
        expected_not_reproduced=outside,
    )
    undecided = judged.verdict == "inconclusive"
    return judged.replace(seeds_needed=found.seeds_needed) if undecided else judged


def _inconclusive(cell: TableCell, reason: str) -> TableCell:
    return cell.replace(verdict="inconclusive", reason=reason)


def _too_few(cell: TableCell) -> str:
    return "one seed" if cell.n == 1 else "too few seeds"


def _judge_failure(cell: TableCell, inputs: RuleInputs) -> TableCell:
    if not cell.complete:
        return cell.replace(verdict="not run")
    if cell.complete < 2:
        return _inconclusive(cell, "one seed")
    if cell.failed:
        return cell.replace(verdict="reproduced")
    if cell.diverged or any(map(math.isinf, cell.values)):
        return _inconclusive(cell, "some runs fail")
    return cell.replace(verdict="not reproduced", side=_side(inputs, inputs.accuracy))


def _side(inputs: RuleInputs, larger: bool) -> Side:
    """Return the side of a miss from whether our number is larger than the published one."""
    if inputs.accuracy:
        return "better" if larger else "worse"
    return "more" if larger else "less"


LABELS: dict[str, Verdict] = {
    "inside": "reproduced",
    "outside": "not reproduced",
    "across": "inconclusive",
}
"""Verdict on a value by the position of the interval of its difference against the margin."""


def _labelled(cell: TableCell, inputs: RuleInputs, interval: Interval) -> TableCell:
    position = against(interval, cell.margin or 0.0)
    return cell.replace(
        difference_low=interval[0],
        difference_high=interval[1],
        verdict=LABELS[position],
        side=_side(inputs, interval[0] > 0) if position == "outside" else "",
    )


def _judge_by_bootstrap(cell: TableCell, inputs: RuleInputs) -> TableCell:
    """Judge a median or maximum by a percentile bootstrap; the published one varies like ours."""
    if cell.n < BOOTSTRAP_SEEDS:
        return _inconclusive(cell, _too_few(cell))
    summary = np.median if cell.over_seeds == "median" else np.max
    draws = np.random.default_rng(0)
    samples = draws.choice(np.asarray(cell.values, float), (RESAMPLES, cell.n))
    differences = summary(samples, axis=1) - (cell.published or 0.0)
    if all(map(math.isfinite, cell.values)):
        theirs = draws.choice(cell.values, (len(differences), cell.published_seeds or 1))
        differences = differences - (summary(theirs, axis=1) - summary(cell.values))
    # Infinite values count as largest.
    low, high = np.quantile(differences, [LEVEL, 1 - LEVEL], method="closest_observation")
    return _labelled(cell, inputs, (float(low), float(high)))


# ---------------------------------------------------------------- gains
def _judge_gain(cell: TableCell, inputs: RuleInputs, ours: Contrast | None, values: Sample) -> TableCell:
    """Judge our gain, a contrast with zero; the paper's numbers vary like our ``values``."""
    mean, published = cell.gain, cell.published_gain
    if mean is None:
        return cell
    if ours:
        low, high = ours.interval
        cell = cell.replace(gain_low=low, gain_high=high)
    if cell.lost_gain:
        return cell
    if cell.gain_margin:
        # True gains lie inside or outside the margin; ``compare`` controls false discoveries.
        inside = abs(mean) < cell.gain_margin
        return cell.replace(gain_verdict="equivalent" if inside else "better" if mean > 0 else "worse")
    if published is None or not inputs.points or not inputs.compared:
        return cell
    cell = cell.replace(gain_margin=gain_margin(published), gain_verdict="inconclusive")
    if ours is None:
        return cell
    found = replace(
        ours,
        estimate=mean - published,
        other_error=_published_gain_error(cell, inputs, ours, values),
        margin=gain_margin(published),
    )
    verdict: GainVerdict = "inconclusive"
    if found.position == "inside":
        verdict = "size reproduced"
    elif (low > 0 and published > 0) or (high < 0 and published < 0):
        verdict = "direction reproduced"
    elif (low > 0 > published) or (high < 0 < published):
        verdict = "opposite"
    # The probability of each verdict if the published gain were true.
    (size, _), shift, df = found.chances(), abs(published) / ours.error, ours.spread.df
    return cell.replace(
        gain_verdict=verdict,
        gain_difference_low=found.interval[0],
        gain_difference_high=found.interval[1],
        gain_p=found.p_outside,
        expected_size=size,
        expected_direction=max(0.0, t_above(ours.quantile - shift, df) - size) if published else 0.0,
        expected_opposite=t_above(ours.quantile + shift, df) if published else 0.0,
    )


def _published_gain_error(cell: TableCell, inputs: RuleInputs, ours: Contrast, values: Sample) -> float:
    """Return the standard error of a published gain: that of two means, as printed or as ours vary."""
    seeds = cell.published_seeds or 1
    if not cell.values:  # an average of gains, of which the paper prints no parts
        return ours.spread.std / math.sqrt(seeds)
    base = replace(values, values=cell.base_values, diverged=bool(cell.base_diverged))
    own = (values.spread.std, base.spread.std)
    pairs = zip(own, inputs.published_gain_stds, strict=True)
    stds = [(s or max(own)) if std is None else std for s, std in pairs]
    return math.hypot(*stds) / math.sqrt(seeds * inputs.averaged)
