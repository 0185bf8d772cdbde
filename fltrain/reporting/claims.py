"""Claims of a paper judged on our runs: supported, contradicted, or inconclusive. No torch.

The rules of decision are documented with the tests in ``fltrain.experiments.claims``.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from fltrain.core.errors import FltrainError, count
from fltrain.core.floats import average
from fltrain.core.statistics import (
    LEVEL,
    Contrast,
    Interval,
    Sample,
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
    NotJudged,
    Printed,
    Quantity,
    Test,
    Tested,
    cited_paper,
    quantities,
)
from fltrain.experiments.layout import ItemJob, named
from fltrain.experiments.published import Published, Statement
from fltrain.reporting.claim_text import ClaimText
from fltrain.reporting.frame import DAMAGED, DIVERGED, LATE, MISSING, Runs, claimed_values, places
from fltrain.reporting.pages import TEMPLATES
from fltrain.reporting.tables.render import CORRECTION, DROPPED
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.text import (
    joined,
    markdown_table,
    number_text,
    p_text,
    shared_decimals,
    without_tags,
)
from fltrain.reporting.verdict import gain_margin
from fltrain.reporting.version import FIRST_RULE
from fltrain.runs.measures import measure

ClaimVerdict = Literal[
    "supported", "contradicted", "inconclusive", "reduced scale", "not run", "by definition", "not judged"
]

JUDGED: tuple[ClaimVerdict, ...] = ("supported", "contradicted", "inconclusive")
"""Verdicts that our runs give."""

LEGEND = "Intervals are 90 % intervals, which match one-sided tests at 5 %. One seed decides nothing."
EXPLORATORY = "A result is exploratory if we declared it so, or decided on it after we had seen these runs."
DROPPED_CLAIMS = f"{CORRECTION} claims (false discovery rate 5 %)."


@dataclass(frozen=True)
class Finding:
    """A verdict on a claim, or on a part of it, with the numbers behind it.

    Attributes:
        verdict: supported, contradicted, inconclusive ...
        numbers: seeds, further numbers and lost runs, in sentences.
        decision: the test that decided, in sentences.
        estimate: our mean that the test decided on, with its 90 % ``interval`` and ``unit``.
        case: the place of this mean, or the places that it averages, if there are several.
        p: p value of the test that decided.
        p_contradicted: p value of the test that would contradict the claim.
        number: name, value and interval of the number (of each part) that the test is about.
        deciding: the same for the place with the least support, if all places have to support the claim.
        needed: where the claim needs the number, for example ``above 0.5 points``.
        reason: the number of diverged runs, and why the claim is *inconclusive*, if the interval does not
            show it.

    Semicolons separate the lines of numbers, needs and reasons.
    """

    verdict: ClaimVerdict
    numbers: str
    decision: str = ""
    estimate: float | None = None
    interval: Interval | None = None
    unit: str = ""
    case: str = ""
    p: float | None = None
    p_contradicted: float | None = None
    number: str = ""
    deciding: str = ""
    needed: str = ""
    reason: str = ""

    @property
    def evidence(self) -> str:
        """Further numbers and the decision, in sentences."""
        return " ".join(f"{text.rstrip('.')}." for text in (self.numbers, self.decision) if text)


COLUMNS = (
    *("where", "claim", "verdict", "dropped", "exploratory", "reduced", "item", "test", "stated"),
    *("estimate", "low", "high", "unit", "case", "p", "number", "needed", "reason", "evidence"),
)
"""Columns of judged claims, also in the CSV file; see ``Finding``.

``where`` and ``claim`` are the place and text in the paper, ``stated`` is the number there with its unit.
``estimate``, ``low``, ``high`` and ``p`` belong to the ``case`` that decided: if the claim needs all cases,
the one with the largest p value, or the one that contradicts it.
``dropped`` is True if a contradiction is not significant after the correction for the number of claims.
``exploratory``: the rule or the test was decided after the runs had been seen, or the claim is declared as
exploratory. ``reduced``: the runs belong to a reduced scale. ``item`` has the items that the test uses, with
commas, ``test`` its kind.
"""


@dataclass(frozen=True)
class Judge:
    """Judges the claims of a paper at a scale.

    Attributes:
        sheets: the paper's items at the scale.
        runs: returns the record of a run id, complete or not.
        published: returns the published values behind an item.
        reduced: True for a reduced scale.
        cells: judged cells of the tables by ID of the sheet.
    """

    sheets: Sequence[ItemJob]
    runs: Runs
    published: Callable[[ItemJob], Published]
    reduced: bool
    cells: Mapping[str, Sequence[TableCell]] = field(default_factory=dict)

    def judge(self, claims: Sequence[Claim], statements: Sequence[Statement]) -> pd.DataFrame:
        """Return a row with ``COLUMNS`` for each claim, whose statement in the paper the plan has checked.

        Raises:
            FltrainError: if the test of a claim does not fit the item.
        """
        stated = {(statement.where, statement.claim): statement for statement in statements}
        rows: list[dict[str, Any]] = []
        for claim in claims:
            statement = stated[claim.where, claim.claim]
            try:
                finding = self._find(claim.test, statement)
            except FltrainError as error:
                raise FltrainError(f"claim {claim.claim!r}: {error}") from None
            names = dict.fromkeys(quantity.item for quantity in quantities(claim.test))
            days = (sheet.seen for sheet in self.sheets if sheet.name in names and sheet.seen)
            seen = min(days, default=datetime.date.max)
            late = seen <= max(FIRST_RULE, claim.decided or FIRST_RULE)
            low, high = finding.interval or (None, None)
            rows.append(
                {
                    **{**vars(finding), "low": low, "high": high},
                    **{"number": _lines([finding]), "evidence": finding.evidence},
                    **{"where": claim.where, "claim": claim.claim, "stated": statement.text},
                    **{"item": ", ".join(names), "test": claim.test.kind, "reduced": self.reduced},
                    "exploratory": (claim.exploratory or late) and finding.verdict in JUDGED,
                }
            )
        significant = discoveries([row["p_contradicted"] for row in rows])
        for row, discovered in zip(rows, significant, strict=True):
            contradicted = row["verdict"] == "contradicted" and row["p_contradicted"] is not None
            row["dropped"] = contradicted and not discovered
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def _find(self, test: Test, statement: Statement) -> Finding:
        match test:
            case Tested():
                return Finding("by definition", f"A unit test checks it ({test.by}).")
            case NotJudged():
                return Finding("not judged", test.why)
            case All():
                return _conjunction([self._find(part, statement) for part in test.tests], self.reduced)
        if self.reduced and test.kind in ("value", "cell"):
            return Finding("not run", "The paper's number is for its full protocol.")
        sheet = next((sheet for sheet in self.sheets if sheet.name == test.item), None)
        if sheet is None:
            return Finding("not run", "Its runs are not made here.")
        finding = self._judge_item(sheet, test, statement)
        if not self.reduced or finding.verdict == "not run":
            return finding
        finding = replace(finding, decision="", deciding="", needed="", reason="")
        return replace(finding, verdict="reduced scale", p=None, p_contradicted=None)

    def _judge_item(self, sheet: ItemJob, test: InRegion | Printed | Fails, statement: Statement) -> Finding:
        """Return the finding of a test on the runs of its item.

        It is inconclusive if runs that the claim is about were left out, or have no number at a label that it
        names. Of an item restricted to some labels of an axis, only claims that name these labels are
        decided.
        """
        axes = {axis: {*labels} for axis, labels in sheet.axes.items()}
        for axis, labels in test.choices:
            if not axes[axis] & {*labels}:
                note = f" (restricted to {', '.join(map(str, sheet.restricted))})" if sheet.restricted else ""
                lacking = f"{axis} {' or '.join(map(repr, labels))}"
                return Finding("not run", f"At this scale, its runs have no {lacking}{note}.")
        frame, chosen = claimed_values(sheet, test, self.runs, self.published(sheet))
        lines = frame[chosen]
        present = lines[lines["value"].notna() | (lines["state"] == DIVERGED)]
        if present.empty:
            number = f"{test.measure or test.curve}" + (f" of {', '.join(test.part)}" if test.part else "")
            return Finding("not run", f"No complete run, or pair of runs, that it needs has {number}.")
        match test:
            case Fails():
                finding = _fails(lines, test)
            case Printed():
                finding = _printed(sheet, test, self.cells.get(sheet.id, ()))
            case InRegion():
                finding = _compared(sheet, test, statement, ClaimNumbers.of(frame, chosen, test))
                if each := ", ".join(self._by_part(sheet, test, statement)):
                    finding = replace(finding, numbers=f"{finding.numbers}. By part: {each}")
        complete = {axis for axis, labels in test.at.items() if {*labels} <= axes[axis]}
        missed = " and ".join(str(limit) for limit in sheet.restricted if limit.axis not in complete)
        label_pairs = [(axis, label) for axis, labels in test.at.items() if axis in lines for label in labels]
        empty = [named(axis, label) for axis, label in label_pairs if label in axes[axis] - {*present[axis]}]
        if not (missed or empty):
            return finding
        cause = f"there is no number at {', '.join(empty)}"
        if missed:
            cause = f"the runs cover only {missed.replace('; ', ' or ')}"
        reason = "; ".join(filter(None, [finding.reason, f"inconclusive, because {cause}"]))
        return replace(finding, verdict="inconclusive", p_contradicted=None, reason=reason)

    def _by_part(self, sheet: ItemJob, test: InRegion, statement: Statement) -> Iterator[str]:
        """Yield each part of a sum with its number."""
        for part in test.part or () if len(test.part or ()) > 1 else ():
            changes = {"part": (part,), "judge": "average"}  # no place that decides about this part alone
            finding = self._judge_item(sheet, test.model_copy(update=changes), statement)
            if finding.estimate is not None:
                yield f"{part} {finding.number.rpartition(': ')[2]}"


def _conjunction(parts: Sequence[Finding], reduced: bool) -> Finding:
    """Return the finding on a whole claim from those on its parts; parts with the same text share it."""
    verdicts, needed = {part.verdict for part in parts}, _needed(parts)
    judged = not reduced and not verdicts <= {"not run", "not judged"}
    evidence = [(part.verdict, part.evidence) for part in parts]
    texts = dict.fromkeys(f"{verdict}: {text}" if judged else text for verdict, text in evidence)
    several = len(texts) > 1
    numbers = " ".join(f"({place}) {text}" if several else text for place, text in enumerate(texts, start=1))
    finding = Finding("not run", numbers, number=_lines(parts), needed=needed)
    first, *others = parts
    if all(part.number == first.number for part in others):  # for example, both ends of a range
        finding = replace(finding, estimate=first.estimate, interval=first.interval)
        finding = replace(finding, unit=first.unit, case=first.case)
    if not judged:
        return replace(finding, verdict="reduced scale") if "reduced scale" in verdicts else finding
    contrary = [part.p_contradicted for part in parts if part.verdict == "contradicted"]
    ps = [min(1.0, p * len(parts)) for part in parts if (p := part.p_contradicted) is not None]
    verdict: ClaimVerdict = "supported" if verdicts == {"supported"} else "inconclusive"
    if contrary and (None in contrary or min(ps) < LEVEL):
        verdict = "contradicted"
    reasons = [part.reason for part in parts]
    for status in ("not judged", "not run"):
        open_parts = sum(part.verdict == status and not part.number for part in parts)
        verb = "is" if open_parts == 1 else "are"
        reasons += [f"{count(open_parts, 'part')} {verb} {status}"] * bool(open_parts)
    too_weak = bool(contrary) and verdict == "inconclusive"
    reasons += [_corrected("Bonferroni", len(parts), "parts")] * too_weak
    p = None if None in contrary else min(ps, default=None)
    reason = "; ".join(filter(None, dict.fromkeys(reasons)))
    return replace(finding, verdict=verdict, p_contradicted=p, reason=reason)


def _corrected(author: str, number: int, tests: str) -> str:
    """Return why tests that contradict a claim, each alone, do not decide."""
    return f"the evidence is too weak to contradict the claim ({author}'s correction for {number} {tests})"


def _lines(parts: Sequence[Finding]) -> str:
    """Return the lines of numbers, each once; with a verdict if those of the numbers differ."""
    numbers = dict.fromkeys(part.number for part in parts if part.number)
    differ = len(numbers) > 1 and len({part.verdict for part in parts} - {"reduced scale"}) > 1
    texts: list[str] = []
    for number in numbers:
        members = [part for part in parts if part.number == number]
        verdicts = dict.fromkeys(part.verdict for part in members)
        texts.append(number + f" ({', '.join(verdicts)})" * differ)
        texts += dict.fromkeys(part.deciding for part in members if part.deciding)
    return "; ".join(texts)


def _needed(parts: Sequence[Finding]) -> str:
    """Return where the claim needs each number; the two ends of a range stand together."""
    needed: dict[str, set[str]] = {}
    for part in parts:
        if part.number and part.needed:
            needed.setdefault(part.number, set()).add(part.needed)
    regions = (" and ".join(sorted(ends)) for ends in needed.values())
    texts = [re.sub(r"^above (\S+).* and below ", r"\1 to ", region) for region in regions]
    return "; ".join(texts[:1] if len({*texts}) == 1 else texts)


# ---------------------------------------------------------------- numbers
THE_AVERAGE = "the average"
LOST = {DIVERGED: "diverged", DAMAGED: "damaged", MISSING: "missing"}


@dataclass(frozen=True)
class ClaimNumbers:
    """Numbers of a claim.

    Attributes:
        at: numbers at each place that has any; the whole item moderates their spreads.
        mean: averages over these places, of the seeds that have a number in all of them; over several places,
            they have a spread of their own.
        empty: number of places without a number.
        late: count of numbers that contain a run that misses its target, in words.
        lost: counts of lost runs, and of places without a number, in words.
    """

    at: dict[str, Sample]
    mean: Sample
    empty: int
    late: str
    lost: list[str]

    @classmethod
    def of(cls, frame: pd.DataFrame, chosen: pd.Series, test: Quantity) -> ClaimNumbers:
        """Arrange the chosen lines of an item; a place is called by the labels that vary."""
        axes, lines = places(frame), frame[chosen]
        groups = [group for _, group in frame.groupby(axes, sort=False)] if axes else [frame]
        samples = moderated([_sample(group, test) for group in groups])
        varied = [axis for axis in axes if lines[axis].nunique() > 1]
        by_place = {
            ", ".join(named(axis, str(group.iloc[0][axis])) for axis in varied) or "all": (
                sample,
                group.set_index("seed")["value"],
            )
            for group, sample in zip(groups, samples, strict=True)
            if chosen[group.index[0]]
        }
        at = {place: sample for place, (sample, _) in by_place.items() if sample.values}
        by_seed = pd.DataFrame({place: by_place[place][1] for place in at}).sort_index()
        means = by_seed.dropna().mean(axis=1).tolist()
        floor = max((sample.floor for sample in at.values()), default=0.0)
        mean = Sample(means, floor / math.sqrt(max(len(at), 1)))
        if len(at) == 1:
            mean = replace(next(iter(at.values())), values=means)
        empty = len(by_place) - len(at)
        counts = {text: int((lines["state"] == state).sum()) for state, text in LOST.items()}
        lost = [f"{count(number, 'run')} {text}" for text, number in counts.items() if number]
        lost += [f"{count(empty, 'case')} without a number"] if empty else []
        missed = int((lines["state"] == LATE).sum())
        counts_as = "A run that misses the target counts as its planned rounds plus one"
        late = f"{counts_as} (in {missed} of {count(len(lines), 'value')})" if missed else ""
        return cls(at, mean, empty, late, lost)

    @property
    def means(self) -> dict[str, float]:
        """Our mean at each place."""
        return {place: float(np.mean(sample.values)) for place, sample in self.at.items()}


def _sample(lines: pd.DataFrame, test: Quantity) -> Sample:
    """Return the numbers of a place. As in tables, spreads of the same dataset are moderated together.

    For differences, plug-ins must also be the same, but not the base.
    """
    compared = bool(test.over or test.minus)
    plugins = lines["composition"].iloc[0][1:] if compared else ()
    base = [axis for axis in places(lines) if axis not in test.over]
    return Sample(
        known(lines["value"]),
        floor=float(lines["floor"].max()),
        diverged=DIVERGED in {*lines["state"]},
        shares=test.measure is not None and not compared and measure(test.measure).margin.relative,
        family=(max(lines["spread_family"], key=len), plugins),
        base=tuple(lines.iloc[0][base]) if test.over else None,
    )


# ---------------------------------------------------------------- tests
UNTESTABLE = "no test, because it needs three seeds that differ"
INCOMPLETE = "no test, because an average needs a number in every case"
EXTREMES = {"largest": max, "smallest": min}
SIDES = {"positive": "above", "negative": "below"}
"""Kinds of tests of a direction, and the side of the margin on which the number has to be."""


def _compared(sheet: ItemJob, test: InRegion, statement: Statement, numbers: ClaimNumbers) -> Finding:
    """Compare the number with the region in which the claim puts it.

    The region lies around the stated number, which varies over the paper's seeds as ours does over ours, or
    around zero.
    """
    stated, margin = _stated(test, statement)
    centre, seeds = (0.0, math.inf) if stated is None else (stated, sheet.reported_seeds or 1)
    means, choose = numbers.means, EXTREMES.get(test.judge)
    tries = len(means) if choose else 1
    contrasts = {
        place: comparison
        for place, sample in {**numbers.at, THE_AVERAGE: numbers.mean}.items()
        if (comparison := contrast(sample, centre, seeds=seeds, region=test.region(margin), tries=tries))
    }
    incomplete = numbers.empty and test.judge != "every"
    place = choose(means, key=means.__getitem__) if choose and not incomplete else THE_AVERAGE
    text = ClaimText(sheet, test)
    word, end = SIDES.get(test.kind, "within"), -margin if test.kind == "negative" else margin
    claimed = f"{word} {text.scale * end:z.3g}"
    needed = f"{word} {text.limit(end, 'margin' if word == 'within' else 'end')}"
    if stated is not None:
        claimed += f" of {text.scale * stated:g}"
        needed += f" of the paper's {text.limit(stated, 'stated')}"
    claimed += " on average" if place == THE_AVERAGE and len(means) > 1 and test.judge != "every" else ""
    needed += f" in each of {len(means)} cases" * (test.judge == "every" and len(means) > 1)
    finding = _finding_at(text, test, numbers, place, contrasts.get(place), centre)
    lost = [text for text in numbers.lost if text.endswith(LOST[DIVERGED])]
    finding = replace(finding, needed=needed, reason="; ".join(lost))
    if incomplete:
        return replace(finding, decision=INCOMPLETE.capitalize(), reason="; ".join([*lost, INCOMPLETE]))
    judged = [*numbers.at] if test.judge == "every" else [place]
    tried = {place: contrasts[place] for place in judged if place in contrasts}
    # The average of several places can contradict a direction, too.
    opposed = contrasts if len(judged) > 1 and test.kind in SIDES else tried
    outside = {place: comparison.p_outside for place, comparison in opposed.items()}
    least = min([1.0, *(len(outside) * p for p in outside.values())])  # the smallest one by Holm
    if least >= LEVEL and (not tried or len(tried) < len(judged)):
        return replace(finding, decision=UNTESTABLE.capitalize(), reason="; ".join([*lost, UNTESTABLE]))
    note = f" (with Bonferroni's correction for {tries} cases)" if tries > 1 else ""
    if least < LEVEL:
        decisive = min(outside, key=outside.__getitem__)
        at = "" if len(judged) == 1 else " on average" if decisive == THE_AVERAGE else f" for {decisive}"
        if at and decisive != THE_AVERAGE:
            case = _finding_at(text, test, numbers, decisive, contrasts[decisive], centre)
            finding = _decided_by(finding, case)
        note = f" (with Holm's correction for {len(outside)} tests)" if len(outside) > 1 else note
        decision = f"Test against the claim: not {claimed}{at}, one-sided {p_text(least)}{note}"
        return replace(finding, verdict="contradicted", decision=decision, p=least, p_contradicted=least)
    weakest = max(tried, key=lambda place: tried[place].p_inside)
    p, reasons, largest = tried[weakest].p_inside, [*lost], ""
    if len(tried) > 1:
        claimed, largest = f"{claimed} in each of {len(tried)} cases", "largest "
        case = _finding_at(text, test, numbers, weakest, tried[weakest], centre)
        finding = _decided_by(finding, case)
    reasons += [f"{count(numbers.empty, 'case')} without a number"] * bool(numbers.empty)
    contrary = any(p < LEVEL for p in outside.values())
    reasons += [_corrected("Holm", len(outside), "tests")] * contrary
    verdict: ClaimVerdict = "supported" if p < LEVEL and not numbers.empty else "inconclusive"
    decision, reason = f"Test: {claimed}, {largest}one-sided {p_text(p)}{note}", "; ".join(reasons)
    finding = replace(finding, verdict=verdict, decision=decision, reason=reason)
    return replace(finding, p=p, p_contradicted=least)


def _finding_at(
    text: ClaimText,
    test: InRegion,
    numbers: ClaimNumbers,
    place: str,
    comparison: Contrast | None,
    centre: float,
) -> Finding:
    """Return the finding before any test: the number of a place, which is compared with ``centre``."""
    means, ours = numbers.means, {**numbers.at, THE_AVERAGE: numbers.mean}[place]
    if not ours.values:
        return Finding("inconclusive", ", ".join(["No seed has a number in all cases", *numbers.lost]))
    mean = average(ours.values)
    interval = (centre + comparison.interval[0], centre + comparison.interval[1]) if comparison else None
    several = len(means) > 1
    averaged = several and place == THE_AVERAGE
    axes = {axis: {*labels} for axis, labels in text.sheet.axes.items()}
    used = {axis: {*test.at.get(axis, axes[axis])} & axes[axis] for axis in test.mean_over}
    groups = [count(len(labels), axis) for axis, labels in used.items() if len(labels) > 1]
    groups += [f"{len(means)} cases"] * averaged
    scope = f"average of {joined(groups)}" if groups else ""
    weakest = several and not averaged and test.judge == "every"
    if several and not averaged:
        rank = "weakest" if weakest else test.judge
        scope = ", ".join(filter(None, (f"{rank} of {len(means)} cases ({place})", scope)))
    # The weakest case stands next to the average, which has the whole name.
    name = scope if weakest else text.name(place, scope)
    number = ": ".join(filter(None, (name, text.number(mean, interval))))
    sentences = [count(len(ours.values), "seed")]
    if comparison and comparison.tries > 1:
        chosen = f"the {test.judge} of {comparison.tries} cases"
        sentences.append(f"The interval is wider, because we chose {chosen} (Bonferroni's correction)")
    if averaged:
        decimals = shared_decimals(*text.scaled(mean, interval))
        ends = [choose(means, key=means.__getitem__) for choose in (min, max)]
        low, high = (f"{number_text(text.scale * means[end], decimals, text.sign)} ({end})" for end in ends)
        sign = {"positive": 1, "negative": -1}.get(test.kind, 0)
        agreeing = sum(sign * mean > 0 for mean in means.values())
        side = f"is {test.kind} in {agreeing} of {len(means)} cases" if sign else "ranges"
        side = f"The {text.sides(place).noun} {side}"
        sentences.append(f"{side}{',' * bool(sign)} from {low} to {high}")
    sentences += filter(None, [", ".join(numbers.lost), numbers.late])
    value, scaled = text.scaled(mean, interval)
    finding = Finding("inconclusive", ". ".join(sentences), "", value, scaled, number=number)
    return replace(finding, unit=text.unit.strip(), case=scope)


def _decided_by(finding: Finding, case: Finding) -> Finding:
    """Return the finding on several cases, one of which decided."""
    decided = replace(finding, estimate=case.estimate, interval=case.interval, case=case.case)
    return replace(decided, deciding=case.number)


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


def _printed(sheet: ItemJob, test: Printed, cells: Iterable[TableCell]) -> Finding:
    """Return the verdict of the table's cell on the gain that the claim states."""
    cell = printed_cell(sheet, test, cells)
    if cell.lost_gain:
        return Finding("inconclusive", f"{cell.lost_gain} in all seeds", "No test, because there is no gain")
    stated, ends, p = cell.published_gain or 0.0, cell.interval("gain_difference_"), cell.gain_p
    interval = (stated + ends[0], stated + ends[1]) if ends else None
    text = ClaimText(sheet, test)
    number = f"{text.name('')}: {text.number(cell.gain or 0.0, interval)}"
    seeds = count(len(cell.gains), "seed")
    finding = Finding("inconclusive", seeds, UNTESTABLE.capitalize(), cell.gain, interval, text.unit.strip())
    finding = replace(finding, number=number)
    if p is None or not ends:
        return replace(finding, reason=UNTESTABLE)
    verdict: ClaimVerdict = "contradicted" if p < LEVEL else "inconclusive"
    verdict = "supported" if cell.gain_verdict == "size reproduced" else verdict
    words = f"The cell {cell.place} of “{sheet.title}” is {cell.gain_verdict} (margin {cell.gain_margin:.3g})"
    decided = p if verdict == "contradicted" else None
    margin = text.limit(cell.gain_margin or 0.0, "margin")
    needed = f"within {margin} of the paper's {text.limit(stated, 'stated')}"
    return replace(finding, verdict=verdict, decision=words, needed=needed, p=decided, p_contradicted=p)


def printed_cell(sheet: ItemJob, test: Printed, cells: Iterable[TableCell]) -> TableCell:
    """Return the cell of the item's table whose printed gain a claim names.

    Raises:
        FltrainError: if the table does not print such a gain.
    """
    axes = (sheet.table.rows, sheet.table.columns, sheet.table.panels) if sheet.table else ()
    place = [AVERAGE if axis in test.mean_over else ", ".join(test.at.get(axis or "", ())) for axis in axes]
    for cell in cells:
        matches = [cell.row, cell.column, cell.panel] == place and cell.measure == test.measure
        if matches and cell.published_gain is not None:
            return cell
    raise FltrainError(f"{sheet.id} prints no such gain; 'at' needs a label for each axis of its table")


def _fails(lines: pd.DataFrame, test: Fails) -> Finding:
    """Return True if most runs of each place diverged or stay low; a place without runs has no share."""
    diverged = lines["state"] == DIVERGED
    measured = diverged | lines["value"].notna()
    failed = (diverged | (lines["value"] <= test.at_most)).where(measured).astype(float)
    by_place = [lines[axis] for axis in places(lines)] or [pd.Series("all", index=lines.index)]
    shares = failed.groupby(by_place, sort=False).mean()
    most, empty, lost = int((shares > 0.5).sum()), int(shares.isna().sum()), int((~measured).sum())
    verdict: ClaimVerdict = "inconclusive"
    if most == len(shares):
        verdict = "supported"
    elif not empty and (shares == 0).any():
        verdict = "contradicted"
    number = f"failed runs: {int(failed.sum())} of {int(measured.sum())}"
    if len(shares) > 1:
        number += f"; cases in which most runs failed: {most} of {len(shares)}"
    reasons = [f"{count(lost, 'run')} not there or without a number"] * bool(lost)
    reasons += [f"{count(empty, 'case')} without any run"] * bool(empty)
    quantity = measure(test.measure).label.partition(",")[0] if test.measure else test.curve
    unit = f" {measure(test.measure).unit}".rstrip() if test.measure else ""
    limit = f"A run fails if it diverges or has a {quantity} of at most {test.at_most:g}{unit}"
    numbers = f"{count(int(diverged.sum()), 'run')} diverged"
    needed = "most runs fail" + f" in each of {len(shares)} cases" * (len(shares) > 1)
    return Finding(verdict, numbers, limit, number=number, needed=needed, reason="; ".join(reasons))


# ---------------------------------------------------------------- output
def confirmatory_first(claims: Sequence[Mapping[Any, Any]]) -> list[Mapping[Any, Any]]:
    """Return judged claims by paper: confirmatory ones, exploratory ones, then those that no run judged."""
    papers = list(dict.fromkeys(cited_paper(claim["where"]) for claim in claims))

    def order(claim: Mapping[Any, Any]) -> tuple[int, bool, bool]:
        unjudged = claim["verdict"] not in JUDGED
        return papers.index(cited_paper(claim["where"])), unjudged, not unjudged and claim["exploratory"]

    return sorted(claims, key=order)


def full_verdict(claim: Mapping[Any, Any]) -> str:
    """Return the verdict of a row of judged claims with its marks."""
    dropped, late = DROPPED * bool(claim["dropped"]), ", exploratory" * bool(claim["exploratory"])
    return f"{claim['verdict']}{dropped}{late}"


def was_judged(verdict: str) -> bool:
    """Return True if runs led to the verdict on a claim, which marks may follow."""
    return verdict.partition(",")[0].removesuffix(DROPPED) in JUDGED


def result_lines(claim: Mapping[Any, Any]) -> list[str]:
    """Return the numbers of a row of judged claims, where it needs them, and why it is inconclusive."""
    needed = f"needed: {claim['needed'].replace('; ', ' and ')}" if claim["needed"] else ""
    return [*filter(None, (*claim["number"].split("; "), needed, *claim["reason"].split("; ")))]


def to_markdown(title: str, sheets: Sequence[ItemJob], judged: pd.DataFrame) -> str:
    """Return the claims of a paper as a Markdown table, with the scales of its items."""
    titles = {sheet.name: sheet.title for sheet in sheets}
    columns = ["where", "claim", "stated", "verdict", "number", "needed", "evidence", "item"]
    lines = judged[columns].astype(str)
    lines["number"] = [
        "; ".join(result_lines({**claim, "needed": ""})) for claim in judged.to_dict("records")
    ]
    lines["verdict"] = [full_verdict(claim) for claim in judged.to_dict("records")]
    lines["item"] = ["; ".join(titles.get(name, name) for name in item.split(", ")) for item in lines["item"]]
    text = TEMPLATES.get_template("claims.md").render(
        title=title,
        sheets=sheets,
        table=markdown_table([columns, *lines.to_numpy().tolist()], numbers=False),
        legend=LEGEND,
        dropped=DROPPED_CLAIMS if judged["dropped"].any() else "",
        exploratory=EXPLORATORY if judged["exploratory"].any() else "",
    )
    return without_tags(text)
