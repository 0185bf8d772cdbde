"""A paper at a scale in one file: its main finding, verdicts next to expected numbers, claims."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fltrain.core.errors import count
from fltrain.core.floats import average
from fltrain.core.statistics import Sample, contrast
from fltrain.experiments.layout import Bubbles, ItemJob, named
from fltrain.reporting.claims import JUDGED
from fltrain.reporting.pictures import forest
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.text import number_text
from fltrain.reporting.verdict import (
    EXPECTED,
    EXPECTED_GAINS,
    GAIN_VERDICTS,
    INTENDED,
    VERDICTS,
    count_verdicts,
    expected_counts,
)
from fltrain.runs.measures import measure

Counts = dict[str, tuple[Mapping[str, float], Mapping[str, float]]]
"""Counts of verdicts, and the numbers expected if all published values were true, by heading."""


def paper_summary(
    paper: Mapping[str, Any],
    sheets: Sequence[ItemJob],
    judged: pd.DataFrame,
    cells: Mapping[str, Sequence[TableCell]],
) -> dict[str, Any]:
    """Return a summary of a paper's items and claims, as plain data for ``summary.json``.

    Args:
        paper: heading of the file: paper, title, kind, scale, reduced.
        sheets: the paper's items at the scale.
        judged: its claims, see ``fltrain.reporting.claims``.
        cells: cells of each table by ID of its sheet.
    """
    confirmed = {
        name
        for claim in judged.itertuples()
        if claim.verdict in JUDGED and not claim.exploratory
        for name in str(claim.item).split(", ")
    }
    every = [cell for shown in cells.values() for cell in shown]
    columns = ["where", "claim", "verdict", "listed", "exploratory", "evidence", "item"]
    claims: list[Any] = judged[columns].to_dict("records")
    titles = {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}
    figures = [
        sheet.id.partition("/")[2]
        for sheet in sheets
        if sheet.figure and not isinstance(sheet.figure, Bubbles)
    ]
    return {
        **paper,
        "finding": finding(paper["kind"], every, sheets, claims, confirmed),
        "picture": next(iter(figures), ""),  # the first figure of results
        "forest": forest(every, titles),
        "counts": verdict_counts(paper["kind"], every, claims),
        "exploratory": _exploratory(every, claims),
        "claims": claims,
    }


def verdict_counts(kind: str, cells: Sequence[TableCell], claims: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts that are not empty. The truth of controls is known: they have no expected numbers."""
    gains: dict[bool, list[str]] = {True: [], False: []}
    for cell in cells:
        if cell.gain_verdict:
            gains[cell.published_gain is not None].append(cell.gain_verdict)
    values = count_verdicts(
        (cell.full_verdict if cell.intended else cell.verdict for cell in cells if cell.verdict),
        [*VERDICTS, *INTENDED],
    )
    found: Counts = {
        "published values": (values, expected_counts(cells, EXPECTED)),
        "published gains": (
            count_verdicts(gains[True], GAIN_VERDICTS),
            expected_counts(cells, EXPECTED_GAINS),
        ),
        "differences among our own runs": (count_verdicts(gains[False], GAIN_VERDICTS), {}),
        "claims": (Counter(claim["verdict"] for claim in claims), {}),
    }
    return {
        heading: (verdicts, {} if kind == "control" else expected)
        for heading, (verdicts, expected) in found.items()
        if verdicts
    }


def _exploratory(cells: Iterable[TableCell], claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of exploratory verdicts in words; empty without any."""
    of_claims = sum(bool(claim["exploratory"]) for claim in claims)
    judged = sum(claim["verdict"] in JUDGED for claim in claims)
    of_cells = sum(cell.exploratory for cell in cells)
    parts = [f"{of_claims} of {count(judged, 'judged claim')}"] if of_claims else []
    return " and ".join([*parts, *([count(of_cells, "table cell")] if of_cells else [])])


# ---------------------------------------------------------------- the main finding
def finding(
    kind: str,
    cells: Sequence[TableCell],
    sheets: Sequence[ItemJob],
    claims: Sequence[Mapping[str, Any]] = (),
    confirmed: Collection[str] = (),
) -> str:
    """Return one or two sentences with the main result and its numbers; empty without any number.

    Of a control, it is how many false and true values the rule rejects. Of a paper, it is the gain of its
    plug-in in the first item, or in the first of the ``confirmed`` ones, which have a claim that was decided
    before their runs had been seen. Else it is the most frequent verdict on the published values of a table,
    the clearest difference among our own runs, a claim that our runs decide, or the extremes of one table.
    """
    titles = {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}
    first = sorted(cells, key=lambda cell: cell.item not in confirmed)
    found = ""
    if kind == "control":
        found = _rejections(cells)
    elif kind == "paper":
        found = main_gain(first, titles, confirmed) or _main_verdict(cells, titles)
    return (
        found
        or _clearest_difference(first, sheets, titles)
        or _decided(claims)
        or _extremes(first, sheets, titles)
    )


def _rejections(cells: Iterable[TableCell]) -> str:
    """Return how many false and true published values of controls the rule rejects."""
    judged = [cell for cell in cells if cell.verdict not in (None, "not run")]
    false = [cell.verdict for cell in judged if cell.falsified]
    true = [cell.verdict for cell in judged if not cell.falsified]
    if not judged:
        return ""
    rejects, confirms, leaves = (
        true.count(verdict) or "none" for verdict in ("not reproduced", "reproduced", "inconclusive")
    )
    found = f"{false.count('not reproduced') or 'none'} of {count(len(false), 'falsified value')} and "
    return (
        f"The rule rejects {found if false else ''}{rejects} of {count(len(true), 'true value')}. "
        f"Of the true ones, it confirms {confirms} and leaves {leaves} open."
    )


def _main_verdict(cells: Iterable[TableCell], titles: Mapping[str, str]) -> str:
    """Return the most frequent verdict on the published values of the table that has most of them."""
    tables: dict[tuple[str, str], list[TableCell]] = {}
    for cell in cells:
        if cell.verdict not in (None, "not run"):
            tables.setdefault((cell.item, cell.label), []).append(cell)
    if not tables:
        return ""
    (item, label), judged = max(tables.items(), key=lambda one: len(one[1]))
    ((verdict, number),) = Counter(cell.full_verdict for cell in judged).most_common(1)
    same = [cell for cell in judged if cell.full_verdict == verdict and _finite(cell, "difference")]
    text = f"{titles[item]}, {label}: {number} of {count(len(judged), 'published value')} are {verdict}"
    if not same:
        return f"{text}."
    if all(measure(cell.measure).margin.relative for cell in same):
        ends = _ends([(cell.mean or 0.0) / (cell.published or math.nan) for cell in same], ".2f")
        return f"{text}; ours are {ends} times as large."
    ends = _ends([cell.difference or 0.0 for cell in same], "+z.2f")
    return f"{text}; ours minus published is {ends} points."


def _clearest_difference(
    cells: Iterable[TableCell], sheets: Sequence[ItemJob], titles: Mapping[str, str]
) -> str:
    """Return the largest difference among our own runs with the best verdict: better, else worse.

    Exploratory verdicts count only if there is no other.
    """
    own = [cell for cell in cells if cell.gain_verdict and cell.published_gain is None]
    for verdict in ("better", "worse"):
        shown = [cell for cell in own if cell.gain_verdict == verdict and cell.gain_interval]
        if not shown:
            continue
        cell = max(shown, key=lambda cell: (not cell.exploratory, abs(cell.gain or 0.0)))
        low, high = cell.gain_interval or (0.0, 0.0)
        late = ", exploratory" if cell.exploratory else ""
        which = "the only one that is" if len(shown) == 1 else f"the largest of {len(shown)} that are"
        return (
            f"{cell.place}: {verdict} than {_base(cell, sheets)} by {abs(cell.gain or 0.0):.2f} points "
            f"(90 % interval {low:+z.2f} to {high:+z.2f}; “{titles[cell.item]}”, "
            f"{count(cell.n, 'seed')}{late}). "
            f"It is {which} {verdict}, among {count(len(own), 'difference')}."
        )
    return ""


def _base(cell: TableCell, sheets: Iterable[ItemJob]) -> str:
    """Return the labels of the cell that a gain is over."""
    measures = [
        one
        for sheet in sheets
        if sheet.table and sheet.id.partition("/")[2] == cell.item
        for one in sheet.table.measures
        if one.measure == cell.measure and one.gain_over
    ]
    return ", ".join(named(axis, label) for axis, label in measures[0].gain_over.items())


def _decided(claims: Iterable[Mapping[str, Any]]) -> str:
    """Return how many claims our runs decide, and the clearest of them with its first number."""
    judged = [claim for claim in claims if claim["verdict"] in JUDGED]
    decided = [claim for claim in judged if claim["verdict"] != "undecided"]
    if not decided:
        return ""
    verdicts = Counter(claim["verdict"] for claim in decided)
    claim = min(decided, key=lambda claim: (claim["exploratory"], claim["verdict"] != "supported"))
    number = re.split(r" over |, by |;", claim["evidence"])[0]
    late = ", exploratory" if claim["exploratory"] else ""
    supported, contradicted = (verdicts[name] or "none" for name in ("supported", "contradicted"))
    return (
        f"Of {count(len(judged), 'claim')} that our runs test, they support {supported} and contradict "
        f"{contradicted}. {claim['verdict'].capitalize()}{late}: "
        f"“{claim['claim']}” ({claim['where']}; {number})."
    )


def _extremes(cells: Iterable[TableCell], sheets: Iterable[ItemJob], titles: Mapping[str, str]) -> str:
    """Return the smallest and largest gain of the first table that has any, else of its values."""
    for column, ends in (("gain", "gain_interval"), ("mean", "interval"), ("mean", "")):
        finite = [cell for cell in cells if _finite(cell, column, ends)]
        same = [cell for cell in finite if (cell.item, cell.label) == (finite[0].item, finite[0].label)]
        if not same:
            continue
        gains, number = column == "gain", operator.attrgetter(column)
        ranked = sorted(same, key=number)
        texts = [
            number_text(number(cell), cell.decimals, "+" * gains, None, getattr(cell, ends) if ends else None)
            + f" ({cell.place})"
            for cell in (ranked[:1] if len(ranked) == 1 else [ranked[0], ranked[-1]])
        ]
        what = f"{titles[same[0].item]}, {same[0].label}"
        what += f", {'gain' if len(same) == 1 else 'gains'} over {_base(same[0], sheets)}" if gains else ""
        brackets = "; brackets: 90 % intervals" if ends else ""
        return f"{what}: {' to '.join(texts)}, {count(len(same), 'cell')}{brackets}."
    return ""


def main_gain(cells: Iterable[TableCell], titles: Mapping[str, str], confirmed: Collection[str]) -> str:
    """Return a sentence on the gain of a plug-in over its base in the first item that has one.

    It is the mean over the cells, which share seeds, so the interval is that of the seeds' means. Averages
    over rows do not count, and differences between rival methods are never combined. Empty without a mean.
    """
    gained = [
        cell
        for cell in cells
        if cell.plugin and len(cell.gains) > 1 and cell.row != AVERAGE and cell.over_seeds == "mean"
    ]
    kind = operator.attrgetter("item", "label", "plugin")
    gained = [cell for cell in gained if kind(cell) == kind(gained[0])]
    if len({len(cell.gains) for cell in gained}) != 1:  # none, or seeds are missing
        return ""
    of_seeds = [average(gains) for gains in zip(*(cell.gains for cell in gained), strict=True)]
    if (found := contrast(Sample(of_seeds, measure(gained[0].measure).resolution(None)))) is None:
        return ""
    low, high = found.interval
    averaged = f"mean over {len(gained)} cells of " if len(gained) > 1 else ""
    when = ", test decided before the runs" if gained[0].item in confirmed else ""
    return (
        f"Gain over the base method, {gained[0].label.removesuffix(', %')}: {found.estimate:+z.2f} points "
        f"(90 % interval {low:+z.2f} to {high:+z.2f}; {averaged}"
        f"“{titles[gained[0].item]}”, {count(len(of_seeds), 'seed')}{when})."
    )


def _finite(cell: TableCell, column: str, ends: str = "") -> bool:
    """Return True if a number of a cell, and its interval if named, are there and finite."""
    interval = getattr(cell, ends) if ends else (0.0, 0.0)
    values = (getattr(cell, column), *(interval or [None]))
    return all(value is not None and math.isfinite(value) for value in values)


def _ends(values: Sequence[float], form: str) -> str:
    """Return the smallest and the largest value as text, or a single one."""
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (min(values), max(values))))
