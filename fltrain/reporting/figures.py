"""Figures: curves over rounds, mean and range over seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from fltrain.errors import FltrainError
from fltrain.experiments import Figure, Panel, Sheet
from fltrain.files import replacing
from fltrain.records import Record

# Okabe and Ito's palette, which colour-blind readers can tell apart, with a line style each for print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MILLIMETRE = 1 / 25.4

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
}


def curve(record: Record, name: str) -> pd.Series:
    """Return ``kind.field`` of a record's rows over the rounds; rows without a value are left out.

    Raises:
        FltrainError: if the record has no such rows.
    """
    kind, _, value = name.partition(".")
    points = {row["round"]: row[value] for row in record.rows(kind) if row.get(value) is not None}
    if not points and record.summary["status"] != "diverged":
        raise FltrainError(
            f"{record.run_id} has no {name!r}; does its spec ask for it (evaluation.statistics)? "
            f"(kinds of rows: {', '.join(sorted({row['kind'] for row in record.metrics}))})"
        )
    return pd.Series(points, dtype=float)


def curves(sheet: Sheet, figure: Figure, panel: Panel, runs: Callable[[str], Record]) -> pd.DataFrame:
    """Curves of a panel: rounds down, one column per (label on the axis ``series``, seed)."""
    columns = {
        (cell.labels[figure.series], cell.seed): curve(runs(cell.run), panel.curve) for cell in sheet.cells
    }
    if panel.reduction_from:
        (base,) = panel.reduction_from.values()
        # In percent of the baseline with the same seed; positive is less than the baseline.
        columns = {
            (label, seed): 100 * (1 - values / columns[base, seed])
            for (label, seed), values in columns.items()
            if label != base
        }
    return pd.DataFrame(columns).sort_index()


def write(sheet: Sheet, runs: Callable[[str], Record], outputs: Iterable[Path]) -> None:
    """Draw a figure and write it in the forms that the file names end in (pdf, png, svg)."""
    if sheet.figure is None:
        raise FltrainError(f"{sheet.id} is not a figure")
    if sheet.figure.series not in sheet.axes:
        raise FltrainError(f"{sheet.id}: {sheet.figure.series!r} is no axis (axes: {', '.join(sheet.axes)})")
    labels = sheet.axes[sheet.figure.series]
    with matplotlib.rc_context(STYLE):
        panels = sheet.figure.panels
        canvas = Canvas(figsize=(75 * len(panels) * MILLIMETRE, 68 * MILLIMETRE), layout="constrained")
        for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, curves(sheet, sheet.figure, panel, runs), labels)
            axes.set_title(panel.label, loc="left")
            axes.set_xlabel("communication round")
            if panel.reduction_from:
                axes.axhline(0, color="#5b6675", linewidth=0.8)
        handles, names = canvas.axes[0].get_legend_handles_labels()
        canvas.legend(handles, names, loc="outside upper right", ncols=len(names))
        note = "\n".join(textwrap.wrap(sheet.scale_note, width=55 * len(panels)))
        canvas.supxlabel(note, fontsize=7.5, color="#5b6675", x=0.01, ha="left")
        for path in outputs:
            with replacing(path) as temporary:
                # Without a date, equal figures are equal files.
                metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
                canvas.savefig(temporary, format=path.suffix[1:], dpi=200, metadata=metadata)


def _draw(axes: Axes, frame: pd.DataFrame, labels: Iterable[str]) -> None:
    for index, label in enumerate(labels):
        seeds = frame.loc[:, [column for column in frame.columns if column[0] == label]]
        if seeds.empty:
            continue
        colour, style = COLOURS[index % len(COLOURS)], STYLES[index % len(STYLES)]
        axes.plot(seeds.index, seeds.mean(axis=1), color=colour, linestyle=style, label=label)
        axes.fill_between(
            seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=colour, alpha=0.15, linewidth=0
        )
