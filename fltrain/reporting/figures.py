"""Figures: curves over rounds (mean and range over seeds), and the images of each class at each client."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from fltrain.errors import FltrainError
from fltrain.files import read_arrays, replacing
from fltrain.records import Record, Results
from fltrain.reporting import inversions
from fltrain.reporting.inversions import Inversion
from fltrain.reporting.layout import Bubbles, Curves, Labels, Panel, Preference, Sheet, Variance

# Okabe and Ito's palette, which colour-blind readers can tell apart, with a line style each for print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MILLIMETRE = 1 / 25.4
PANEL = 75
"""Width of a panel in millimetres."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fltrain",
}


def curve(record: Record, name: str) -> pd.DataFrame:
    """Return ``kind.field`` of a record's rows over the rounds; rows without a value are left out.

    There is one column, or one per layer or block if the field holds several numbers. Where a round has
    several such rows (tests on further data sets), the first counts, the run's own test.

    Raises:
        FltrainError: if the record has no such rows.
    """
    kind, _, value = name.partition(".")
    points: dict[int, dict[str, float]] = {}
    for row in record.rows(kind):
        found = row.get(value)
        if found is not None:
            points.setdefault(row["round"], found if isinstance(found, dict) else {"": found})
    if not points and record.summary["status"] != "diverged":
        raise FltrainError(
            f"{record.run_id} has no {name!r}; does its spec ask for it (evaluation.statistics)? "
            f"(kinds of rows: {', '.join(sorted({row['kind'] for row in record.metrics}))})"
        )
    return pd.DataFrame.from_dict(points, orient="index", dtype=float)


def curves(
    sheet: Sheet, figure: Curves, panel: Panel, runs: Callable[[str], Record], where: Labels | None = None
) -> pd.DataFrame:
    """Curves of a panel, of the cells ``where``: rounds down, a column per (label on ``series``, seed)."""
    columns: dict[tuple[str, int], pd.Series] = {}
    for cell in sheet.cells:
        if (where or {}).items() <= cell.labels.items():
            record = runs(cell.run)
            found = curve(record, panel.curve)
            if figure.over == "epochs":
                found.index = found.index * record.spec["training"]["epochs"]
            if figure.series in cell.labels:  # a run that diverged at once has an empty curve
                columns[cell.labels[figure.series], cell.seed] = found.get("", pd.Series(dtype=float))
            else:
                columns.update({(str(part), cell.seed): found[part] for part in found})
    if panel.reduction_from:
        (base,) = panel.reduction_from.values()
        # In percent of the baseline with the same seed; positive is less than the baseline.
        columns = {
            (label, seed): 100 * (1 - values / columns[base, seed])
            for (label, seed), values in columns.items()
            if label != base
        }
    frame = pd.DataFrame(columns).sort_index()
    return frame / frame.max() if panel.normalise else frame


def class_counts(sheet: Sheet, figure: Bubbles, partitions: Results) -> dict[str, pd.DataFrame]:
    """Images by client (down) and class (across) of each panel, for the first seed."""
    first = min(cell.seed for cell in sheet.cells)
    counts: dict[str, pd.DataFrame] = {}
    for cell in sheet.cells:
        if cell.seed == first:
            arrays, _ = read_arrays(partitions.partition_file(cell.partition), "partition")
            counts[cell.labels[figure.columns]] = pd.DataFrame(arrays["counts"])
    return counts


def write(sheet: Sheet, results: Results, outputs: Iterable[Path]) -> None:
    """Draw a figure and write it in the forms that the file names end in (pdf, png, svg).

    A file that ends in csv gets the numbers that the figure shows.

    Raises:
        FltrainError: if the sheet is no figure, or a record does not hold what it shows.
    """
    if sheet.figure is None:
        raise FltrainError(f"{sheet.id} is not a figure")
    sheet.figure.check(sheet.id, sheet.axes)
    with matplotlib.rc_context(STYLE):
        match sheet.figure:
            case Curves():
                canvas, numbers = _draw_curves(sheet, sheet.figure, results)
            case Bubbles():
                canvas, numbers = _draw_bubbles(sheet, sheet.figure, results)
            # The others look into trained models; their drawers load torch.
            case Preference():
                from fltrain.reporting.preferences import draw_preferences

                canvas, numbers = draw_preferences(sheet, sheet.figure, results)
            case Variance():
                from fltrain.reporting.preferences import draw_variances

                canvas, numbers = draw_variances(sheet, sheet.figure, results)
            case Inversion():
                recovered = inversions.attack(sheet, sheet.figure, results)
                canvas, numbers = inversions.draw(recovered), inversions.measurements(recovered)
        width = canvas.get_figwidth() / MILLIMETRE
        note = "\n".join(textwrap.wrap(sheet.scale_note, width=int(width * 2 / 3)))
        canvas.supxlabel(note, fontsize=7.5, color="#5b6675", x=0.01, ha="left")
        for path in outputs:
            with replacing(path) as temporary:
                if path.suffix == ".csv":
                    numbers.to_csv(temporary, index=False)
                    continue
                # Without a date, equal figures are equal files.
                metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix)
                canvas.savefig(temporary, format=path.suffix[1:], dpi=200, metadata=metadata)


def _canvas(columns: int, rows: int = 1) -> tuple[Canvas, Sequence[Sequence[Axes]]]:
    canvas = Canvas(figsize=(PANEL * columns * MILLIMETRE, 68 * rows * MILLIMETRE), layout="constrained")
    grid: Sequence[Sequence[Axes]] = canvas.subplots(rows, columns, squeeze=False).tolist()
    return canvas, grid


def _draw_curves(sheet: Sheet, figure: Curves, results: Results) -> tuple[Canvas, pd.DataFrame]:
    def points(axis: str | None) -> list[Labels]:
        return [{axis: label} for label in sheet.axes[axis]] if axis else [{}]

    rows = points(figure.rows)
    columns = [(panel, point) for point in points(figure.columns) for panel in figure.panels]
    canvas, grid = _canvas(len(columns), len(rows))
    numbers: list[pd.DataFrame] = []
    for row, across in zip(rows, grid, strict=True):
        for (panel, column), axes in zip(columns, across, strict=True):
            where = row | column
            frame = curves(sheet, figure, panel, results.record, where)
            labels = sheet.axes.get(figure.series) or list(dict.fromkeys(frame.columns.get_level_values(0)))
            _draw(axes, frame, labels)
            title = ", ".join([*where.values(), panel.label])
            numbers.append(_long(frame, title, figure.over))
            axes.set_title(title, loc="left")
            axes.set_xlabel("communication round" if figure.over == "rounds" else "local epochs")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if panel.reduction_from:
                axes.axhline(0, color="#5b6675", linewidth=0.8)
    handles, names = grid[0][0].get_legend_handles_labels()
    # As many in a line as fit: about 14 mm for the stroke and gaps and 2 mm for each character.
    fitting = int(PANEL * len(columns) / (14 + 2 * max(map(len, names), default=1)))
    canvas.legend(handles, names, loc="outside upper right", ncols=max(1, min(len(names), fitting)))
    return canvas, pd.concat(numbers, ignore_index=True)


def _long(frame: pd.DataFrame, title: str, over: str) -> pd.DataFrame:
    """Curves of a panel with one line per point."""
    columns = ["panel", "series", "seed", over, "value"]
    lines = [
        (title, *frame.columns[column], place, value)
        for column in range(frame.shape[1])
        for place, value in frame.iloc[:, column].dropna().items()
    ]
    return pd.DataFrame(lines, columns=columns)


def _draw_bubbles(sheet: Sheet, figure: Bubbles, results: Results) -> tuple[Canvas, pd.DataFrame]:
    panels = class_counts(sheet, figure, results)
    canvas, (all_axes,) = _canvas(len(panels))
    largest = max(int(counts.to_numpy().max()) for counts in panels.values())
    for axes, (label, counts) in zip(all_axes, panels.items(), strict=True):
        clients, classes = np.indices(counts.shape)
        area = 160 * counts.to_numpy() / largest
        axes.scatter(
            clients.ravel(), classes.ravel(), s=area.ravel(), color=COLOURS[1], alpha=0.75, linewidth=0
        )
        axes.set_title(label, loc="left")
        axes.set_xlabel("client")
        axes.set_ylabel("class")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(0.08)
    lines = [
        (label, client, class_, int(count))
        for label, counts in panels.items()
        for (client, class_), count in np.ndenumerate(counts.to_numpy())
    ]
    return canvas, pd.DataFrame(lines, columns=["panel", "client", "class", "images"])


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
