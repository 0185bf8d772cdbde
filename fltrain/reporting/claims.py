"""Claims of a paper judged on our runs: supported, contradicted, or undecided. No torch.

The rules of decision are documented with the tests in ``fltrain.experiments.claims``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from fltrain.core.errors import FltrainError, count
from fltrain.core.statistics import (
    LEVEL,
    Contrast,
    Family,
    Interval,
    PublishedMean,
    Sample,
    Statistic,
    contrast,
    discoveries,
    holm,
    known,
)
from fltrain.experiments.claims import (
    Above,
    All,
    Claim,
    Fails,
    NotJudged,
    OneOrSeveral,
    Positive,
    Quantity,
    Similar,
    Test,
    Tested,
    TestOfRuns,
    Value,
    quantities,
    several,
)
from fltrain.experiments.layout import Sheet, named
from fltrain.experiments.published import Published, Statement
from fltrain.reporting.frame import (
    ABSENT,
    DAMAGED,
    DIVERGED,
    MISSING,
    STALE,
    Runs,
    by_place,
    claimed_values,
    places,
)
from fltrain.reporting.tables.render import DROPPED, EXPLORATORY, gain_text, value_text
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.text import interval_text, markdown_table, p_text, without_tags
from fltrain.reporting.verdict import apart, families_of, gain_margin
from fltrain.reporting.version import FIRST_RULE
from fltrain.runs.measures import measure

ClaimVerdict = Literal[
    "supported", "contradicted", "undecided", "reduced scale", "not run", "tested", "not judged"
]

JUDGED: tuple[ClaimVerdict, ...] = ("supported", "contradicted", "undecided")
"""Verdicts that our runs give."""


@dataclass(frozen=True)
class Finding:
    """A verdict on a claim with the numbers behind it.

    Attributes:
        verdict: supported, contradicted, undecided ...
        numbers: estimate, interval and lost runs, in words.
        decision: the test that decided, in words.
        estimate: mean with its 90 % ``interval``.
        p: p value of the test that decided.
        p_contradicted: p value of the test that would contradict the claim.
    """

    verdict: ClaimVerdict
    numbers: str
    decision: str = ""
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    p_contradicted: float | None = None

    @property
    def evidence(self) -> str:
        """Numbers and decision."""
        return f"{self.numbers}; {self.decision}." if self.decision else f"{self.numbers.rstrip('.')}."

    def without_verdict(self) -> Finding:
        """Return the numbers alone, for runs of a reduced scale."""
        if self.verdict not in JUDGED:
            return self
        return replace(self, verdict="reduced scale", decision="", p=None, p_contradicted=None)


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict.

    Attributes:
        item: name of the item that the test looks at; empty if at none, several with commas.
        reduced: the runs belong to a reduced scale.
        listed: False if the claim drops out of the list of contradicted claims.
        exploratory: the rule or the test was decided after the runs had been seen.
    """

    where: str
    claim: str
    item: str
    kind: str
    stated: str
    reduced: bool
    finding: Finding
    listed: bool = True
    exploratory: bool = False

    @property
    def verdict(self) -> str:
        """The verdict with its marks."""
        marks = ("" if self.listed else DROPPED) + (", exploratory" if self.exploratory else "")
        return self.finding.verdict + marks


def judge(
    claims: Sequence[Claim],
    statements: Sequence[Statement],
    sheets: Iterable[Sheet],
    runs: Runs,
    published: Callable[[Sheet], Published],
    reduced: bool,
    cells: Mapping[str, Sequence[TableCell]] = {},
) -> list[Judged]:
    """Judge every claim of a paper at a scale.

    Args:
        claims: the claims with their tests.
        statements: the claims as the paper states them, which the plan has checked.
        sheets: the paper's items at the scale.
        runs: returns the record of a run id, complete or not.
        published: returns the published values behind an item.
        reduced: True for a reduced scale.
        cells: judged cells of the tables by ID of the sheet.

    Raises:
        FltrainError: if the test of a claim does not fit the item.
    """
    stated = {(statement.where, statement.claim): statement for statement in statements}
    sheets = list(sheets)
    items = {sheet.id.partition("/")[2]: sheet for sheet in sheets}
    judge_of = _Judge(items, runs, published, reduced, cells)
    judged: list[Judged] = []
    for claim in claims:
        key = claim.where, claim.claim
        try:
            finding = judge_of.finding(claim.test, stated[key])
        except FltrainError as error:
            raise FltrainError(f"claim {claim.claim!r}: {error}") from None
        names = dict.fromkeys(quantity.item for quantity in quantities(claim.test))
        seen = min((day for name in names if name in items and (day := items[name].seen)), default=None)
        decided = max(FIRST_RULE, claim.decided or FIRST_RULE)
        exploratory = finding.verdict in JUDGED and seen is not None and seen <= decided
        judged.append(
            Judged(
                *(*key, ", ".join(names), claim.test.kind, stated[key].text, reduced, finding),
                exploratory=exploratory,
            )
        )
    listed = discoveries([one.finding.p_contradicted for one in judged])
    return [
        replace(
            one,
            listed=discovered or one.finding.verdict != "contradicted" or one.finding.p_contradicted is None,
        )
        for one, discovered in zip(judged, listed, strict=True)
    ]


@dataclass(frozen=True)
class _Judge:
    """Judges claims on the ``items`` of a paper, by name; see ``judge``."""

    items: Mapping[str, Sheet]
    runs: Runs
    published: Callable[[Sheet], Published]
    reduced: bool
    cells: Mapping[str, Sequence[TableCell]]

    def finding(self, test: Test, statement: Statement) -> Finding:
        """Return the finding on a claim or on a part of it."""
        match test:
            case Tested():
                return Finding("tested", f"It follows from the definition, which {test.by} checks.")
            case NotJudged():
                return Finding("not judged", test.why)
            case All():
                return _conjunction([self.finding(part, statement) for part in test.tests], self.reduced)
        if isinstance(test, Value) and self.reduced:
            return Finding("not run", "The number is that of the full scale; this one is reduced.")
        sheet = self.items.get(test.item)
        if sheet is None:
            return Finding("not run", f"{test.item} is not among the items made here.")
        if absent := _absent(sheet, test):
            only = f", restricted to {', '.join(map(str, sheet.restricted))}" if sheet.restricted else ""
            return Finding("not run", f"{test.item} has no {absent} at this scale{only}.")
        whole, lines = claimed_values(sheet, test, self.runs, self.published(sheet))
        if lines["state"].isin(ABSENT).all() and not lines.empty:
            return Finding("not run", "No run, or pair of runs, that it needs is complete.")
        if lines["value"].isna().all() and not (lines["state"] == DIVERGED).any():
            parts = f" of {', '.join(test.parts)}" if test.parts else ""
            return Finding("not run", f"None of its runs has {test.measure or test.curve}{parts}.")
        finding = _within(sheet, test, lines, self._decided(whole, lines, sheet, test, statement))
        return finding.without_verdict() if self.reduced else finding

    def _decided(
        self, whole: pd.DataFrame, lines: pd.DataFrame, sheet: Sheet, test: TestOfRuns, statement: Statement
    ) -> Finding:
        if isinstance(test, Fails):
            return _fails(lines, test)
        evidence = Evidence.of(whole, lines, test, self._floor(sheet, test), _compared(sheet, test))
        if isinstance(test, Value):
            stated = _stated(statement)
            cell = _printed(sheet, test, lines, self.cells.get(sheet.id, ()), stated)
            seeds = sheet.reported_seeds or 1
            return _of_cell(cell, test, stated) if cell else _value(evidence, test, stated, seeds)
        if test.judge == "average" and evidence.empty:
            return evidence.finding("undecided", INCOMPLETE)
        return _tested(evidence, test)

    def _floor(self, sheet: Sheet, test: Quantity) -> float:
        """Return the smallest believable spread of the number over seeds: one test image, for accuracies."""
        if test.relative:
            return 0.0
        records = (self.runs(cell.run) for cell in sheet.cells)
        images = next((record.test_images for record in records if record.usable), None)
        if test.measure is not None:
            what = measure(test.measure)
            return what.resolution(None if what.dimension else images)
        return 1 / images if test.curve == "evaluation.accuracy" and images else 0.0


def _within(sheet: Sheet, test: Quantity, lines: pd.DataFrame, finding: Finding) -> Finding:
    """Leave a claim about all runs of an item undecided if only a part of them was run.

    A claim about that part is decided: one that names labels which the item has. All labels that it names
    must then have a number.
    """
    missed = [str(one) for one in sheet.restricted if not _names_its_labels(test, sheet, one.axis)]
    unknown = lines[lines["value"].isna() & (lines["state"] != DIVERGED)]
    absent = [
        label
        for axis, labels in test.at.items()
        if axis in lines
        for label in several(labels)
        if label in sheet.axes.get(axis, ()) and not (lines.drop(unknown.index)[axis] == label).any()
    ]
    if missed:
        note = f"ndecided, as the runs are restricted to {', '.join(missed)}"
    elif absent:
        note = f"ndecided, as there is no number at {', '.join(absent)}"
    else:
        return finding
    decision = f"{finding.decision}. U{note}" if finding.decision else f"u{note}"
    return replace(finding, verdict="undecided", decision=decision, p_contradicted=None)


def _names_its_labels(test: Quantity, sheet: Sheet, axis: str | None) -> bool:
    """Return True if a claim names labels of an axis and the item has all of them."""
    if axis is None:
        return False
    choices: tuple[Mapping[str, OneOrSeveral], ...] = test.at, *test.sides
    named = {label for labels in choices if axis in labels for label in several(labels[axis])}
    return bool(named) and named <= set(sheet.axes[axis])


def _conjunction(parts: Sequence[Finding], reduced: bool) -> Finding:
    """Return the finding on a whole claim from those on its parts."""
    verdicts = {part.verdict for part in parts}
    if reduced or verdicts == {"not run"}:
        numbers = _numbered([part.evidence for part in parts])
        return Finding("reduced scale" if "reduced scale" in verdicts else "not run", numbers)
    contrary = [part.p_contradicted for part in parts if part.verdict == "contradicted"]
    ps = [min(1.0, p * len(parts)) for part in parts if (p := part.p_contradicted) is not None]
    least = min(ps, default=None)
    verdict: ClaimVerdict = "undecided"
    if verdicts == {"supported"}:
        verdict = "supported"
    elif contrary and (None in contrary or (least is not None and least < LEVEL)):
        verdict = "contradicted"
    texts = [f"{part.verdict}: {part.evidence}" for part in parts]
    return Finding(verdict, _numbered(texts), p_contradicted=None if None in contrary else least)


def _numbered(texts: Sequence[str]) -> str:
    """Return each text once, after the numbers of its parts: ``(1, 3) A. (2) B.``."""
    numbers: dict[str, list[str]] = {}
    for number, text in enumerate(texts, start=1):
        numbers.setdefault(text, []).append(str(number))
    if len(numbers) == 1:
        return texts[0]
    return " ".join(f"({', '.join(same)}) {text}" for text, same in numbers.items())


def _absent(sheet: Sheet, test: Quantity) -> str:
    """Return the first label or axis of the claim that the item lacks at this scale."""
    for axis, labels in test.choices:
        if not set(labels) & set(sheet.axes.get(axis, ())):
            return f"{axis} {' or '.join(map(repr, labels))}"
    return next((f"axis {axis!r}" for axis in test.mean_over if axis not in sheet.axes), "")


def _compared(sheet: Sheet, test: Quantity) -> str:
    """Return the subtraction behind a number, for example ``C = 0.1 minus C = 0``; empty without one."""

    def text(labels: Mapping[str, OneOrSeveral]) -> str:
        return ", ".join(named(axis, label) for axis, names in labels.items() for label in several(names))

    if test.sides:
        first, second = test.sides
        gain = f"gain over {text(test.over)}: " if test.over else ""
        return f"{gain}{text(first)} minus {text(second)}"
    if not test.over:
        return ""
    others = {
        axis: tuple(
            label for label in several(test.at.get(axis, sheet.axes[axis])) if label not in several(names)
        )
        for axis, names in test.over.items()
    }
    single = {axis: labels for axis, labels in others.items() if len(labels) == 1}
    return f"{text(single) or 'others'} minus {text(test.over)}"


# ---------------------------------------------------------------- evidence
@dataclass(frozen=True)
class Evidence:
    """Numbers of a claim.

    Attributes:
        numbers: seeds down, places across (NaN for none).
        lost: lost runs by state.
        families: prior of the spreads by place.
        unit: unit of the numbers.
        floor: smallest believable spread.
        diverged: places with a diverged run.
        compared: the subtraction that gives the numbers, in words.
    """

    numbers: pd.DataFrame
    lost: dict[str, int]
    families: dict[str, Family]
    unit: str = ""
    floor: float = 0.0
    diverged: frozenset[str] = frozenset()
    compared: str = ""

    @classmethod
    def of(
        cls, whole: pd.DataFrame, lines: pd.DataFrame, test: Quantity, floor: float, compared: str = ""
    ) -> Evidence:
        """Arrange lines; a place is called by the labels that vary."""
        where = [axis for axis in places(lines) if lines[axis].nunique() > 1]
        names = lines[where].agg(", ".join, axis=1) if where else pd.Series("all", index=lines.index)
        lines = lines.assign(place=names)
        numbers = lines.pivot(index="seed", columns="place", values="value")
        families = _families(whole, floor, test)
        labels = {str(group["place"].iloc[0]): key for key, group in by_place(lines, places(whole))}
        return cls(
            numbers[list(dict.fromkeys(names))],
            {state: int((lines["state"] == state).sum()) for state in LOST},
            {place: families[key] for place, key in labels.items()},
            " %" if test.relative else "",
            floor,
            frozenset(lines.loc[lines["state"] == DIVERGED, "place"]),
            compared,
        )

    @cached_property
    def filled(self) -> dict[str, list[float]]:
        """Numbers by seed of each place that has one."""
        found = {str(place): known(self.numbers[place]) for place in self.numbers}
        return {place: values for place, values in found.items() if values}

    @property
    def empty(self) -> int:
        """Number of places without a number."""
        return self.numbers.shape[1] - len(self.filled)

    @property
    def losses(self) -> list[str]:
        """Number of lost runs by reason, and of places without a number, as texts."""
        lost = [f"{number} {LOST[state]}" for state, number in self.lost.items() if number]
        return lost + ([f"{count(self.empty, 'place')} without a number"] if self.empty else [])

    @cached_property
    def per_seed(self) -> list[float]:
        """Averages over the places, of the seeds that have a number in all places that have any."""
        complete = self.numbers[list(self.filled)].dropna()
        return [float(value) for value in complete.mean(axis=1)] if self.filled else []

    def contrast(
        self, place: str, other: PublishedMean | float = 0.0, margin: float = 0.0, tries: int = 1
    ) -> Contrast | None:
        """Return the contrast at a place, or of the average over all places, which has its own spread.

        One seed decides nothing, whatever the spread of other places.
        """
        alone = next(iter(self.filled)) if len(self.filled) == 1 else ""
        if place == OVER_PLACES and not alone:
            floor = self.floor / math.sqrt(max(len(self.filled), 1))
            sample, family = Sample(self.per_seed, floor), Family()
        else:
            place = alone or place
            sample = Sample(self.filled[place], self.floor, place in self.diverged)
            family = self.families[place]
        if len(sample.values) < 2:
            return None
        return contrast(sample, other, family=family, margin=margin, tries=tries)

    def finding(
        self,
        verdict: ClaimVerdict,
        decision: str,
        p: float | None = None,
        p_contradicted: float | None = None,
    ) -> Finding:
        """Return the finding with this verdict: mean, interval, extreme places, losses, test."""
        statistic = Statistic.of(self.per_seed)
        found = self.contrast(OVER_PLACES) if statistic else None
        interval = found.interval if found else None
        parts = ["no seed has a number in all places"]
        if statistic:
            around = f" [{interval[0]:+.4g}, {interval[1]:+.4g}]" if interval else ""
            around += f" ({self.compared})" if self.compared else ""
            parts = [f"mean {statistic.mean:+.4g}{self.unit}{around} over {count(statistic.n, 'seed')}"]
        means = {place: float(np.mean(values)) for place, values in self.filled.items()}
        if len(means) > 1:
            low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            positive = sum(mean > 0 for mean in means.values())
            parts.append(f"positive at {positive} of {len(means)} places")
            parts.append(f"from {means[low]:+.4g} ({low}) to {means[high]:+.4g} ({high})")
        parts += self.losses
        mean = statistic.mean if statistic else None
        return Finding(verdict, ", ".join(parts), decision, mean, interval, p, p_contradicted)


def _families(whole: pd.DataFrame, floor: float, test: Quantity) -> dict[tuple[str, ...], Family]:
    """Return the prior of the spreads at each place of the item, by its labels.

    Places with the same dataset moderate each other, differences if they also have the same plug-ins, but not
    the same base.
    """
    axes = places(whole)
    keys: dict[tuple[str, ...], tuple[Hashable, Hashable]] = {}
    samples: list[Sample] = []
    for labels, lines in by_place(whole, axes):
        key, base = max(lines["spread_family"], key=len), None
        if test.over or test.sides:
            key = (*key, lines["composition"].iloc[0])
        if test.over:
            base = tuple(name for axis, name in zip(axes, labels, strict=True) if axis not in test.over)
        keys[labels] = key, base
        samples.append(Sample(known(lines["value"]), floor, bool((lines["state"] == DIVERGED).any())))
    separate = apart(keys.values())
    priors = families_of(zip(separate, samples, strict=True))
    return {labels: priors[key] for labels, key in zip(keys, separate, strict=True)}


OVER_PLACES = "the average"
LOST = {DIVERGED: "diverged", STALE: "stale", DAMAGED: "damaged", MISSING: "not run"}
UNTESTABLE = "no test: it takes three seeds that differ"
INCOMPLETE = "no test: an average takes a number at every place"


def _tested(evidence: Evidence, test: Above | Positive | Similar) -> Finding:
    """Support a claim if all tests are significant, which needs no correction, and no number is missing.

    Contradict it if the opposite is significant at one place, or for their average, corrected (Holm).
    """
    similar, negative = isinstance(test, Similar), test.kind == "negative"
    margin = test.margin if isinstance(test, Similar) else 0.0
    by = 0.0 if isinstance(test, Similar) else -test.by if negative else test.by

    def p_values(found: Contrast) -> tuple[float, list[float]]:
        """Return the p value of the claim, and those of its opposites."""
        if similar:
            return found.p_inside, [found.p_above(margin), found.p_below(-margin)]
        return (found.p_below(), [found.p_above()]) if negative else (found.p_above(), [found.p_below()])

    names = list(evidence.filled) if test.judge == "every" else [OVER_PLACES]
    claimed = {name: evidence.contrast(name, by, margin) for name in names}
    tried = {name: found for name, found in claimed.items() if found}
    average = evidence.contrast(OVER_PLACES, by) if len(claimed) > 1 and not similar else None
    opposites = {**tried, OVER_PLACES: average} if average else tried
    contrary = [(name, p) for name, found in opposites.items() for p in p_values(found)[1]]
    corrected = [p or 0.0 for p in holm([p for _, p in contrary])]
    least = min(corrected, default=None)
    bound = f"{'below' if negative else 'above'} {by:g}"
    if least is not None and least < LEVEL:
        at = f" at {contrary[corrected.index(least)][0]}" if len(claimed) > 1 else ""
        words = f"beyond {margin:g}: " if similar else f"opposite{at}: {f'not {bound}, ' if by else ''}"
        holms = f" (Holm over {len(contrary)})" if len(contrary) > 1 else ""
        return evidence.finding("contradicted", f"{words}one-sided {p_text(least)}{holms}", least, least)
    if not tried or len(tried) < len(claimed):
        return evidence.finding("undecided", UNTESTABLE)
    largest = max(p_values(found)[0] for found in tried.values())
    holds = largest < LEVEL and not evidence.empty
    words = (
        f"within {margin:g}: two one-sided tests," if similar else f"{f'{bound}: ' if by else ''}one-sided"
    )
    of_all = f", the largest of {len(tried)} places" if len(tried) > 1 else ""
    decision = f"{words} {p_text(largest)}{of_all}"
    return evidence.finding("supported" if holds else "undecided", decision, largest, least)


# ---------------------------------------------------------------- stated numbers
def _stated(statement: Statement) -> float:
    if statement.value is None:
        raise FltrainError("it states no number for the test 'value'; choose another test")
    return 100 * statement.value if statement.unit == "fraction" else statement.value


def _printed(
    sheet: Sheet, test: Value, lines: pd.DataFrame, cells: Sequence[TableCell], stated: float
) -> TableCell | None:
    """Return the cell of the item's table that prints the stated number; None if there is none."""
    where = lines.drop_duplicates(places(lines)) if places(lines) else lines[:1]
    if test.extreme or test.relative or test.margin or sheet.table is None or len(where) != 1:
        return None
    table, decimals = sheet.table, len(f"{stated:.10g}".partition(".")[2])
    over = next((one.gain_over for one in table.measures if one.measure == test.measure), {})
    labels = {axis: str(where[axis].iloc[0]) if axis in where else "" for axis in _axes(sheet)}
    if table.rows in test.mean_over:
        labels[table.rows] = AVERAGE
    for cell in cells:
        printed = cell.published_gain if test.over else cell.published
        if (
            cell.measure == test.measure
            and (not test.over or over == test.over)
            and labels == dict(zip(_axes(sheet), (cell.row, cell.column, cell.panel), strict=False))
            and printed is not None
            and round(printed, decimals) == round(stated, decimals)
        ):
            return cell
    return None


def _axes(sheet: Sheet) -> list[str]:
    assert sheet.table is not None
    return [axis for axis in (sheet.table.rows, sheet.table.columns, sheet.table.panels) if axis]


def _of_cell(cell: TableCell, test: Value, stated: float) -> Finding:
    """Return the verdict of the cell that prints the number."""
    said: str
    if test.over:
        mean, n, margin, said = cell.gain, len(cell.gains), cell.gain_margin, cell.gain_verdict or ""
        text, low, high = gain_text(cell), cell.gain_difference_low, cell.gain_difference_high
    else:
        mean, n, margin, said = cell.mean, cell.n, cell.margin, cell.full_verdict
        text, low, high = value_text(cell), cell.difference_low, cell.difference_high
    ends = None if low is None or high is None else (low, high)
    numbers = f"{text} over {count(n, 'seed')}"
    words = f"stated {stated:g}, as the cell {cell.place} of {cell.item}, which is {said}"
    return _stated_finding(numbers, words, mean, stated, ends, margin or 0.0, None if test.over else cell.p)


def _value(evidence: Evidence, test: Value, stated: float, published_seeds: int) -> Finding:
    """Compare our mean with a stated number, which varies over the paper's seeds as ours does over ours."""
    where, tries = OVER_PLACES, 1
    if test.extreme is not None and evidence.filled:
        choose = max if test.extreme == "largest" else min
        where = choose(evidence.filled, key=lambda place: float(np.mean(evidence.filled[place])))
        tries = len(evidence.filled)
    ours = Statistic.of(evidence.per_seed if where == OVER_PLACES else evidence.filled[where])
    if ours is None:
        return evidence.finding("undecided", UNTESTABLE)
    margin = test.margin
    if margin is None:
        assert test.measure is not None  # a curve has a margin
        margin = gain_margin(stated) if test.over else measure(test.measure).margin.around(stated)
    at = f" ({where})" if where != OVER_PLACES else ""
    numbers = ", ".join([f"{ours.mean:.2f} over {count(ours.n, 'seed')}{at}", *evidence.losses])
    found = evidence.contrast(where, PublishedMean(stated, published_seeds), margin, tries)
    tried = f"Bonferroni over {tries} places" if tries > 1 else ""
    ends, p = (found.interval, found.p_outside) if found else (None, None)
    return _stated_finding(
        *(numbers, f"stated {stated:g}", ours.mean, stated, ends, margin, p), tried, whole=not evidence.empty
    )


def _stated_finding(
    numbers: str,
    words: str,
    mean: float | None,
    stated: float,
    ends: Interval | None,
    margin: float,
    p: float | None,
    tried: str = "",
    whole: bool = True,
) -> Finding:
    """Return the finding from the interval of our number minus the stated one, against the margin."""
    if ends is None or mean is None:
        return Finding("undecided", numbers, f"{words}, margin {margin:.3g}; {UNTESTABLE}", mean)
    low, high = ends
    inside, outside = -margin <= low and high <= margin, low > margin or high < -margin
    verdict: ClaimVerdict = "supported" if inside else "contradicted" if outside else "undecided"
    interval = f"ours minus stated {mean - stated:+.2f} {interval_text(ends, 2, '+')}"
    decision = ", ".join(filter(None, (words, f"margin {margin:.3g}", interval, tried)))
    span = stated + low, stated + high
    return Finding(verdict if whole else "undecided", numbers, decision, mean, span, p, p if whole else None)


def _fails(lines: pd.DataFrame, test: Fails) -> Finding:
    diverged = lines["state"] == DIVERGED
    there = diverged | lines["value"].notna()
    failed = (diverged | (lines["value"] <= test.at_most)).where(there).astype(float)
    where = places(lines)
    # A place without any run has no share (NaN).
    by_place = [lines[axis] for axis in where] or [pd.Series("all", index=lines.index)]
    shares = failed.groupby(by_place, sort=False).mean()
    empty = int(shares.isna().sum())
    verdict: ClaimVerdict = "undecided"
    if not empty and (shares > 0.5).all():
        verdict = "supported"
    elif not empty and (shares == 0).any():
        verdict = "contradicted"
    parts = [f"more than half of them at {int((shares > 0.5).sum())} of {count(len(shares), 'place')}"]
    lost = int((~there).sum())
    parts += [f"{count(lost, 'run')} not there or without a number"] if lost else []
    parts += [f"{count(empty, 'place')} without any run"] if empty else []
    what = measure(test.measure).label.partition(",")[0] if test.measure else test.curve
    return Finding(
        verdict,
        f"failed: {int(failed.sum())} of {count(int(there.sum()), 'run')}, by divergence "
        f"({int(diverged.sum())}) or by {what} of at most {test.at_most:g}; {', '.join(parts)}",
    )


# ---------------------------------------------------------------- output
def to_frame(judged: Sequence[Judged]) -> pd.DataFrame:
    """Return all claims as a data frame: the content of the CSV file."""
    columns = ["where", "claim", "verdict", "listed", "exploratory", "reduced", "item", "test", "stated"]
    columns += ["estimate", "low", "high", "p", "evidence"]
    lines = [
        (
            *(one.where, one.claim, one.finding.verdict, one.listed, one.exploratory, one.reduced),
            *(one.item, one.kind, one.stated),
            *(one.finding.estimate, *(one.finding.interval or (None, None)), one.finding.p),
            one.finding.evidence,
        )
        for one in judged
    ]
    return pd.DataFrame(lines, columns=columns)


def to_markdown(title: str, scale_note: str, judged: Sequence[Judged]) -> str:
    """Return the claims as a Markdown table."""
    lines = [["where", "claim", "stated", "verdict", "evidence", "item"]]
    lines += [
        [one.where, one.claim, one.stated, one.verdict, one.finding.evidence, one.item] for one in judged
    ]
    notes = [LEGEND]
    notes += [DROPPED_CLAIMS] if any(not one.listed for one in judged) else []
    notes += [EXPLORATORY] if any(one.exploratory for one in judged) else []
    table = markdown_table(lines, numbers=False)
    return without_tags(f"**Claims of {title}. {scale_note}**\n\n{table}\n\n{' '.join(notes)}\n")


DROPPED_CLAIMS = f"{DROPPED} drops out of the list of contradicted claims (false discovery rate 5 %)."
LEGEND = "Intervals are 90 % intervals, which match one-sided tests at 5 %. One seed decides nothing."


def scale_note(note: str, sheets: Iterable[Sheet]) -> str:
    """Return a sentence on the scale, and on items that were restricted to a part of their runs."""
    restricted: dict[str, list[str]] = {}
    for sheet in sheets:
        if sheet.restricted:
            restricted.setdefault(", ".join(map(str, sheet.restricted)), []).append(
                sheet.id.partition("/")[2]
            )
    parts = [f"restricted to {what}: {', '.join(items)}" for what, items in restricted.items()]
    undecided = "Claims about runs that these items lack are left undecided"
    return f"{note} {undecided}, {'; '.join(parts)}." if parts else note
