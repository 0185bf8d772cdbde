"""Published values and claims: read from ``config/reported`` and checked."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fltrain.core.config import check_known, suggest, unknown
from fltrain.core.errors import FltrainError, Problems
from fltrain.experiments.schema import Item, Paper

Names = Mapping[str, str]
"""Columns of a file of published values -> their texts for a cell."""

REQUIRED = "metric", "value", "note"
"""Columns that every file of values has; ``std``, ``unit``, ``doubt`` and ``falsified`` are optional.

The others identify the cell of a value.
"""

STATED = "where", "claim", "value", "unit"
"""Columns of a file of claims."""

FAILURES = "failed to converge", "not reached"
"""Beginnings of the note on a value whose run failed in the paper."""

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class PublishedValue:
    """A row of a file of published values.

    Attributes:
        texts: its texts by column.
        value: its number, in per cent if it was printed as a fraction; None if only a note is printed.
        std: spread of the value, in the same unit.
        notes: remarks on the value.
        anomalies: reasons to doubt it (column ``doubt``, with `` | `` between them).
        falsified: a control has made it false on purpose (``yes`` in the column ``falsified``).
    """

    texts: Names
    value: float | None
    std: float | None
    notes: tuple[str, ...]
    anomalies: tuple[str, ...]
    falsified: bool

    @classmethod
    def of(cls, texts: Names) -> Self:
        """Return the value in a row with these texts."""
        factor = 100 if texts.get("unit") == "fraction" else 1
        value, std = (
            factor * float(text) if text else None for text in (texts["value"], texts.get("std", ""))
        )
        notes = tuple(note for note in texts["note"].split("; ") if note)
        anomalies = tuple(doubt for doubt in texts.get("doubt", "").split(" | ") if doubt)
        return cls(texts, value, std, notes, anomalies, texts.get("falsified") == "yes")

    @property
    def failed(self) -> bool:
        """True if the paper reports that its runs failed."""
        return self.value is None and any(note.startswith(FAILURES) for note in self.notes)

    def fits(self, metric: str | None, names: Names) -> bool:
        """Return True if the row has these texts; columns that the file does not have do not count."""
        return self.texts["metric"] == metric and all(
            self.texts.get(column, text) == text for column, text in names.items()
        )


@dataclass(frozen=True)
class Published:
    """Published values of one file, named ``file``; empty for an item without a file."""

    rows: Sequence[PublishedValue] = ()
    columns: Sequence[str] = ()
    file: str = ""

    @classmethod
    def read(cls, path: Path | None) -> Published:
        """Read a file of published values.

        Raises:
            FltrainError: if it cannot be read.
        """
        if path is None:
            return cls()
        columns, rows = read_reported(path, REQUIRED)
        return cls([PublishedValue.of(texts) for texts in rows], columns, path.name)

    def find(self, metric: str | None, names: Names, reduced: bool = False) -> PublishedValue | None:
        """Return the published value of a metric that fits the names of a cell; None if there is none.

        A reduced scale can replace an axis by one without names, so that several values fit: then the cell
        has no published value.

        Raises:
            FltrainError: if several values fit at full scale.
        """
        fitting = [row for row in self.rows if row.fits(metric, names)]
        if not fitting or (reduced and len(fitting) > 1):
            return None
        if len(fitting) > 1:
            named = ", ".join(f"{key}={name}" for key, name in names.items()) or "a cell without names"
            raise FltrainError(
                f"{self.file}: {len(fitting)} published values of {metric!r} fit {named}; "
                f"name more columns under 'reported' (columns: {', '.join(self.columns)})"
            )
        return fitting[0]


@dataclass(frozen=True)
class Statement:
    """A row of a file of claims: the place, the claim, and its number, if it states one."""

    where: str
    claim: str
    value: float | None
    unit: str

    @property
    def text(self) -> str:
        """The stated number with its unit."""
        unit = "point" if self.value == 1 and self.unit == "points" else self.unit
        return "" if self.value is None else f"{self.value:g} {unit}".strip()


def read_claims(path: Path) -> list[Statement]:
    """Read a paper's file of claims.

    Raises:
        FltrainError: if it cannot be read.
    """
    return [
        Statement(row["where"], row["claim"], float(row["value"]) if row["value"] else None, row["unit"])
        for row in read_reported(path, STATED)[1]
    ]


def read_reported(path: Path, needed: Iterable[str]) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Read a file of published values or claims: its columns, and its rows as texts by column.

    Raises:
        FltrainError: if it cannot be read, lacks a needed column, has a line with too many cells, or has
            values other than numbers and empty cells in the columns ``value`` and ``std``.
    """
    rows: list[dict[str, str]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            for row in reader:
                where = f"{path}: line {reader.line_num}"
                if None in row:
                    raise FltrainError(f"{where} has more cells than there are columns")
                for column in {"value", "std"} & row.keys():
                    if row[column] and not _NUMBER.fullmatch(row[column]):
                        raise FltrainError(f"{where}: the {column} {row[column]!r} is not a number")
                rows.append(row)
            columns = reader.fieldnames or ()
    except FileNotFoundError:
        raise FltrainError(
            f"{path}: there is no such file; write it with the columns {', '.join(needed)}"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise FltrainError(f"{path}: published values cannot be read ({reason})") from None
    check_known(f"{path}: there is no column", needed, columns, "columns")
    return columns, rows


# ---------------------------------------------------------------- declarations against files
def check_reported(folder: Path, paper: Paper) -> None:
    """Compare a paper's items and claims with the files of published values in a folder.

    Items name a file of values, its columns and metrics; claims are rows of ``<paper>_claims.csv``.

    Raises:
        FltrainError: with all files that cannot be read, and columns, metrics or claims that they lack.
    """
    mistakes = Problems()
    for name, item in paper.items.items():
        if item.reported:
            with mistakes.collected():
                place, path = f"{paper.paper}/{name}", folder / item.reported.file
                mistakes.extend(map(FltrainError, _unknown_in_item(place, item, path)))
    if paper.claims:
        path = folder / f"{paper.paper}_claims.csv"
        with mistakes.collected():
            stated = {(statement.where, statement.claim) for statement in read_claims(path)}
            for claim in paper.claims:
                if (claim.where, claim.claim) not in stated:
                    near = suggest(claim.claim, [text for _, text in stated])
                    lack = f"{path}: has no claim {claim.claim!r} where {claim.where!r}{near}"
                    mistakes.append(FltrainError(lack))
    mistakes.refuse(paper.paper)


def _unknown_in_item(item_id: str, item: Item, path: Path) -> Iterator[str]:
    columns, rows = read_reported(path, REQUIRED)
    names: dict[str, set[str]] = {}
    points = [point for axis in item.axes.values() for point in axis.values()]
    for reported in [*(point.reported for point in points), *(patch.reported for patch in item.exceptions)]:
        for column, name in reported.items():
            names.setdefault(column, set()).add(name)
    # A single name does not distinguish cells.
    distinct = [column for column, used in names.items() if len(used) > 1]
    yield from unknown(f"{item_id}: reported: {path} has no column", distinct, columns, "columns")
    for column, used in sorted(names.items()):
        texts = {row.get(column, "") for row in rows}
        for name in sorted(used - texts):  # papers print rows that we have not, and not all that we have
            if "{" not in name and (near := suggest(name, texts - used)):
                yield f"{item_id}: reported: {path} has no row with {column} {name!r}{near}"
    measures = item.table.measures if item.table else ()
    entries = [entry for measured in measures for entry in (measured, measured.average) if entry]
    compared = [entry.reported for entry in entries if entry.reported]
    metrics = sorted({row["metric"] for row in rows})
    lack = f"{item_id}: reported: {path} has no row of the metric"
    yield from unknown(lack, compared, metrics, "metrics")
