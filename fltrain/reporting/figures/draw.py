"""Figures: long-form numbers of runs, drawn by Vega-Lite without a browser.

Each kind of figure has a function that returns its numbers, a data frame, and rows of panels (``style``).
Figures of trained models are in ``models``. Missing runs are named below the figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import escape
from scipy.stats import skew

from fltrain.core.errors import FltrainError, listed
from fltrain.core.files import replacing
from fltrain.core.statistics import Sample, contrast, known
from fltrain.data.prepared import load_prepared, partition
from fltrain.experiments.layout import (
    SEEDS,
    Bubbles,
    Curves,
    Figure,
    Histogram,
    ItemJob,
    Labels,
    Measured,
    Panel,
    Points,
    Ranking,
    SelectedSteps,
    Table,
    named,
)
from fltrain.experiments.published import Published
from fltrain.reporting.figures import style
from fltrain.reporting.figures.style import Drawn, Spec, panel, quantity, whole_numbers
from fltrain.reporting.frame import (
    Runs,
    curve,
    diverged,
    finished,
    first_of_each,
    measured_values,
    resolution,
)
from fltrain.reporting.pages import TEMPLATES
from fltrain.reporting.tables.cells import cells
from fltrain.runs.measures import best_accuracy, measure
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec

NAMED = 6
"""Maximum number of missing runs that are named below a figure; more are only counted."""
MOST_CLIENTS = 12
"""Maximum number of clients below one another."""
STEPS = {"other local steps": "#dfe3ea", "selected local steps": style.INDIGO}
VEGA_LITE = "6.1"


def draw(sheet: ItemJob, results: Results) -> tuple[Spec, pd.DataFrame]:
    """Return the Vega-Lite specification of a figure, and the numbers that it shows.

    Raises:
        FltrainError: if none of its runs is there, or a record lacks the numbers that the figure shows.
    """
    assert sheet.figure is not None
    records = {cell.run: record for cell, record in finished(sheet, results.record)}
    if not records and not isinstance(sheet.figure, Bubbles):
        raise FltrainError(f"{sheet.id}: none of its runs has a record; train them first")
    rows, numbers = _drawn(sheet, sheet.figure, results)
    return style.figure(rows, _notes(sheet, sheet.figure, results, records, numbers)), numbers


def _drawn(sheet: ItemJob, figure: Figure, results: Results) -> Drawn:
    """Return the panels and the numbers of a figure, by its kind."""
    match figure:
        case Curves():
            return draw_curves(sheet, figure, results.record)
        case Points():
            return draw_points(sheet, figure, results.record)
        case Ranking():
            return draw_ranking(sheet, figure, results.record)
        case Histogram():
            return draw_histogram(sheet, figure, results.record)
        case SelectedSteps():
            return draw_selected_steps(sheet, figure, results.record)
        case Bubbles():
            return draw_bubbles(sheet, figure, results)
    from fltrain.reporting.figures import models  # loads torch

    return models.draw(sheet, figure, results)


def save(spec: Spec, numbers: pd.DataFrame, outputs: Iterable[Path]) -> None:
    """Write a figure in the forms that the file names end in (pdf, png, svg); csv has its numbers.

    Pages show the SVG, with its caption as their own text. The other forms have it drawn in.
    """
    import vl_convert

    captioned = to_svg(style.footnote(spec))
    forms = {
        ".csv": lambda: numbers.to_csv(index=False).encode(),
        ".svg": lambda: f"{to_svg(spec)}\n".encode(),
        ".png": lambda: vl_convert.svg_to_png(captioned, scale=2),
        ".pdf": lambda: vl_convert.svg_to_pdf(captioned),
    }
    for path in outputs:
        with replacing(path) as temporary:
            temporary.write_bytes(forms[path.suffix]())


def to_svg(spec: Spec) -> str:
    """Return a chart as an SVG element, whose description has the caption."""
    import matplotlib
    import vl_convert

    # Matplotlib's fonts, so that texts have the same width, and figures the same bytes, on every machine.
    vl_convert.register_font_directory(f"{matplotlib.get_data_path()}/fonts/ttf")
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
    svg = svg.replace(">", f"><desc>{escape(spec['description'])}</desc>", 1)
    # Vega counts clipped areas over all figures of a process.
    order = {name: f"clip{place}" for place, name in enumerate(dict.fromkeys(re.findall(r"clip\d+", svg)))}
    return re.sub(r"clip\d+", lambda match: order[match[0]], svg)


# ---------------------------------------------------------------- notes
def _notes(
    sheet: ItemJob, figure: Figure, results: Results, records: Mapping[str, Record], numbers: pd.DataFrame
) -> str:
    """Return notes on lines and bands, and on missing and diverged runs; ``figure.txt`` has their words."""
    if isinstance(figure, Bubbles):
        return sheet.scale_note
    missing = {cell.run for cell in sheet.cells} - set(records)
    damaged = {run for run in missing if results.record(run).complete}
    ended = {run for run, record in records.items() if diverged(record)}
    notes_on = {"Not run": missing - damaged, "Damaged": damaged, "Diverged": ended}
    seeds = len({cell.seed for cell in sheet.cells if cell.run in records})
    if isinstance(figure, Ranking) and len(numbers):
        seeds = int(numbers["seeds"].max())
    ends = [(record, record.spec["evaluation"].get("until")) for record in records.values()]
    text = TEMPLATES.get_template("figure.txt").render(
        sheet=sheet,
        figure=figure,
        seeds=seeds,
        intervals=isinstance(figure, Ranking) and numbers["low"].notna().any(),
        accuracy=isinstance(figure, Points) and measure(figure.measure).accuracy,
        until=sorted({f"{100 * end:g}" for record, end in ends if end and best_accuracy(record) >= end}),
        lost={state: _named(sheet, runs) for state, runs in notes_on.items() if runs},
    )
    return " ".join(text.split())


def _named(sheet: ItemJob, runs: set[str]) -> str:
    """Name runs by their labels on axes with several labels, and by their seeds if there are several."""
    varied = [axis for axis, labels in sheet.axes.items() if len(labels) > 1]
    several = len({cell.seed for cell in sheet.cells}) > 1
    names: list[str] = []
    for cell in sheet.cells:
        if cell.run in runs:
            label, seed = ", ".join(cell.labels[axis] for axis in varied), f"seed {cell.seed}"
            names.append(f"{label} ({seed})" if label and several else label or seed)
    return listed(names, NAMED)


# ---------------------------------------------------------------- curves
def curves(sheet: ItemJob, figure: Curves, chart: Panel, runs: Runs, where: Labels) -> pd.DataFrame:
    """Return the curves of a panel for the cells ``where``: rounds down, one column per (label, seed)."""
    columns: dict[tuple[str, int], pd.Series] = {}
    for cell, record in finished(sheet, runs):
        if where.items() <= cell.labels.items():
            numbers = curve(record, chart.curve)
            if figure.over == "epochs":
                numbers.index = numbers.index * record.spec["training"]["epochs"]
            if figure.series in cell.labels:  # a run that diverged at once has an empty curve
                columns[cell.labels[figure.series], cell.seed] = numbers.get("", pd.Series(dtype=float))
            else:
                columns.update({(str(part), cell.seed): numbers[part] for part in numbers})
    for base in [*chart.reduction_from.values(), *chart.difference_from.values()]:
        # Paired by seed. A reduction is in per cent of the baseline, and positive below it.
        columns = {
            (label, seed): 100 * (1 - values / columns[base, seed])
            if chart.reduction_from
            else 100 * (values - columns[base, seed])
            for (label, seed), values in columns.items()
            if label != base and (base, seed) in columns
        }
    frame = pd.DataFrame(columns).sort_index()
    return frame / frame.max() if chart.normalise else frame


def smoothed(values: pd.Series, window: int) -> pd.Series:
    """Return centred means over ``window`` points; there are fewer at both ends."""
    return values.dropna().rolling(window, center=True, min_periods=1).mean()


def lines(frame: pd.DataFrame, order: Iterable[str], window: int, floor: float | None = None) -> pd.DataFrame:
    """Return the drawn lines, a row for each series and place ``x``.

    ``mean`` is over the seeds that are left, ``whole`` over all of them, with ``low`` and ``high``: the range
    of the seeds or, with a ``floor`` of the spread, the 90 % interval of the mean. ``raw`` is the mean before
    smoothing, ``marked`` has about eight places of each line.
    """
    parts: list[pd.DataFrame] = []
    names = list(order)
    for index, label in enumerate(names):
        # Other lines can have points at other places; those are no gaps in this one.
        seeds = frame.loc[:, [column[0] == label for column in frame.columns]].dropna(how="all")
        if seeds.empty:
            continue
        drawn = seeds.apply(smoothed, window=window) if window > 1 else seeds
        mean, complete = drawn.mean(axis=1), drawn.notna().all(axis=1)
        low, high = drawn.min(axis=1), drawn.max(axis=1)
        if floor is not None:
            tests = [contrast(Sample(known(values), floor)) for values in drawn.to_numpy()]
            half = pd.Series([test.quantile * test.error if test else np.nan for test in tests], mean.index)
            low, high = mean - half, mean + half
        step = max(1, len(drawn) // 8)
        part = pd.DataFrame({"mean": mean, "raw": seeds.mean(axis=1)})
        ends = {"whole": mean, "low": low, "high": high} if drawn.shape[1] > 1 else {"whole": mean}
        for name, values in ends.items():
            part[name] = values.where(complete)
        # Lines that coincide show their markers in turn.
        part["marked"] = part["whole"][index * step // len(names) :: step]
        parts.append(part.assign(series=label))
    return pd.concat(parts).rename_axis("x").reset_index() if parts else pd.DataFrame()


def draw_curves(sheet: ItemJob, figure: Curves, runs: Runs) -> Drawn:
    """Draw the mean over seeds of each series, with a band.

    If some runs end earlier, the mean continues over the remaining runs, thin and without a band.
    """

    def points(axis: str | None) -> list[Labels]:
        return [{axis: label} for label in sheet.axes[axis]] if axis else [{}]

    rows, columns = points(figure.rows), points(figure.columns)
    if figure.columns:
        places = [[(chart, row | column) for column in columns] for row in rows for chart in figure.panels]
    else:
        places = [[(chart, row) for chart in figure.panels] for row in rows]
    frames = [[curves(sheet, figure, chart, runs, where) for chart, where in line] for line in places]
    records = [record for _, record in finished(sheet, runs)]
    parts = dict.fromkeys(str(name[0]) for line in frames for frame in line for name in frame.columns)
    labels = [*sheet.axes.get(figure.series, parts)]
    encoding = style.by_series(labels, figure.series, ordered=figure.series not in sheet.axes)
    names = ["panel", "series", "seed", figure.over, "value", *(["smoothed"] if figure.smoothing > 1 else [])]
    numbers = [pd.DataFrame(columns=names)]
    panels: list[list[Spec]] = []
    for line, line_frames in zip(places, frames, strict=True):
        ends = _shared_ends(line[0][0], line_frames) if figure.columns else None
        panels.append([])
        for (chart, where), frame in zip(line, line_frames, strict=True):
            heading = [*(named(axis, label) for axis, label in where.items()), chart.label]
            if not frame.empty:
                drawn = pd.DataFrame({"value": frame.unstack()})
                if figure.smoothing > 1:
                    drawn["smoothed"] = frame.apply(smoothed, window=figure.smoothing).unstack()
                drawn = drawn.rename_axis(names[1:4]).dropna().reset_index()
                numbers.append(drawn.assign(panel=", ".join(heading))[names])
            # Differences are drawn times 100; rounds are no family, so that each has its own spread.
            floor = 100 * resolution(records, chart.curve) if chart.difference_from else None
            data = lines(frame, labels, figure.smoothing, floor)
            panels[-1].append(_panel_of_curves(figure, chart, data, encoding, heading, len(line), ends))
    return panels, pd.concat(numbers[1:] or numbers, ignore_index=True)


def _shared_ends(chart: Panel, frames: Iterable[pd.DataFrame]) -> list[float] | None:
    """Return the ends of a vertical axis that panels share; None without any number."""
    late = [frame.tail(len(frame) // 2 + 1) if chart.fits_late else frame for frame in frames]
    values = known(value for frame in late for value in frame.to_numpy().flat)
    if not values:
        return None
    ends = [*values, 0.0] if chart.difference_from else values
    room = (max(ends) - min(ends)) / 10
    return [min(ends) - room, max(ends) + room]


def _panel_of_curves(
    figure: Curves,
    chart: Panel,
    data: pd.DataFrame,
    encoding: Mapping[str, Spec],
    heading: Iterable[str],
    columns: int,
    ends: list[float] | None,
) -> Spec:
    if not data.empty:
        data["series"] = [named(figure.series, label) for label in data["series"]]
    compared = bool(chart.reduction_from or chart.difference_from)
    axis: Spec = {}
    if chart.curve.endswith((".accuracy", ".macro")) and not compared and not chart.normalise:
        axis = {"axis": {"labelExpr": "format(100 * datum.value, '.6~g') + ' %'"}}
    if ends:
        axis["scale"] = {"domain": ends, "nice": False}

    def layer(field: str, mark: str, more: Mapping[str, Spec] = {}, **options: object) -> Spec:
        about = {"type": mark, "clip": True, **options}
        return {"mark": about, "encoding": {"y": quantity(field, **axis), **more}}

    layers = [
        layer("low", "area", {"y2": {"field": "high"}}, opacity=0.15),
        layer("mean", "line", strokeWidth=0.6),
        layer("whole", "line"),
        layer("marked", "point", {"shape": encoding["shape"]}, filled=True, size=22, opacity=1),
    ]
    if figure.smoothing > 1:
        layers.insert(1, layer("raw", "line", strokeWidth=0.7, opacity=0.3))
    if compared:
        layers.insert(0, style.line(y=0))
    title = "communication round" if figure.over == "rounds" else "local epochs"
    shared = {"x": whole_numbers("x", title)} | {key: encoding[key] for key in ("color", "strokeDash")}
    return panel(heading, columns, data, layers, shared)


# ---------------------------------------------------------------- points
def draw_points(sheet: ItemJob, figure: Points, runs: Runs) -> Drawn:
    """Draw the mean of each series along an axis, with the range over seeds.

    The numbers are one line per run with a number: its labels on the axes shown, its seed, the measure.
    """
    frame = measured_values(sheet, runs, Measured(measure=figure.measure), Published())
    frame["series"] = frame[figure.series] if figure.series else ""
    numbers = frame[["series", figure.along, "seed", "value"]].dropna(subset="value", ignore_index=True)
    labels = sheet.axes[figure.series] if figure.series else ("",)
    encoding = style.by_series(labels, figure.series)
    shape, dash = encoding.pop("shape"), encoding.pop("strokeDash")
    data = numbers.groupby(["series", figure.along], sort=False)["value"].agg(["mean", "min", "max"])
    data = data.rename_axis(["series", "along"]).reset_index()
    data["series"] = [named(figure.series, label) for label in data["series"]]
    y = quantity("mean", measure(figure.measure).label)
    x: Spec = {"field": "along", "type": "ordinal", "title": figure.label, "axis": {"labelAngle": 0}}
    x["sort"] = list(sheet.axes[figure.along])
    layers: list[Spec] = [
        {"mark": "line", "encoding": {"y": y, "strokeDash": dash}},
        {"mark": "rule", "encoding": {"y": {**y, "field": "min"}, "y2": {"field": "max"}}},
        {"mark": style.POINT, "encoding": {"y": y, "shape": shape}},
    ]
    return [[panel([], 1, data, layers, {"x": x, **encoding})]], numbers


# ---------------------------------------------------------------- ranking
def ranking(sheet: ItemJob, figure: Ranking, runs: Runs) -> pd.DataFrame:
    """Return mean, ``low`` and ``high`` end of the differences by row and series, the best row first.

    They are the gains of a table of these runs, without the row from which the others differ. The ends are
    missing (NaN) if there is no interval. ``lost`` names the side of which all runs diverged, see
    ``TableCell.lost_gain``. With one seed, rows keep the order of their axis.
    """
    measured = Measured(measure=figure.measure, gain_over={figure.rows: figure.difference_from})
    table = Table(rows=figure.rows, columns=figure.series, measures=(measured,))
    rows = [
        (
            *(cell.row, cell.column, cell.gain),
            *(cell.interval("gain_") or (np.nan, np.nan)),
            *(len(cell.gains), cell.lost_gain),
        )
        for cell in cells(sheet.model_copy(update={"table": table}), runs, Published())
        if cell.gains
    ]
    names = [figure.rows, figure.series, "difference", "low", "high", "seeds", "lost"]
    numbers = pd.DataFrame(sorted(rows), columns=names)
    order = pd.Series({row: place for place, row in enumerate(sheet.axes[figure.rows])})
    if numbers["seeds"].max() > 1:
        order = -numbers.groupby(figure.rows)["difference"].mean()
    return numbers.sort_values(
        figure.rows, key=lambda rows: rows.map(order), kind="stable", ignore_index=True
    )


def draw_ranking(sheet: ItemJob, figure: Ranking, runs: Runs) -> Drawn:
    """Draw differences below one another; each panel has its own scale, as some are much larger."""
    numbers = ranking(sheet, figure, runs)
    rows, series = list(dict.fromkeys(numbers[figure.rows])), sheet.axes[figure.series]
    x = quantity(None, f"difference from {figure.difference_from}, points")
    panels: list[Spec] = []
    for label in series:
        y: Spec = {"field": figure.rows, "type": "nominal", "title": None, "sort": rows}
        y["axis"] = {"labelLimit": 0, "labels": not panels}
        data, heading = numbers[numbers[figure.series] == label], [named(figure.series, label)]
        look = {"color": {"value": style.INDIGO}}
        ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, **look}
        points = {"x": {**x, "field": "difference"}, "y": y, **look}
        layers: list[Spec] = [{"mark": "rule", "encoding": ends}, {"mark": style.POINT, "encoding": points}]
        if data["lost"].any():
            layers = [{**layer, "transform": [{"filter": "!datum.lost"}]} for layer in layers]
            words = {"x": {"datum": 0, "type": "quantitative"}, "y": y, "text": {"field": "lost"}}
            text = {"type": "text", "align": "left", "dx": 4, "color": style.GREY}
            layers.append({"mark": text, "encoding": words, "transform": [{"filter": "datum.lost"}]})
        layers = [style.line(x=-figure.margin, x2=figure.margin), style.line(x=0), *layers]
        panels.append(panel(heading, len(series), data, layers, height=22 * max(len(rows), 1)))
    return [panels], numbers


# ---------------------------------------------------------------- images of each class at each client
def draw_bubbles(sheet: ItemJob, figure: Bubbles, results: Results) -> Drawn:
    """Draw the number of images of each panel, client and class as an area, for the first seed."""
    counts: dict[str, pd.DataFrame] = {}
    for cell in sheet.cells:
        if cell.seed == sheet.cells[0].seed:
            spec = RunSpec.recorded(cell.spec, cell.run)
            data = load_prepared(spec.dataset, results.data(spec.dataset))
            arrays = partition(spec.division, data).arrays
            counts[cell.labels[figure.columns]] = pd.DataFrame(arrays["counts"])
    images = pd.DataFrame({"images": pd.concat(counts).stack()})
    numbers = images.rename_axis(["panel", "client", "class"]).reset_index()
    scale = {"domain": [0, int(numbers["images"].max())], "range": [0, 220]}
    circle = {
        "mark": {"type": "circle", "color": style.INDIGO, "opacity": 0.75},
        "encoding": {"size": {"field": "images", "type": "quantitative", "scale": scale, "legend": None}},
    }
    x, y = whole_numbers("client", "client", padding=12), whole_numbers("class", "class", padding=12)
    panels = [
        panel([label], len(counts), numbers[numbers["panel"] == label], [circle], {"x": x, "y": y})
        for label in counts
    ]
    return [panels], numbers


# ---------------------------------------------------------------- histograms
def spread(sheet: ItemJob, figure: Histogram, runs: Runs) -> pd.DataFrame:
    """Return the shown numbers: panel, seed, layer (or block) and value.

    Raises:
        FltrainError: if a record has none in that round, or not one per layer or block.
    """
    rows: list[tuple[str, int, str, float]] = []
    for cell, record in finished(sheet, runs):
        frame = curve(record, figure.curve)
        if diverged(record) and figure.round not in frame.index:
            continue
        if figure.round not in frame.index or "" in frame:
            rounds = f"numbers for the rounds {frame.index.min()} to {frame.index.max()}"
            raise FltrainError(
                f"{sheet.id}: {record.run_id} has no {figure.curve!r} by layer for round {figure.round}; "
                f"it has {'one number for each round' if '' in frame else rounds}"
            )
        values = frame.transpose()[figure.round].dropna()
        label = cell.labels[figure.columns]
        rows += [(label, cell.seed, str(part), float(value)) for part, value in values.items()]
    return pd.DataFrame(rows, columns=["panel", "seed", "part", "value"])


def draw_histogram(sheet: ItemJob, figure: Histogram, runs: Runs) -> Drawn:
    """Draw the number of layers by value, with the same bins in all panels; seeds count together."""
    numbers, labels = spread(sheet, figure, runs), sheet.axes[figure.columns]
    x = quantity("value", figure.label)
    bins = {"maxbins": 20, "extent": [numbers["value"].min(), numbers["value"].max()]}
    y = quantity(None, "number of layers", aggregate="count", axis={"tickMinStep": 1}, scale={"zero": True})
    median = {"type": "rule", "color": style.VERMILION, "strokeDash": [6, 3], "strokeWidth": 1.8}
    layers: list[Spec] = [
        {"mark": {"type": "bar", "color": style.INDIGO}, "encoding": {"x": {**x, "bin": bins}, "y": y}},
        {"mark": median, "encoding": {"x": {**x, "aggregate": "median"}}},
    ]
    panels: list[Spec] = []
    for label in labels:
        data = numbers[numbers["panel"] == label]
        several = data["value"].nunique() > 1
        skewness = f"skewness {float(skew(data['value'])):+z.2f}" if several else ""
        panels.append(panel([label, f"round {figure.round}", skewness], len(labels), data, layers))
    return [panels], numbers


# ---------------------------------------------------------------- selected steps
def selections(record: Record) -> pd.DataFrame:
    """Return every local step of a run: round, client, step (from 0), selected or not, number of steps.

    Raises:
        FltrainError: if no steps were selected in the run.
    """
    rows = record.rows("ecgr")
    if not rows and not diverged(record):
        raise FltrainError(f"{record.run_id} selects no steps; add the plug-in 'ecgr' to its spec")
    local_steps = [
        (row["round"], int(client), step, step in chosen, steps)
        for row in rows
        for client, steps in row["steps"].items()
        for chosen in [set(row["selected"][client])]
        for step in range(steps)
    ]
    return pd.DataFrame(local_steps, columns=["round", "client", "step", "selected", "steps"])


def draw_selected_steps(sheet: ItemJob, figure: SelectedSteps, runs: Runs) -> Drawn:
    """Draw rounds across and local steps from below; the numbers are every step of every client."""
    if figure.columns == SEEDS:
        records = [(f"seed {cell.seed}", record) for cell, record in finished(sheet, runs)]
    else:
        records = list(first_of_each(sheet, figure.columns, runs))
    by_label = {label: steps for label, record in records if len(steps := selections(record))}
    if not by_label:
        return style.NOTHING
    numbers = pd.concat([steps.assign(panel=label) for label, steps in by_label.items()], ignore_index=True)
    clients = sorted(map(int, numbers["client"].unique()))
    if len(clients) > MOST_CLIENTS:
        raise FltrainError(
            f"{sheet.id}: a figure of selected steps shows up to {MOST_CLIENTS} clients, but there are "
            f"{len(clients)}; choose runs with fewer"
        )
    panels: list[list[Spec]] = []
    for client in clients:
        panels.append([])
        for label, steps in by_label.items():
            rounds, client_steps = int(steps["round"].max()), steps[steps["client"] == client]
            table = client_steps.pivot(index="step", columns="round", values="selected").astype(float)
            codes = table.reindex(columns=range(1, rounds + 1)).fillna(-1).to_numpy(int)[::-1]
            last = client == clients[-1]
            x = whole_numbers("", "communication round" if last else None, domain=[0.5, rounds + 0.5])
            x["axis"] = {**x["axis"], "labels": last}
            y = whole_numbers("", f"client {client}", domain=[0.5, len(codes) + 0.5])
            heading = [label] if client == clients[0] else []
            panels[-1].append(style.raster(heading, len(by_label), codes, STEPS, 46, x, y))
    return panels, numbers[["panel", "round", "client", "step", "selected"]]
