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
from fltrain.core.floats import average
from fltrain.core.statistics import (
    LEVEL,
    Contrast,
    Family,
    Interval,
    PublishedMean,
    Sample,
    against,
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
    LabelChoice,
    NotJudged,
    OneOrSeveral,
    Positive,
    Quantity,
    Similar,
    Test,
    Tested,
    Value,
    quantities,
    several,
)
from fltrain.experiments.layout import ItemJob, named
from fltrain.experiments.published import Published, Statement
from fltrain.reporting.frame import (
    ABSENT,
    DAMAGED,
    DIVERGED,
    MISSING,
    STALE,
    Runs,
    claimed_values,
    places,
    resolution,
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
    interval: Interval | None = None
    p: float | None = None
    p_contradicted: float | None = None

    @property
    def evidence(self) -> str:
        """Numbers and decision."""
        return f"{self.numbers}; {self.decision}." if self.decision else f"{self.numbers.rstrip('.')}."


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
    sheets: Iterable[ItemJob],
    runs: Runs,
    published: Callable[[ItemJob], Published],
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
        late = seen is not None and seen <= max(FIRST_RULE, claim.decided or FIRST_RULE)
        fields = (*key, ", ".join(names), claim.test.kind, stated[key].text, reduced, finding)
        judged.append(Judged(*fields, exploratory=late and finding.verdict in JUDGED))
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

    items: Mapping[str, ItemJob]
    runs: Runs
    published: Callable[[ItemJob], Published]
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
            return Finding("not run", "Its runs are not made here.")
        if absent := _absent(sheet, test):
            only = f" (restricted to {', '.join(map(str, sheet.restricted))})" if sheet.restricted else ""
            return Finding("not run", f"At this scale, its runs have no {absent}{only}.")
        whole, lines = claimed_values(sheet, test, self.runs, self.published(sheet))
        if lines["state"].isin(ABSENT).all() and not lines.empty:
            return Finding("not run", "No run, or pair of runs, that it needs is complete.")
        if lines["value"].isna().all() and not (lines["state"] == DIVERGED).any():
            parts = f" of {', '.join(test.parts)}" if test.parts else ""
            return Finding("not run", f"None of its runs has {test.measure or test.curve}{parts}.")
        if isinstance(test, Fails):
            found = _fails(lines, test)
        else:
            evidence = Evidence.of(whole, lines, sheet, test, self.runs)
            match test:
                case Value():
                    found = _value(evidence, sheet, test, statement, self.cells.get(sheet.id, ()))
                case _:
                    found = _tested(evidence, test)
        found = _within(sheet, test, lines, found)
        if self.reduced:
            return replace(found, verdict="reduced scale", decision="", p=None, p_contradicted=None)
        return found


def _absent(sheet: ItemJob, test: Quantity) -> str:
    """Return the first label or axis of the claim that the item lacks at this scale."""
    for axis, labels in test.choices:
        if not set(labels) & set(sheet.axes.get(axis, ())):
            return f"{axis} {' or '.join(map(repr, labels))}"
    return next((f"axis {axis!r}" for axis in test.mean_over if axis not in sheet.axes), "")


def _within(sheet: ItemJob, test: Quantity, lines: pd.DataFrame, found: Finding) -> Finding:
    """Leave a claim undecided if runs that it is about were left out, or have no number at a label it names.

    Of an item restricted to some labels of an axis, only claims that name these labels are decided.
    """
    named_labels: dict[str, set[str]] = {}
    chosen: tuple[Mapping[str, OneOrSeveral], ...] = test.at, *test.sides
    for axis, labels in (pair for choice in chosen for pair in choice.items()):
        named_labels.setdefault(axis, set()).update(several(labels))
    present = {axis: set(labels) & named_labels.get(axis, set()) for axis, labels in sheet.axes.items()}
    missed = [
        str(one)
        for one in sheet.restricted
        if not (one.axis and named_labels.get(one.axis) and present[one.axis] == named_labels[one.axis])
    ]
    known_lines = lines[lines["value"].notna() | (lines["state"] == DIVERGED)]
    empty = [
        label
        for axis, labels in test.at.items()
        if axis in lines
        for label in several(labels)
        if label in sheet.axes.get(axis, ()) and not (known_lines[axis] == label).any()
    ]
    if not (missed or empty):
        return found
    why = f"the runs are restricted to {', '.join(missed)}" if missed else ""
    why = why or f"there is no number at {', '.join(empty)}"
    decision = f"{found.decision}. Undecided, as {why}" if found.decision else f"undecided, as {why}"
    return replace(found, verdict="undecided", decision=decision, p_contradicted=None)


def _conjunction(parts: Sequence[Finding], reduced: bool) -> Finding:
    """Return the finding on a whole claim from those on its parts."""
    verdicts = {part.verdict for part in parts}
    if reduced or verdicts <= {"not run", "not judged"}:
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


# ---------------------------------------------------------------- evidence
OVER_PLACES = "the average"
LOST = {DIVERGED: "diverged", STALE: "stale", DAMAGED: "damaged", MISSING: "not run"}
UNTESTABLE = "no test: it takes three seeds that differ"
INCOMPLETE = "no test: an average takes a number at every place"


@dataclass(frozen=True)
class Evidence:
    """Numbers of a claim.

    Attributes:
        numbers: seeds down, places across (NaN for none).
        samples: numbers of each place that has any.
        families: prior of the spreads by place.
        floor: smallest believable spread.
        losses: counts of lost runs and of places without a number, in words.
        unit: unit of the numbers.
        compared: the subtraction that gives the numbers, in words.
        labels: labels of the place if there is a single one.
    """

    numbers: pd.DataFrame
    samples: dict[str, Sample]
    families: dict[str, Family]
    floor: float
    losses: list[str]
    unit: str
    compared: str
    labels: dict[str, str] | None

    @classmethod
    def of(
        cls, whole: pd.DataFrame, lines: pd.DataFrame, sheet: ItemJob, test: Quantity, runs: Runs
    ) -> Evidence:
        """Arrange lines; a place is called by the labels that vary. The whole item moderates the spreads."""
        axes, floor = places(lines), _floor(sheet, test, runs)
        varied = [axis for axis in axes if lines[axis].nunique() > 1]
        names = lines[varied].agg(", ".join, axis=1) if varied else pd.Series("all", index=lines.index)
        lines = lines.assign(place=names)
        by_place = {str(name): group for name, group in lines.groupby("place", sort=False)}
        samples = {name: _sample(group, floor) for name, group in by_place.items()}
        labels = {name: {axis: str(group[axis].iloc[0]) for axis in axes} for name, group in by_place.items()}
        filled = {name: sample for name, sample in samples.items() if sample.values}
        families = _families(whole, floor, test)
        empty = len(samples) - len(filled)
        counts = {text: int((lines["state"] == state).sum()) for state, text in LOST.items()}
        losses = [f"{number} {text}" for text, number in counts.items() if number]
        return cls(
            numbers=lines.pivot(index="seed", columns="place", values="value")[list(samples)],
            samples=filled,
            families={name: families[tuple(labels[name].values())] for name in filled},
            floor=floor,
            losses=losses + ([f"{count(empty, 'place')} without a number"] if empty else []),
            unit=" %" if test.relative else "",
            compared=_compared(sheet, test),
            labels=next(iter(labels.values())) if len(labels) == 1 else None,
        )

    @property
    def empty(self) -> bool:
        """Some place has no number."""
        return len(self.samples) < self.numbers.shape[1]

    @cached_property
    def per_seed(self) -> list[float]:
        """Averages over the places, of the seeds that have a number in all places that have any."""
        complete = self.numbers[list(self.samples)].dropna()
        return [float(value) for value in complete.mean(axis=1)] if self.samples else []

    def contrast(
        self, place: str, other: PublishedMean | float = 0.0, margin: float = 0.0, tries: int = 1
    ) -> Contrast | None:
        """Return the contrast at a place, or of the average over all places, which has its own spread.

        One seed decides nothing, whatever the spread of other places.
        """
        place = next(iter(self.samples)) if len(self.samples) == 1 else place
        if place == OVER_PLACES:
            floor = self.floor / math.sqrt(max(len(self.samples), 1))
            sample, family = Sample(self.per_seed, floor), Family()
        else:
            sample, family = self.samples[place], self.families[place]
        if len(sample.values) < 2:
            return None
        return contrast(sample, other, family=family, margin=margin, tries=tries)

    def finding(self, verdict: ClaimVerdict, decision: str, *p: float | None) -> Finding:
        """Return the finding with this verdict: mean, interval, extreme places, losses, p values."""
        mean = average(self.per_seed) if self.per_seed else None
        found = self.contrast(OVER_PLACES) if self.per_seed else None
        interval = found.interval if found else None
        parts = ["no seed has a number in all places"]
        if mean is not None:
            around = f" [{interval[0]:+.4g}, {interval[1]:+.4g}]" if interval else ""
            around += f" ({self.compared})" if self.compared else ""
            parts = [f"mean {mean:+.4g}{self.unit}{around} over {count(len(self.per_seed), 'seed')}"]
        means = {place: float(np.mean(sample.values)) for place, sample in self.samples.items()}
        if len(means) > 1:
            low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            positive = sum(value > 0 for value in means.values())
            parts.append(f"positive at {positive} of {len(means)} places")
            parts.append(f"from {means[low]:+.4g} ({low}) to {means[high]:+.4g} ({high})")
        return Finding(verdict, ", ".join([*parts, *self.losses]), decision, mean, interval, *p)


def _sample(lines: pd.DataFrame, floor: float) -> Sample:
    return Sample(known(lines["value"]), floor, bool((lines["state"] == DIVERGED).any()))


def _floor(sheet: ItemJob, test: Quantity, runs: Runs) -> float:
    """Return the smallest believable spread of the number over seeds: one test image, for accuracies."""
    records = [runs(cell.run) for cell in sheet.cells]
    if test.measure is not None and not test.relative:
        return resolution(records, test.measure)
    images = next((record.test_images for record in records if record.usable), None)
    return 1 / images if test.curve == "evaluation.accuracy" and images and not test.relative else 0.0


def _families(whole: pd.DataFrame, floor: float, test: Quantity) -> dict[tuple[str, ...], Family]:
    """Return the prior of the spreads at each place of the item, by its labels.

    Places with the same dataset moderate each other, differences if they also have the same plug-ins, but not
    the same base.
    """
    axes = places(whole)
    keys: dict[tuple[str, ...], tuple[Hashable, Hashable]] = {}
    samples: list[Sample] = []
    for found, lines in whole.groupby(axes, sort=False) if axes else [((), whole)]:
        labels, key, base = tuple(map(str, found)), max(lines["spread_family"], key=len), None
        if test.over or test.sides:
            key = (*key, lines["composition"].iloc[0][1:])
        if test.over:
            base = tuple(name for axis, name in zip(axes, labels, strict=True) if axis not in test.over)
        keys[labels] = key, base
        samples.append(_sample(lines, floor))
    separate = apart(keys.values())
    priors = families_of(zip(separate, samples, strict=True))
    return {labels: priors[key] for labels, key in zip(keys, separate, strict=True)}


def _compared(sheet: ItemJob, test: Quantity) -> str:
    """Return the subtraction behind a number, for example ``C = 0.1 minus C = 0``; empty without one."""

    def text(labels: Mapping[str, OneOrSeveral]) -> str:
        return ", ".join(named(axis, label) for axis, names in labels.items() for label in several(names))

    if test.sides:
        first, second = test.sides
        gain = f"gain over {text(test.over)}: " if test.over else ""
        return f"{gain}{text(first)} minus {text(second)}"
    single: LabelChoice = {}
    for axis, names in test.over.items():
        others = [one for one in several(test.at.get(axis, sheet.axes[axis])) if one not in several(names)]
        if len(others) == 1:
            single[axis] = others[0]
    return f"{text(single) or 'others'} minus {text(test.over)}" if test.over else ""


# ---------------------------------------------------------------- tests
def _tested(evidence: Evidence, test: Above | Positive | Similar) -> Finding:
    """Support a claim if all tests are significant, which needs no correction, and no number is missing.

    Contradict it if the opposite is significant at one place, or for their average, corrected (Holm).
    """
    if test.judge == "average" and evidence.empty:
        return evidence.finding("undecided", INCOMPLETE)
    similar, negative = isinstance(test, Similar), test.kind == "negative"
    margin = test.margin if isinstance(test, Similar) else 0.0
    by = 0.0 if isinstance(test, Similar) else -test.by if negative else test.by

    def p_values(found: Contrast) -> tuple[float, list[float]]:
        """Return the p value of the claim, and those of its opposites."""
        if similar:
            return found.p_inside, [found.p_above(margin), found.p_below(-margin)]
        return (found.p_below(), [found.p_above()]) if negative else (found.p_above(), [found.p_below()])

    names = list(evidence.samples) if test.judge == "every" else [OVER_PLACES]
    claimed = {name: evidence.contrast(name, by, margin) for name in names}
    tried = {name: found for name, found in claimed.items() if found}
    mean = evidence.contrast(OVER_PLACES, by) if len(claimed) > 1 and not similar else None
    opposites = {**tried, OVER_PLACES: mean} if mean else tried
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
    words = f"within {margin:g}: two one-sided tests," if similar else f"{bound}: one-sided" if by else ""
    of_all = f", the largest of {len(tried)} places" if len(tried) > 1 else ""
    decision = f"{words or 'one-sided'} {p_text(largest)}{of_all}"
    holds = largest < LEVEL and not evidence.empty
    return evidence.finding("supported" if holds else "undecided", decision, largest, least)


PLACES: dict[str, ClaimVerdict] = {
    "inside": "supported",
    "outside": "contradicted",
    "across": "undecided",
}
"""Verdict on a stated number by the place of the interval of its difference against the margin."""


def _value(
    evidence: Evidence, sheet: ItemJob, test: Value, statement: Statement, cells: Sequence[TableCell]
) -> Finding:
    """Judge a stated number: by the verdict of the cell that prints it, else by a contrast of our mean.

    The published mean varies over the paper's seeds as ours does over ours.
    """
    if statement.value is None:
        raise FltrainError("it states no number for the test 'value'; choose another test")
    stated = 100 * statement.value if statement.unit == "fraction" else statement.value
    words, tried, whole = f"stated {stated:g}", "", True
    if cell := _printed(evidence, sheet, test, cells, stated):
        numbers, said, mean, ends, margin, p = _of_cell(cell, gain=bool(test.over))
        words += f", as the cell {cell.place} of “{sheet.title}”, which is {said}"
    else:
        where, values = OVER_PLACES, evidence.per_seed
        if test.extreme and evidence.samples:
            choose = max if test.extreme == "largest" else min
            where = choose(evidence.samples, key=lambda name: float(np.mean(evidence.samples[name].values)))
            values = [*evidence.samples[where].values]
        if not values:
            return evidence.finding("undecided", UNTESTABLE)
        tries = len(evidence.samples) if test.extreme else 1
        margin = test.margin or 0.0
        if not margin and test.measure:  # a curve has a margin
            margin = gain_margin(stated) if test.over else measure(test.measure).margin.around(stated)
        mean = average(values)
        at = f" ({where})" if where != OVER_PLACES else ""
        numbers = ", ".join([f"{mean:z.2f} over {count(len(values), 'seed')}{at}", *evidence.losses])
        found = evidence.contrast(where, PublishedMean(stated, sheet.reported_seeds or 1), margin, tries)
        ends, p = (found.interval, found.p_outside) if found else (None, None)
        tried = f"Bonferroni over {tries} places" if tries > 1 else ""
        whole = not evidence.empty
    if ends is None or mean is None:
        return Finding("undecided", numbers, f"{words}, margin {margin:.3g}; {UNTESTABLE}", mean)
    verdict = PLACES[against(ends, margin)] if whole else "undecided"
    interval = f"ours minus stated {mean - stated:+z.2f} {interval_text(ends, 2, '+')}"
    decision = ", ".join(filter(None, (words, f"margin {margin:.3g}", interval, tried)))
    low, high = ends
    return Finding(verdict, numbers, decision, mean, (stated + low, stated + high), p, p if whole else None)


def _of_cell(
    cell: TableCell, gain: bool
) -> tuple[str, str, float | None, Interval | None, float, float | None]:
    """Return value or gain of a cell with its seeds, verdict, mean, interval of the difference, margin, p."""
    if gain:
        numbers = f"{gain_text(cell)} over {count(len(cell.gains), 'seed')}"
        interval, margin = cell.gain_difference_interval, cell.gain_margin or 0.0
        return numbers, cell.gain_verdict or "", cell.gain, interval, margin, None
    numbers = f"{value_text(cell)} over {count(cell.n, 'seed')}"
    return numbers, cell.full_verdict, cell.mean, cell.difference_interval, cell.margin or 0.0, cell.p


def _printed(
    evidence: Evidence, sheet: ItemJob, test: Value, cells: Sequence[TableCell], stated: float
) -> TableCell | None:
    """Return the cell of the item's table that prints the stated number; None if there is none."""
    table, labels = sheet.table, evidence.labels
    if test.extreme or test.relative or test.margin or table is None or labels is None:
        return None
    over = next((one.gain_over for one in table.measures if one.measure == test.measure), {})
    axes = (table.rows, table.columns, table.panels)
    place = [labels.get(axis, "") if axis else "" for axis in axes]
    place[0] = AVERAGE if table.rows in test.mean_over else place[0]
    decimals = len(f"{stated:.10g}".partition(".")[2])
    for cell in cells if not test.over or over == test.over else ():
        printed = cell.published_gain if test.over else cell.published
        here = cell.measure == test.measure and [cell.row, cell.column, cell.panel] == place
        if here and printed is not None and round(printed, decimals) == round(stated, decimals):
            return cell
    return None


def _fails(lines: pd.DataFrame, test: Fails) -> Finding:
    diverged = lines["state"] == DIVERGED
    there = diverged | lines["value"].notna()
    failed = (diverged | (lines["value"] <= test.at_most)).where(there).astype(float)
    # A place without any run has no share (NaN).
    by_place = [lines[axis] for axis in places(lines)] or [pd.Series("all", index=lines.index)]
    shares = failed.groupby(by_place, sort=False).mean()
    empty, most = int(shares.isna().sum()), int((shares > 0.5).sum())
    verdict: ClaimVerdict = "undecided"
    if most == len(shares):
        verdict = "supported"
    elif not empty and (shares == 0).any():
        verdict = "contradicted"
    parts = [f"more than half of them at {most} of {count(len(shares), 'place')}"]
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


def to_markdown(title: str, scale_note: str, judged: Sequence[Judged], titles: Mapping[str, str] = {}) -> str:
    """Return the claims as a Markdown table; ``titles`` are those of the items by name."""
    lines = [["where", "claim", "stated", "verdict", "evidence", "item"]]
    lines += [
        [
            *(one.where, one.claim, one.stated, one.verdict, one.finding.evidence),
            "; ".join(titles.get(name, name) for name in one.item.split(", ")),
        ]
        for one in judged
    ]
    notes = claim_notes(one.listed for one in judged)
    notes += [EXPLORATORY] if any(one.exploratory for one in judged) else []
    table = markdown_table(lines, numbers=False)
    return without_tags(f"**Claims of {title}. {scale_note}**\n\n{table}\n\n{' '.join(notes)}\n")


def claim_notes(listed: Iterable[bool]) -> list[str]:
    """Return the explanations below a table of claims."""
    return [LEGEND, *([] if all(listed) else [DROPPED_CLAIMS])]


DROPPED_CLAIMS = f"{DROPPED} drops out of the list of contradicted claims (false discovery rate 5 %)."
LEGEND = "Intervals are 90 % intervals, which match one-sided tests at 5 %. One seed decides nothing."


def scale_note(note: str, sheets: Iterable[ItemJob]) -> str:
    """Return a sentence on the scale, and on items that were restricted to a part of their runs."""
    restricted: dict[str, list[str]] = {}
    for sheet in sheets:
        if sheet.restricted:
            what = ", ".join(map(str, sheet.restricted))
            restricted.setdefault(what, []).append(sheet.id.partition("/")[2])
    parts = [f"restricted to {what}: {', '.join(items)}" for what, items in restricted.items()]
    undecided = "Claims about runs that these items lack are left undecided"
    return f"{note} {undecided}, {'; '.join(parts)}." if parts else note
