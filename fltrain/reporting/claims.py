"""Claims of a paper judged on our runs: supported, contradicted, or undecided. No torch.

The rules of decision are documented with the tests in ``fltrain.experiments.claims``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from fltrain.core.errors import FltrainError, count
from fltrain.core.floats import average
from fltrain.core.statistics import (
    LEVEL,
    Contrast,
    Interval,
    Position,
    Sample,
    against,
    contrast,
    discoveries,
    holm,
    known,
    moderated,
)
from fltrain.experiments.claims import (
    All,
    Claim,
    Fails,
    InRegion,
    LabelChoice,
    NotJudged,
    Printed,
    Quantity,
    Test,
    Tested,
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
    Runs,
    claimed_values,
    places,
    resolution,
)
from fltrain.reporting.pages import TEMPLATES
from fltrain.reporting.tables.render import DROPPED, EXPLORATORY, gain_text
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import interval_text, markdown_table, p_text, without_tags
from fltrain.reporting.verdict import gain_margin
from fltrain.reporting.version import FIRST_RULE
from fltrain.runs.measures import measure

ClaimVerdict = Literal[
    "supported", "contradicted", "undecided", "reduced scale", "not run", "tested", "not judged"
]

JUDGED: tuple[ClaimVerdict, ...] = ("supported", "contradicted", "undecided")
"""Verdicts that our runs give."""

CLAIM_VERDICTS: dict[ClaimVerdict, str] = {
    "supported": "its tests are significant at 5 %, or the interval of its number lies inside the margin",
    "contradicted": "the opposite is significant at 5 %, or the interval lies wholly outside the margin",
    "undecided": "neither is shown, or the runs cover a part of the claim only",
    "tested": "it follows from the definition, which a unit test checks",
    "not judged": "runs cannot decide it",
    "reduced scale": "the runs depart from the paper's protocol, so they decide nothing",
}
"""Meaning of each verdict on a claim."""

LEGEND = "Intervals are 90 % intervals, which match one-sided tests at 5 %. One seed decides nothing."
DROPPED_CLAIMS = f"{DROPPED} drops out of the list of contradicted claims (false discovery rate 5 %)."


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
        number: main number with its unit, its interval, and the subtraction behind it or the stated number.
    """

    verdict: ClaimVerdict
    numbers: str
    decision: str = ""
    estimate: float | None = None
    interval: Interval | None = None
    p: float | None = None
    p_contradicted: float | None = None
    number: str = ""

    @property
    def evidence(self) -> str:
        """Numbers and decision."""
        return f"{self.numbers}; {self.decision}." if self.decision else f"{self.numbers.rstrip('.')}."


COLUMNS = (
    *("where", "claim", "verdict", "listed", "exploratory", "reduced", "item", "test", "stated"),
    *("estimate", "low", "high", "p", "number", "evidence"),
)
"""Columns of judged claims, also in the CSV file.

``where`` and ``claim`` are the place and text in the paper, ``stated`` is the number there with its unit.
``listed`` is False if the claim drops out of the list of contradicted claims. ``exploratory``: the rule or
the test was decided after the runs had been seen. ``reduced``: the runs belong to a reduced scale. ``item``
has the items that the test uses, with commas, ``test`` its kind. ``estimate`` is our mean, ``low`` and
``high`` are the ends of its 90 % interval, ``p`` is the p value of the test that decided. ``number`` is the
main number with its interval (of each part of the claim), ``evidence`` has all numbers and the decision.
"""


def judge(
    claims: Sequence[Claim],
    statements: Sequence[Statement],
    sheets: Iterable[ItemJob],
    runs: Runs,
    published: Callable[[ItemJob], Published],
    reduced: bool,
    cells: Mapping[str, Sequence[TableCell]] = {},
) -> pd.DataFrame:
    """Judge every claim of a paper at a scale.

    Args:
        claims: the claims with their tests.
        statements: the claims as the paper states them, which the plan has checked.
        sheets: the paper's items at the scale.
        runs: returns the record of a run id, complete or not.
        published: returns the published values behind an item.
        reduced: True for a reduced scale.
        cells: judged cells of the tables by ID of the sheet.

    Returns:
        A row for each claim, with ``COLUMNS``.

    Raises:
        FltrainError: if the test of a claim does not fit the item.
    """
    stated = {(statement.where, statement.claim): statement for statement in statements}
    items = {sheet.id.partition("/")[2]: sheet for sheet in sheets}

    def find(test: Test, statement: Statement) -> Finding:
        match test:
            case Tested():
                return Finding("tested", f"It follows from the definition, which {test.by} checks.")
            case NotJudged():
                return Finding("not judged", test.why)
            case All():
                return _conjunction([find(part, statement) for part in test.tests], reduced)
        if reduced and test.kind in ("value", "cell"):
            return Finding("not run", "The paper's number is for its full protocol.")
        sheet = items.get(test.item)
        if sheet is None:
            return Finding("not run", "Its runs are not made here.")
        found = _of_item(sheet, test, statement, runs, published(sheet), cells.get(sheet.id, ()))
        if reduced and found.verdict != "not run":
            return replace(found, verdict="reduced scale", decision="", p=None, p_contradicted=None)
        return found

    rows: list[dict[str, Any]] = []
    contradicting: list[float | None] = []
    for claim in claims:
        statement = stated[claim.where, claim.claim]
        try:
            found = find(claim.test, statement)
        except FltrainError as error:
            raise FltrainError(f"claim {claim.claim!r}: {error}") from None
        names = dict.fromkeys(quantity.item for quantity in quantities(claim.test))
        seen = min((day for name in names if name in items and (day := items[name].seen)), default=None)
        late = seen is not None and seen <= max(FIRST_RULE, claim.decided or FIRST_RULE)
        row = {
            **{"where": claim.where, "claim": claim.claim, "verdict": found.verdict, "reduced": reduced},
            **{"exploratory": late and found.verdict in JUDGED, "item": ", ".join(names)},
            **{"test": claim.test.kind, "stated": statement.text, "estimate": found.estimate, "p": found.p},
            **dict(zip(("low", "high"), found.interval or (None, None), strict=True)),
            **{"number": found.number, "evidence": found.evidence},
        }
        rows.append(row)
        contradicting.append(found.p_contradicted)
    judged = pd.DataFrame(rows, columns=list(COLUMNS))
    judged["listed"] = [
        verdict != "contradicted" or p is None or discovered
        for verdict, p, discovered in zip(
            judged["verdict"], contradicting, discoveries(contradicting), strict=True
        )
    ]
    return judged


def _of_item(
    sheet: ItemJob,
    test: InRegion | Printed | Fails,
    statement: Statement,
    runs: Runs,
    published: Published,
    cells: Sequence[TableCell],
) -> Finding:
    """Return the finding of a test on the runs of its item.

    It is undecided if runs that the claim is about were left out, or have no number at a label that it names.
    Of an item restricted to some labels of an axis, only claims that name these labels are decided.
    """
    axes = {axis: {*labels} for axis, labels in sheet.axes.items()}
    for axis, labels in (*test.choices, *((axis, tuple(axes.get(axis, ()))) for axis in test.mean_over)):
        if not axes.get(axis, set()) & {*labels}:
            lacking = f"{axis} {' or '.join(map(repr, labels))}" if labels else f"axis {axis!r}"
            only = f" (restricted to {', '.join(map(str, sheet.restricted))})" if sheet.restricted else ""
            return Finding("not run", f"At this scale, its runs have no {lacking}{only}.")
    frame, chosen = claimed_values(sheet, test, runs, published)
    lines = frame[chosen]
    if lines["state"].isin(ABSENT).all() and not lines.empty:
        return Finding("not run", "No run, or pair of runs, that it needs is complete.")
    present = lines[lines["value"].notna() | (lines["state"] == DIVERGED)]
    if present.empty:
        parts = f" of {', '.join(test.parts)}" if test.parts else ""
        return Finding("not run", f"None of its runs has {test.measure or test.curve}{parts}.")
    match test:
        case Fails():
            found = _fails(lines, test)
        case Printed():
            found = _printed(sheet, test, cells)
        case InRegion():
            found = _compared(ClaimNumbers.of(frame, chosen, sheet, test, runs), sheet, test, statement)
    at = {axis: several(labels) for axis, labels in test.at.items()}
    complete = {axis for axis, labels in at.items() if {*labels} <= axes[axis]}
    missed = [str(one) for one in sheet.restricted if one.axis not in complete]
    named_here = ((axis, label) for axis, labels in at.items() if axis in lines for label in labels)
    empty = [label for axis, label in named_here if label in axes[axis] - {*present[axis]}]
    if not (missed or empty):
        return found
    why = f"the runs are restricted to {', '.join(missed)}" if missed else ""
    why = why or f"there is no number at {', '.join(empty)}"
    decision = f"{found.decision}. Undecided, as {why}" if found.decision else f"undecided, as {why}"
    return replace(found, verdict="undecided", decision=decision, p_contradicted=None)


def _conjunction(parts: Sequence[Finding], reduced: bool) -> Finding:
    """Return the finding on a whole claim from those on its parts; parts with the same text share it."""
    verdicts = {part.verdict for part in parts}
    judged = not reduced and not verdicts <= {"not run", "not judged"}
    texts: dict[str, list[str]] = {}
    for number, part in enumerate(parts, start=1):
        text = f"{part.verdict}: {part.evidence}" if judged else part.evidence
        texts.setdefault(text, []).append(str(number))
    numbered = " ".join(f"({', '.join(same)}) {text}" for text, same in texts.items())
    numbers = numbered if len(texts) > 1 else next(iter(texts))
    main = "; ".join(dict.fromkeys(part.number for part in parts if part.number))
    if not judged:
        verdict: ClaimVerdict = "reduced scale" if "reduced scale" in verdicts else "not run"
        return Finding(verdict, numbers, number=main)
    contrary = [part.p_contradicted for part in parts if part.verdict == "contradicted"]
    ps = [min(1.0, p * len(parts)) for part in parts if (p := part.p_contradicted) is not None]
    verdict = "supported" if verdicts == {"supported"} else "undecided"
    if contrary and (None in contrary or min(ps) < LEVEL):
        verdict = "contradicted"
    p = None if None in contrary else min(ps, default=None)
    return Finding(verdict, numbers, p_contradicted=p, number=main)


# ---------------------------------------------------------------- numbers
THE_AVERAGE = "the average"
LOST = {DIVERGED: "diverged", DAMAGED: "damaged", MISSING: "not run"}
UNTESTABLE = "no test: it takes three seeds that differ"
INCOMPLETE = "no test: an average takes a number at every place"


@dataclass(frozen=True)
class ClaimNumbers:
    """Numbers of a claim.

    Attributes:
        at: numbers at each place that has any; the whole item moderates their spreads.
        mean: averages over these places, of the seeds that have a number in all of them; over several places,
            they have a spread of their own.
        empty: some place has no number.
        losses: counts of lost runs and of places without a number, in words.
        untested: the finding before any test: mean, interval, extreme places and losses.
    """

    at: dict[str, Sample]
    mean: Sample
    empty: bool
    losses: list[str]
    untested: Finding

    @classmethod
    def of(
        cls, frame: pd.DataFrame, chosen: pd.Series, sheet: ItemJob, test: Quantity, runs: Runs
    ) -> ClaimNumbers:
        """Arrange the chosen lines of an item; a place is called by the labels that vary.

        Places with the same dataset moderate each other, differences if they also have the same plug-ins,
        but not the same base.
        """
        axes, lines, compared = places(frame), frame[chosen], bool(test.over or test.minus)
        groups = [group for _, group in frame.groupby(axes, sort=False)] if axes else [frame]
        labels = [dict(group.iloc[0][axes].astype(str)) for group in groups]
        plugins = [group["composition"].iloc[0][1:] if compared else () for group in groups]
        families = zip((max(group["spread_family"], key=len) for group in groups), plugins, strict=True)
        shares = test.measure is not None and not compared and measure(test.measure).margin.relative
        own: list[Sample] = []
        for group in groups:
            records = [runs(run) for several_runs in group["run"] for run in several_runs.split()]
            floor = 0.0 if test.relative else resolution(records, test.measure or test.curve or "")
            diverged = bool((group["state"] == DIVERGED).any())
            own.append(Sample(known(group["value"]), floor, diverged, shares))
        bases = [tuple(one[axis] for axis in axes if axis not in test.over) for one in labels]
        samples = moderated(own, families, bases if test.over else None)
        varied = [axis for axis in axes if lines[axis].nunique() > 1]
        at: dict[str, Sample] = {}
        by_seed: dict[str, pd.Series] = {}
        empty = 0
        for group, one, sample in zip(groups, labels, samples, strict=True):
            if not chosen[group.index[0]]:
                continue
            empty += not sample.values
            if sample.values:
                place = ", ".join(one[axis] for axis in varied) or "all"
                at[place] = sample
                by_seed[place] = group.set_index("seed")["value"]
        means = pd.DataFrame(by_seed).sort_index().dropna().mean(axis=1)
        floor = max((sample.floor for sample in at.values()), default=0.0)
        mean = Sample(means.tolist(), floor / math.sqrt(max(len(at), 1)))
        if len(at) == 1:
            mean = replace(next(iter(at.values())), values=mean.values)
        counts = {text: int((lines["state"] == state).sum()) for state, text in LOST.items()}
        losses = [f"{number} {text}" for text, number in counts.items() if number]
        losses += [f"{count(empty, 'place')} without a number"] if empty else []
        number, subtraction = _mean_text(mean, sheet, test), _subtraction(sheet, test)
        number += f" ({subtraction})" if number and subtraction else ""
        words = ", ".join([*_in_words(at, mean, number, sheet, test), *losses])
        estimate, found = average(mean.values) if mean.values else None, contrast(mean)
        interval = found.interval if found else None
        several = f"mean of {len(at)} places: " if number and len(at) > 1 else ""
        untested = Finding("undecided", words, "", estimate, interval, number=several + number)
        return cls(at, mean, empty > 0, losses, untested)

    def judged(self, judge: str) -> dict[str, Sample]:
        """Return the samples that a claim is judged by: at every place, of the average, or at an extreme."""
        if judge == "every" or judge == "average":
            return self.at if judge == "every" else {THE_AVERAGE: self.mean}
        choose = max if judge == "largest" else min
        place = choose(self.at, key=lambda place: float(np.mean(self.at[place].values)))
        return {place: self.at[place]}


def _unit(sheet: ItemJob, test: Quantity) -> str:
    """Return the unit of a number after a space; curves have none, and multiples name their cell."""
    shown = sheet.table.measures if sheet.table else ()
    multiples = [one.relative_to for one in shown if one.measure == test.measure and one.relative_to]
    if multiples and not test.relative:
        return f" × {', '.join(multiples[0].values())}"
    if test.relative or not test.measure:
        return " %" if test.relative else ""
    unit = measure(test.measure).unit
    unit = "points" if unit == "%" and (test.minus or test.over) else unit
    return f" {unit}" if unit else ""


def _form(sheet: ItemJob, test: Quantity) -> str:
    return "+z.2f" if _unit(sheet, test) == " points" else "+.4g"


def _mean_text(mean: Sample, sheet: ItemJob, test: Quantity) -> str:
    """Return the mean with its unit and interval; empty without any seed."""
    if not mean.values:
        return ""
    found, form = contrast(mean), _form(sheet, test)
    around = " [{}, {}]".format(*(f"{end:{form}}" for end in found.interval)) if found else ""
    return f"{average(mean.values):{form}}{_unit(sheet, test)}{around}"


def _in_words(
    at: Mapping[str, Sample], mean: Sample, number: str, sheet: ItemJob, test: Quantity
) -> list[str]:
    """Return the mean with its seeds, and the extreme places."""
    parts, form = ["no seed has a number in all places"], _form(sheet, test)
    if mean.values:
        parts = [f"mean {number} over {count(len(mean.values), 'seed')}"]
    means = {place: float(np.mean(sample.values)) for place, sample in at.items()}
    if len(means) > 1:
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        parts.append(_signs([*means.values()]))
        parts.append(f"from {means[low]:{form}} ({low}) to {means[high]:{form}} ({high})")
    return parts


def _signs(means: Sequence[float]) -> str:
    """Return at how many places the mean is positive, or that it is negative at all."""
    every = "both places" if len(means) == 2 else f"all {len(means)} places"
    positive, negative = sum(mean > 0 for mean in means), sum(mean < 0 for mean in means)
    if len(means) in (positive, negative):
        return f"{'positive' if positive else 'negative'} at {every}"
    return f"positive at {positive or 'none'} of {len(means)} places"


def _subtraction(sheet: ItemJob, test: Quantity) -> str:
    """Return the subtraction behind a number, for example ``C = 0.1 minus C = 0``; empty without one."""

    def text(labels: LabelChoice) -> str:
        return ", ".join(named(axis, label) for axis, names in labels.items() for label in several(names))

    last = test.minus or test.over
    first: LabelChoice = {}
    for axis, names in last.items():
        others = {*several(test.at.get(axis, sheet.axes[axis]))} - {*several(names)}
        if len(others) == 1:
            first[axis] = others.pop()
    gain = f"gain over {text(test.over)}: " if test.over and test.minus else ""
    labels = f"{gain}{text(first) or 'others'} minus {text(last)}" if last else ""
    shares = ["{:.0%} to {:.0%}".format(*share) for share in (test.rounds, test.minus_rounds) if share]
    return ", ".join(filter(None, (labels, f"rounds {' minus '.join(shares)}" if test.minus_rounds else "")))


# ---------------------------------------------------------------- tests
def _compared(numbers: ClaimNumbers, sheet: ItemJob, test: InRegion, statement: Statement) -> Finding:
    """Compare the number with the region in which the claim puts it.

    The region lies around the stated number, which varies over the paper's seeds as ours does over ours, or
    around zero.
    """
    stated, margin = _stated(test, statement)
    if numbers.empty and test.judge != "every":
        return replace(numbers.untested, decision=INCOMPLETE)
    samples = numbers.judged(test.judge)
    theirs = math.inf if stated is None else sheet.reported_seeds or 1
    tries = len(numbers.at) if test.judge in ("largest", "smallest") else 1

    def tested(sample: Sample) -> Contrast | None:
        return contrast(sample, stated or 0.0, seeds=theirs, tries=tries)

    low, high = test.region(margin)
    tried = {place: found for place, sample in samples.items() if (found := tested(sample))}
    opposites = dict(tried)
    if len(samples) > 1 and math.isinf(high - low) and (mean := tested(numbers.mean)):
        opposites[THE_AVERAGE] = mean
    outside = [min(1.0, tries * min(one.p_above(high), one.p_below(low))) for one in opposites.values()]
    corrected = [p or 0.0 for p in holm(outside)]
    least = min(corrected, default=1.0)
    inside = [min(1.0, tries * max(one.p_above(low), one.p_below(high))) for one in tried.values()]
    shown, words = numbers.untested, ""
    if stated is not None:
        ((place, ours),) = samples.items()
        shown = _beside_stated(numbers, sheet, test, place, ours, stated)
        words = f"stated {stated:g}, margin {margin:.3g}"
    if least >= LEVEL and (not tried or len(tried) < len(samples)):
        return replace(shown, decision="; ".join(filter(None, (words, UNTESTABLE))))
    verdict: ClaimVerdict = "supported" if max(inside) < LEVEL and not numbers.empty else "undecided"
    p = max(inside)
    if least < LEVEL:
        verdict, p = "contradicted", least
    if stated is not None:
        (found,) = tried.values()
        (from_, to), difference = found.interval, found.estimate
        shown = replace(shown, interval=(stated + from_, stated + to))
        words += f", ours minus stated {difference:+z.2f} {interval_text(found.interval, 2, '+')}"
        words += f", Bonferroni over {tries} places" if tries > 1 else ""
    elif verdict == "contradicted":
        at = f" at {[*opposites][corrected.index(least)]}" if len(samples) > 1 else ""
        words = _one_sided_words(test, margin, at, p)
        words += f" (Holm over {len(outside)})" if len(outside) > 1 else ""
    else:
        words = _one_sided_words(test, margin, None, p)
        words += f", the largest of {len(tried)} places" if len(tried) > 1 else ""
    return replace(shown, verdict=verdict, decision=words, p=p, p_contradicted=least)


def _one_sided_words(test: InRegion, margin: float, opposite_at: str | None, p: float) -> str:
    """Return the test of a direction or a similarity in words; ``opposite_at`` names the place against it."""
    if test.kind == "similar":
        tests = "within {:g}: two one-sided tests," if opposite_at is None else "beyond {:g}: one-sided"
        return f"{tests.format(margin)} {p_text(p)}"
    bound = f"above {margin:g}" if test.kind == "positive" else f"below {-margin:g}"
    if opposite_at is None:
        return f"{bound}: one-sided {p_text(p)}" if margin else f"one-sided {p_text(p)}"
    return f"opposite{opposite_at}: {f'not {bound}, ' if margin else ''}one-sided {p_text(p)}"


def _stated(test: InRegion, statement: Statement) -> tuple[float | None, float]:
    """Return the number around which the claim puts ours (None: zero), and the margin."""
    if test.kind != "value":
        return None, test.by or 0.0
    if statement.value is None:
        raise FltrainError("it states no number for the test 'value'; choose another test")
    stated = 100 * statement.value if statement.unit == "fraction" else statement.value
    if test.by is not None or test.measure is None:  # a curve has a margin
        return stated, test.by or 0.0
    return stated, gain_margin(stated) if test.over else measure(test.measure).margin.around(stated)


def _beside_stated(
    numbers: ClaimNumbers, sheet: ItemJob, test: Quantity, place: str, ours: Sample, stated: float
) -> Finding:
    """Return the finding before the test of a stated number."""
    if not ours.values:
        return numbers.untested
    mean, where = average(ours.values), "" if place == THE_AVERAGE else f" ({place})"
    value = f"{mean:z.2f}{_unit(sheet, test)}"
    words = ", ".join([f"{value} over {count(len(ours.values), 'seed')}{where}", *numbers.losses])
    return Finding("undecided", words, "", mean, number=f"{value} (stated {stated:g})")


CELL_VERDICTS: dict[Position, ClaimVerdict] = {
    "inside": "supported",
    "outside": "contradicted",
    "across": "undecided",
}
"""Verdict on a claim by the position of the cell's interval against its margin."""


def printed_cell(sheet: ItemJob, test: Printed, cells: Iterable[TableCell]) -> TableCell:
    """Return the cell of the item's table whose printed gain a claim names.

    Raises:
        FltrainError: if the table does not print such a gain.
    """
    axes = (sheet.table.rows, sheet.table.columns, sheet.table.panels) if sheet.table else ()
    place = [test.at.get(axis or "", "") for axis in axes]
    for cell in cells:
        here = [cell.row, cell.column, cell.panel] == place and cell.measure == test.measure
        if here and cell.published_gain is not None:
            return cell
    raise FltrainError(f"{sheet.id} prints no such gain; 'at' needs a label for each axis of its table")


def _printed(sheet: ItemJob, test: Printed, cells: Sequence[TableCell]) -> Finding:
    """Return the verdict of the table's cell on the gain that the claim states."""
    cell = printed_cell(sheet, test, cells)
    stated, ends, n = cell.published_gain or 0.0, cell.gain_difference_interval, len(cell.gains)
    value = f"{gain_text(cell)}{_unit(sheet, test)}"
    words = f"stated {stated:.4g}, as the cell {cell.place} of “{sheet.title}”"
    words += f", which is {cell.gain_verdict}" if cell.gain_verdict else ""
    shown = Finding("undecided", f"{value} over {count(n, 'seed')}", words, cell.gain)
    shown = replace(shown, number=f"{value} (stated {stated:.4g})")
    if ends is None or cell.gain is None or cell.gain_margin is None:
        return replace(shown, decision=f"{words}; {UNTESTABLE}")
    words += f", margin {cell.gain_margin:.3g}, ours minus stated {cell.gain - stated:+z.2f}"
    verdict, p = CELL_VERDICTS[against(ends, cell.gain_margin)], cell.gain_p
    return replace(
        shown,
        verdict=verdict,
        decision=f"{words} {interval_text(ends, 2, '+')}",
        interval=(stated + ends[0], stated + ends[1]),
        p=p if verdict == "contradicted" else None,
        p_contradicted=p,
    )


def _fails(lines: pd.DataFrame, test: Fails) -> Finding:
    diverged = lines["state"] == DIVERGED
    there = diverged | lines["value"].notna()
    failed = (diverged | (lines["value"] <= test.at_most)).where(there).astype(float)
    # A place without any run has no share (NaN).
    by_place = [lines[axis] for axis in places(lines)] or [pd.Series("all", index=lines.index)]
    shares = failed.groupby(by_place, sort=False).mean()
    empty, most, lost = int(shares.isna().sum()), int((shares > 0.5).sum()), int((~there).sum())
    verdict: ClaimVerdict = "undecided"
    if most == len(shares):
        verdict = "supported"
    elif not empty and (shares == 0).any():
        verdict = "contradicted"
    what = measure(test.measure).label.partition(",")[0] if test.measure else test.curve
    parts = [
        f"failed: {int(failed.sum())} of {count(int(there.sum()), 'run')}, by divergence "
        f"({int(diverged.sum())}) or by {what} of at most {test.at_most:g}; "
        f"more than half of them at {most} of {count(len(shares), 'place')}"
    ]
    parts += [f"{count(lost, 'run')} not there or without a number"] if lost else []
    parts += [f"{count(empty, 'place')} without any run"] if empty else []
    return Finding(verdict, ", ".join(parts), number=f"{int(failed.sum())} of {int(there.sum())} failed")


# ---------------------------------------------------------------- output
def to_markdown(title: str, sheets: Sequence[ItemJob], judged: pd.DataFrame) -> str:
    """Return the claims of a paper as a Markdown table, with the scales of its items."""
    titles = {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}
    shown = ["where", "claim", "stated", "verdict", "evidence", "item"]
    lines = judged[shown].astype(str)
    lines["verdict"] += judged["listed"].map({True: "", False: DROPPED})
    lines["verdict"] += judged["exploratory"].map({True: ", exploratory", False: ""})
    lines["item"] = ["; ".join(titles.get(name, name) for name in item.split(", ")) for item in lines["item"]]
    text = TEMPLATES.get_template("claims.md").render(
        title=title,
        sheets=sheets,
        table=markdown_table([shown, *lines.to_numpy().tolist()], numbers=False),
        legend=LEGEND,
        dropped="" if judged["listed"].all() else DROPPED_CLAIMS,
        exploratory=EXPLORATORY if judged["exploratory"].any() else "",
    )
    return without_tags(text)
