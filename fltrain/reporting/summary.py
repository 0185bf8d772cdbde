"""A paper at a scale in one file: its main finding, verdicts next to expected numbers, claims."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fltrain.core.errors import count
from fltrain.core.floats import average
from fltrain.core.statistics import Sample, contrast
from fltrain.experiments.layout import Bubbles, ItemJob
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
        "finding": finding(paper["kind"], every, titles, confirmed),
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
    kind: str, cells: Sequence[TableCell], titles: Mapping[str, str], confirmed: Collection[str] = ()
) -> str:
    """Return a few words with the main number of a paper and its interval; empty without any number.

    It is the gain of the paper's plug-in in its first item, or in the first of the ``confirmed`` ones, which
    have a claim that was decided before their runs had been seen. Without such a gain, it is the range of the
    differences to published values, of the gains over a base, or of our values, with intervals if there are
    any.
    """
    first = sorted(cells, key=lambda cell: cell.item not in confirmed)
    if kind == "paper" and (gain := main_gain(first, titles, confirmed)):
        return gain
    whose = "published" if kind == "paper" else "reference"
    for what, column, ends in (
        (f"Ours minus {whose}", "difference", "difference_interval"),
        ("Differences from the base method", "gain", "gain_interval"),
        ("Our values", "mean", "interval"),
        ("Our values", "mean", ""),
    ):
        if finite := [cell for cell in cells if _finite(cell, column, ends)]:
            return f"{what}, {_range(finite, column, ends, titles)}"
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
    if (found := contrast(Sample(of_seeds))) is None:
        return ""
    low, high = found.interval
    averaged = f"mean over {len(gained)} cells of " if len(gained) > 1 else ""
    when = ", test decided before the runs" if gained[0].item in confirmed else ""
    return (
        f"Gain over the base method, {gained[0].label.removesuffix(', %')}: {found.estimate:+z.2f} points "
        f"(90 % interval {low:+z.2f} to {high:+z.2f}; {averaged}"
        f"“{titles[gained[0].item]}”, {count(len(of_seeds), 'seed')}{when})."
    )


def _finite(cell: TableCell, column: str, ends: str) -> bool:
    """Return True if a number of a cell, and its interval if named, are there and finite."""
    interval = getattr(cell, ends) if ends else (0.0, 0.0)
    values = (getattr(cell, column), *(interval or [None]))
    return all(value is not None and math.isfinite(value) for value in values)


def _range(cells: Sequence[TableCell], column: str, ends: str, titles: Mapping[str, str]) -> str:
    """Return the smallest and the largest number of the most common accuracy."""
    counts = Counter(cell.label for cell in cells)
    label = max(counts, key=lambda name: ("%" in name, counts[name]))
    ranked = sorted((cell for cell in cells if cell.label == label), key=operator.attrgetter(column))
    several, sign = len({cell.item for cell in ranked}) > 1, "" if column == "mean" else "+"

    def text(cell: TableCell) -> str:
        interval = getattr(cell, ends) if ends else None
        value = number_text(getattr(cell, column), cell.decimals, sign, None, interval)
        return f"{value} in {cell.place}" + (f" ({titles[cell.item]})" if several else "")

    shown = " to ".join(dict.fromkeys((text(ranked[0]), text(ranked[-1]))))
    brackets = " Brackets: 90 % intervals." if ends else ""
    return f"{label}: {shown}. {count(len(ranked), 'cell')} with this measure.{brackets}"
