"""Style of figures: looks of lines, and the parts of Vega-Lite that all charts share.

The rule for colours. A line has the look of its place in the legend: a colour, a dash and a marker, so that
no two differ by colour alone. The first one is black and solid. Numbers (noise, learning rates) get an
ordered palette, and so do more lines than there are colours.

Black and nine colours from Okabe and Ito's and Paul Tol's palettes: to readers with any of the three kinds of
colour blindness all of them are at least 17 apart in CIELAB.
"""

from __future__ import annotations

import base64
import io
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from PIL import Image

from fltrain.experiments.layout import named
from fltrain.reporting.text import unbroken

Spec = dict[str, Any]
"""A part of a Vega-Lite specification."""

Drawn = tuple[list[list[Spec]], pd.DataFrame]
"""Rows of panels, and the numbers that they show."""

PAGE, PANEL, SINGLE = 680, 283, 435
"""Widths of a figure, of one of several panels, and of a single one, in pixels: 180, 75 and 115 mm."""
AXIS = 70
"""Width of the labels of a vertical axis, and of the space next to it, in pixels."""
GREY, MISSING = "#5b6675", "#d5dae1"


BLACK = "#000000"
INDIGO, VERMILION, SKY, GREEN, ORANGE = "#332288", "#d55e00", "#56b4e9", "#117733", "#e69f00"
VIOLET, WINE, PINK, ROSE = "#7b4fa3", "#882255", "#cc79a7", "#cc6677"
COLOURS = (BLACK, INDIGO, VERMILION, SKY, GREEN, ORANGE, VIOLET, WINE, PINK, ROSE)
UP, DOWN, LEFT, RIGHT = "triangle-up", "triangle-down", "triangle-left", "triangle-right"
MARKERS = ("circle", "square", UP, "diamond", DOWN, "cross", LEFT, RIGHT)
SOLID, DASHED, DOTTED, DASH_DOTTED = (1, 0), (6, 3), (2, 2), (7, 2, 2, 2)
POINT: Spec = {"type": "point", "filled": True, "size": 40, "opacity": 1}
SHADES: Spec = {"scheme": {"name": "viridis", "extent": [0, 0.84]}}
"""A palette from dark to light; the last sixth of it would be too light on white."""


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


def by_series(labels: Sequence[str], series: str | None = None, ordered: bool = False) -> dict[str, Spec]:
    """Return the encodings that give each line its colour, dash and marker, with one legend.

    The legend shows colours and markers: a dash would break the outlines of the markers.

    Args:
        labels: labels of the lines, in the order of the legend.
        series: their axis.
        ordered: the lines have an order, as layers have; numbers have one anyway.
    """
    names = [named(series, label) for label in labels]
    numbers = len(labels) > 1 and all(named("number", label) != label for label in labels)
    ordered = ordered or numbers or len(labels) > len(COLOURS)
    ranges: dict[str, Spec] = {
        "color": SHADES if ordered else {"range": COLOURS},
        "strokeDash": {"range": [SOLID] if ordered else [SOLID, DASHED, DOTTED, DASH_DOTTED]},
        "shape": {"range": MARKERS},
    }
    # As many in a line as fit: about 50 pixels for the symbol and 7 for each character.
    columns = max(1, PAGE // (50 + 7 * max(map(len, names), default=0)))
    legend = {"columns": columns, "symbolOpacity": 1} if len(names) > 1 else None
    return {
        channel: {
            **{"field": "series", "type": "nominal", "sort": None, "title": None},
            "scale": {"domain": names, **looks},
            "legend": None if channel == "strokeDash" else legend,
        }
        for channel, looks in ranges.items()
    }


def line(**ends: float) -> Spec:
    """Return a line at ``x`` or ``y``, or a band from ``x`` to ``x2``."""
    at = {channel: {"datum": place} for channel, place in ends.items()}
    mark = {"type": "rect", "opacity": 0.15} if "x2" in at else {"type": "rule"}
    others = dict.fromkeys(("x", "y", "color", "strokeDash"))  # not those of the panel
    return {"data": {"values": [{}]}, "mark": {**mark, "color": GREY}, "encoding": {**others, **at}}


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
    lines = _wrapped(", ".join(filter(None, heading)), (width - 20) // 6)
    common = {"title": {"text": lines}, "width": width - AXIS, "height": height or round(0.6 * width)}
    if data.empty:
        mark = {"type": "text", "text": "no run", "color": GREY}
        return {**common, "data": {"values": [{}]}, "mark": mark}
    values = json.loads(data.to_json(orient="records", double_precision=12))
    # Else the legends of colours and markers would take over the dashes, in spite of "legend": None.
    common["resolve"] = {"legend": {"strokeDash": "independent"}}
    return {**common, "data": {"values": values}, "encoding": dict(encoding), "layer": list(layers)}


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text."""
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(unbroken(text), width)]


def panel_width(columns: int) -> int:
    """Return the width in pixels of one of ``columns`` panels side by side, with its labels."""
    return SINGLE if columns == 1 else min(PANEL, PAGE // columns)


NOTHING: Drawn = [[panel([], 1, pd.DataFrame())]], pd.DataFrame()
"""A figure of runs that diverged before they had any of its numbers."""


def figure(rows: Sequence[Sequence[Spec]], caption: str) -> Spec:
    """Return the specification of a figure from rows of panels."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": caption,
        "config": CONFIG,
        "background": "white",
        "vconcat": [{"hconcat": list(row)} for row in rows],
    }


def footnote(spec: Spec) -> Spec:
    """Return the figure with its caption below all panels."""
    width = max(sum(chart["width"] + AXIS for chart in row["hconcat"]) for row in spec["vconcat"])
    lines = _wrapped(spec["description"], width // 7)
    note = {"text": lines, "orient": "bottom", "fontSize": 12, "color": BLACK, "offset": 12}
    return {**spec, "title": note}


def pixels(colours: np.ndarray[Any, Any], size: int) -> str:
    """Return colours ``[height, width, 3]`` from 0 to 255 as the address of an image.

    Each becomes a square of at least ``size`` pixels, because renderers blur small images.
    """
    file = io.BytesIO()
    squares = colours.astype(np.uint8).repeat(size, axis=0).repeat(size, axis=1)
    Image.fromarray(squares).save(file, "png")
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
    colours = np.array([[round(255 * part) for part in to_rgb(hue)] for hue in (*names.values(), MISSING)])
    scale = {"domain": list(names), "range": list(names.values())}
    some = list(names)[:: max(1, len(names) // 10)]
    legend = {"columns": 10, "values": some, "symbolType": "square", "symbolOpacity": 1}
    encoding = {
        **{name: {**axis, "datum": axis["scale"]["domain"][0]} for name, axis in (("x", x), ("y", y))},
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
