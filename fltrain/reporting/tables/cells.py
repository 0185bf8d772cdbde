"""Cells of tables as one tidy numeric frame: made once from records, read by every renderer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from fltrain.core.floats import average
from fltrain.core.statistics import Statistic
from fltrain.experiments.layout import Average, Measured, Sheet, Table
from fltrain.experiments.published import Published, PublishedValue
from fltrain.reporting.frame import (
    DAMAGED,
    DIVERGED,
    MISSING,
    STALE,
    STATES,
    Runs,
    at_labels,
    has_labels,
    measured_values,
    places,
)
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.verdict import Judgeable, RuleInputs, cell_margin, compare
from fltrain.reporting.version import FIRST_RULE
from fltrain.runs.measures import Measure, measure


def cells(sheet: Sheet, runs: Runs, published: Published) -> list[TableCell]:
    """Return every cell of a table, judged against published values unless the scale is reduced.

    Averages over rows are compared with the paper's only if they are over all of its rows.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run ID, complete or not.
        published: values that the paper prints.
    """
    table = layout_of(sheet)
    made: list[Judgeable] = []
    for measured in table.measures:
        values = _pooled(measured_values(sheet, runs, measured, published), table.mean_over)
        assembly = _Assembly(sheet, table, measured, runs, published)
        made += assembly.cells(values)
        if measured.average:
            made += assembly.cells(_averages(table, measured, measured.average, values), measured.average)
    judged = compare(made)
    if not sheet.reduced:
        early = sheet.seen is not None and sheet.seen <= FIRST_RULE
        judged = [
            cell.having(exploratory=(early or cell.place in sheet.rejudged) and cell.judged)
            for cell in judged
        ]
    return _ordered(table, judged)


def layout_of(sheet: Sheet) -> Table:
    """Return the layout of a table, which the plan has checked."""
    assert sheet.table is not None
    return sheet.table


def _pooled(values: pd.DataFrame, axes: Collection[str]) -> pd.DataFrame:
    """Return the means over some axes, one line per other label and seed; a mean needs all of its runs."""
    if not axes:
        return values
    where = [name for name in (*places(values), "seed") if name not in axes]
    whole = partial(pd.Series.mean, skipna=False)
    return (
        values.groupby(where, sort=False)
        .agg(
            run=("run", " ".join),
            state=("state", partial(max, key=STATES.index)),
            names=("names", "first"),
            spread_family=("spread_family", "first"),
            composition=("composition", "first"),
            value=("value", whole),
            gain=("gain", whole),
        )
        .reset_index()
    )


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
            "spread_family": max(group["spread_family"], key=len),
            "composition": first["composition"],
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

    def cells(self, values: pd.DataFrame, average: Average | None = None) -> list[Judgeable]:
        """Return the cells of the measure, or of its averages, with their inputs for the rule."""
        if values.empty:
            return []
        table, over = self.table, self.measured.gain_over
        values = values.assign(
            base=math.nan if average else at_labels(values, over),
            base_diverged=False if average else at_labels(values, over, "state") == DIVERGED,
            base_names=at_labels(values.drop(columns="averaged", errors="ignore"), over, "names"),
            base_run=at_labels(values.drop(columns="averaged", errors="ignore"), over, "run"),
            averaged=values.get("averaged", 1),
        )
        baseline = _is_baseline(values, self.measured)
        shown = [axis for axis in (table.rows, table.columns, table.panels) if axis]
        return [
            self._cell(group, average, bool(over) and not baseline[group.index[0]])
            for _, group in values.groupby(shown, sort=False)
        ]

    def _cell(self, group: pd.DataFrame, average: Average | None, has_base: bool) -> Judgeable:
        sheet, measured, table = self.sheet, self.measured, self.table
        what, first, names = measure(measured.measure), group.iloc[0], group.iloc[0]["names"]
        of_gain = average is not None and average.of == "gain"
        states = Counter(group["state"])
        valued = group[group["value"].notna()] if not of_gain else group.iloc[:0]
        gained = group[group["gain"].notna()] if has_base or of_gain else group.iloc[:0]
        values, gains = tuple(map(float, valued["value"])), tuple(map(float, gained["gain"]))
        value, gain = Statistic.of(values, what.over_seeds), Statistic.of(gains)
        metric = average.reported if average else measured.reported
        printed = self.published.find(metric, names, sheet.reduced)
        base_names, theirs = group["base_names"].dropna(), None
        if has_base and len(base_names):
            theirs = self.published.find(metric, base_names.iloc[0], sheet.reduced)
        published_gain = _difference(printed, theirs)
        if of_gain:
            published_gain = printed.value if printed else None
        # An average of a part of the rows is not the paper's average.
        compared = not sheet.reduced and (average is None or not sheet.restricted)
        points = not what.margin.relative
        published = None if of_gain or printed is None else printed.value
        around = None
        if published is not None and compared:
            around = cell_margin(what.margin.around(published), published_gain, points)
        floor = self._floor(group, what)
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
            base_values=tuple(group["base"].dropna()) if has_base else (),
            plugin=self._added(group) if has_base or of_gain else "",
            gain_seeds=tuple(gained["seed"]),
            gains=gains,
            gain=gain.mean if gain else None,
            gain_std=gain.std if gain else None,
            published=published,
            published_std=printed.std if printed else None,
            published_seeds=sheet.reported_seeds if printed else None,
            published_failed=printed is not None and printed.failed,
            published_gain=published_gain,
            gain_margin=measured.gain_margin if has_base else None,
            published_notes=printed.notes if printed else (),
            anomalies=printed.anomalies if printed else (),
            margin=around,
            runs=tuple(run for joined in group["run"] for run in joined.split()),
        )
        family = (measured.measure, measured.label, average is None, max(group["spread_family"], key=len))
        inputs = RuleInputs(
            family=family,
            gain_family=(*family, first["composition"]),
            base=tuple(group["base_run"].dropna()) or None,
            floor=floor,
            base_diverged=int(group["base_diverged"].sum()),
            published_gain_stds=(printed.std if printed else None, theirs.std if theirs else None),
            averaged=int(first["averaged"]),
            points=points,
            accuracy=what.accuracy,
            compared=compared,
        )
        return cell, inputs

    def _added(self, group: pd.DataFrame) -> str:
        """Return the plug-ins that a cell adds to the method of its base; empty for a rival method."""
        methods = {cell.run: cell.methods for cell in self.sheet.cells}
        pairs = zip(group["run"], group["base_run"], strict=True)
        first = next(((methods.get(run, ()), methods.get(base, ())) for run, base in pairs), ((), ()))
        own, base = first
        return "+".join(own[len(base) :]) if base and own[: len(base)] == base else ""

    def _floor(self, group: pd.DataFrame, what: Measure) -> float:
        """Return the smallest believable spread of the measure: one test image."""
        for run in " ".join(group["run"]).split():
            record = self.runs(run)
            if record.usable:
                return what.resolution(None if what.dimension else record.test_images)
        return what.resolution(None)


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
    mean = {row: average(values) for row, values in means.items()}
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
    for measured in layout_of(sheet).measures:
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
