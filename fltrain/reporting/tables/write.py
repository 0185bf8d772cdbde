"""Tables: our mean and spread over seeds, paired gains, and beside them the published value and a verdict."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.core.statistics import Outcome, Statistic, against_point, holm, interval_text, known, p_text
from fltrain.experiments.layout import Average, Measured, Sheet, Table
from fltrain.reporting.numbers.comparison import Compared, Facing, compare, margin_of_gain
from fltrain.reporting.numbers.published import METHOD, Names, Published
from fltrain.reporting.numbers.readings import Runs
from fltrain.reporting.numbers.values import (
    ABSENT,
    DIVERGED,
    DONE,
    MISSING,
    STALE,
    STATES,
    has_labels,
    measured_values,
    names_at,
)
from fltrain.reporting.tables.html import published_page, table_page
from fltrain.runs.measures import Margin, measure

AVERAGE = "average"
"""Label of the row of averages."""


@dataclass(frozen=True)
class Shown:
    """One cell of a table for one measure; ``label`` heads the measure's columns.

    Attributes:
        names: what the published table calls it.
        value: over the seeds that have one, of ``values``; ``without`` is shown if none has.
        gain: paired over seeds, of ``gains``, and the paired t test of it against zero.
        gain_p_holm: its p corrected for all gains of the table.
        seeds: how many there should be; so many of them ``diverged``, are ``stale`` or ``missing``.
        published: what the paper prints; at full scale, ``compared`` says how ours relates to it.
        anomalies: reasons to doubt it.
        as_interval: whether the 95 % interval is shown in place of the deviation.
        facing: what was compared, at whatever scale; None without a published value.
    """

    row: str
    column: str
    panel: str
    measure: str
    label: str
    decimals: int
    names: Names
    value: Statistic | None
    values: tuple[float, ...]
    without: str
    gain: Statistic | None
    gains: tuple[float, ...]
    gain_test: Outcome
    gain_p_holm: float | None
    seeds: int
    diverged: int
    stale: int
    missing: int
    published: float | None
    published_std: float | None
    published_gain: float | None
    published_notes: list[str]
    anomalies: tuple[str, ...]
    margin: Margin
    as_interval: bool
    facing: Facing | None
    compared: Compared | None
    runs: list[str]

    @property
    def text(self) -> str:
        """The value as people read it, with what became of runs that have none."""
        if self.value is None:
            return self.without
        lost = {"diverged": self.diverged, "stale": self.stale, "not run": self.missing}
        notes = [f"{number} of {self.seeds} {what}" for what, number in lost.items() if number]
        note = f" ({', '.join(notes)})" if notes else ""
        return self.value.text(self.decimals, interval=self.as_interval) + note

    @property
    def gain_text(self) -> str:
        """The gain as people read it, with its p value where the interval is asked for."""
        if self.gain is None:
            return ""
        p = f", {p_text(self.gain_p_holm)}" if self.as_interval and self.gain_p_holm is not None else ""
        return self.gain.text(self.decimals, "+", self.as_interval) + p

    def quantities(self, reduced: bool, marks: Mapping[str, str]) -> dict[str, str]:
        """What is shown of the cell, by heading; empty where it has no such quantity.

        Args:
            reduced: whether the scale is, so that headings say that published values are of another one.
            marks: of the reasons to doubt published values, by reason.
        """
        full_scale = " (full scale)" if reduced else ""
        published = _number(self.published, f".{self.decimals}f")
        if self.published_std is not None:
            published += f" ± {self.published_std:.{self.decimals}f}"
        if self.published is None and self.published_gain is None:
            # Where a paper prints no number, the first note is the reason.
            published = next(iter(self.published_notes), "")
        doubts = "".join(f" [{marks[reason]}]" for reason in self.anomalies)
        against = self.compared
        interval = against.interval if against else None
        return {
            self.label: self.text,
            "gain": self.gain_text,
            f"published{full_scale}": published + doubts,
            "published gain": _number(self.published_gain, f"+.{self.decimals}f"),
            "difference": " ".join(
                [
                    _number(against.difference if against else None, f"+.{self.decimals}f"),
                    interval_text(interval, self.decimals, "+") if interval else "",
                ]
            ).strip(),
            "verdict": against.verdict if against else "",
        }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def cells(sheet: Sheet, runs: Runs, published: Published) -> list[Shown]:
    """Compute every cell of a table, compared with published values unless the scale is reduced.

    Averages over rows are compared with the paper's only if they are over all of its rows: not if the runs
    were restricted, and not if runs of a row diverged so that no seed has all.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run id, complete or not.
        published: what the paper prints.
    """
    table = checked(sheet)
    shown: list[Shown] = []
    for measured in table.measures:
        values = measured_values(sheet, runs, measured, published)
        shown += _cells_of(sheet, table, measured, values, published)
        if measured.average:
            averages = _averages(table, measured, measured.average, values)
            shown += _cells_of(sheet, table, measured, averages, published, measured.average)
    corrected = holm([cell.gain_test.p for cell in shown])
    shown = [replace(cell, gain_p_holm=p) for cell, p in zip(shown, corrected, strict=True)]
    if not sheet.reduced:
        compared = iter(compare([cell.facing for cell in shown if cell.facing]))
        shown = [replace(cell, compared=next(compared)) if cell.facing else cell for cell in shown]
    return _ordered(table, shown)


def checked(sheet: Sheet) -> Table:
    """Return the layout of a table.

    Raises:
        FltrainError: if the sheet is none, or the layout is not valid.
    """
    if sheet.table is None:
        raise FltrainError(f"{sheet.id} is not a table")
    sheet.table.check(sheet.id, sheet.axes)
    return sheet.table


def _averages(table: Table, measured: Measured, average: Average, values: pd.DataFrame) -> pd.DataFrame:
    """Lines of averages over the rows, one per column, panel and seed; a seed needs a number in every row.

    The rows are those that any seed has at this column and panel.
    """
    if average.of == "gain":
        values = values[~_is_baseline(values, measured)]
    across = [axis for axis in (table.columns, table.panels) if axis]
    rows = values.groupby(across)[table.rows].transform("nunique") if across else values[table.rows].nunique()
    lines: list[dict[str, Any]] = []
    for _, group in values.assign(rows=rows).groupby([*across, "seed"], sort=False):
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
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _is_baseline(values: pd.DataFrame, measured: Measured) -> pd.Series:
    """Which lines are those that gains are taken over."""
    return has_labels(values, measured.gain_over) & bool(measured.gain_over)


def _cells_of(
    sheet: Sheet,
    table: Table,
    measured: Measured,
    values: pd.DataFrame,
    published: Published,
    average: Average | None = None,
) -> list[Shown]:
    """The cells of a measure, or those of its averages."""
    if values.empty:
        return []
    what = measure(measured.measure)
    of_gain = average is not None and average.of == "gain"
    metric = average.reported if average else measured.reported
    margin = what.margin if measured.margin is None else replace(what.margin, size=measured.margin)
    baseline = _is_baseline(values, measured)
    places = [axis for axis in (table.rows, table.columns, table.panels) if axis]
    names_of = names_at(values)
    shown: list[Shown] = []
    for _, group in values.groupby(places, sort=False):
        first = group.iloc[0]
        names: Names = first["names"]
        states = Counter(group["state"])
        gains_over = {} if baseline[group.index[0]] else measured.gain_over
        numbers = [] if of_gain else known(group["value"])
        gains = known(group["gain"]) if gains_over else []
        value, gain = Statistic.of(numbers, what.over_seeds), Statistic.of(gains)
        printed = published.find(metric, names, sheet.reduced)
        if of_gain:
            published_gain = printed.value if printed else None
        else:
            over = names_of(first, gains_over) if gains_over else None
            published_gain = _printed_gain(sheet, metric, names, over, published)
        ours = gain if of_gain else value
        comparable = average is None or not (sheet.restricted or (ours is None and states[DIVERGED]))
        facing = None
        if comparable and printed and (printed.value is not None or printed.failed):
            around = margin.around(printed.value or 0.0)
            means = gains if of_gain else numbers if what.over_seeds == "mean" else []
            facing = Facing(
                ours=ours,
                values=tuple(means),
                published=printed,
                seeds=sheet.reported_seeds,
                margin=margin_of_gain(around, printed.value or 0.0) if of_gain else around,
                gain=gain.mean if gain else None,
                published_gain=published_gain,
                of_gains=of_gain,
                complete=len(group) - sum(states[state] for state in ABSENT),
                diverged=states[DIVERGED],
                group=_setting(measured, average, names),
            )
        lost = next((state for state in (DIVERGED, MISSING, STALE) if states[state]), DONE)
        shown.append(
            Shown(
                row=str(first[table.rows]),
                column=str(first[table.columns]) if table.columns else "",
                panel=str(first[table.panels]) if table.panels else "",
                measure=measured.measure,
                label=measured.label or what.label,
                decimals=2 if measured.relative_to else what.decimals,
                names=names,
                value=value,
                values=tuple(numbers),
                without="" if of_gain else WITHOUT[lost],
                gain=gain,
                gains=tuple(gains),
                gain_test=against_point(gains, 0.0, "paired t"),
                gain_p_holm=None,
                seeds=len(group),
                diverged=states[DIVERGED],
                stale=states[STALE],
                missing=states[MISSING],
                published=None if of_gain or printed is None else printed.value,
                published_std=printed.std if printed else None,
                published_gain=published_gain,
                published_notes=list(printed.notes) if printed else [],
                anomalies=printed.anomalies if printed else (),
                margin=margin,
                as_interval=measured.interval,
                facing=facing,
                compared=None,
                runs=[run for joined in group["run"] for run in joined.split()],
            )
        )
    return shown


WITHOUT = {DONE: "—", DIVERGED: "diverged", STALE: "stale", MISSING: "not run"}
"""What is shown in place of a value, by what became of the runs."""


def _printed_gain(
    sheet: Sheet, metric: str | None, names: Names, over: Names | None, published: Published
) -> float | None:
    """The gain of a cell over another one by the published values, if both are printed."""
    if over is None:
        return None
    value, base = (published.find(metric, one, sheet.reduced) for one in (names, over))
    if value is None or base is None or value.value is None or base.value is None:
        return None
    return value.value - base.value


def _setting(measured: Measured, average: Average | None, names: Names) -> Hashable:
    """What is equal for cells that can be ranked against one another: all but what was run."""
    setting = frozenset((key, name) for key, name in names.items() if key not in METHOD)
    return measured.measure, measured.label, average is None, setting


def _ordered(table: Table, shown: list[Shown]) -> list[Shown]:
    """Sort rows by the mean of a measure over columns and panels, if so asked; gaps and averages last."""
    if table.order_by is None:
        return shown
    means: dict[str, list[float]] = {}
    for cell in shown:
        if cell.measure == table.order_by and cell.value:
            means.setdefault(cell.row, []).append(cell.value.mean)
    mean = {row: sum(values) / len(values) for row, values in means.items()}
    return sorted(
        shown, key=lambda cell: (cell.row == AVERAGE, cell.row not in mean, -mean.get(cell.row, 0.0))
    )


def absent(sheet: Sheet, published: Published, shown: Iterable[Shown]) -> list[dict[str, str]]:
    """Names of published values of the table for which it has no cell.

    There are none if the scale is reduced, nor if the runs were restricted: then values are left out on
    purpose, as the heading says.
    """
    if sheet.reduced or sheet.restricted:
        return []
    declared = [cell.reported for cell in sheet.cells]
    found: list[dict[str, str]] = []
    for measured in checked(sheet).measures:
        own = [cell for cell in shown if cell.measure == measured.measure]
        wanted = {False: measured.reported, True: measured.average.reported if measured.average else None}
        for averaged, metric in wanted.items():
            names = [cell.names for cell in own if (cell.row == AVERAGE) == averaged]
            lacking = published.absent(metric, names if averaged else declared, names)
            found += [{"metric": str(metric), **rest} for rest in lacking]
    return found


# ---------------------------------------------------------------- output


def heading(sheet: Sheet) -> str:
    """Title of the item, which says so if the scale is reduced."""
    return f"{sheet.title}. {sheet.scale_note}"


def to_frame(shown: Iterable[Shown], missing: Iterable[Names] = ()) -> pd.DataFrame:
    """All cells in long form, what the CSV file holds; then the published values that have no cell."""
    lines = [_line(cell) for cell in shown]
    lines += [{"names": _text(names), "n": 0, "verdict": "not run"} for names in missing]
    return pd.DataFrame(lines)


def _line(cell: Shown) -> dict[str, Any]:
    against = cell.compared
    low, high = (cell.value.interval if cell.value else None) or (None, None)
    gain_low, gain_high = cell.gain_test.interval or (None, None)
    difference_low, difference_high = (against.interval if against else None) or (None, None)
    return {
        "row": cell.row,
        "column": cell.column,
        "panel": cell.panel,
        "measure": cell.measure,
        "label": cell.label,
        "names": _text(cell.names),
        "mean": cell.value.mean if cell.value else None,
        "over_seeds": measure(cell.measure).over_seeds,
        "std": cell.value.std if cell.value else None,
        "n": cell.value.n if cell.value else 0,
        "low": low,
        "high": high,
        "values": " ".join(f"{value:.10g}" for value in cell.values),
        "diverged": cell.diverged,
        "stale": cell.stale,
        "missing": cell.missing,
        "gain": cell.gain.mean if cell.gain else None,
        "gain_std": cell.gain.std if cell.gain else None,
        "gain_n": cell.gain.n if cell.gain else 0,
        "gain_low": gain_low,
        "gain_high": gain_high,
        "gain_p": cell.gain_test.p,
        "gain_p_holm": cell.gain_p_holm,
        "published": cell.published,
        "published_std": cell.published_std,
        "published_gain": cell.published_gain,
        "published_seeds": cell.facing.seeds if cell.facing else None,
        "published_notes": "; ".join(cell.published_notes),
        "anomalies": "; ".join(cell.anomalies),
        "difference": against.difference if against else None,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "test": against.test if against else "",
        "p": against.p if against else None,
        "p_holm": against.p_holm if against else None,
        "margin": against.margin if against else None,
        "verdict": against.verdict if against else "",
        "runs": " ".join(cell.runs),
    }


def _text(names: Names) -> str:
    return "; ".join(f"{key}={name}" for key, name in names.items())


@dataclass(frozen=True)
class Below:
    """What stands below a table.

    Attributes:
        marks: of the reasons to doubt published values, by reason.
        over_seeds: what sums up the seeds; empty if there is one only.
        comparison: how values were compared, and the margins; empty at a reduced scale.
        stale: what it means that runs are, if any.
        absent: how many published values have no cell, if any.
        assumptions: on what the paper's text leaves open.
    """

    marks: dict[str, str]
    over_seeds: str
    comparison: str
    stale: str
    absent: str
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, sheet: Sheet, shown: Iterable[Shown], missing: Sequence[Names]) -> Below:
        """Collect it."""
        shown = list(shown)
        reasons = dict.fromkeys(reason for cell in shown for reason in cell.anomalies)
        margins = dict.fromkeys(f"{cell.label}: {cell.margin}" for cell in shown if cell.compared)
        return cls(
            marks={reason: str(number) for number, reason in enumerate(reasons, start=1)},
            over_seeds=over_seeds(sheet),
            comparison=COMPARISON.format(margins="; ".join(margins)) if margins else "",
            stale=STALE_RUNS if any(cell.stale for cell in shown) else "",
            absent=f"Published values without a run here: {len(missing)}." if missing else "",
            assumptions=sheet.assumptions,
        )

    @property
    def texts(self) -> list[str]:
        """The notes, one text each, without the assumptions."""
        doubts = [f"[{mark}] Doubtful as published: {reason}." for reason, mark in self.marks.items()]
        return [*filter(None, (self.over_seeds, *doubts, self.comparison, self.stale, self.absent))]


ASSUMED = "Assumed where the paper's text leaves it open:"

COMPARISON = (
    "Differences are ours minus published, with the 95 % interval (Student; Welch where the paper prints a "
    "deviation and its number of seeds). Match: within the margin ({margins}; of an average gain, half of "
    "the published one at most), and an average gain with the published sign. Within noise: no match, but "
    "not significantly different (5 %, Holm over the table); with few seeds this says little, as only large "
    "differences are significant. Differs: no match, and significantly different; or untested, as one seed, "
    "medians and maxima are. Trend only: differs, but the sign of the gain, or without gains the rank, is "
    "the published one."
)


STALE_RUNS = (
    "Stale: the run was trained before one of its components was revised, and its numbers are not shown; it "
    "takes training again."
)


def over_seeds(sheet: Sheet) -> str:
    """One sentence on what stands in a table for the values of several seeds; empty if there is one seed."""
    seeds = len({cell.seed for cell in sheet.cells})
    if seeds < 2:
        return ""
    summaries: dict[str, str] = {}
    for measured in checked(sheet).measures:
        what = measure(measured.measure)
        mean = "mean with its 95 % interval" if measured.interval else "mean ± standard deviation"
        summary = {"mean": mean, "median": "median", "max": "maximum"}[what.over_seeds]
        summaries[measured.label or what.label] = summary
    if len(set(summaries.values())) == 1:
        return f"{summary.capitalize()} over {seeds} seeds."
    return f"Over {seeds} seeds: {'; '.join(f'{label} ({what})' for label, what in summaries.items())}."


@dataclass(frozen=True)
class Grid:
    """A table as people read it: column headings of one to three levels, and texts by row."""

    corner: str
    places: list[tuple[str, str, str, str]]
    """Of each column, the measure's label, panel, column and quantity."""
    columns: list[tuple[str, ...]]
    rows: dict[str, list[str]]

    @classmethod
    def of(cls, sheet: Sheet, shown: Sequence[Shown], marks: Mapping[str, str]) -> Grid:
        """Arrange cells: rows by label; columns by panel, column and quantity, as far as these differ."""
        columns: dict[tuple[str, str, str, str], dict[str, str]] = {}
        for cell in shown:
            for quantity, text in cell.quantities(sheet.reduced, marks).items():
                place = (cell.label, cell.panel, cell.column, quantity)
                columns.setdefault(place, {})[cell.row] = text
        columns = {place: texts for place, texts in columns.items() if any(texts.values())}
        levels = [level for level in (1, 2, 3) if any(place[level] for place in columns)]
        return cls(
            corner=checked(sheet).rows,
            places=list(columns),
            columns=[tuple(place[level] for level in levels) for place in columns],
            rows={
                row: [texts.get(row, "") for texts in columns.values()]
                for row in dict.fromkeys(cell.row for cell in shown)
            },
        )


def to_markdown(sheet: Sheet, grid: Grid, below: Below) -> str:
    """Render as a Markdown table with heading, caption and notes."""
    lines = [[grid.corner, *(" · ".join(filter(None, column)) for column in grid.columns)]]
    lines += [["---"] + ["---:"] * len(grid.columns)]
    lines += [[row, *texts] for row, texts in grid.rows.items()]
    table = "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
    assumed = [ASSUMED, "\n".join(f"- {text}" for text in below.assumptions)] if below.assumptions else []
    return "\n\n".join([f"**{heading(sheet)}**", table, sheet.caption, *below.texts, *assumed]) + "\n"


def to_latex(sheet: Sheet, grid: Grid, below: Below) -> str:
    """Render as a LaTeX table (package booktabs) with its notes below."""
    frame = pd.DataFrame.from_dict(grid.rows, orient="index")
    # With one level only, pandas would show the tuples themselves.
    one_level = all(len(column) == 1 for column in grid.columns)
    frame.columns = (
        pd.Index([*itertools.chain(*grid.columns)]) if one_level else pd.MultiIndex.from_tuples(grid.columns)
    )
    styler = frame.style.format(escape="latex")
    for axis in (0, 1):
        styler = styler.format_index(escape="latex", axis=axis)
    latex = styler.to_latex(
        hrules=True,
        caption=_latex_text(f"{heading(sheet)} {sheet.caption}"),
        label=f"tab:{sheet.id.replace('/', '-')}",
        column_format="l" + "r" * len(grid.columns),
        multicol_align="c",
        position_float="centering",
    )
    end = r"\end{table}"
    assumed = [" ".join((ASSUMED, *below.assumptions))] if below.assumptions else []
    notes = (f"\\par\\footnotesize {_latex_text(text)}\n" for text in (*below.texts, *assumed))
    latex = latex.replace(end, "".join(notes) + end)
    for text, command in LATEX_COMMANDS.items():
        latex = latex.replace(text, command)
    return latex


LATEX_COMMANDS = {
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "—": "---",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "·": r"$\cdot$",
    "<": r"$<$",
    ">": r"$>$",
}


LATEX_SPECIAL = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
    }
)


def _latex_text(text: str) -> str:
    return text.translate(LATEX_SPECIAL)


def write(
    sheet: Sheet,
    runs: Runs,
    published: Path | None,
    outputs: Mapping[str, Path],
    anomalies: Path | None = None,
) -> None:
    """Make a table and write it in the forms asked for.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run id, complete or not.
        published: file of published values, or None.
        outputs: file by form: ``csv`` (long form), ``md``, ``tex``, ``html``, and ``published`` (an HTML page
            of the published values alone).
        anomalies: file of reasons to doubt published values, or None.
    """
    printed = Published.read(published, anomalies)
    runs = cache(runs)  # all measures look into the same records
    shown = cells(sheet, runs, printed)
    missing = absent(sheet, printed, shown)
    below = Below.of(sheet, shown, missing)
    grid = Grid.of(sheet, shown, below.marks)
    render: dict[str, Callable[[], str]] = {
        "csv": lambda: to_frame(shown, missing).to_csv(index=False),
        "md": lambda: to_markdown(sheet, grid, below),
        "tex": lambda: to_latex(sheet, grid, below),
        "html": lambda: table_page(sheet, grid, shown, below, runs, outputs["html"].parent),
        "published": lambda: published_page(sheet, grid, shown, below),
    }
    for form, path in outputs.items():
        write_text(path, render[form]())
