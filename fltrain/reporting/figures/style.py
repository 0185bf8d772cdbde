"""Style of figures: a fixed place for each method, and the parts of Vega-Lite that all charts share.

The rule for colours. A method has one place in all figures: a colour, a dash and a marker (``PLACES``), so
that no two differ by colour alone. FedAvg is black and solid; local training alone is grey. A method
with plug-ins takes the colour of the first and dash and marker of the last of them: FedProx with FLFA has
FedProx's colour and FLFA's dashes. FedAvg adds nothing of its own: FedAvg with FLFA is FLFA. A line stands
for what all its runs share: where ``+ ECGR`` is shown on four methods, it has ECGR's place, and the line
without it is black. Labels and their order do not matter.

Lines that would look alike are runs of one method with different settings. If all are, they are points of a
scale (noise, learning rates) and get an ordered palette; if only some are, the first keeps the method's place
and the others are tints of it with other markers.

The nine colours are from Okabe and Ito's and Paul Tol's palettes. To readers with any of the three kinds of
colour blindness all of them, and black, are at least 17 apart in CIELAB.
"""

from __future__ import annotations

import base64
import io
import json
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import to_hex, to_rgb
from PIL import Image

from fltrain.experiments.layout import Cell, named

Spec = dict[str, Any]
"""A part of a Vega-Lite specification."""

PAGE, PANEL, SINGLE = 680, 283, 435
"""Widths of a figure, of one of several panels, and of a single one, in pixels: 180, 75 and 115 mm."""
AXIS = 70
"""Width of the labels of a vertical axis, and of the space next to it, in pixels."""
GREY, MISSING = "#5b6675", "#d5dae1"


class Look(NamedTuple):
    """Colour, dash (lengths in pixels) and marker of a line."""

    colour: str
    dash: tuple[int, ...]
    marker: str


BLACK, LOCAL = "#000000", "#8c8c8c"
INDIGO, VERMILION, SKY, GREEN, ORANGE = "#332288", "#d55e00", "#56b4e9", "#117733", "#e69f00"
VIOLET, WINE, PINK, ROSE = "#7b4fa3", "#882255", "#cc79a7", "#cc6677"
COLOURS = (INDIGO, VERMILION, SKY, GREEN, ORANGE, VIOLET, WINE, PINK, ROSE)
UP, DOWN, LEFT, RIGHT = "triangle-up", "triangle-down", "triangle-left", "triangle-right"
MARKERS = ("circle", "square", UP, "diamond", DOWN, "cross", LEFT, RIGHT)
# Methods are solid, dash-dotted or dotted, plug-ins dashed.
SOLID, DASH_DOTTED, DOTTED = (1, 0), (7, 2, 2, 2), (2, 2)
DASHED, LONG_DASHED, DASH_DOT_DOTTED = (6, 3), (12, 3), (8, 2, 2, 2, 2, 2)

PLACES = {
    "fedavg": Look(BLACK, SOLID, "circle"),
    "local": Look(LOCAL, SOLID, DOWN),
    "fedprox": Look(SKY, SOLID, "square"),
    "scaffold": Look(GREEN, SOLID, UP),
    "fednova": Look(ORANGE, SOLID, "diamond"),
    "feddyn": Look(VIOLET, SOLID, DOWN),
    "moon": Look(PINK, SOLID, "cross"),
    "fedavgm": Look(INDIGO, SOLID, "cross"),
    "fedsol": Look(ROSE, SOLID, LEFT),
    "fedrs": Look(WINE, SOLID, RIGHT),
    "fedlc": Look(ORANGE, DASH_DOTTED, "circle"),
    "fedacg": Look(GREEN, DASH_DOTTED, "circle"),
    "fedopt": Look(SKY, DASH_DOTTED, "diamond"),
    "fed2": Look(VERMILION, SOLID, "circle"),
    "fedma": Look(ORANGE, DOTTED, UP),
    "perfedavg": Look(ROSE, DASH_DOTTED, "diamond"),
    "fedamp": Look(GREEN, DOTTED, "diamond"),
    "fedbn": Look(SKY, DOTTED, "circle"),
    "fedper": Look(ROSE, DOTTED, "square"),
    "ditto": Look(INDIGO, DOTTED, "circle"),
    "fedproto": Look(INDIGO, DASH_DOTTED, "square"),
    "gpfl": Look(PINK, DASH_DOTTED, "circle"),
    "fedgh": Look(VIOLET, DASH_DOTTED, "circle"),
    "fedfcd": Look(VERMILION, DASH_DOTTED, "cross"),
    "flfa": Look(VERMILION, DASHED, DOWN),
    "ecgr": Look(VIOLET, DASH_DOT_DOTTED, "cross"),
    "fedimpro": Look(WINE, LONG_DASHED, "square"),
}
"""Place of each method and plug-in; ``place`` returns one for other names."""


def place(name: str) -> Look:
    """Return the look of a method or plug-in; without a fixed place, it follows from a hash of the name."""
    if name in PLACES:
        return PLACES[name]
    number = zlib.crc32(name.encode())
    colour, number = COLOURS[number % len(COLOURS)], number // len(COLOURS)
    return Look(colour, DOTTED, MARKERS[number % len(MARKERS)])


def look_of(methods: Sequence[str]) -> Look:
    """Return the look of a method with plug-ins: colour of the first, dash and marker of the last."""
    names = [name for name in methods if name != "fedavg"] or ["fedavg"]
    first, last = place(names[0]), place(names[-1])
    return Look(first.colour, last.dash, last.marker)


def looks(labels: Sequence[str], axis: str | None, cells: Iterable[Cell]) -> dict[str, Look]:
    """Return the look of each label on an axis, by the methods of its runs; see the rule above.

    Runs that are missing or diverged count as well, so that the others look the same without them; a label
    that no run is planned for has no look. Without an axis there is one label, which stands for all runs.
    """
    runs: dict[str, list[tuple[str, ...]]] = {label: [] for label in labels}
    for cell in cells:
        label = cell.labels[axis] if axis else labels[0]
        runs[label].append(cell.methods)
    runs = {label: compositions for label, compositions in runs.items() if compositions}
    alike: dict[Look, list[str]] = {}
    for label, compositions in runs.items():
        alike.setdefault(look_of(_shared(compositions)), []).append(label)
    if len(alike) == 1 and len(runs) > 1:
        return dict(zip(runs, scale(len(runs)), strict=True))
    found = {
        label: variant
        for look, group in alike.items()
        for label, variant in zip(group, _variants(look, len(group)), strict=True)
    }
    return {label: found[label] for label in runs}


def _shared(compositions: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the methods and plug-ins that all compositions share, in order."""
    return [name for name in compositions[0] if all(name in other for other in compositions)]


def scale(count: int) -> list[Look]:
    """Return ``count`` looks in order, from dark to light: for points of a scale, layers, blocks."""
    shades = matplotlib.colormaps["viridis"]
    # The last sixth of the palette is too light on white.
    return [
        Look(to_hex(shades(0.84 * index / max(count - 1, 1))), SOLID, MARKERS[index % len(MARKERS)])
        for index in range(count)
    ]


def _variants(look: Look, count: int) -> Iterator[Look]:
    """Yield ``count`` styles for one method: its own, then lighter ones with other markers and dashes."""
    yield look
    first = MARKERS.index(look.marker)
    dashes = [dash for dash in (DASHED, DOTTED, DASH_DOTTED, SOLID) if dash != look.dash]
    for index in range(1, count):
        lighter = 0.5 * index / (count - 1)
        red, green, blue = (part + lighter * (1 - part) for part in to_rgb(look.colour))
        marker = MARKERS[(first + index) % len(MARKERS)]
        yield Look(to_hex((red, green, blue)), dashes[(index - 1) % len(dashes)], marker)


# ---------------------------------------------------------------- parts of charts
CONFIG: Spec = {
    "font": "DejaVu Sans, Verdana, Noto Sans CJK SC, PingFang SC, Microsoft YaHei, sans-serif",
    "view": {"stroke": None},
    "concat": {"spacing": 14},
    "axisY": {"minExtent": 40},
    "axis": {"gridColor": "#e3e7ec", "titleFontWeight": "normal", "labelFontSize": 10, "titleFontSize": 11},
    "title": {"fontSize": 11, "fontWeight": "normal", "anchor": "start"},
    "legend": {"orient": "top", "title": None, "labelFontSize": 11, "labelLimit": 0, "symbolSize": 90},
    "line": {"strokeWidth": 1.8},
}


def quantity(field: str | None = None, title: str | None = None, **more: Any) -> Spec:
    """Return the encoding of a number, on an axis that need not contain zero."""
    source = {} if field is None else {"field": field}
    return {**source, "type": "quantitative", "title": title, "scale": {"zero": False}, **more}


def whole_numbers(field: str, title: str | None, **scale: Any) -> Spec:
    """Return the encoding of a whole number, such as a round."""
    axis = {"tickMinStep": 1, "tickCount": 6, "format": "d"}
    return quantity(field, title, axis=axis, scale={"zero": False, "nice": False, **scale})


def by_look(looks: Mapping[str, Look], series: str | None = None) -> dict[str, Spec]:
    """Return the encodings that give the column ``series`` its looks, with one legend."""
    names = [named(series, label) for label in looks]
    # As many in a line as fit: about 50 pixels for the symbol and 7 for each character.
    columns = max(1, PAGE // (50 + 7 * max(map(len, names), default=0)))
    channels = {"color": "colour", "strokeDash": "dash", "shape": "marker"}
    return {
        channel: {
            **{"field": "series", "type": "nominal", "sort": None, "title": None},
            "scale": {"domain": names, "range": [getattr(look, part) for look in looks.values()]},
            "legend": {"columns": columns, "symbolOpacity": 1} if len(names) > 1 else None,
        }
        for channel, part in channels.items()
    }


def line(color: str = GREY, **ends: Any) -> Spec:
    """Return a line at ``x`` or ``y``, or a band from ``x`` to ``x2``; other options are the mark's."""
    at = {channel: {"datum": ends.pop(channel)} for channel in ("x", "x2", "y") if channel in ends}
    mark = {"type": "rect", "opacity": 0.15} if "x2" in at else {"type": "rule"}
    others = dict.fromkeys(("x", "y", "color", "strokeDash"))  # not those of the panel
    return {"data": {"values": [{}]}, "mark": {**mark, "color": color, **ends}, "encoding": {**others, **at}}


def panel(
    heading: Iterable[str],
    columns: int,
    data: pd.DataFrame,
    layers: Sequence[Spec] = (),
    encoding: Mapping[str, Spec] = {},
    height: int = 0,
) -> Spec:
    """Return one of ``columns`` panels side by side; it says so if there are no data.

    Args:
        heading: parts of its title, with commas between them.
        columns: number of panels in its row.
        data: the numbers.
        layers: marks.
        encoding: encodings that the layers share.
        height: height in pixels, without title and axis (default: by its width).
    """
    width = panel_width(columns)
    lines = textwrap.wrap(", ".join(filter(None, heading)), (width - 20) // 6)
    common = {"title": {"text": lines}, "width": width - AXIS, "height": height or round(0.6 * width)}
    if data.empty:
        text = {"type": "text", "text": "no run", "color": GREY}
        return {**common, "data": {"values": [{}]}, "mark": text}
    values = json.loads(data.to_json(orient="records", double_precision=12))
    return {**common, "data": {"values": values}, "encoding": dict(encoding), "layer": list(layers)}


def panel_width(columns: int) -> int:
    """Return the width in pixels of one of ``columns`` panels side by side, with its labels."""
    return SINGLE if columns == 1 else min(PANEL, PAGE // columns)


def figure(rows: Sequence[Sequence[Spec]]) -> Spec:
    """Return the specification of a figure from rows of panels."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": CONFIG,
        "background": "white",
        "vconcat": [{"hconcat": list(row)} for row in rows],
    }


def footnote(spec: Spec, text: str) -> Spec:
    """Return the figure with a note below all panels."""
    width = max(sum(one["width"] + AXIS for one in row["hconcat"]) for row in spec["vconcat"])
    lines = textwrap.wrap(text, width // 6)
    note = {"text": lines, "orient": "bottom", "fontSize": 10, "color": GREY, "offset": 12}
    return {**spec, "title": note}


def pixels(colours: np.ndarray[Any, Any], size: int) -> str:
    """Return colours ``[height, width, 3]`` from 0 to 255 as the address of an image.

    Each becomes a square of at least ``size`` pixels, because renderers blur small images.
    """
    file = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).resize(
        (colours.shape[1] * size, colours.shape[0] * size), Image.Resampling.NEAREST
    ).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def raster(
    heading: Iterable[str],
    columns: int,
    codes: np.ndarray[Any, Any],
    names: Mapping[str, str],
    height: int,
    x: Spec,
    y: Spec,
) -> Spec:
    """Return a panel with a rectangle for each number in a table, by colour.

    Args:
        heading: parts of its title.
        columns: number of panels in its row.
        codes: places in ``names`` ``[down, across]``; -1 for none.
        names: colours by name, for the legend.
        height: height in pixels.
        x: encoding of the horizontal axis, which ends at its ``domain``.
        y: encoding of the vertical axis.
    """
    colours = np.array([[round(255 * part) for part in to_rgb(one)] for one in (*names.values(), MISSING)])
    scale = {"domain": list(names), "range": list(names.values())}
    some = list(names)[:: max(1, len(names) // 10)]
    legend = {"columns": 10, "values": some, "symbolType": "square", "symbolOpacity": 1}
    encoding = {
        **{name: {**one, "datum": one["scale"]["domain"][0]} for name, one in (("x", x), ("y", y))},
        "color": {"field": "name", "type": "nominal", "sort": None, "legend": legend, "scale": scale},
    }
    image = {
        **{"type": "image", "url": pixels(colours[codes], max(1, 1000 // max(codes.shape)))},
        **{"x": 0, "y": 0, "width": panel_width(columns) - AXIS, "height": height},
        **{"align": "left", "baseline": "top", "aspect": False},
    }
    axes: Spec = {"mark": {"type": "square", "opacity": 0}, "encoding": encoding}
    return panel(
        heading, columns, pd.DataFrame({"name": list(names)}), [axes, {"mark": image}], height=height
    )
