"""Figures: curves over rounds, points and bars, and the images of each class at each client.

This module writes all figures. Histograms and selected steps are drawn in ``distributions``, figures of
trained models in ``preferences`` and ``inversion``. Missing runs are named below the figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.core.statistics import Sample, contrast, known
from fltrain.data.prepared import load_prepared, partition
from fltrain.experiments.layout import (
    Bubbles,
    Curves,
    Figure,
    Histogram,
    Inversion,
    ItemJob,
    Labels,
    Measured,
    Panel,
    Points,
    Preference,
    Ranking,
    SelectedSteps,
    Table,
    Variance,
    named,
)
from fltrain.experiments.published import Published
from fltrain.reporting.figures import distributions, style
from fltrain.reporting.figures.style import Look
from fltrain.reporting.frame import (
    NothingToShow,
    Runs,
    curve,
    diverged,
    finished,
)
from fltrain.reporting.tables.cells import cells
from fltrain.runs.measures import measure
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec

NAMED = 6
"""Maximum number of missing runs whose cells are named below a figure; more are only counted."""

THIN_LINES = "Thin lines: seeds that are left when another one has diverged."


def draw(sheet: ItemJob, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Draw a figure; return it with the numbers that it shows.

    Raises:
        FltrainError: if none of its runs is there, or a record lacks the numbers that the figure shows.
    """
    assert sheet.figure is not None
    notes = [sheet.scale_note, *_notes(sheet, results)]
    with matplotlib.rc_context(style.STYLE):
        try:
            canvas, numbers = _drawn(sheet, sheet.figure, results)
        except NothingToShow:
            canvas, ((axes,),) = style.canvas(1)
            style.no_runs(axes)
            numbers = pd.DataFrame()
        style.footnote(canvas, " ".join(notes))
    return canvas, numbers


def _drawn(sheet: ItemJob, figure: Figure, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Return the canvas and the numbers of a figure, by its kind."""
    match figure:
        case Curves():
            return _draw_curves(sheet, figure, results)
        case Points():
            return _draw_points(sheet, figure, results)
        case Ranking():
            return _draw_ranking(sheet, figure, results)
        case Histogram():
            return distributions.draw_histogram(sheet, figure, results)
        case SelectedSteps():
            return distributions.draw_selected_steps(sheet, figure, results)
        case Bubbles():
            return _draw_bubbles(sheet, figure, results)
        # The others look into trained models; their drawers load torch.
        case Preference():
            from fltrain.reporting.figures.preferences import draw_preferences

            return draw_preferences(sheet, figure, results)
        case Variance():
            from fltrain.reporting.figures.preferences import draw_variances

            return draw_variances(sheet, figure, results)
        case Inversion():
            from fltrain.reporting.figures import inversion as inversions

            recovered = inversions.attack(sheet, figure, results)
            return inversions.draw(recovered), inversions.measurements(recovered)


def write(sheet: ItemJob, results: Results, outputs: Iterable[Path]) -> None:
    """Draw a figure and write it in the forms that the file names end in (pdf, png, svg).

    A file that ends in csv gets the numbers that the figure shows.

    Raises:
        FltrainError: if the figure cannot be drawn.
    """
    canvas, numbers = draw(sheet, results)
    for path in outputs:
        with replacing(path) as temporary, matplotlib.rc_context(style.STYLE):
            if path.suffix == ".csv":
                numbers.to_csv(temporary, index=False)
                continue
            # Without a date, equal figures are equal files.
            metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix)
            canvas.savefig(temporary, format=path.suffix[1:], dpi=200, metadata=metadata)


# ---------------------------------------------------------------- notes
def _notes(sheet: ItemJob, results: Results) -> list[str]:
    """Return notes on lines and bands, and on missing and diverged runs."""
    notes: list[str] = []
    if isinstance(sheet.figure, Bubbles):
        return notes
    records = {cell.run: record for cell, record in finished(sheet, results.record)}
    if not records:
        raise FltrainError(f"{sheet.id}: none of its {len(sheet.cells)} runs has a record; train them first")
    seeds = len({cell.seed for cell in sheet.cells if cell.run in records})
    if isinstance(sheet.figure, Curves | Points):
        notes += [f"Mean and range over {seeds} seeds."] if seeds > 1 else []
    if isinstance(sheet.figure, Curves) and any(panel.difference_from for panel in sheet.figure.panels):
        notes.append("Differences are paired by seed; bands are 90 % intervals of their means.")
    if (
        isinstance(sheet.figure, Curves)
        and sheet.figure.columns
        and (fitted := [panel.label for panel in sheet.figure.panels if panel.fits_late])
    ):
        which = "Vertical axes" if len(fitted) == len(sheet.figure.panels) else f"Axes of {', '.join(fitted)}"
        notes.append(f"{which} fit the second half of the rounds; earlier values beyond them are cut off.")
    if isinstance(sheet.figure, Ranking):
        figure = sheet.figure
        notes += [
            f"Every {figure.rows}, {figure.difference_from} included: {labels[0]} {axis}."
            for axis, labels in sheet.axes.items()
            if axis not in (figure.rows, figure.series)
        ]
        notes.append(
            f"Differences from {figure.difference_from}, paired by seed ({seeds} seeds), with 90 % "
            f"intervals; grey: {figure.margin:g} points. Intervals are not corrected for the number of "
            "comparisons. Rows are ordered by their mean over the panels, which have their own scales. "
            "Diverged runs count as chance."
        )
    if isinstance(sheet.figure, Histogram):
        notes += [f"Layers of {seeds} seeds together."] if seeds > 1 else []
    if isinstance(sheet.figure, Curves) and sheet.figure.smoothing > 1:
        notes.append(f"Centred means over {sheet.figure.smoothing} {sheet.figure.over}, pale as measured.")
    ended = {run for run, record in records.items() if diverged(record)}
    missing = {cell.run for cell in sheet.cells} - set(records)
    damaged = {run for run in missing if results.record(run).complete}
    notes_on = {"Not run": missing - damaged, "Damaged": damaged, "Diverged": ended}
    for what, left_out in notes_on.items():
        if left_out:
            notes.append(f"{what}: {_named(sheet, left_out)}.")
    if ended and seeds > 1 and isinstance(sheet.figure, Curves):
        notes.append(THIN_LINES)
    return notes


def _named(sheet: ItemJob, runs: set[str]) -> str:
    """Name the cells of runs by their labels on axes with several labels; name seeds if some are missing."""
    varied = [axis for axis, labels in sheet.axes.items() if len(labels) > 1]
    places: dict[str, list[tuple[int, bool]]] = {}
    for cell in sheet.cells:
        name = ", ".join(cell.labels[axis] for axis in varied)
        places.setdefault(name, []).append((cell.seed, cell.run in runs))
    named: list[str] = []
    for name, seeds in places.items():
        of_them = [str(seed) for seed, meant in seeds if meant]
        if len(of_them) == len(seeds) and name:
            named.append(name)
        elif of_them:
            listed = f"seed{'s' if len(of_them) > 1 else ''} {', '.join(of_them)}"
            named.append(f"{name} ({listed})" if name else listed)
    if len(named) > NAMED:
        return f"{len(runs)} of {len({cell.run for cell in sheet.cells})} runs"
    return "; ".join(named)


# ---------------------------------------------------------------- curves
def curves(
    sheet: ItemJob, figure: Curves, panel: Panel, runs: Runs, where: Labels | None = None
) -> pd.DataFrame:
    """Return the curves of a panel for the cells ``where``: rounds down, one column per (label, seed)."""
    columns: dict[tuple[str, int], pd.Series] = {}
    for cell, record in finished(sheet, runs):
        if (where or {}).items() <= cell.labels.items():
            found = curve(record, panel.curve)
            if figure.over == "epochs":
                found.index = found.index * record.spec["training"]["epochs"]
            if figure.series in cell.labels:  # a run that diverged at once has an empty curve
                columns[cell.labels[figure.series], cell.seed] = found.get("", pd.Series(dtype=float))
            else:
                columns.update({(str(part), cell.seed): found[part] for part in found})
    for base in [*panel.reduction_from.values(), *panel.difference_from.values()]:
        # Paired by seed. A reduction is in per cent of the baseline, and positive below it.
        columns = {
            (label, seed): 100 * (1 - values / columns[base, seed])
            if panel.reduction_from
            else 100 * (values - columns[base, seed])
            for (label, seed), values in columns.items()
            if label != base and (base, seed) in columns
        }
    frame = pd.DataFrame(columns).sort_index()
    return frame / frame.max() if panel.normalise else frame


def smoothed(values: pd.Series, window: int) -> pd.Series:
    """Return centred means over ``window`` units of the index (rounds or epochs), at the same places.

    At both ends windows are narrower, so that they stay centred: a straight line stays as it is.
    """
    values = values.dropna()
    if values.empty:
        return values
    places = values.index.to_numpy()
    half = np.minimum((window - 1) / 2, np.minimum(places - places[0], places[-1] - places))
    first = np.searchsorted(places, places - half, side="left")
    behind = np.searchsorted(places, places + half, side="right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return pd.Series((sums[behind] - sums[first]) / (behind - first), index=values.index)


def _draw_curves(sheet: ItemJob, figure: Curves, results: Results) -> tuple[Canvas, pd.DataFrame]:
    def points(axis: str | None) -> list[Labels]:
        return [{axis: label} for label in sheet.axes[axis]] if axis else [{}]

    rows, columns = points(figure.rows), points(figure.columns)
    if figure.columns:
        places = [[(panel, row | column) for column in columns] for row in rows for panel in figure.panels]
    else:
        places = [[(panel, row) for panel in figure.panels] for row in rows]
    frames = [
        [curves(sheet, figure, panel, results.record, where) for panel, where in line] for line in places
    ]
    if figure.series in sheet.axes:
        look_of = style.looks(sheet.axes[figure.series], figure.series, sheet.cells)
    else:
        parts = dict.fromkeys(label for across in frames for frame in across for label in _labels(frame))
        look_of = dict(zip(parts, style.scale(len(parts)), strict=True))
    width = len(places[0])
    canvas, grid = style.canvas(width, len(places))
    names = ["panel", "series", "seed", figure.over, "value", *(["smoothed"] if figure.smoothing > 1 else [])]
    numbers = [pd.DataFrame(columns=names)]
    for line, across, shown in zip(places, grid, frames, strict=True):
        same_height: list[Axes] = []
        for (panel, where), axes, frame in zip(line, across, shown, strict=True):
            heading = [*(named(axis, label) for axis, label in where.items()), panel.label]
            style.heading(axes, heading, width)
            if frame.empty:
                style.no_runs(axes)
                continue
            drawn = pd.DataFrame({"value": frame.unstack()})
            if figure.smoothing > 1:
                drawn["smoothed"] = frame.apply(smoothed, window=figure.smoothing).unstack()
            drawn = drawn.rename_axis(names[1:4]).dropna().reset_index()
            numbers.append(drawn.assign(panel=", ".join(heading))[names])
            widths = half_widths(frame, figure.smoothing) if panel.difference_from else None
            draw_lines(axes, frame, look_of, figure.smoothing, widths)
            axes.set_xlabel("communication round" if figure.over == "rounds" else "local epochs")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            if panel.reduction_from or panel.difference_from:
                axes.axhline(0, color=style.GREY, linewidth=0.8)
            elif panel.curve.endswith((".accuracy", ".macro")) and not panel.normalise:
                axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
            if figure.columns:
                same_height.append(axes)
        if same_height and line[0][0].fits_late:
            late = pd.concat([frame.tail(len(frame) // 2 + 1) for frame in shown], axis=1)
            low, high = late.min().min(), late.max().max()
            if line[0][0].difference_from:
                low, high = min(0.0, low), max(0.0, high)
            same_height[0].set_ylim(low - (high - low) / 10, high + (high - low) / 10)
        for axes in same_height[1:]:
            axes.sharey(same_height[0])
    style.legend(canvas, [axes for across in grid for axes in across], figure.series)
    return canvas, pd.concat(numbers[1:] or numbers, ignore_index=True)


def _labels(frame: pd.DataFrame) -> list[str]:
    """Return the labels of the curves, in order."""
    return list(dict.fromkeys(str(column[0]) for column in frame.columns))


def half_widths(frame: pd.DataFrame, window: int) -> pd.DataFrame:
    """Return half the 90 % interval of each line's mean over seeds, at each round (NaN without one)."""
    shown = frame.apply(smoothed, window=window) if window > 1 else frame

    def half(values: pd.Series) -> float:
        found = contrast(Sample(known(values)))
        return found.quantile * found.error if found else math.nan

    return pd.DataFrame({label: shown[label].apply(half, axis=1) for label in _labels(frame)})


def draw_lines(
    axes: Axes,
    frame: pd.DataFrame,
    look_of: dict[str, Look],
    window: int,
    intervals: pd.DataFrame | None = None,
) -> None:
    """Draw the mean over seeds and their range or interval, with about eight markers on each line.

    If some runs end earlier, the mean continues over the remaining runs, thin and without a range.
    """
    for index, (label, look) in enumerate(look_of.items()):
        # Other lines can have points at other places; those are no gaps in this one.
        seeds = frame.loc[:, [column[0] == label for column in frame.columns]].dropna(how="all")
        if seeds.empty:
            continue
        if window > 1:
            axes.plot(seeds.index, seeds.mean(axis=1), color=look.colour, alpha=0.3, linewidth=0.7)
            seeds = seeds.apply(smoothed, window=window)
        every = max(1, len(seeds) // 8)
        mean, whole = seeds.mean(axis=1), seeds.notna().all(axis=1)
        axes.plot(
            seeds.index,
            mean.where(whole),
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            # Lines that coincide show their markers in turn.
            markevery=(index * every // len(look_of), every),
            markeredgewidth=0,
            label=style.shown(label),
        )
        if seeds.shape[1] > 1:
            if intervals is not None:
                half = intervals[label].reindex(seeds.index)
                low, high = (mean - half).where(whole), (mean + half).where(whole)
            else:
                low, high = (seeds.agg(end, axis=1).where(whole) for end in ("min", "max"))
            axes.fill_between(seeds.index, low, high, color=look.colour, alpha=0.15, linewidth=0)
        if not whole.all():
            beside = ~whole.shift(-1, fill_value=True) | ~whole.shift(1, fill_value=True)
            rest = mean.where(~whole | beside)
            axes.plot(seeds.index, rest, color=look.colour, linestyle=look.dash, linewidth=0.6)


# ---------------------------------------------------------------- points and bars
def points(sheet: ItemJob, figure: Points, runs: Runs) -> pd.DataFrame:
    """Return one line per run that did not diverge: its labels on the axes shown, its seed, the measure."""
    lines: list[tuple[str, str, int, float]] = []
    for cell, record in finished(sheet, runs):
        found = measure(figure.measure).of(record)
        if found:
            series = cell.labels[figure.series] if figure.series else ""
            (value,) = found.values()
            lines.append((series, cell.labels[figure.along], cell.seed, value))
    return pd.DataFrame(lines, columns=["series", figure.along, "seed", "value"])


def _draw_points(sheet: ItemJob, figure: Points, results: Results) -> tuple[Canvas, pd.DataFrame]:
    numbers = points(sheet, figure, results.record)
    canvas, ((axes,),) = style.canvas(1)
    along = sheet.axes[figure.along]
    series = sheet.axes[figure.series] if figure.series else ("",)
    looks = style.looks(series, figure.series, sheet.cells)
    for index, (label, look) in enumerate(looks.items()):
        seeds = numbers[numbers["series"] == label].groupby(figure.along)["value"]
        mean, low, high = (getattr(seeds, what)().reindex(along) for what in ("mean", "min", "max"))
        ranges = [mean - low, high - mean]
        if figure.kind == "points":
            axes.errorbar(
                along,
                mean,
                yerr=ranges,
                color=look.colour,
                linestyle=look.dash,
                marker=look.marker,
                capsize=3,
                label=style.shown(label),
            )
        else:
            width = 0.84 / len(looks)
            bars = axes.bar(
                np.arange(len(along)) + (index - (len(looks) - 1) / 2) * width,
                mean,
                width,
                yerr=ranges,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                ecolor=style.GREY,
                capsize=2,
                label=style.shown(label),
            )
            # Bars start at zero, where small differences are hard to see.
            axes.bar_label(bars, fmt="%.1f", fontsize=style.SMALL, padding=2, rotation=90)
            axes.set_xticks(range(len(along)), along)
            axes.grid(visible=False, axis="x")
    axes.set_xlabel(figure.label)
    axes.set_ylabel(measure(figure.measure).label)
    axes.margins(x=0.08 if figure.kind == "points" else 0.02, y=0.12)
    if figure.series:
        style.legend(canvas, [axes], figure.series)
    return canvas, numbers


# ---------------------------------------------------------------- ranking
def ranking(sheet: ItemJob, figure: Ranking, runs: Runs) -> pd.DataFrame:
    """Return mean, ``low`` and ``high`` end of the differences by row (best first) and series.

    They are the gains of a table of these runs, without the row from which the others differ. The ends are
    missing (NaN) if there is no interval.
    """
    measured = Measured(measure=figure.measure, gain_over={figure.rows: figure.difference_from})
    table = Table(rows=figure.rows, columns=figure.series, measures=(measured,))
    lines = [
        (cell.row, cell.column, cell.gain, *(cell.gain_interval or (math.nan, math.nan)), len(cell.gains))
        for cell in cells(sheet.model_copy(update={"table": table}), runs, Published())
        if cell.gains
    ]
    names = [figure.rows, figure.series, "difference", "low", "high", "seeds"]
    numbers = pd.DataFrame(sorted(lines), columns=names)
    order = numbers.groupby(figure.rows)["difference"].mean()
    return numbers.sort_values(
        figure.rows, key=lambda rows: -rows.map(order), kind="stable", ignore_index=True
    )


def _draw_ranking(sheet: ItemJob, figure: Ranking, results: Results) -> tuple[Canvas, pd.DataFrame]:
    numbers = ranking(sheet, figure, results.record)
    rows, series = list(dict.fromkeys(numbers[figure.rows])), sheet.axes[figure.series]
    canvas, (panels,) = style.canvas(len(series))
    canvas.set_figheight(1.2 + 0.24 * len(rows))
    # Each panel has its own scale: differences can be much larger in one than in another.
    for axes, label in zip(panels, series, strict=True):
        shown = numbers[numbers[figure.series] == label]
        style.heading(axes, [named(figure.series, label)], len(series))
        axes.axvspan(-figure.margin, figure.margin, color=style.GREY, alpha=0.15, linewidth=0)
        axes.axvline(0, color=style.GREY, linewidth=0.8)
        axes.errorbar(
            shown["difference"],
            [rows.index(row) for row in shown[figure.rows]],
            xerr=[(shown["difference"] - shown[end]).abs().fillna(0.0) for end in ("low", "high")],
            color=style.INDIGO,
            marker="o",
            linestyle="none",
            capsize=2,
        )
        axes.set_yticks(range(len(rows)), rows if axes is panels[0] else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(f"difference from {figure.difference_from}, points")
    return canvas, numbers


# ---------------------------------------------------------------- images of each class at each client
def class_counts(sheet: ItemJob, figure: Bubbles, results: Results) -> pd.DataFrame:
    """Return the number of images of each panel, client and class, for the first seed."""
    first = min(cell.seed for cell in sheet.cells)
    counts: dict[str, pd.DataFrame] = {}
    for cell in sheet.cells:
        if cell.seed == first:
            spec = RunSpec.recorded(cell.spec, cell.run)
            data = load_prepared(spec.dataset, results.data(spec.dataset))
            counts[cell.labels[figure.columns]] = pd.DataFrame(partition(spec.division, data).counts)
    images = pd.DataFrame({"images": pd.concat(counts).stack()})
    return images.rename_axis(["panel", "client", "class"]).reset_index()


def _draw_bubbles(sheet: ItemJob, figure: Bubbles, results: Results) -> tuple[Canvas, pd.DataFrame]:
    numbers = class_counts(sheet, figure, results)
    panels = dict(iter(numbers.groupby("panel", sort=False)))
    canvas, (all_axes,) = style.canvas(len(panels))
    for axes, (label, shown) in zip(all_axes, panels.items(), strict=True):
        areas = 160 * shown["images"] / numbers["images"].max()
        axes.scatter(shown["client"], shown["class"], areas, color=style.INDIGO, alpha=0.75, linewidth=0)
        style.heading(axes, [str(label)], len(panels))
        axes.set_xlabel("client")
        axes.set_ylabel("class")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(0.08)
    return canvas, numbers
