"""Our numbers against published ones: the test that both allow, and a verdict with a declared margin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from fltrain.core.statistics import LEVEL, Outcome, Statistic, against_point, against_sample, holm
from fltrain.reporting.numbers.published import PublishedValue

Verdict = Literal["match", "within noise", "trend only", "differs", "diverged", "not run"]

VERDICTS: dict[Verdict, str] = {
    "match": "the difference is within the margin, and a gain has the published sign; or both runs fail",
    "within noise": "no match, but the test does not tell the two apart, which says little with few seeds",
    "trend only": "differs, but the sign of the gain, or without gains the rank, is the published one",
    "differs": "no match, and the test tells the two apart; one seed, medians and maxima are not tested",
    "diverged": "more than half of our runs diverged",
    "not run": "no run of ours has the number",
}
"""What each verdict means."""


def agrees(ours: float, published: float, margin: float, of_gains: bool) -> bool:
    """Whether a number is within the margin of a published one.

    Two gains also need the same sign, as small ones are within the margin of small losses; a published gain
    of zero demands none.
    """
    # The slack lets differences of exactly the margin, as printed in decimals, be within it.
    near = abs(ours - published) <= margin + 1e-9
    return near and (not of_gains or published == 0 or ours * published > 0)


def margin_of_gain(margin: float, published: float) -> float:
    """The margin around a published gain: half of the gain at most.

    A wider one would find any small gain to be the published small gain. A gain of zero keeps the margin.
    """
    return min(margin, abs(published) / 2) if published else margin


@dataclass(frozen=True)
class Facing:
    """Our number and the published one, side by side.

    Attributes:
        ours: mean (or median) over seeds, if any run has the number.
        values: those of our seeds, if ``ours`` is their mean; medians and maxima are not tested.
        published: the printed value; ``seeds`` of the paper went into it, if it says so.
        margin: in the unit of the value.
        gain: our gain over a baseline, if there is one, and ``published_gain`` the paper's.
        of_gains: whether the numbers themselves are gains.
        complete: our runs that are there, of which so many ``diverged``.
        group: what is equal for numbers that can be ranked against one another.
    """

    ours: Statistic | None
    values: tuple[float, ...]
    published: PublishedValue
    seeds: int | None
    margin: float
    gain: float | None
    published_gain: float | None
    of_gains: bool
    complete: int
    diverged: int
    group: Hashable

    @property
    def difference(self) -> float | None:
        """Ours minus published, if both are finite numbers."""
        if self.ours is None or self.published.value is None or math.isinf(self.ours.mean):
            return None
        return self.ours.mean - self.published.value

    @property
    def matches(self) -> bool:
        """Whether our number agrees with the published one."""
        if self.ours is None or self.published.value is None:
            return False
        return agrees(self.ours.mean, self.published.value, self.margin, self.of_gains)

    @property
    def failed(self) -> bool:
        """Whether most of our runs diverged, or never reached what was sought."""
        never = self.ours is not None and math.isinf(self.ours.mean)
        return never or 2 * self.diverged > self.complete

    def test(self) -> Outcome:
        """The test that the statistics allow: Welch's if the paper tells its spread, else against a point."""
        value, std, seeds = self.published.value, self.published.std, self.seeds
        if value is None:
            return Outcome("none")
        if std is not None and seeds is not None and seeds > 1 and all(map(math.isfinite, self.values)):
            return against_sample(self.values, value, std, seeds)
        return against_point(self.values, value)


@dataclass(frozen=True)
class Compared:
    """A published value and what our runs say about it. Values, differences and margin have the same unit.

    ``interval`` is the 95 % interval of the difference, ``p_holm`` is ``p`` corrected for all comparisons of
    the table.
    """

    published: float | None
    published_std: float | None
    published_seeds: int | None
    notes: tuple[str, ...]
    anomalies: tuple[str, ...]
    difference: float | None
    interval: tuple[float, float] | None
    test: str
    p: float | None
    p_holm: float | None
    margin: float
    verdict: Verdict


def compare(facing: Sequence[Facing]) -> list[Compared]:
    """Compare all numbers of a table with the published ones; they share the correction and the order."""
    outcomes = [pair.test() for pair in facing]
    corrected = holm([outcome.p for outcome in outcomes])
    in_place = _in_published_place(facing)
    return [
        Compared(
            published=pair.published.value,
            published_std=pair.published.std,
            published_seeds=pair.seeds,
            notes=pair.published.notes,
            anomalies=pair.published.anomalies,
            difference=pair.difference,
            interval=outcome.interval,
            test=outcome.test,
            p=outcome.p,
            p_holm=p,
            margin=pair.margin,
            verdict=_verdict(pair, p, placed),
        )
        for pair, outcome, p, placed in zip(facing, outcomes, corrected, in_place, strict=True)
    ]


def _verdict(pair: Facing, p: float | None, in_place: bool) -> Verdict:
    if pair.ours is None and not pair.failed:
        return "not run"
    if pair.published.failed:
        return "match" if pair.failed else "differs"
    if 2 * pair.diverged > pair.complete:
        return "diverged"
    if pair.matches:
        return "match"
    if p is not None and p >= LEVEL:
        return "within noise"
    if pair.gain is not None and pair.published_gain is not None:
        same_trend = pair.gain * pair.published_gain > 0
    else:
        same_trend = in_place
    return "trend only" if same_trend else "differs"


def _in_published_place(facing: Sequence[Facing]) -> list[bool]:
    """Whether each number has the rank within its group that the published one has; not without others.

    Of several equal published numbers each has all the ranks that they share.
    """
    placed = [False] * len(facing)
    for members in _groups(facing):
        ours, published = _values(facing, members)
        ranks = (stats.rankdata(ours), stats.rankdata(published, "min"), stats.rankdata(published, "max"))
        if len(members) > 1:
            for member, rank, first, last in zip(members, *ranks, strict=True):
                placed[member] = bool(first <= rank <= last)
    return placed


def _groups(facing: Sequence[Facing]) -> Iterable[list[int]]:
    """Indices of the comparable numbers of each group."""
    groups: dict[Hashable, list[int]] = {}
    for index, pair in enumerate(facing):
        if pair.difference is not None:
            groups.setdefault(pair.group, []).append(index)
    return groups.values()


def _values(facing: Sequence[Facing], members: Sequence[int]) -> tuple[list[float], list[float]]:
    """Our numbers and the published ones; members have both."""
    pairs = [facing[member] for member in members]
    ours = [pair.ours.mean for pair in pairs if pair.ours is not None]
    return ours, [pair.published.value for pair in pairs if pair.published.value is not None]


@dataclass(frozen=True)
class RankCorrelation:
    """How well our order agrees with the published one: the mean over ``n`` groups of three or more."""

    spearman: float
    kendall: float
    n: int


def rank_correlation(facing: Sequence[Facing]) -> RankCorrelation | None:
    """Correlate our order with the published one within each group; None if there is no group to do it in.

    Groups in which all of ours, or all published values, are equal have no order and do not count.
    """
    found: list[tuple[float, float]] = []
    for members in _groups(facing):
        ours, published = _values(facing, members)
        if len(members) > 2 and len(set(ours)) > 1 and len(set(published)) > 1:
            spearman, kendall = stats.spearmanr(ours, published), stats.kendalltau(ours, published)
            found.append((float(spearman.statistic), float(kendall.statistic)))
    if not found:
        return None
    spearman, kendall = np.mean(found, axis=0)
    return RankCorrelation(float(spearman), float(kendall), len(found))


def count(verdicts: Iterable[Verdict]) -> dict[Verdict, int]:
    """How often each verdict was given, in the order in which they are explained; none that was not."""
    found = sorted(verdicts, key=list(VERDICTS).index)
    return {verdict: len(list(same)) for verdict, same in itertools.groupby(found)}
