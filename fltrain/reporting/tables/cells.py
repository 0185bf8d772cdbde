"""Cells of tables as one tidy numeric frame: made once from records, read by every renderer.

``verdicts.csv`` and the CSV file of each table hold these cells, one row each, with the fields as columns.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fltrain.core.errors import FltrainError
from fltrain.core.statistics import OverSeeds, Statistic
from fltrain.experiments.layout import Average, Labels, Measured, Sheet, Table
from fltrain.experiments.published import Names, Published, PublishedValue
from fltrain.reporting.numbers import (
    ABSENT,
    DAMAGED,
    DIVERGED,
    MISSING,
    STALE,
    STATES,
    Runs,
    at_labels,
    has_labels,
    measured_values,
    names_at,
)
from fltrain.reporting.verdict import (
    RULE_DATE,
    CellNumbers,
    GainVerdict,
    Interval,
    Judgement,
    Side,
    Verdict,
    cell_margin,
    compare,
)
from fltrain.runs.measures import Measure, measure

AVERAGE = "average"
"""Label of the row of averages."""


def _split(separator: str) -> BeforeValidator:
    return BeforeValidator(lambda text: text.split(separator) if isinstance(text, str) else text)


def _joined(separator: str) -> PlainSerializer:
    def join(values: Sequence[object]) -> str:
        return separator.join(f"{one:.10g}" if isinstance(one, float) else str(one) for one in values)

    return PlainSerializer(join, return_type=str)


def _names(text: object) -> object:
    return dict(part.split("=", 1) for part in text.split("; ")) if isinstance(text, str) else text


def _names_text(names: Mapping[str, str]) -> str:
    return "; ".join(f"{key}={name}" for key, name in names.items())


Floats = Annotated[tuple[float, ...], _split(" "), _joined(" ")]
Integers = Annotated[tuple[int, ...], _split(" "), _joined(" ")]
Words = Annotated[tuple[str, ...], _split(" "), _joined(" ")]
Texts = Annotated[tuple[str, ...], _split("; "), _joined("; ")]
NamesText = Annotated[dict[str, str], BeforeValidator(_names), PlainSerializer(_names_text, return_type=str)]
Number = float | None


def _column(description: str, default: Any = None) -> Any:
    return Field(default, description=description)


class TableCell(BaseModel):
    """One cell of a table for one measure, with our numbers, the published ones and the verdicts.

    Accuracies, differences, gains and margins are in percentage points, other numbers in the unit of the
    measure. All intervals have a level of 90 %. Empty columns do not apply to the cell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: str = _column("name of the paper", "")
    item: str = _column("name of the table", "")
    row: str = _column("label of the row", "")
    column: str = _column("label of the column", "")
    panel: str = _column("label of the panel", "")
    measure: str = _column("name of the measure", "")
    label: str = _column("heading of the measure", "")
    decimals: int = _column("decimals that tables show", 2)
    names: NamesText = _column("the cell in the published table: column=text; ...", {})
    best: str = _column("label of the axis not shown (rates) with which the cell is best", "")
    best_at_end: bool = _column("this label is the first or last of its axis", False)
    over_seeds: OverSeeds = _column("summary of the seeds", "mean")
    seeds: int = _column("seeds that were planned", 0)
    n: int = _column("seeds with a value, diverged ones included", 0)
    diverged: int = _column("seeds whose run diverged; they count as chance accuracy", 0)
    stale: int = _column("seeds whose record is stale", 0)
    damaged: int = _column("seeds whose record is damaged", 0)
    missing: int = _column("seeds without a record", 0)
    value_seeds: Integers = _column("seeds of the values", ())
    values: Floats = _column("our value of each seed", ())
    mean: Number = _column("our mean (median, maximum) over seeds")
    std: Number = _column("standard deviation over the seeds of this cell")
    low: Number = _column("lower end of the interval of our mean")
    high: Number = _column("upper end of the interval of our mean")
    spread: Number = _column("standard deviation of one seed that the verdict uses, pooled over cells")
    spread_df: int | None = _column("its degrees of freedom")
    spread_cells: int | None = _column("number of cells that it is pooled over")
    base_values: Floats = _column("values of the base method that the gain is over", ())
    gain_seeds: Integers = _column("seeds of the gains", ())
    gains: Floats = _column("our gain over the base method, one per seed", ())
    gain: Number = _column("mean of the gains")
    gain_std: Number = _column("standard deviation of the gains")
    gain_low: Number = _column("lower end of the interval of the gain")
    gain_high: Number = _column("upper end of the interval of the gain")
    published: Number = _column("published value")
    published_std: Number = _column("published standard deviation")
    published_seeds: int | None = _column("seeds of the paper, if it states them")
    published_failed: bool = _column("the paper says that its own runs failed", False)
    published_gain: Number = _column("published gain over the base method")
    published_notes: Texts = _column("notes on the published value", ())
    anomalies: Texts = _column("reasons to doubt the published value", ())
    margin: Number = _column("margin around the published value")
    difference: Number = _column("our mean (median, maximum) minus the published value")
    difference_low: Number = _column("lower end of the interval of the difference")
    difference_high: Number = _column("upper end of the interval of the difference")
    verdict: Verdict | None = _column("verdict on the value; empty at a reduced scale")
    side: Side = _column("side on which a value is not reproduced", "")
    reason: str = _column("reason why there is no interval", "")
    seeds_needed: Number = _column("seeds of ours that would decide an inconclusive cell; inf: none would")
    p: Number = _column("one-sided p value against a true difference within the margin")
    listed: bool = _column("False: drops out of the list of cells that are not reproduced", True)
    detectable: Number = _column("difference that is called not reproduced with a probability of 80 %")
    expected_reproduced: Number = _column("probability of 'reproduced' if the published value were true")
    expected_not_reproduced: Number = _column("the same of 'not reproduced'")
    gain_margin: Number = _column("margin around the published gain, or around no gain")
    gain_difference_low: Number = _column("lower end of the interval of our gain minus the published one")
    gain_difference_high: Number = _column("upper end of that interval")
    gain_verdict: GainVerdict | None = _column("verdict on the gain; empty at a reduced scale")
    expected_size: Number = _column("probability of 'size reproduced' if the published gain were true")
    expected_direction: Number = _column("the same of 'direction reproduced'")
    expected_opposite: Number = _column("the same of 'opposite'")
    exploratory: bool = _column("the rule or margin was changed after the runs had been seen", False)
    runs: Words = _column("IDs of the runs", ())

    @property
    def place(self) -> str:
        """The cell's labels: panel, row, column."""
        return " / ".join(filter(None, (self.panel, self.row, self.column)))

    @property
    def interval(self) -> Interval | None:
        """Interval of our mean."""
        return _interval(self.low, self.high)

    @property
    def gain_interval(self) -> Interval | None:
        """Interval of our gain."""
        return _interval(self.gain_low, self.gain_high)

    @property
    def difference_interval(self) -> Interval | None:
        """Interval of our value minus the published one."""
        return _interval(self.difference_low, self.difference_high)

    @property
    def full_verdict(self) -> str:
        """The verdict with the side of the miss or the reason for the lack of an interval."""
        detail = self.side or self.reason
        return f"{self.verdict} ({detail})" if self.verdict and detail else self.verdict or ""


def _interval(low: Number, high: Number) -> Interval | None:
    return None if low is None or high is None else (low, high)


def cells(sheet: Sheet, runs: Runs, published: Published) -> list[TableCell]:
    """Return every cell of a table, judged against published values unless the scale is reduced.

    Averages over rows are compared with the paper's only if they are over all of its rows.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run ID, complete or not.
        published: values that the paper prints.
    """
    table = checked(sheet)
    made: list[tuple[TableCell, CellNumbers]] = []
    for measured in table.measures:
        values = measured_values(sheet, runs, measured, published)
        assembly = _Assembly(sheet, table, measured, runs, published)
        made += assembly.cells(values)
        if measured.average:
            made += assembly.cells(_averages(table, measured, measured.average, values), measured.average)
    judged = compare([numbers for _, numbers in made])
    exploratory = sheet.seen is not None and sheet.seen <= RULE_DATE
    return _ordered(
        table,
        [
            _with_judgement(cell, judgement, sheet.reduced, exploratory)
            for (cell, _), judgement in zip(made, judged, strict=True)
        ],
    )


def checked(sheet: Sheet) -> Table:
    """Return the layout of a table.

    Raises:
        FltrainError: if the sheet is not a table, or the layout is not valid.
    """
    if sheet.table is None:
        raise FltrainError(f"{sheet.id} is not a table")
    sheet.table.check(sheet.id, sheet.axes)
    return sheet.table


def _with_judgement(cell: TableCell, judged: Judgement, reduced: bool, exploratory: bool) -> TableCell:
    spread, gain = judged.spread, judged.gain
    changes: dict[str, Any] = _ends("", judged.mean_interval)
    if cell.mean is not None and cell.over_seeds == "mean" and spread.df:
        changes |= {"spread": spread.std, "spread_df": spread.df, "spread_cells": spread.cells}
    if gain:
        changes |= _ends("gain_", gain.interval)
    if gain and cell.gain_margin:
        changes["gain_verdict"] = gain.verdict or "inconclusive"
    if reduced:
        return cell.model_copy(update={**changes, "margin": None})
    if judged.verdict:
        same = ("difference", "verdict", "side", "reason", "seeds_needed", "p", "listed", "detectable")
        changes |= {name: getattr(judged, name) for name in same} | _ends("difference_", judged.interval)
        expected = judged.expected or {}
        changes["expected_reproduced"] = expected.get("reproduced")
        changes["expected_not_reproduced"] = expected.get("not reproduced")
    if gain and gain.verdict and not cell.gain_margin:
        changes |= {"gain_verdict": gain.verdict, "gain_margin": gain.margin}
        changes |= _ends("gain_difference_", gain.differences)
        for verdict in ("size reproduced", "direction reproduced", "opposite"):
            changes[f"expected_{verdict.split()[0]}"] = (gain.expected or {}).get(verdict)
    decided = changes.get("verdict") not in (None, "not run") or "gain_verdict" in changes
    return cell.model_copy(update={**changes, "exploratory": exploratory and decided})


def _ends(columns: str, interval: Interval | None) -> dict[str, float | None]:
    return dict(zip((f"{columns}low", f"{columns}high"), interval or (None, None), strict=True))


def _averages(table: Table, measured: Measured, average: Average, values: pd.DataFrame) -> pd.DataFrame:
    """Return averages over the rows, one per column, panel and seed; a seed needs a number in every row.

    A single row has no average.
    """
    if average.of == "gain":
        values = values[~_is_baseline(values, measured)]
    across = [axis for axis in (table.columns, table.panels) if axis]
    rows = values.groupby(across)[table.rows].transform("nunique") if across else values[table.rows].nunique()
    lines: list[dict[str, Any]] = []
    values = values.assign(rows=rows)
    for _, group in values[values["rows"] > 1].groupby([*across, "seed"], sort=False):
        first = group.iloc[0]
        whole = len(group) == first["rows"]
        # Names that differ between the rows do not belong to the average.
        common = set.intersection(*(set(names.items()) for names in group["names"]))
        line = {
            **{axis: first[axis] for axis in across},
            table.rows: AVERAGE,
            "seed": first["seed"],
            "run": " ".join(group["run"]),
            # As bad as the worst of its rows.
            "state": max(group["state"], key=STATES.index) if whole else MISSING,
            "names": {key: name for key, name in first["names"].items() if (key, name) in common},
            "value": group["value"].mean(skipna=False) if whole else math.nan,
            "gain": group["gain"].mean(skipna=False) if whole else math.nan,
            "averaged": len(group),
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _is_baseline(values: pd.DataFrame, measured: Measured) -> pd.Series:
    return has_labels(values, measured.gain_over) & bool(measured.gain_over)


@dataclass(frozen=True)
class _Assembly:
    """Cells of one measure of a table."""

    sheet: Sheet
    table: Table
    measured: Measured
    runs: Runs
    published: Published

    def cells(
        self, values: pd.DataFrame, average: Average | None = None
    ) -> list[tuple[TableCell, CellNumbers]]:
        """Return the cells of the measure, or of its averages, with their numbers for the rule."""
        if values.empty:
            return []
        measured, table = self.measured, self.table
        names_of = names_at(values.drop(columns="averaged", errors="ignore"))
        reference: dict[str, Any] = {"base": math.nan, "base_diverged": False}
        if average is None:
            states = at_labels(values, measured.gain_over, "state")
            reference = {"base": at_labels(values, measured.gain_over), "base_diverged": states == DIVERGED}
        values = values.assign(**reference, averaged=values.get("averaged", 1))
        baseline = _is_baseline(values, measured)
        places = [axis for axis in (table.rows, table.columns, table.panels) if axis]
        made = []
        for _, group in values.groupby(places, sort=False):
            over = None if baseline[group.index[0]] else measured.gain_over or None
            base_names = names_of(group.iloc[0], over) if over else None
            made.append(self._cell(group, average, over, base_names))
        return made

    def _cell(
        self,
        group: pd.DataFrame,
        average: Average | None,
        over: Labels | None,
        base_names: Names | None,
    ) -> tuple[TableCell, CellNumbers]:
        sheet, measured, table = self.sheet, self.measured, self.table
        what, first, names = measure(measured.measure), group.iloc[0], group.iloc[0]["names"]
        of_gain = average is not None and average.of == "gain"
        states = Counter(group["state"])
        valued = group[group["value"].notna()] if not of_gain else group.iloc[:0]
        gained = group[group["gain"].notna()] if over is not None or of_gain else group.iloc[:0]
        values, gains = tuple(map(float, valued["value"])), tuple(map(float, gained["gain"]))
        value, gain = Statistic.of(values, what.over_seeds), Statistic.of(gains)
        metric = average.reported if average else measured.reported
        printed = self.published.find(metric, names, sheet.reduced)
        theirs = self.published.find(metric, base_names, sheet.reduced) if base_names is not None else None
        published_gain = _difference(printed, theirs)
        if of_gain:
            published_gain = printed.value if printed else None
        # An average of a part of the rows is not the paper's average.
        comparable = average is None or not sheet.restricted
        margin = what.margin if measured.margin is None else replace(what.margin, size=measured.margin)
        points = not margin.relative
        published = None if of_gain or printed is None else printed.value
        around = None
        if published is not None and comparable:
            around = cell_margin(margin.around(published), published_gain, points)
        lost = states[DIVERGED] + int(group["base_diverged"].sum())
        dataset, floor = self._resolution(group, what)
        cell = TableCell(
            paper=sheet.id.partition("/")[0],
            item=sheet.id.partition("/")[2],
            row=str(first[table.rows]),
            column=str(first[table.columns]) if table.columns else "",
            panel=str(first[table.panels]) if table.panels else "",
            measure=measured.measure,
            label=measured.label or what.label,
            decimals=2 if measured.relative_to else what.decimals,
            names=dict(names),
            best=str(first.get("best", "")),
            best_at_end=bool(first.get("best_at_end", False)),
            over_seeds=what.over_seeds,
            seeds=len(group),
            n=len(values),
            diverged=states[DIVERGED],
            stale=states[STALE],
            damaged=states[DAMAGED],
            missing=states[MISSING],
            value_seeds=tuple(valued["seed"]),
            values=values,
            mean=value.mean if value else None,
            std=value.std if value else None,
            base_values=() if over is None else tuple(group["base"].dropna()),
            gain_seeds=tuple(gained["seed"]),
            gains=gains,
            gain=gain.mean if gain else None,
            gain_std=gain.std if gain else None,
            published=published,
            published_std=printed.std if printed else None,
            published_seeds=sheet.reported_seeds if printed else None,
            published_failed=printed is not None and printed.failed,
            published_gain=published_gain,
            gain_margin=measured.gain_margin if over is not None else None,
            published_notes=printed.notes if printed else (),
            anomalies=printed.anomalies if printed else (),
            margin=around,
            runs=tuple(run for joined in group["run"] for run in joined.split()),
        )
        numbers = CellNumbers(
            values=values,
            # An average has another spread than its rows.
            group=(
                measured.measure,
                measured.label,
                average is None,
                dataset,
                (cell.panel, cell.column) if measured.gain_margin else None,
            ),
            floor=floor,
            over_seeds=what.over_seeds,
            runs=len(group) - sum(states[state] for state in ABSENT),
            diverged=states[DIVERGED],
            gains_diverged=lost,
            published=published if comparable else None,
            published_std=cell.published_std,
            published_seeds=cell.published_seeds,
            published_failed=cell.published_failed,
            margin=around or 0.0,
            gains=gains,
            published_gain=published_gain if comparable else None,
            own_margin=cell.gain_margin,
            published_gain_stds=(printed.std if printed else None, theirs.std if theirs else None),
            averaged=int(first["averaged"]),
            points=points,
        )
        return cell, numbers

    def _resolution(self, group: pd.DataFrame, what: Measure) -> tuple[Hashable, float]:
        """Return the dataset of a cell's runs, and the smallest believable spread of the measure on it."""
        part = group.iloc[0][what.dimension] if what.dimension and what.dimension in group else None
        for run in " ".join(group["run"]).split():
            record = self.runs(run)
            if record.usable:
                images = None if what.dimension else record.test_images
                return (record.spec["dataset"]["name"], part), what.resolution(images)
        return (None, part), what.resolution(None)


def _difference(value: PublishedValue | None, base: PublishedValue | None) -> float | None:
    if value is None or base is None or value.value is None or base.value is None:
        return None
    return value.value - base.value


def _ordered(table: Table, shown: list[TableCell]) -> list[TableCell]:
    """Sort rows by the mean of a measure over columns and panels, if so declared; gaps and averages last."""
    if table.order_by is None:
        return shown
    means: dict[str, list[float]] = {}
    for cell in shown:
        if cell.measure == table.order_by and cell.mean is not None:
            means.setdefault(cell.row, []).append(cell.mean)
    mean = {row: sum(values) / len(values) for row, values in means.items()}
    return sorted(
        shown, key=lambda cell: (cell.row == AVERAGE, cell.row not in mean, -mean.get(cell.row, 0.0))
    )


def absent(sheet: Sheet, published: Published, shown: Iterable[TableCell]) -> list[TableCell]:
    """Return a cell that is not run for each published value of the table that it does not show.

    There are none if the scale is reduced or the runs were restricted: then values are left out on purpose.
    """
    if sheet.reduced or sheet.restricted:
        return []
    declared = [cell.reported for cell in sheet.cells]
    paper, _, item = sheet.id.partition("/")
    found: list[TableCell] = []
    for measured in checked(sheet).measures:
        of_measure = [cell for cell in shown if cell.measure == measured.measure]
        wanted = {False: measured.reported, True: measured.average.reported if measured.average else None}
        for averaged, metric in wanted.items():
            names = [cell.names for cell in of_measure if (cell.row == AVERAGE) == averaged]
            for lacking in published.absent(metric, names if averaged else declared, names):
                found.append(
                    TableCell(
                        paper=paper, item=item, names={"metric": str(metric), **lacking}, verdict="not run"
                    )
                )
    return found


# ---------------------------------------------------------------- files
def to_csv(shown: Iterable[TableCell]) -> str:
    """Return the text of a CSV file with one row for each cell.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(TableCell.model_fields)
    for cell in shown:
        writer.writerow([_harmless(value) for value in cell.model_dump().values()])
    return file.getvalue()


FORMULA = re.compile(r"[=@\t\r]|[-+](?![ \d.])")
"""Beginning of a text that a spreadsheet would run as a formula; labels such as ``+ FLFA`` are none."""


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def read_csv(path: Path) -> list[TableCell]:
    """Read the cells of a table from its CSV file.

    Raises:
        FltrainError: if it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            TableCell.model_validate({key: _plain(text) for key, text in row.items() if text}) for row in rows
        ]
    except (OSError, ValueError) as error:
        raise FltrainError(f"{path}: cannot be read ({error}); make the table again") from None


def _plain(text: str) -> str:
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text
