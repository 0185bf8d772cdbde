"""A paper at a scale in one file: verdicts next to expected numbers, aggregates over cells, claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fltrain.core.lazy import stats
from fltrain.core.statistics import RESAMPLES, Floats, percentile_interval, resampled
from fltrain.experiments.layout import Sheet
from fltrain.reporting.claims import Judged, to_frame
from fltrain.reporting.pictures import paper_forest
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
    sheets: Iterable[Sheet],
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
    gained = pooled_cells(every)
    pooled: dict[str, Any] = {}
    if gained:
        pooled = {"measure": gained[0].label.removesuffix(", %"), "plugin": gained[0].plugin}
        pooled["items"] = list(dict.fromkeys(cell.item for cell in gained))
    columns = ["where", "claim", "verdict", "listed", "exploratory", "evidence", "item"]
    return {
        **paper,
        "items": [
            {"name": sheet.id.partition("/")[2], **_counts(cells.get(sheet.id, ()))} for sheet in sheets
        ],
        "claims": to_frame(judged)[columns].to_dict("records"),
        "aggregates": {name: asdict(one) for name, one in aggregates(gained).items()},
        "pooled": pooled,
        "forest": paper_forest(every),
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


# ---------------------------------------------------------------- aggregates over cells
@dataclass(frozen=True)
class CellAggregate:
    """A number over many cells with its 90 % bootstrap interval, from resampled seeds within each cell."""

    estimate: float
    low: float
    high: float
    cells: int


def pooled_cells(cells: Iterable[TableCell]) -> list[TableCell]:
    """Return the cells with gains of a plug-in over its base: the most common measure and plug-in.

    Each run counts once. Averages over rows and cells with one seed do not count, and differences between
    rival methods are never pooled.
    """
    gained: dict[tuple[str, ...], TableCell] = {}
    for cell in cells:
        finite = all(map(math.isfinite, (*cell.values, *cell.gains, *cell.base_values)))
        several = cell.plugin and cell.base_values and len(cell.gains) > 1
        if several and finite and cell.row != AVERAGE and cell.over_seeds == "mean":
            gained.setdefault((cell.measure, *sorted(cell.runs)), cell)
    most = Counter((cell.measure, cell.plugin) for cell in gained.values()).most_common(1)
    return [cell for cell in gained.values() if (cell.measure, cell.plugin) == most[0][0]]


def aggregates(gained: Sequence[TableCell]) -> dict[str, CellAggregate]:
    """Return the interquartile mean of gains, in points, and the probability of an improvement.

    The probability is that of a run with the plug-in being better than one without, over all pairs of seeds.
    """
    if not gained:
        return {}
    return {
        "gain": aggregate([(cell.gains,) for cell in gained], lambda gains: gains, interquartile_mean),
        "improvement": aggregate(
            [(cell.values, cell.base_values) for cell in gained], share_of_larger, np.mean
        ),
    }


def aggregate(
    cells: Sequence[Sequence[Sequence[float]]], of_cell: Callable[..., Floats], over: Callable[..., Floats]
) -> CellAggregate:
    """Aggregate over cells, with an interval from a bootstrap stratified by cell (Agarwal et al. 2021).

    Args:
        cells: samples of each cell; each sample is resampled independently.
        of_cell: returns the number (or numbers) of a cell from arrays of its samples, along their last axis.
        over: aggregates the numbers of all cells, along the last axis.
    """
    draws = np.random.default_rng(0)
    points, columns = [], []
    for parts in cells:
        points.append(np.ravel(of_cell(*(np.asarray(part, float) for part in parts))))
        numbers = of_cell(*(resampled(part, draws) for part in parts))
        columns.append(numbers.reshape(RESAMPLES, -1))
    low, high = percentile_interval(over(np.concatenate(columns, axis=1), axis=1))
    return CellAggregate(float(over(np.concatenate(points), axis=0)), low, high, len(cells))


def interquartile_mean(values: Floats, axis: int | None = None) -> Floats:
    """Return the mean without the lowest and the highest quarter of the values."""
    trimmed: Floats = np.asarray(stats.trim_mean(values, 0.25, axis=axis))
    return trimmed


def share_of_larger(first: Floats, second: Floats) -> Floats:
    """Return the share of all pairs in which the first value is larger; ties count half."""
    larger = first[..., :, None] - second[..., None, :]
    shares: Floats = ((larger > 0) + 0.5 * (larger == 0)).mean(axis=(-2, -1))
    return shares
