"""Claims of a paper judged on our runs: supported, contradicted, or undecided. No torch.

The rules of decision are documented with the tests in ``fltrain.experiments.claims``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    around,
    contrast,
    discoveries,
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
)
from fltrain.reporting.pages import TEMPLATES
from fltrain.reporting.tables.render import DROPPED
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.text import markdown_table, p_text, shared_decimals, without_tags
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
EXPLORATORY = "Exploratory: declared as such, or decided after these runs had been seen."
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
        region: where the test looks for the number, for example ``above 0.5``; empty on one side of zero.
    """

    verdict: ClaimVerdict
    numbers: str
    decision: str = ""
    estimate: float | None = None
    interval: Interval | None = None
    p: float | None = None
    p_contradicted: float | None = None
    number: str = ""
    region: str = ""

    @property
    def evidence(self) -> str:
        """Numbers and decision."""
        return f"{self.numbers}; {self.decision}." if self.decision else f"{self.numbers.rstrip('.')}."


COLUMNS = (
    *("where", "claim", "verdict", "dropped", "exploratory", "reduced", "item", "test", "stated"),
    *("estimate", "low", "high", "p", "number", "evidence"),
)
"""Columns of judged claims, also in the CSV file.

``where`` and ``claim`` are the place and text in the paper, ``stated`` is the number there with its unit.
``dropped`` is True if the claim drops out of the list of contradicted claims. ``exploratory``: the rule or
the test was decided after the runs had been seen, or the claim is declared as exploratory. ``reduced``: the
runs belong to a reduced scale. ``item`` has the items that the test uses, with commas, ``test`` its kind.
``estimate`` is our mean, ``low`` and ``high`` are the ends of its 90 % interval, ``p`` is the p value of
the test that decided. ``number`` is the main number with its interval (of each part of the claim),
``evidence`` has all numbers and the decision.
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
            return replace(
                found, verdict="reduced scale", decision="", region="", p=None, p_contradicted=None
            )
        return found

    rows: list[dict[str, Any]] = []
    for claim in claims:
        statement = stated[claim.where, claim.claim]
        try:
            found = find(claim.test, statement)
        except FltrainError as error:
            raise FltrainError(f"claim {claim.claim!r}: {error}") from None
        names = dict.fromkeys(quantity.item for quantity in quantities(claim.test))
        seen = min((day for name in names if name in items and (day := items[name].seen)), default=None)
        late = seen is not None and seen <= max(FIRST_RULE, claim.decided or FIRST_RULE)
        exploratory = (claim.exploratory or late) and found.verdict in JUDGED
        row = {
            **{**vars(found), "evidence": found.evidence, "reduced": reduced, "item": ", ".join(names)},
            "number": _numbers([found]),
            **{"where": claim.where, "claim": claim.claim, "test": claim.test.kind, "stated": statement.text},
            **dict(zip(("low", "high"), found.interval or (None, None), strict=True)),
            "exploratory": exploratory,
        }
        rows.append(row)
    shown = discoveries([row["p_contradicted"] for row in rows])
    for row, discovered in zip(rows, shown, strict=True):
        contradicted = row["verdict"] == "contradicted" and row["p_contradicted"] is not None
        row["dropped"] = contradicted and not discovered
    return pd.DataFrame(rows, columns=list(COLUMNS))


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
        parts = f" of {', '.join(test.part)}" if test.part else ""
        return Finding("not run", f"None of its runs has {test.measure or test.curve}{parts}.")
    match test:
        case Fails():
            found = _fails(lines, test)
        case Printed():
            found = _printed(sheet, test, cells)
        case InRegion():
            found = _compared(ClaimNumbers.of(frame, chosen, test), sheet, test, statement)
            if len(test.part or ()) > 1:
                each = ", ".join(_by_part(sheet, test, statement, runs, published))
                found = replace(found, numbers=f"{found.numbers}, by part: {each}")
    complete = {axis for axis, labels in test.at.items() if {*labels} <= axes[axis]}
    missed = [str(one) for one in sheet.restricted if one.axis not in complete]
    named_here = [(axis, label) for axis, labels in test.at.items() if axis in lines for label in labels]
    empty = [label for axis, label in named_here if label in axes[axis] - {*present[axis]}]
    if not (missed or empty):
        return found
    why = f"the runs are restricted to {', '.join(missed)}" if missed else ""
    why = why or f"there is no number at {', '.join(empty)}"
    decision = f"{found.decision}. Undecided, as {why}"
    return replace(found, verdict="undecided", decision=decision, p_contradicted=None)


def _by_part(
    sheet: ItemJob, test: InRegion, statement: Statement, runs: Runs, published: Published
) -> Iterator[str]:
    """Yield each part of a sum with its number."""
    wording = Wording.of(sheet, test)
    for part in test.part or ():
        alone = _of_item(sheet, test.model_copy(update={"part": (part,)}), statement, runs, published, ())
        if alone.estimate is not None:
            yield f"{part} {wording.number(alone.estimate, alone.interval, '')}"


def _conjunction(parts: Sequence[Finding], reduced: bool) -> Finding:
    """Return the finding on a whole claim from those on its parts; parts with the same text share it."""
    verdicts = {part.verdict for part in parts}
    judged = not reduced and not verdicts <= {"not run", "not judged"}
    texts = dict.fromkeys(f"{part.verdict}: {part.evidence}" if judged else part.evidence for part in parts)
    several = len(texts) > 1
    numbers = " ".join(f"({place}) {text}" if several else text for place, text in enumerate(texts, start=1))
    main = _numbers(parts)
    if not judged:
        return Finding("reduced scale" if "reduced scale" in verdicts else "not run", numbers, number=main)
    contrary = [part.p_contradicted for part in parts if part.verdict == "contradicted"]
    ps = [min(1.0, p * len(parts)) for part in parts if (p := part.p_contradicted) is not None]
    verdict: ClaimVerdict = "supported" if verdicts == {"supported"} else "undecided"
    if contrary and (None in contrary or min(ps) < LEVEL):
        verdict = "contradicted"
    p = None if None in contrary else min(ps, default=None)
    return Finding(verdict, numbers, p_contradicted=p, number=main)


def _numbers(parts: Sequence[Finding]) -> str:
    """Return the main numbers, each with the regions in which tests look for it."""
    regions: dict[str, list[str]] = {}
    for part in parts:
        regions.setdefault(part.number, []).extend(filter(None, [part.region]))
    tested = {number: ", tested: " * bool(names) + " and ".join(names) for number, names in regions.items()}
    return "; ".join(number + names for number, names in tested.items() if number)


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
        empty: number of places without a number.
        lost: counts of lost runs, and of places without a number, in words.
    """

    at: dict[str, Sample]
    mean: Sample
    empty: int
    lost: list[str]

    @classmethod
    def of(cls, frame: pd.DataFrame, chosen: pd.Series, test: Quantity) -> ClaimNumbers:
        """Arrange the chosen lines of an item; a place is called by the labels that vary.

        Places with the same dataset moderate each other, differences if they also have the same plug-ins,
        but not the same base.
        """
        axes, lines, compared = places(frame), frame[chosen], bool(test.over or test.minus)
        groups = [group for _, group in frame.groupby(axes, sort=False)] if axes else [frame]
        shares = test.measure is not None and not compared and measure(test.measure).margin.relative
        base = [axis for axis in axes if axis not in test.over]
        own = [
            Sample(
                known(group["value"]),
                float(group["floor"].max()),
                DIVERGED in {*group["state"]},
                shares,
                (max(group["spread_family"], key=len), group["composition"].iloc[0][1:] if compared else ()),
                tuple(group.iloc[0][base]) if test.over else None,
            )
            for group in groups
        ]
        varied = [axis for axis in axes if lines[axis].nunique() > 1]
        named_places = {
            ", ".join(group.iloc[0][varied].astype(str)) or "all": (sample, group.set_index("seed")["value"])
            for group, sample in zip(groups, moderated(own), strict=True)
            if chosen[group.index[0]]
        }
        at = {place: sample for place, (sample, _) in named_places.items() if sample.values}
        by_seed = pd.DataFrame({place: named_places[place][1] for place in at})
        means = by_seed.sort_index().dropna().mean(axis=1).tolist()
        floor = max((sample.floor for sample in at.values()), default=0.0)
        mean = Sample(means, floor / math.sqrt(max(len(at), 1)))
        if len(at) == 1:
            mean = replace(next(iter(at.values())), values=means)
        counts = {text: int((lines["state"] == state).sum()) for state, text in LOST.items()}
        empty = len(named_places) - len(at)
        lost = [f"{number} {text}" for text, number in counts.items() if number]
        lost += [f"{count(empty, 'place')} without a number"] if empty else []
        return cls(at, mean, empty, lost)

    def judged(self, judge: str) -> dict[str, Sample]:
        """Return the samples that a claim is judged by: at every place, of the average, or at an extreme."""
        if judge == "every" or judge == "average":
            return self.at if judge == "every" else {THE_AVERAGE: self.mean}
        choose = max if judge == "largest" else min
        place = choose(self.at, key=lambda place: float(np.mean(self.at[place].values)))
        return {place: self.at[place]}


@dataclass(frozen=True)
class Wording:
    """Words for the number of a claim.

    Attributes:
        unit: its unit after a space; curves have none, and multiples name their cell.
        sign: ``+`` if it is a difference, which has a sign; else empty.
        subtraction: the subtraction behind it and the sum, for example ``C = 0.1 minus C = 0``; can be empty.
    """

    unit: str
    sign: str
    subtraction: str

    @classmethod
    def of(cls, sheet: ItemJob, test: Quantity) -> Wording:
        """Return the words for the number of a test."""
        last = test.minus or test.over
        unit = " %" if test.relative else ""
        if test.measure and not test.relative:
            shown = sheet.table.measures if sheet.table else ()
            over = next((one.relative_to for one in shown if one.measure == test.measure), {})
            unit = f"× {', '.join(over.values())}" if over else measure(test.measure).unit
            unit = f" {'points' if unit == '%' and last else unit}" if unit else ""
        first: LabelChoice = {}
        for axis, names in last.items():
            others = {*test.at.get(axis, sheet.axes[axis])} - {*names}
            if len(others) == 1:
                first[axis] = (others.pop(),)
        gain = f"gain over {_labels(test.over)}: " if test.over and test.minus else ""
        sides = [_labels(first) or "others", _labels(last)]
        parts = [gain + " minus ".join(sides[::-1] if test.reverse else sides)] if last else []
        if test.minus_rounds:
            parts.append(
                "rounds {:.0%} to {:.0%} minus {:.0%} to {:.0%}".format(*test.rounds, *test.minus_rounds)
            )
        sign = "+" * bool(parts)
        if test.part and len(test.part) > 1:
            parts.append(f"sum of {' and '.join([', '.join(test.part[:-1]), test.part[-1]])}")
        return cls(unit, sign, ", ".join(parts))

    def form(self, value: float, interval: Interval | None) -> str:
        """Return the format of a number and of its interval."""
        return f"{self.sign}z.{shared_decimals(value, interval)}f"

    def number(self, value: float, interval: Interval | None, about: str) -> str:
        """Return a number with its unit and interval, and notes on it."""
        form = self.form(value, interval)
        around = " [{}, {}]".format(*(f"{end:{form}}" for end in interval)) if interval else ""
        return f"{value:{form}}{self.unit}{around}" + (f" ({about})" if about else "")


def _labels(chosen: LabelChoice) -> str:
    return ", ".join(named(axis, label) for axis, names in chosen.items() for label in names)


# ---------------------------------------------------------------- tests
def _compared(numbers: ClaimNumbers, sheet: ItemJob, test: InRegion, statement: Statement) -> Finding:
    """Compare the number with the region in which the claim puts it.

    The region lies around the stated number, which varies over the paper's seeds as ours does over ours, or
    around zero.
    """
    stated, margin = _stated(test, statement)
    theirs = math.inf if stated is None else sheet.reported_seeds or 1
    incomplete = numbers.empty and test.judge != "every"
    samples = {THE_AVERAGE: numbers.mean} if incomplete else numbers.judged(test.judge)
    tries = len(numbers.at) if test.judge in ("largest", "smallest") else 1

    def tested(sample: Sample) -> Contrast | None:
        return contrast(sample, stated or 0.0, seeds=theirs, region=test.region(margin), tries=tries)

    region = {"positive": f"above {margin:g}", "negative": f"below {-margin:zg}"}
    claimed = region.get(test.kind, f"within {margin:.3g}" + ("" if stated is None else f" of {stated:g}"))
    shown = _described(numbers, samples, tested, Wording.of(sheet, test), test, stated)
    shown = replace(shown, region=claimed if margin and stated is None else "")
    if incomplete:
        return replace(shown, decision=INCOMPLETE)
    tried = {place: found for place, sample in samples.items() if (found := tested(sample))}
    opposites = dict(tried)
    if len(samples) > 1 and test.kind in ("positive", "negative") and (mean := tested(numbers.mean)):
        opposites[THE_AVERAGE] = mean
    outside = {place: one.p_outside for place, one in opposites.items()}
    least = min([1.0, *(len(outside) * p for p in outside.values())])  # the smallest one by Holm
    if least >= LEVEL and (not tried or len(tried) < len(samples)):
        return replace(shown, decision=UNTESTABLE)
    chosen = f" (Bonferroni over {tries} places)" if tries > 1 else ""
    if least < LEVEL:
        at = f" at {min(outside, key=outside.__getitem__)}" if len(samples) > 1 else ""
        chosen = f" (Holm over {len(outside)})" if len(outside) > 1 else chosen
        words = f"not {claimed}{at}: one-sided {p_text(least)}{chosen}"
        return replace(shown, verdict="contradicted", decision=words, p=least, p_contradicted=least)
    p = max(one.p_inside for one in tried.values())
    chosen = f", the largest of {len(tried)} places" if len(tried) > 1 else chosen
    return replace(
        shown,
        verdict="supported" if p < LEVEL and not numbers.empty else "undecided",
        decision=f"{claimed}: one-sided {p_text(p)}{chosen}",
        p=p,
        p_contradicted=least,
    )


def _described(
    numbers: ClaimNumbers,
    samples: Mapping[str, Sample],
    tested: Callable[[Sample], Contrast | None],
    wording: Wording,
    test: InRegion,
    stated: float | None,
) -> Finding:
    """Return the finding before any test: the mean, or the number beside a stated one, and lost runs."""
    place, ours = (THE_AVERAGE, numbers.mean) if stated is None else next(iter(samples.items()))
    if not ours.values:
        return Finding("undecided", ", ".join(["no seed has a number in all places", *numbers.lost]))
    mean, found, zero = average(ours.values), tested(ours), stated or 0.0
    interval = (zero + found.interval[0], zero + found.interval[1]) if found else None
    chosen = f", the {test.judge}" if test.judge in ("largest", "smallest") and len(numbers.at) > 1 else ""
    about = [
        "" if place == THE_AVERAGE else place + chosen,
        wording.subtraction,
        "" if stated is None else f"stated {stated:g}",
    ]
    means = {place: float(np.mean(sample.values)) for place, sample in numbers.at.items()}
    several = f"mean of {len(means)} places: " if place == THE_AVERAGE and len(means) > 1 else ""
    number = several + wording.number(mean, interval, "; ".join(filter(None, about)))
    words = [f"{number} over {count(len(ours.values), 'seed')}"]
    if several:
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        sign = {"positive": 1, "negative": -1}.get(test.kind, 0)
        agreeing = sum(sign * mean > 0 for mean in means.values())
        words += [f"{test.kind} at {agreeing} of {len(means)}"] if sign else []
        form = wording.form(mean, interval)
        ends = (f"{means[end]:{form}} ({end})" for end in (low, high))
        words.append(f"from {' to '.join(ends)}")
    return Finding("undecided", ", ".join([*words, *numbers.lost]), "", mean, interval, number=number)


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
    place = [AVERAGE if axis in test.mean_over else ", ".join(test.at.get(axis or "", ())) for axis in axes]
    for cell in cells:
        here = [cell.row, cell.column, cell.panel] == place and cell.measure == test.measure
        if here and cell.published_gain is not None:
            return cell
    raise FltrainError(f"{sheet.id} prints no such gain; 'at' needs a label for each axis of its table")


def _printed(sheet: ItemJob, test: Printed, cells: Sequence[TableCell]) -> Finding:
    """Return the verdict of the table's cell on the gain that the claim states."""
    cell = printed_cell(sheet, test, cells)
    if cell.lost_gain:
        return Finding("undecided", f"{cell.lost_gain} in all seeds", "no test: there is no gain")
    gain, stated, ends = cell.gain or 0.0, cell.published_gain or 0.0, cell.interval("gain_difference_")
    interval = (stated + ends[0], stated + ends[1]) if ends else None
    number = Wording.of(sheet, test).number(gain, interval, f"stated {stated:.4g}")
    words = f"{number} over {count(len(cell.gains), 'seed')}"
    shown = Finding("undecided", words, UNTESTABLE, cell.gain, interval, number=number)
    if ends is None:
        return shown
    margin = cell.gain_margin or 0.0
    verdict, p = CELL_VERDICTS[against(ends, around(margin))], cell.gain_p
    decision = f"the cell {cell.place} of “{sheet.title}” is {cell.gain_verdict}, margin {margin:.3g}"
    p = p if verdict == "contradicted" else None
    return replace(shown, verdict=verdict, decision=decision, p=p, p_contradicted=cell.gain_p)


def _fails(lines: pd.DataFrame, test: Fails) -> Finding:
    """Return if most runs of each place diverged or have a low number; a place without runs has no share."""
    diverged = lines["state"] == DIVERGED
    there = diverged | lines["value"].notna()
    failed = (diverged | (lines["value"] <= test.at_most)).where(there).astype(float)
    by_place = [lines[axis] for axis in places(lines)] or [pd.Series("all", index=lines.index)]
    shares = failed.groupby(by_place, sort=False).mean()
    most, empty = int((shares > 0.5).sum()), int(shares.isna().sum())
    verdict: ClaimVerdict = "undecided"
    if most == len(shares):
        verdict = "supported"
    elif not empty and (shares == 0).any():
        verdict = "contradicted"
    number = f"{int(failed.sum())} of {count(int(there.sum()), 'run')} failed"
    parts = [f"{number}, {int(diverged.sum())} diverged", f"most at {most} of {count(len(shares), 'place')}"]
    lost = int((~there).sum())
    parts += [f"{count(lost, 'run')} not there or without a number"] if lost else []
    parts += [f"{count(empty, 'place')} without any run"] if empty else []
    what = measure(test.measure).label.partition(",")[0] if test.measure else test.curve
    limit = f"failed: diverged, or {what} of at most {test.at_most:g}"
    return Finding(verdict, ", ".join(parts), limit, number=number)


# ---------------------------------------------------------------- output
def full_verdict(claim: Mapping[Any, Any]) -> str:
    """Return the verdict of a row of judged claims with its marks."""
    dropped, late = DROPPED * bool(claim["dropped"]), ", exploratory" * bool(claim["exploratory"])
    return f"{claim['verdict']}{dropped}{late}"


def to_markdown(title: str, sheets: Sequence[ItemJob], judged: pd.DataFrame) -> str:
    """Return the claims of a paper as a Markdown table, with the scales of its items."""
    titles = {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}
    shown = ["where", "claim", "stated", "verdict", "evidence", "item"]
    lines = judged[shown].astype(str)
    lines["verdict"] = [full_verdict(claim) for claim in judged.to_dict("records")]
    lines["item"] = ["; ".join(titles.get(name, name) for name in item.split(", ")) for item in lines["item"]]
    text = TEMPLATES.get_template("claims.md").render(
        title=title,
        sheets=sheets,
        table=markdown_table([shown, *lines.to_numpy().tolist()], numbers=False),
        legend=LEGEND,
        dropped=DROPPED_CLAIMS if judged["dropped"].any() else "",
        exploratory=EXPLORATORY if judged["exploratory"].any() else "",
    )
    return without_tags(text)
