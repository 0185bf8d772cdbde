"""Cells of tables as one tidy numeric frame: made once from records, read by every renderer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import pandas as pd

from fltrain.core.floats import average
from fltrain.core.statistics import Sample
from fltrain.experiments.layout import Average, ItemJob, Measured, Table
from fltrain.experiments.published import Published, PublishedValue
from fltrain.reporting.frame import (
    DAMAGED,
    DIVERGED,
    MISSING,
    Runs,
    at_labels,
    combined,
    has_labels,
    measured_values,
)
from fltrain.reporting.tables.table_cell import AVERAGE, TableCell
from fltrain.reporting.verdict import Judgeable, compare, gain_margin
from fltrain.reporting.version import FIRST_RULE
from fltrain.runs.measures import measure


def cells(sheet: ItemJob, runs: Runs, published: Published) -> list[TableCell]:
    """Return every cell of a table, judged against published values unless the scale is reduced.

    Averages over rows are compared with the paper's only if they are over all of its rows.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run ID, complete or not.
        published: values that the paper prints.
    """
    table = layout_of(sheet)
    inputs: list[Judgeable] = []
    for measured in table.measures:
        values = measured_values(sheet, runs, measured, published)
        values = combined(values, table.mean_over) if table.mean_over else values
        inputs += _cells(sheet, measured, published, values)
        if average := measured.average:
            averages = _averages(table, measured, average, values)
            inputs += _cells(sheet, measured, published, averages, average)
    early = sheet.seen is not None and sheet.seen <= FIRST_RULE
    judged = [
        cell.replace(
            exploratory=not sheet.reduced and cell.judged and (early or cell.place in sheet.rejudged)
        )
        for cell in compare(inputs)
    ]
    return _ordered(table, judged)


def layout_of(sheet: ItemJob) -> Table:
    """Return the layout of a table, which the plan has checked."""
    assert sheet.table is not None
    return sheet.table


def _averages(table: Table, measured: Measured, average: Average, values: pd.DataFrame) -> pd.DataFrame:
    """Return averages over the rows, one per column, panel and seed; a seed needs a number in every row.

    A single row has no average.
    """
    if average.of == "gain":
        values = values[~_is_baseline(values, measured)]
    across = [axis for axis in (table.columns, table.panels) if axis]
    rows = values.groupby(across)[table.rows].transform("nunique") if across else values[table.rows].nunique()
    values = values.assign(rows=rows)
    means = combined(values[values["rows"] > 1], [table.rows])
    part = means["averaged"] < means["rows"]
    means.loc[part, ["value", "gain"]] = math.nan
    means.loc[part, "state"] = MISSING
    return means.drop(columns="rows").assign(**{table.rows: AVERAGE})


def _is_baseline(values: pd.DataFrame, measured: Measured) -> pd.Series:
    return has_labels(values, measured.gain_over) & bool(measured.gain_over)


def _cells(
    sheet: ItemJob,
    measured: Measured,
    published: Published,
    values: pd.DataFrame,
    average: Average | None = None,
) -> list[Judgeable]:
    """Return the cells of a measure, or of its averages, with their inputs for the rule."""
    if values.empty:
        return []
    table, over = layout_of(sheet), measured.gain_over
    base = at_labels(values, over)[["value", "run", "names", "composition"]]
    values = values.join(base.add_prefix("base_"))
    baseline = _is_baseline(values, measured)
    axes = [axis for axis in (table.rows, table.columns, table.panels) if axis]
    return [
        _cell(sheet, measured, published, group, average, bool(over) and not baseline[group.index[0]])
        for _, group in values.groupby(axes, sort=False)
    ]


def _cell(
    sheet: ItemJob,
    measured: Measured,
    published: Published,
    lines: pd.DataFrame,
    average: Average | None,
    has_base: bool,
) -> Judgeable:
    """Return a cell from its lines, one per seed."""
    table, definition = layout_of(sheet), measure(measured.measure)
    first, states = lines.iloc[0], Counter(lines["state"])
    names, of_gain = first["names"], average is not None and average.of == "gain"
    valued = lines[lines["value"].notna()] if not of_gain else lines.iloc[:0]
    gained = lines[lines["gain"].notna()] if has_base or of_gain else lines.iloc[:0]
    values, gains = tuple(map(float, valued["value"])), tuple(map(float, gained["gain"]))
    metric = average.reported if average else measured.reported
    printed, printed_base = published.find(metric, names, sheet.reduced), None
    base_names = lines["base_names"].dropna()
    if has_base and len(base_names):
        printed_base = published.find(metric, base_names.iloc[0], sheet.reduced)
    number = printed.value if printed else None
    published_gain = number if of_gain else _difference(printed, printed_base)
    # An average of a part of the rows is not the paper's average.
    compared = not sheet.reduced and (average is None or not sheet.restricted)
    points, around, plugins = not definition.margin.relative, None, _plugins(first) if has_base else ""
    if number is not None and not of_gain and compared:
        around = definition.margin.around(number)
        if plugins and published_gain is not None and points:
            around = min(around, gain_margin(published_gain))
    paper, _, item = sheet.id.partition("/")
    cell = TableCell(
        paper=paper,
        item=item,
        row=str(first[table.rows]),
        column=str(first[table.columns]) if table.columns else "",
        panel=str(first[table.panels]) if table.panels else "",
        measure=measured.measure,
        label=measured.heading,
        decimals=2 if measured.relative_to else definition.decimals,
        names="; ".join(f"{key}={name}" for key, name in names.items()),
        best=str(first.get("best", "")),
        best_at_end=bool(first.get("best_at_end", False)),
        over_seeds=definition.over_seeds,
        seeds=len(lines),
        diverged=states[DIVERGED],
        base_diverged=int((gained["base_state"] == DIVERGED).sum()) if gains else None,
        damaged=states[DAMAGED],
        missing=states[MISSING],
        value_seeds=tuple(valued["seed"]),
        values=values,
        base_values=tuple(gained["base_value"]) if has_base and not average else (),
        plugin="" if average else plugins,
        gain_seeds=tuple(gained["seed"]),
        gains=gains,
        published=None if of_gain else number,
        published_std=printed.std if printed else None,
        published_seeds=sheet.reported_seeds if printed else None,
        published_failed=printed is not None and printed.failed,
        falsified=printed is not None and printed.falsified,
        published_gain=published_gain,
        published_notes=printed.notes if printed else (),
        anomalies=printed.anomalies if printed else (),
        margin=around,
        runs=tuple(run for run_ids in lines["run"] for run in run_ids.split()),
    )
    averaged = int(first["averaged"]) if average else 1
    family = (measured.label, average is None, averaged, max(lines["spread_family"], key=len))
    floor, lost = float(lines["floor"].max()), bool(cell.diverged)
    return Judgeable(
        cell,
        values=Sample(values, floor, lost, shares=not points, family=(measured.measure, *family)),
        gains=Sample(
            gains,
            floor,
            lost or bool(cell.base_diverged),
            family=(measured.measure, *family, first["composition"][1:]),
            base=tuple(lines["base_run"].dropna()) or None,
        ),
        published_gain_stds=(printed.std if printed else None, printed_base.std if printed_base else None),
        averaged=averaged,
        compared=compared,
        gain_margin=measured.gain_margin if has_base else None,
    )


def _plugins(line: pd.Series) -> str:
    """Return the plug-ins that a cell adds to the method of its base; empty for a rival method."""
    names, base = line["composition"], line["base_composition"]
    return "+".join(names[len(base) :]) if isinstance(base, tuple) and names[: len(base)] == base else ""


def _difference(value: PublishedValue | None, base: PublishedValue | None) -> float | None:
    if value is None or base is None or value.value is None or base.value is None:
        return None
    return value.value - base.value


def ranked(table: Table, table_cells: Iterable[TableCell]) -> bool:
    """Return True if the rows are sorted by a measure: if declared so, and if a cell has several seeds."""
    return any(cell.n > 1 for cell in table_cells if cell.measure == table.order_by)


def _ordered(table: Table, table_cells: list[TableCell]) -> list[TableCell]:
    """Sort rows by the mean of a measure over columns and panels, if so declared; gaps and averages last.

    With one seed, nothing is ranked.
    """
    if not ranked(table, table_cells):
        return table_cells
    means: dict[str, list[float]] = {}
    for cell in table_cells:
        if cell.measure == table.order_by and cell.mean is not None:
            means.setdefault(cell.row, []).append(cell.mean)
    mean = {row: average(values) for row, values in means.items()}
    return sorted(
        table_cells, key=lambda cell: (cell.row == AVERAGE, cell.row not in mean, -mean.get(cell.row, 0.0))
    )
