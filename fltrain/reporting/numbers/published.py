"""Published values and what is known to be wrong with them, by the names that the published tables use."""

from __future__ import annotations

import re
import string
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError
from fltrain.experiments.published_check import REQUIRED, STATED, read_reported

Names = Mapping[str, str]
"""Columns of a file of published values -> what they hold for a cell."""

FAILURES = "failed to converge", "not reached"
"""How the note on a value begins where the paper's own run failed."""

METHOD = "method", "plugin", "variant"
"""Columns that say what was run; the others say in which setting."""


@dataclass(frozen=True)
class PublishedValue:
    """A published value, in per cent if it was printed as a fraction; None where only a note is printed."""

    value: float | None
    std: float | None
    notes: tuple[str, ...]
    anomalies: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether the paper says that its own runs failed."""
        return self.value is None and any(note.startswith(FAILURES) for note in self.notes)


@dataclass(frozen=True)
class Published:
    """The rows of one ``file`` (its name), those of an unknown table if there is none."""

    rows: pd.DataFrame
    file: str = ""

    @classmethod
    def read(cls, path: Path | None, anomalies: Path | None = None) -> Published:
        """Read a file of published values and mark those that a file of anomalies names.

        Raises:
            FltrainError: if one of them cannot be read.
        """
        if path is None:
            return cls(pd.DataFrame(columns=[*REQUIRED, "std", "anomalies"], dtype=str))
        rows = _read(path, REQUIRED)
        for column in {"value", "std"} & set(rows):
            rows[column] = pd.to_numeric(rows[column].replace("", None))
        if "std" not in rows:
            rows["std"] = None
        if "unit" in rows:
            fractions = rows["unit"] == "fraction"
            rows.loc[fractions, ["value", "std"]] = 100 * rows.loc[fractions, ["value", "std"]].astype(float)
        rows["anomalies"] = [() for _ in rows.index]
        for anomaly in read_anomalies(anomalies) if anomalies else []:
            if anomaly.file == path.name:
                concerned = anomaly.concerns(rows)
                rows.loc[concerned, "anomalies"] = rows.loc[concerned, "anomalies"].map(
                    lambda known, reason=anomaly.reason: (*known, reason)
                )
        return cls(rows, path.name)

    @cached_property
    def _by_metric(self) -> Mapping[str, list[dict[Hashable, Any]]]:
        """The rows as plain mappings: a table looks up thousands of values."""
        found: dict[str, list[dict[Hashable, Any]]] = {}
        for row in self.rows.to_dict("records"):
            found.setdefault(row["metric"], []).append(row)
        return found

    def find(self, metric: str | None, names: Names, reduced: bool = False) -> PublishedValue | None:
        """The one published value that the names fit, None if there is none.

        Args:
            metric: of the value; None has none.
            names: of a cell.
            reduced: whether the cell is one of a reduced scale. That can replace an axis by one that has no
                names, so that several values fit: then the cell stands for none of them.

        Raises:
            FltrainError: if there are several at full scale.
        """
        rows = self._by_metric.get(metric, []) if metric else []
        found = [row for row in rows if _fits(row, names)]
        if not found or (reduced and len(found) > 1):
            return None
        if len(found) > 1:
            named = ", ".join(f"{key}={name}" for key, name in names.items()) or "a cell without names"
            raise FltrainError(
                f"{self.file}: {len(found)} published values of {metric!r} fit {named}; "
                f"name more columns under 'reported' (columns: {', '.join(map(str, self.rows.columns))})"
            )
        row = found[0]
        notes = tuple(note for note in str(row["note"]).split("; ") if note)
        return PublishedValue(_number(row["value"]), _number(row["std"]), notes, tuple(row["anomalies"]))

    def absent(
        self, metric: str | None, declared: Iterable[Names], cells: Iterable[Names]
    ) -> list[dict[str, str]]:
        """Names of the published values of a metric that none of the cells stands for.

        Values of another part of the table do not count: those that differ from all declared names in what
        these have in common, or that leave empty what they name.

        Args:
            metric: of the values; None has none.
            declared: names of the table's cells; any text stands for a ``{dimension}`` in them.
            cells: names of the cells that are shown, where runs have told the labels of a dimension.
        """
        if not metric:
            return []
        declared = list(declared)
        columns = [
            key for key in dict.fromkeys(key for names in declared for key in names) if key in self.rows
        ]
        named = {column: {names.get(column, "") for names in declared} for column in columns}
        failed = self.rows["note"].map(lambda note: str(note).startswith(FAILURES)).astype(bool)
        part = (self.rows["metric"] == metric) & (self.rows["value"].notna() | failed)
        for column, used in named.items():
            fits = "|".join(map(_pattern, used)) if len(used) == 1 or "" in used else ".+"
            part &= self.rows[column].str.fullmatch(fits).astype(bool)
        cells = list(cells)
        return [
            {column: str(row[column]) for column in columns}
            for row, wanted in zip(self.rows.to_dict("records"), part, strict=True)
            if wanted and not any(_fits(row, names) for names in cells)
        ]


@dataclass(frozen=True)
class Anomaly:
    """A reason to doubt the published values of a file in whose rows the columns have one of these texts."""

    file: str
    match: Mapping[str, list[str]]
    reason: str

    def concerns(self, rows: pd.DataFrame) -> pd.Series:
        """Which rows of the file are meant.

        Raises:
            FltrainError: if it has no such column.
        """
        for column in self.match:
            if column not in rows:
                hint = f"{suggest(column, rows.columns)} (columns: {', '.join(rows.columns)})"
                raise FltrainError(f"anomalies: {self.file} has no column {column!r}{hint}")
        return _where(rows, self.match)


def read_anomalies(path: Path) -> list[Anomaly]:
    """Read the file of doubtful values: paper, item, match (``column=text|text; column=...``), reason.

    Raises:
        FltrainError: if it cannot be read.
    """
    found: list[Anomaly] = []
    for row in _read(path, ("paper", "item", "match", "reason")).to_dict("records"):
        match: dict[str, list[str]] = {}
        for part in filter(None, row["match"].split("; ")):
            column, equals, texts = part.partition("=")
            if not equals:
                raise FltrainError(f"{path}: match {part!r}: write column=text, or column=text|text")
            match[column] = texts.split("|")
        found.append(Anomaly(f"{row['paper']}_{row['item']}.csv", match, row["reason"]))
    return found


@dataclass(frozen=True)
class Statement:
    """A row of a file of claims: where the paper says what, and the number that it states, if one."""

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
    _, rows = read_reported(path, STATED)
    return [
        Statement(row["where"], row["claim"], float(row["value"]) if row["value"] else None, row["unit"])
        for row in rows
    ]


def _read(path: Path, needed: Iterable[str]) -> pd.DataFrame:
    columns, rows = read_reported(path, needed)
    return pd.DataFrame(rows, columns=list(columns), dtype=str)


def _where(rows: pd.DataFrame, texts: Mapping[str, list[str]]) -> pd.Series:
    """Rows that have one of the texts in each column; columns that the file does not have do not count."""
    where = pd.Series(True, index=rows.index)
    for column in texts.keys() & set(rows.columns):
        where &= rows[column].isin(texts[column])
    return where


def _fits(row: Mapping[Hashable, Any], names: Names) -> bool:
    """Whether a row has these texts; columns that the file does not have do not count."""
    return all(row.get(column, text) == text for column, text in names.items())


def _pattern(name: str) -> str:
    """Regular expression for a declared name, in which anything stands for a ``{dimension}``."""
    parts = string.Formatter().parse(name)
    return "".join(re.escape(text) + (".+" if dimension else "") for text, dimension, _, _ in parts)


def _number(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload, arg-type]
