"""Whether a paper's declarations and its files of published values speak of the same things. No pandas.

What does not fit would be found when tables are made, after training, or not at all.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError
from fltrain.experiments.schema import Item, Paper

REQUIRED = "metric", "value", "note"
"""Columns of a file of values; the others say of what they are."""

STATED = "where", "claim", "value", "unit"
"""Columns of a file of claims."""

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def check_reported(folder: Path, paper: Paper) -> None:
    """Compare a paper's items and claims with the files of published values.

    Args:
        folder: of the files.
        paper: items name a file of values, their columns and metrics; claims are rows of
            ``<paper>_claims.csv``.

    Raises:
        FltrainError: if a file cannot be read, or does not have what is named.
    """
    for name, item in paper.items.items():
        if item.reported:
            _check_item(f"{paper.paper}/{name}", item, folder / item.reported.file)
    if paper.claims:
        path = folder / f"{paper.paper}_claims.csv"
        _, rows = read_reported(path, STATED)
        stated = {(row["where"], row["claim"]) for row in rows}
        for claim in paper.claims:
            if (claim.where, claim.claim) not in stated:
                near = suggest(claim.claim, [text for _, text in stated])
                raise FltrainError(f"{path}: has no claim {claim.claim!r} where {claim.where!r}{near}")


def _check_item(item_id: str, item: Item, path: Path) -> None:
    columns, rows = read_reported(path, REQUIRED)
    for column, names in _names(item).items():
        # A single name tells no cells apart.
        if len(names) > 1 and column not in columns:
            raise FltrainError(
                f"{item_id}: points are 'reported' under {column!r}, which is no column of "
                f"{path}{suggest(column, columns)} (columns: {', '.join(columns)})"
            )
    metrics = {row["metric"] for row in rows}
    for metric in _metrics(item):
        if metric not in metrics:
            raise FltrainError(
                f"{item_id}: 'reported' names the metric {metric!r}, of which {path} has no "
                f"row{suggest(metric, metrics)} (metrics: {', '.join(sorted(metrics))})"
            )


def _names(item: Item) -> dict[str, set[str]]:
    """By column, what points and exceptions say that the published table calls them."""
    found: dict[str, set[str]] = {}
    reported = [point.reported for axis in item.axes.values() for point in axis.points.values()]
    for names in (*reported, *(special.reported for special in item.exceptions)):
        for column, name in names.items():
            found.setdefault(column, set()).add(name)
    return found


def _metrics(item: Item) -> Iterator[str]:
    for measured in item.table.measures if item.table else ():
        if measured.reported:
            yield measured.reported
        if measured.average and measured.average.reported:
            yield measured.average.reported


def read_reported(path: Path, needed: Iterable[str]) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Read a file of what the papers report: its columns, and its rows as texts by column.

    Raises:
        FltrainError: if it cannot be read, lacks a column that is needed, has a line with too many cells, or
            in the columns ``value`` and ``std`` something else than numbers and empty cells.
    """
    rows: list[dict[str, str]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            for row in reader:
                if None in row:
                    raise FltrainError(
                        f"{path}: line {reader.line_num} has more cells than there are columns"
                    )
                for column in {"value", "std"} & row.keys():
                    if row[column] and not _NUMBER.fullmatch(row[column]):
                        said = f"the {column} {row[column]!r} is no number"
                        raise FltrainError(f"{path}: line {reader.line_num}: {said}")
                rows.append(row)
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise FltrainError(f"{path}: published values cannot be read ({reason})") from None
    for column in needed:
        if column not in columns:
            known = f"{suggest(column, columns)} (columns: {', '.join(columns)})"
            raise FltrainError(f"{path}: there is no column {column!r}{known}")
    return columns, rows
