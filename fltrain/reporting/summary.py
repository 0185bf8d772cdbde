"""A paper at a scale in one file: verdicts next to expected numbers, aggregates over cells, claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fltrain.core.lazy import stats
from fltrain.core.statistics import RESAMPLES, Floats, percentile_interval, resampled
from fltrain.experiments.layout import Sheet
from fltrain.experiments.published import METHOD
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


def summarise(
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
    columns = ["where", "claim", "verdict", "listed", "exploratory", "evidence", "item"]
    return {
        **paper,
        "items": [_item(sheet, cells.get(sheet.id, ())) for sheet in sheets],
        "claims": to_frame(judged)[columns].to_dict("records"),
        "aggregates": {name: asdict(one) for name, one in aggregates(every).items()},
        "pooled": pooled_gains(every),
        "forest": paper_forest(every),
    }


def _item(sheet: Sheet, cells: Sequence[TableCell]) -> dict[str, Any]:
    compared = [cell for cell in cells if cell.difference is not None and cell.row != AVERAGE]
    ranked = rank_correlation([cell for cell in compared if cell.measure == compared[0].measure])
    return {
        "name": sheet.id.partition("/")[2],
        **_counts(cells),
        "rank_correlation": asdict(ranked) if ranked else None,
    }


def _counts(cells: Sequence[TableCell]) -> dict[str, dict[str, Any]]:
    return {
        "verdicts": count_verdicts(cell.verdict for cell in cells if cell.verdict),
        "expected": expected_counts(cells, EXPECTED),
        "gains": _gain_verdicts(cell for cell in cells if cell.published_gain is not None),
        "expected_gains": expected_counts(cells, EXPECTED_GAINS),
        "differences": _gain_verdicts(cell for cell in cells if cell.published_gain is None),
        "exploratory": {"cells": number} if (number := sum(cell.exploratory for cell in cells)) else {},
    }


def _gain_verdicts(cells: Iterable[TableCell]) -> dict[str, int]:
    return count_verdicts((cell.gain_verdict for cell in cells if cell.gain_verdict), GAIN_VERDICTS)


# ---------------------------------------------------------------- aggregates over cells
@dataclass(frozen=True)
class CellAggregate:
    """A number over many cells with its 90 % bootstrap interval, from resampled seeds within each cell."""

    estimate: float
    low: float
    high: float
    cells: int


def aggregate(
    cells: Sequence[Sequence[Sequence[float]]], of_cell: Callable[..., Floats], over: Callable[..., Floats]
) -> CellAggregate | None:
    """Aggregate over cells, with an interval from a bootstrap stratified by cell (Agarwal et al. 2021).

    Args:
        cells: samples of each cell; each sample is resampled independently.
        of_cell: returns the number (or numbers) of a cell from arrays of its samples, along their last axis.
        over: aggregates the numbers of all cells, along the last axis.
    """
    if not cells:
        return None
    draws = np.random.default_rng(0)
    points, columns = [], []
    for place, parts in enumerate(cells):
        points.append(np.ravel(of_cell(place, *(np.asarray(part, float) for part in parts))))
        numbers = of_cell(place, *(resampled(part, draws) for part in parts))
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


def aggregates(cells: Iterable[TableCell]) -> dict[str, CellAggregate]:
    """Return aggregates over the cells of a paper, each run counted once, with 90 % bootstrap intervals.

    ``difference``: interquartile mean of the differences to the published values, in standard errors;
    ``gain``: the same of the gains, in points; ``improvement``: probability that a run with the plug-in is
    better than one without, over all pairs of seeds. Averages over rows and cells with one seed do not count.
    """
    distinct = _distinct(cells)
    compared = [cell for cell in distinct if cell.p is not None and len(cell.values) > 1]
    gained = _gained(distinct)
    found = {
        "difference": aggregate(
            [(cell.values,) for cell in compared],
            lambda place, values: _standardised(compared[place], values),
            interquartile_mean,
        ),
        "gain": aggregate(
            [(cell.gains,) for cell in gained], lambda place, values: values, interquartile_mean
        ),
        "improvement": aggregate(
            [(cell.values, cell.base_values) for cell in gained],
            lambda place, values, base: share_of_larger(values, base),
            np.mean,
        ),
    }
    return {name: one for name, one in found.items() if one}


def pooled_gains(cells: Iterable[TableCell]) -> dict[str, Any]:
    """Return measure, plug-in and items of the gains that ``aggregates`` pools; or {}."""
    gained = _gained(_distinct(cells))
    items = list(dict.fromkeys(cell.item for cell in gained))
    if not gained:
        return {}
    return {"measure": gained[0].label.removesuffix(", %"), "plugin": gained[0].plugin, "items": items}


def _distinct(cells: Iterable[TableCell]) -> list[TableCell]:
    distinct: dict[tuple[str, ...], TableCell] = {}
    for cell in cells:
        if cell.row != AVERAGE and cell.over_seeds == "mean":
            distinct.setdefault((cell.measure, *sorted(cell.runs)), cell)
    return list(distinct.values())


def _gained(distinct: Sequence[TableCell]) -> list[TableCell]:
    """Return the cells with gains of a plug-in over its base: the most common measure and plug-in.

    Differences between rival methods are never pooled.
    """
    gained = [cell for cell in distinct if cell.plugin and len(cell.gains) > 1 and _finite(cell)]
    first = Counter((cell.measure, cell.plugin) for cell in gained).most_common(1)
    return [cell for cell in gained if (cell.measure, cell.plugin) == first[0][0]]


def _finite(cell: TableCell) -> bool:
    return bool(cell.base_values) and all(map(math.isfinite, (*cell.values, *cell.gains, *cell.base_values)))


def _standardised(cell: TableCell, values: Floats) -> Floats:
    assert cell.published is not None and cell.spread is not None
    theirs = cell.spread if cell.published_std is None else cell.published_std
    error = math.hypot(cell.spread / math.sqrt(cell.n), theirs / math.sqrt(cell.published_seeds or 1))
    differences: Floats = np.asarray((values.mean(axis=-1) - cell.published) / error)
    return differences


@dataclass(frozen=True)
class RankCorrelation:
    """Agreement of our order with the published one: the mean over ``n`` groups of three or more."""

    spearman: float
    kendall: float
    n: int


def rank_correlation(cells: Iterable[TableCell]) -> RankCorrelation | None:
    """Correlate our order with the published one among cells that differ in method or plug-in only.

    None without such a group: one in which neither all of our numbers nor all published ones are equal, and
    in which some cell has two seeds, as ranks of single seeds carry no weight.
    """
    groups: dict[Hashable, list[TableCell]] = {}
    for cell in cells:
        setting = frozenset((key, name) for key, name in cell.names.items() if key not in METHOD)
        groups.setdefault((cell.label, setting), []).append(cell)
    found: list[tuple[float, float]] = []
    for members in groups.values():
        ours = [float(cell.mean or 0) for cell in members]
        published = [float(cell.published or 0) for cell in members]
        if len(members) < 3 or len(set(ours)) < 2 or len(set(published)) < 2:
            continue
        if all(cell.n < 2 for cell in members):
            continue
        spearman, kendall = stats.spearmanr(ours, published), stats.kendalltau(ours, published)
        found.append((float(spearman.statistic), float(kendall.statistic)))
    if not found:
        return None
    spearman, kendall = np.mean(found, axis=0)
    return RankCorrelation(float(spearman), float(kendall), len(found))
