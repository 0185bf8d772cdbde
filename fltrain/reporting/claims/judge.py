"""Claims judged on our runs: is what the paper says supported, contradicted, or left open? No torch.

The rules of decision stand with the tests in ``fltrain.experiments.claims``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import pandas as pd

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError
from fltrain.core.statistics import (
    LEVEL,
    Sides,
    Statistic,
    against_point,
    holm,
    interval_text,
    known,
    one_sided,
    p_text,
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
from fltrain.experiments.layout import Measured, Sheet
from fltrain.reporting.numbers.comparison import agrees, margin_of_gain
from fltrain.reporting.numbers.published import Published, Statement
from fltrain.reporting.numbers.readings import Runs, curve
from fltrain.reporting.numbers.values import (
    ABSENT,
    DIVERGED,
    MISSING,
    STALE,
    STATES,
    UNKNOWN,
    Numbers,
    has_labels,
    measured_values,
    places,
    values_of,
)
from fltrain.runs.measures import measure
from fltrain.runs.record import Record

Verdict = Literal["supported", "contradicted", "undecided", "not run", "tested", "not judged"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

JUDGED: tuple[Verdict, ...] = ("supported", "contradicted", "undecided")
"""Verdicts that our runs give."""


@dataclass(frozen=True)
class Finding:
    """What our runs say about a claim: the verdict, the numbers behind it in words, and the main ones.

    ``estimate`` is a mean with its 95 % ``interval``; ``p`` that of the test which decided.
    """

    verdict: Verdict
    evidence: str
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict; ``reduced`` if the runs are those of a reduced scale.

    ``item`` is what the test looks at, empty if at none, and several with commas.
    """

    where: str
    claim: str
    item: str
    kind: str
    stated: str
    reduced: bool
    finding: Finding


def judge(
    claims: Sequence[Claim],
    statements: Sequence[Statement],
    sheets: Iterable[Sheet],
    runs: Runs,
    published: Callable[[Sheet], Published],
    reduced: bool,
) -> list[Judged]:
    """Judge every claim of a paper at a scale.

    Args:
        claims: how each is judged.
        statements: the claims as the paper states them.
        sheets: the paper's items at the scale.
        runs: returns the record of a run id, complete or not.
        published: returns the published values behind an item.
        reduced: whether the scale is.

    Raises:
        FltrainError: if a claim is not among the statements, or its test does not fit the item.
    """
    stated = {(statement.where, statement.claim): statement for statement in statements}
    items = {sheet.id.partition("/")[2]: sheet for sheet in sheets}
    judged: list[Judged] = []
    for claim in claims:
        key = claim.where, claim.claim
        if key not in stated:
            near = suggest(claim.claim, [text for _, text in stated])
            raise FltrainError(f"claims: the paper has no claim {claim.claim!r} in {claim.where!r}{near}")
        try:
            finding = _finding(claim.test, stated[key], items, runs, published, reduced)
        except FltrainError as error:
            raise FltrainError(f"claim {claim.claim!r}: {error}") from None
        item = ", ".join(dict.fromkeys(quantity.item for quantity in quantities(claim.test)))
        judged.append(Judged(*key, item, claim.test.kind, stated[key].text, reduced, finding))
    return judged


def _finding(
    test: Test,
    statement: Statement,
    items: Mapping[str, Sheet],
    runs: Runs,
    published: Callable[[Sheet], Published],
    reduced: bool,
) -> Finding:
    match test:
        case Tested():
            return Finding("tested", f"It follows from the definition, which {test.by} checks.")
        case NotJudged():
            return Finding("not judged", test.why)
        case All():
            return _conjunction(
                [_finding(part, statement, items, runs, published, reduced) for part in test.tests]
            )
    if isinstance(test, Value) and reduced:
        return Finding("not run", "The number is that of the full scale; this one is reduced.")
    sheet = items.get(test.item)
    if sheet is None:
        return Finding("not run", f"{test.item} is not among the items made here.")
    if absent := _absent(sheet, test):
        only = f", restricted to {', '.join(map(str, sheet.restricted))}" if sheet.restricted else ""
        return Finding("not run", f"{test.item} has no {absent} at this scale{only}.")
    lines = _lines(sheet, test, runs, published(sheet))
    if lines["state"].isin(ABSENT).all() and not lines.empty:
        return Finding("not run", "No run, or pair of runs, that it needs is complete.")
    if lines["value"].isna().all() and not (lines["state"] == DIVERGED).any():
        parts = f" of {', '.join(test.parts)}" if test.parts else ""
        return Finding("not run", f"None of its runs has {test.measure or test.curve}{parts}.")
    return _within(sheet, test, _decided(lines, test, statement))


def _decided(lines: pd.DataFrame, test: TestOfRuns, statement: Statement) -> Finding:
    match test:
        case Above() | Positive():
            return _directed(Evidence.of(lines, test), test)
        case Similar():
            return _similar(Evidence.of(lines, test), test)
        case Value():
            return _value(Evidence.of(lines, test), test, statement)
        case Fails():
            return _fails(lines, test)


def _within(sheet: Sheet, test: Quantity, finding: Finding) -> Finding:
    """What is found on a part of an item's runs leaves a claim about all of them undecided.

    Not so a claim about that part: one that names labels on an axis of which the item has these at least.
    """
    missed = [str(one) for one in sheet.restricted if not _names_its_labels(test, sheet, one.axis)]
    if not missed:
        return finding
    note = f"Undecided, as the runs are restricted to {', '.join(missed)}."
    return replace(finding, verdict="undecided", evidence=f"{finding.evidence} {note}")


def _names_its_labels(test: Quantity, sheet: Sheet, axis: str | None) -> bool:
    """Whether a claim is about labels of an axis, all of which the item has."""
    if axis is None:
        return False
    choices: tuple[Mapping[str, OneOrSeveral], ...] = test.at, *test.sides
    named = {label for labels in choices if axis in labels for label in several(labels[axis])}
    return bool(named) and named <= set(sheet.axes[axis])


def _conjunction(parts: Sequence[Finding]) -> Finding:
    """What findings on all parts of a claim say about the whole."""
    verdicts = {part.verdict for part in parts}
    refuted = (
        part.verdict == "contradicted" and (part.p is None or part.p * len(parts) < LEVEL) for part in parts
    )
    verdict: Verdict = "undecided"
    if len(verdicts) == 1 and verdicts <= {"supported", "not run"}:
        (verdict,) = verdicts
    elif any(refuted):
        verdict = "contradicted"
    told = [f"({number}) {part.verdict}: {part.evidence}" for number, part in enumerate(parts, start=1)]
    return Finding(verdict, " ".join(told))


# ---------------------------------------------------------------- numbers
def _absent(sheet: Sheet, test: Quantity) -> str:
    """The first label or axis that the claim names and the item does not have at this scale."""
    for axis, labels in test.choices:
        if not set(labels) & set(sheet.axes.get(axis, ())):
            return f"{axis} {' or '.join(map(repr, labels))}"
    return next((f"axis {axis!r}" for axis in test.mean_over if axis not in sheet.axes), "")


def _lines(sheet: Sheet, test: Quantity, runs: Runs, published: Published) -> pd.DataFrame:
    """The numbers of a claim, one for each place and seed: values, or differences between two labels."""
    frame = _numbers(sheet, test, runs, published)
    if test.over:
        frame = _differences(frame, test.over, test.relative)
        frame = frame[~has_labels(frame, test.over)]
    frame = frame[has_labels(frame, test.at)]
    if test.mean_over:
        frame = _joined(frame, test.mean_over, "mean")
    if test.sides:
        first, second = test.sides
        frame = _differences(frame, second, test.relative and not test.over)
        frame = frame[has_labels(frame, first)]
    return frame


def _numbers(sheet: Sheet, test: Quantity, runs: Runs, published: Published) -> pd.DataFrame:
    """The measure or curve of all runs of the item, or of some parts of their networks together."""
    if test.measure is None:
        frame = values_of(sheet, runs, lambda record, _: _over_rounds(record, test))
    else:
        frame = measured_values(sheet, runs, _as_shown(sheet, test.measure), published)
        never = np.isinf(frame["value"])
        frame.loc[never, "value"] = [runs(run).summary["rounds"] + 1 for run in frame.loc[never, "run"]]
        dimension = measure(test.measure).dimension
        if dimension and test.parts:
            named = frame[dimension].isin([*test.parts, UNKNOWN])
            frame = _joined(frame[named], [dimension], "sum", len(test.parts))
    return frame


def _as_shown(sheet: Sheet, name: str) -> Measured:
    """The measure as the item's table shows it, if it does."""
    if measure(name).over_seeds == "max":
        raise FltrainError(
            f"{name!r} is one number over all seeds, so that there is none of every run to test"
        )
    shown = sheet.table.measures if sheet.table else ()
    found = next((measured for measured in shown if measured.measure == name), None)
    if found is None and measure(name).targeted:
        raise FltrainError(f"{sheet.id} has no table that shows {name!r}, so there is no target")
    return found or Measured(measure=name)


def _over_rounds(record: Record, test: Quantity) -> Numbers | None:
    """Mean (or oscillation) of a curve over a share of the rounds; None if the run does not have it."""
    assert test.curve is not None
    try:
        points = curve(record, test.curve)
    except FltrainError:  # a scale can leave a statistic out
        return None
    parts = test.parts or ("",)
    if not set(parts) <= set(points):  # at a reduced scale, the network can be another one
        return None
    values = points[list(parts)].sum(axis=1, skipna=False)
    first, last = (share * record.summary["rounds"] + 1e-9 for share in test.rounds)
    later = values[values.index > first]
    within = later[later.index <= last]
    chosen = later[:1] if within.empty else within
    if not test.oscillation:
        return {"": float(chosen.mean())}
    steps = chosen.diff()
    return {"": float(steps.abs().mean() - abs(steps.mean()))}


def _joined(
    frame: pd.DataFrame, axes: Collection[str], how: Literal["mean", "sum"], least: int = 1
) -> pd.DataFrame:
    """The mean or sum of lines that differ in nothing but these axes; the worst state counts.

    A line without a number leaves none, nor do fewer than ``least`` lines.
    """

    def number(values: pd.Series) -> float:
        joined: float = getattr(values, how)(skipna=False)
        return joined if len(values) >= least else math.nan

    def worst(states: Iterable[str]) -> str:
        return max(states, key=STATES.index)

    where = [name for name in (*places(frame), "seed") if name not in axes]
    lines = frame.groupby(where, sort=False)
    return lines.agg(value=("value", number), state=("state", worst)).reset_index()


def _differences(frame: pd.DataFrame, labels: Mapping[str, OneOrSeveral], relative: bool) -> pd.DataFrame:
    """Values minus the mean of those with the given labels, of the same place and seed.

    ``relative`` ones are in per cent of that mean. The worse state counts.
    """
    other = _joined(frame[has_labels(frame, labels)], labels.keys(), "mean")
    both = frame.merge(other, how="left", on=[*places(other), "seed"], suffixes=("", " of other"))
    base = both["value of other"]
    value = both["value"] - base
    if relative:
        value = 100 * value / base.abs().where(base != 0)
    states = zip(both["state"], both["state of other"].fillna(MISSING), strict=True)
    state = [max(pair, key=STATES.index) for pair in states]
    return frame.assign(value=value.to_numpy(), state=state)


# ---------------------------------------------------------------- evidence
@dataclass(frozen=True)
class Evidence:
    """Numbers of a claim: seeds down, places across (NaN where there is none), and how many were lost how."""

    numbers: pd.DataFrame
    lost: dict[str, int]
    unit: str = ""

    @classmethod
    def of(cls, lines: pd.DataFrame, test: Quantity) -> Evidence:
        """Arrange lines; a place is called by the labels that vary."""
        where = [axis for axis in places(lines) if lines[axis].nunique() > 1]
        names = lines[where].agg(", ".join, axis=1) if where else pd.Series("all", index=lines.index)
        numbers = lines.assign(place=names).pivot(index="seed", columns="place", values="value")
        lost = {state: int((lines["state"] == state).sum()) for state in LOST}
        return cls(numbers[list(dict.fromkeys(names))], lost, " %" if test.relative else "")

    @cached_property
    def filled(self) -> dict[str, list[float]]:
        """The places that have a number, with those of their seeds."""
        found = {str(place): known(self.numbers[place]) for place in self.numbers}
        return {place: values for place, values in found.items() if values}

    @property
    def empty(self) -> int:
        """How many places have no number."""
        return self.numbers.shape[1] - len(self.filled)

    @property
    def losses(self) -> list[str]:
        """What became of runs, and how many places they left without a number, in words."""
        lost = [f"{number} {LOST[state]}" for state, number in self.lost.items() if number]
        return lost + ([f"{_counted(self.empty, 'place')} without a number"] if self.empty else [])

    @cached_property
    def per_seed(self) -> list[float]:
        """Averages over the places, of the seeds that have a number in all places that have any."""
        complete = self.numbers[list(self.filled)].dropna()
        return [float(value) for value in complete.mean(axis=1)] if self.filled else []

    def samples(self, judge: Literal["every", "average"]) -> dict[str, list[float]]:
        """What a claim is tested on: each place, or their average alone."""
        return self.filled if judge == "every" else {AVERAGE: self.per_seed}

    def finding(self, verdict: Verdict, words: str, p: float | None = None) -> Finding:
        """The finding with this verdict: mean and interval, least and largest place, losses, the test."""
        statistic = Statistic.of(self.per_seed)
        interval = statistic.interval if statistic else None
        parts = ["no seed has a number in all places"]
        if statistic:
            around = f" [{interval[0]:+.4g}, {interval[1]:+.4g}]" if interval else ""
            parts = [f"mean {statistic.mean:+.4g}{self.unit}{around} over {_counted(statistic.n, 'seed')}"]
        means = {place: float(np.mean(values)) for place, values in self.filled.items()}
        if len(means) > 1:
            low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            positive = sum(mean > 0 for mean in means.values())
            parts.append(f"positive at {positive} of {len(means)} places")
            parts.append(f"from {means[low]:+.4g} ({low}) to {means[high]:+.4g} ({high})")
        parts += self.losses
        mean = statistic.mean if statistic else None
        return Finding(verdict, f"{', '.join(parts)}; {words}.", mean, interval, p)


AVERAGE = "the average"
LOST = {DIVERGED: "lost to divergence", STALE: "stale", MISSING: "not run"}
UNTESTABLE = "no test: it takes two seeds"
INCOMPLETE = "no test: an average takes a number at every place"


def _counted(number: int, what: str) -> str:
    """For example ``3 seeds``."""
    return f"{number} {what}{'s' if number != 1 else ''}"


def _directed(evidence: Evidence, test: Above | Positive) -> Finding:
    sign = -1 if test.kind == "negative" else 1
    if test.judge == "average" and evidence.empty:
        return evidence.finding("undecided", INCOMPLETE)

    def sides(values: Iterable[float]) -> Sides | None:
        return one_sided(sign * value - test.by for value in values)

    bound = f"{'below' if sign < 0 else 'above'} {sign * test.by:g}"
    is_so, is_not = (f"{bound}: ", f"not {bound}, ") if test.by else ("", "")

    claimed = {name: sides(values) for name, values in evidence.samples(test.judge).items()}
    opposite = {**claimed, AVERAGE: sides(evidence.per_seed)} if len(claimed) > 1 else claimed
    corrected = holm([found.below if found else None for found in opposite.values()])
    contrary = {name: p for name, p in zip(opposite, corrected, strict=True) if p is not None}
    worst = min(contrary, key=contrary.__getitem__, default=None)
    if worst is not None and contrary[worst] < LEVEL:
        where = f" at {worst}" if len(opposite) > 1 else ""
        words = f"opposite{where}: {is_not}one-sided {p_text(contrary[worst])}{_holm(contrary)}"
        return evidence.finding("contradicted", words, contrary[worst])
    ps = [found.above if found else None for found in claimed.values()]
    return _all_of(evidence, ps, f"{is_so}one-sided")


def _similar(evidence: Evidence, test: Similar) -> Finding:
    if test.judge == "average" and evidence.empty:
        return evidence.finding("undecided", INCOMPLETE)
    samples = evidence.samples(test.judge).values()
    low = [one_sided(values, -test.margin) for values in samples]
    high = [one_sided(values, test.margin) for values in samples]
    beyond = [side.above for side in high if side] + [side.below for side in low if side]
    corrected = [p for p in holm(beyond) if p is not None]
    if corrected and min(corrected) < LEVEL:
        words = f"beyond {test.margin:g}: one-sided {p_text(min(corrected))}{_holm(corrected)}"
        return evidence.finding("contradicted", words, min(corrected))
    ps = [
        max(one.above, other.below) if one and other else None for one, other in zip(low, high, strict=True)
    ]
    return _all_of(evidence, ps, f"within {test.margin:g}: two one-sided tests,")


def _all_of(evidence: Evidence, ps: Sequence[float | None], words: str) -> Finding:
    """Supported if all tests are significant, which needs no correction, and no place is without a number."""
    given = [p for p in ps if p is not None]
    if not given or len(given) < len(ps):
        return evidence.finding("undecided", UNTESTABLE)
    largest = max(given)
    holds = largest < LEVEL and not evidence.empty
    of_all = f", the largest of {len(given)} places" if len(given) > 1 else ""
    return evidence.finding(
        "supported" if holds else "undecided", f"{words} {p_text(largest)}{of_all}", largest
    )


def _holm(family: Collection[object]) -> str:
    return f" (Holm over {len(family)})" if len(family) > 1 else ""


def _value(evidence: Evidence, test: Value, statement: Statement) -> Finding:
    if statement.value is None:
        raise FltrainError("it states no number, so that 'value' cannot judge it")
    stated = 100 * statement.value if statement.unit == "fraction" else statement.value
    values, where = evidence.per_seed, ""
    if test.extreme is not None and evidence.filled:
        choose = max if test.extreme == "largest" else min
        where = choose(evidence.filled, key=lambda place: float(np.mean(evidence.filled[place])))
        values = evidence.filled[where]
    ours = Statistic.of(values)
    if ours is None:
        return evidence.finding("undecided", UNTESTABLE)
    margin = test.margin
    if margin is None:
        assert test.measure is not None  # a curve has a margin
        margin = measure(test.measure).margin.around(stated)
        if test.over:
            margin = margin_of_gain(margin, stated)
    p = against_point(values, stated).p
    told = ""
    if p is not None:
        chosen_of = len(evidence.filled) if where else 1
        p = min(1.0, p * chosen_of)
        told = f", {p_text(p)}" + (f" (Bonferroni over {chosen_of} places)" if chosen_of > 1 else "")
    verdict: Verdict = "undecided"
    if not evidence.empty and agrees(ours.mean, stated, margin, of_gains=bool(test.over)):
        verdict = "supported"
    elif not evidence.empty and p is not None and p < LEVEL:
        verdict = "contradicted"
    interval = f" {interval_text(ours.interval, 2)}" if ours.interval else ""
    parts = [f"{ours.mean:.2f}{interval} over {_counted(ours.n, 'seed')}{where and f' ({where})'}"]
    text = f"{', '.join(parts + evidence.losses)}; stated {stated:g}, margin {margin:g}{told}."
    return Finding(verdict, text, ours.mean, ours.interval, p)


def _fails(lines: pd.DataFrame, test: Fails) -> Finding:
    diverged = lines["state"] == DIVERGED
    there = diverged | lines["value"].notna()
    failed = (diverged | (lines["value"] <= test.at_most)).where(there).astype(float)
    where = places(lines)
    # A place without any run has no share (NaN).
    by_place = [lines[axis] for axis in where] or [pd.Series("all", index=lines.index)]
    shares = failed.groupby(by_place, sort=False).mean()
    empty = int(shares.isna().sum())
    verdict: Verdict = "undecided"
    if not empty and (shares > 0.5).all():
        verdict = "supported"
    elif not empty and (shares == 0).any():
        verdict = "contradicted"
    parts = [f"more than half of them at {int((shares > 0.5).sum())} of {_counted(len(shares), 'place')}"]
    lost = int((~there).sum())
    parts += [f"{_counted(lost, 'run')} not there or without a number"] if lost else []
    parts += [f"{_counted(empty, 'place')} without any run"] if empty else []
    return Finding(
        verdict,
        f"failed: {int(failed.sum())} of {_counted(int(there.sum()), 'run')}, by divergence "
        f"({int(diverged.sum())}) or with at most {test.at_most:g} at the end; {', '.join(parts)}.",
    )


# ---------------------------------------------------------------- output
def to_frame(judged: Sequence[Judged]) -> pd.DataFrame:
    """All claims: what the CSV file holds."""
    columns = ["where", "claim", "verdict", "reduced", "item", "test", "stated"]
    columns += ["estimate", "low", "high", "p", "evidence"]
    lines = [
        (
            *(one.where, one.claim, one.finding.verdict, one.reduced, one.item, one.kind, one.stated),
            *(one.finding.estimate, *(one.finding.interval or (None, None)), one.finding.p),
            one.finding.evidence,
        )
        for one in judged
    ]
    return pd.DataFrame(lines, columns=columns)


def to_markdown(title: str, scale_note: str, judged: Sequence[Judged]) -> str:
    """Render the claims as a Markdown table."""
    lines = [["where", "claim", "stated", "verdict", "evidence", "item"], ["---"] * 6]
    for one in judged:
        scale = " (reduced scale)" if one.reduced and one.finding.verdict in JUDGED else ""
        verdict = one.finding.verdict + scale
        lines.append([one.where, one.claim, one.stated, verdict, one.finding.evidence, one.item])
    table = "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
    return f"**Claims of {title}. {scale_note}**\n\n{table}\n"


def scale_note(note: str, sheets: Iterable[Sheet]) -> str:
    """What is said of the scale, and of items that were restricted to a part of their runs."""
    restricted: dict[str, list[str]] = {}
    for sheet in sheets:
        if sheet.restricted:
            restricted.setdefault(", ".join(map(str, sheet.restricted)), []).append(
                sheet.id.partition("/")[2]
            )
    parts = [f"restricted to {what}: {', '.join(items)}" for what, items in restricted.items()]
    undecided = "Claims about runs that these items lack are left undecided"
    return f"{note} {undecided}, {'; '.join(parts)}." if parts else note


def count(judged: Iterable[Judged]) -> dict[Verdict, int]:
    """How many claims have each verdict, without those that none has."""
    found = [one.finding.verdict for one in judged]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}
