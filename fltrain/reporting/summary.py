"""A paper at a scale in one file: verdicts next to expected numbers, the main gain, claims."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fltrain.core.floats import average
from fltrain.core.statistics import Sample, contrast
from fltrain.experiments.layout import ItemJob
from fltrain.reporting.claims import Judged, to_frame
from fltrain.reporting.pictures import forest
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.verdict import (
    EXPECTED,
    EXPECTED_GAINS,
    GAIN_VERDICTS,
    count_verdicts,
    expected_counts,
)


def paper_summary(
    paper: Mapping[str, Any],
    sheets: Sequence[ItemJob],
    judged: Sequence[Judged],
    cells: Mapping[str, Sequence[TableCell]],
) -> dict[str, Any]:
    """Return a summary of a paper's items and claims, as plain data for ``summary.json``.

    Args:
        paper: heading of the file: paper, title, scale, reduced.
        sheets: the paper's items at the scale.
        judged: its claims.
        cells: cells of each table by ID of its sheet.
    """
    every = [cell for shown in cells.values() for cell in shown]
    columns = ["where", "claim", "verdict", "listed", "exploratory", "evidence", "item"]
    return {
        **paper,
        "items": [
            {
                "name": sheet.id.partition("/")[2],
                "title": sheet.title,
                **_counts(cells.get(sheet.id, ())),
            }
            for sheet in sheets
        ],
        "claims": to_frame(judged)[columns].to_dict("records"),
        "main_gain": main_gain(every),
        "forest": forest(every, {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}),
    }


def _counts(cells: Sequence[TableCell]) -> dict[str, dict[str, Any]]:
    gains = {
        published: [cell.gain_verdict for cell in cells if (cell.published_gain is not None) == published]
        for published in (True, False)
    }
    return {
        "verdicts": count_verdicts(cell.verdict for cell in cells if cell.verdict),
        "expected": expected_counts(cells, EXPECTED),
        "gains": count_verdicts(filter(None, gains[True]), GAIN_VERDICTS),
        "expected_gains": expected_counts(cells, EXPECTED_GAINS),
        "differences": count_verdicts(filter(None, gains[False]), GAIN_VERDICTS),
        "exploratory": {"cells": number} if (number := sum(cell.exploratory for cell in cells)) else {},
    }


def main_gain(cells: Iterable[TableCell]) -> dict[str, Any]:
    """Return the gain of a plug-in over its base in the first item that has one: its mean over the cells.

    The cells share seeds, so the interval is that of the seeds' means. Averages over rows do not count, and
    differences between rival methods are never combined. Empty without such a mean.
    """
    gained = [
        cell
        for cell in cells
        if cell.plugin and len(cell.gains) > 1 and cell.row != AVERAGE and cell.over_seeds == "mean"
    ]
    if not gained:
        return {}
    first = gained[0]
    kind = operator.attrgetter("item", "label", "plugin")
    gained = [cell for cell in gained if kind(cell) == kind(first)]
    if len({len(cell.gains) for cell in gained}) > 1:  # seeds are missing
        return {}
    of_seeds = [average(gains) for gains in zip(*(cell.gains for cell in gained), strict=True)]
    found = contrast(Sample(of_seeds))
    if found is None:
        return {}
    return {
        "item": first.item,
        "measure": first.label.removesuffix(", %"),
        "estimate": found.estimate,
        "interval": found.interval,
        "cells": len(gained),
        "seeds": len(of_seeds),
    }
