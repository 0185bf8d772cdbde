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
from fltrain.reporting.tables.cells import layout_of
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
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
    decided = [cell for cell in every if cell.item in confirmed]
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
        "picture": next((name for name in figures if name in confirmed or not confirmed), ""),
        "forest": forest(every, titles) or forest(decided, titles, "gain"),
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
        "claims": (
            Counter(claim["verdict"] + ", exploratory" * bool(claim["exploratory"]) for claim in claims),
            {},
        ),
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
    before their runs had been seen; else the most frequent verdict on the published values of a table. Else
    it is a claim that our runs decide, one difference between methods, or the ends of one table's values.
    """
    titles = {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}
    first = sorted(cells, key=lambda cell: cell.item not in confirmed)
    found = ""
    if kind == "control":
        found = _rejections(cells)
    elif kind == "paper":
        found = main_gain(first, titles, confirmed) or _main_verdict(cells, titles)
    return found or _decided(claims) or _main_difference(first, sheets) or _values(first, titles)


def _rejections(cells: Iterable[TableCell]) -> str:
    """Return how many false and true published values of controls the rule rejects."""
    judged = [cell for cell in cells if cell.verdict not in (None, "not run")]
    false = [cell.verdict for cell in judged if cell.falsified]
    true = [cell.verdict for cell in judged if not cell.falsified]
    rejects, confirms, leaves = (
        true.count(verdict) for verdict in ("not reproduced", "reproduced", "inconclusive")
    )
    parts = []
    if false:
        parts.append(f"The rule rejects {_part(false.count('not reproduced'), len(false), 'false value')}.")
    if true and confirms == len(true):
        parts.append(f"It confirms {_part(confirms, confirms, 'true value')}.")
    elif true:
        parts.append(
            f"Of {count(len(true), 'true value')}, it rejects {rejects or 'none'}, confirms "
            f"{confirms or 'none'} and leaves {leaves or 'none'} open."
        )
    return " ".join(parts)


def _part(number: int, whole: int, what: str) -> str:
    """Return a part of a whole in words, for example ``all 3 values`` or ``none of 2 values``."""
    if number == whole:
        return f"the one {what}" if whole == 1 else f"all {count(whole, what)}"
    return f"{number or 'none'} of {count(whole, what)}"


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


def _decided(claims: Iterable[Mapping[str, Any]]) -> str:
    """Return the clearest claim that our runs decide, with its first number."""
    decided = [claim for claim in claims if claim["verdict"] in ("supported", "contradicted")]
    if not decided:
        return ""
    claim = min(decided, key=lambda claim: (claim["exploratory"], claim["verdict"] != "supported"))
    number = re.split(r" over |, by |;", claim["evidence"])[0]
    late = ", exploratory" if claim["exploratory"] else ""
    return f"{claim['verdict'].capitalize()}{late}: “{claim['claim']}” ({claim['where']}; {number})."


def _main_difference(cells: Sequence[TableCell], sheets: Iterable[ItemJob]) -> str:
    """Return the largest difference between methods with the best verdict: better, else worse.

    Exploratory verdicts count only if there is no other. Without verdicts, it is the largest difference of
    the first table that has any.
    """
    finite = [cell for cell in cells if _finite(cell, "gain", "gain_interval")]
    if not finite:
        return ""
    shown = [one for one in finite if (one.item, one.label) == (finite[0].item, finite[0].label)]
    which = f"It is the largest of {count(len(shown), 'difference')}." if len(shown) > 1 else ""
    judged = [cell for cell in finite if cell.gain_verdict]
    for verdict in ("worse", "better"):
        if same := [cell for cell in judged if cell.gain_verdict == verdict]:
            shown = same
            more = "; it is the largest of these" if len(same) > 1 else ""
            number = f"{len(same)} {'is' if len(same) == 1 else 'are'}"
            which = f"Of {count(len(judged), 'difference')}, {number} {verdict}{more}."
    cell = max(shown, key=lambda cell: (not cell.exploratory, abs(cell.gain or 0.0)))
    (sheet,) = (one for one in sheets if one.id.partition("/")[2] == cell.item)
    layout = layout_of(sheet)
    base = next(one.gain_over for one in layout.measures if one.measure == cell.measure and one.gain_over)
    labels = {layout.panels: cell.panel, layout.rows: cell.row, layout.columns: cell.column}
    minuend = [labels.pop(axis) for axis in base if axis in labels]
    over = [named(axis, label) for axis, label in base.items()]
    places = [named(axis, label) for axis, label in labels.items() if label]
    low, high = cell.gain_interval or (0.0, 0.0)
    late = ["exploratory"] if cell.exploratory else []
    where = ", ".join([*places, count(len(cell.gains) or cell.n, "seed"), *late])
    return (
        f"{', '.join(minuend)} minus {', '.join(over)}, {cell.label.removesuffix(', %')}: "
        f"{cell.gain:+z.2f}{' points' if cell.label.endswith('%') else ''} "
        f"(90 % interval {low:+z.2f} to {high:+z.2f}; {where}). {which}"
    ).strip()


def _values(cells: Iterable[TableCell], titles: Mapping[str, str]) -> str:
    """Return the smallest and largest value of the first table that has any."""
    finite = [cell for cell in cells if _finite(cell, "mean")]
    if not finite:
        return ""
    item, label, decimals = finite[0].item, finite[0].label, finite[0].decimals
    same = [cell.mean or 0.0 for cell in finite if (cell.item, cell.label) == (item, label)]
    name, percent, _ = label.partition(", %")
    several = len({cell.label for cell in finite if cell.item == item}) > 1
    what = f"{titles[item]}, {name}" if several else titles[item]
    unit = " %" if percent else ""
    return f"{what}: {_ends(same, f'z.{decimals}f')}{unit} ({count(len(same), 'cell')})."


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
