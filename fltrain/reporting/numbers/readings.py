"""Data of figures from records: finished runs, and curves over rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import Cell, Sheet
from fltrain.runs.record import Record

Runs = Callable[[str], Record]
"""Returns the record of a run id, complete or not."""


def finished(sheet: Sheet, runs: Runs) -> Iterator[tuple[Cell, Record]]:
    """The cells whose runs have ended, with their records."""
    for cell in sheet.cells:
        record = runs(cell.run)
        if record.usable:
            yield cell, record


def first_of_each(sheet: Sheet, axis: str | None, runs: Runs) -> Iterator[tuple[str, Record]]:
    """Of each point on the axis, in its order, the first seed's record that is there.

    Without an axis, all runs are one point, whose label is empty.
    """
    found: dict[str, tuple[int, Record]] = {}
    for cell, record in finished(sheet, runs):
        label = cell.labels[axis] if axis else ""
        if label not in found or cell.seed < found[label][0]:
            found[label] = cell.seed, record
    for label in sheet.axes[axis] if axis else [""]:
        if label in found:
            yield label, found[label][1]


class NothingToShow(Exception):
    """All runs of a figure diverged before they had any of its numbers."""


def diverged(record: Record) -> bool:
    """Return True if a run ended early because its loss was not finite."""
    return bool(record.summary["status"] == "diverged")


def curve(record: Record, name: str) -> pd.DataFrame:
    """Return ``kind.field`` of a record's rows over the rounds; rows without a value are left out.

    There is one column, or one per layer or block if the field holds several numbers. Where a round has
    several such rows (tests on further datasets), the first counts, the run's own test.

    Raises:
        FltrainError: if the record has no such rows.
    """
    kind, _, value = name.partition(".")
    points: dict[int, dict[str, float]] = {}
    for row in record.rows(kind):
        found = row.get(value)
        if found is not None:
            points.setdefault(row["round"], found if isinstance(found, dict) else {"": found})
    if not points and not diverged(record):
        raise FltrainError(
            f"{record.run_id} has no {name!r}; does its spec ask for it (evaluation.statistics)? "
            f"(kinds of rows: {', '.join(sorted({row['kind'] for row in record.metrics}))})"
        )
    return pd.DataFrame.from_dict(points, orient="index", dtype=float)
