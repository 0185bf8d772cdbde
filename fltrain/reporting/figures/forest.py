"""Forest plots: the intervals of all cells of a paper below one another, as SVG for a page. No torch."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pandas as pd

from fltrain.reporting.figures.draw import intervals, to_svg
from fltrain.reporting.figures.style import CONFIG, Spec, quantity
from fltrain.reporting.pages import tone
from fltrain.reporting.tables.table_cell import TableCell

ROW, WIDTH = 17, 240
"""Height of a row and width of the axis, in pixels, for a phone."""
LIMIT, POINTS, MOST = 6.0, 15.0, 40
"""Ends of the axis in margins, its farthest ends in points, and the most cells that a plot can have."""

INK: Spec = {"labelColor": "currentColor", "titleColor": "currentColor", "labelLimit": 0, "aria": False}
PAGE: Spec = {
    **CONFIG,
    "mark": {"aria": False},
    "background": None,
    "axis": {**CONFIG["axis"], **INK, "labelFontSize": 11, "gridColor": "var(--line)"},
    "title": {"fontSize": 11, "anchor": "start", "frame": "group", "color": "currentColor", "offset": 4},
}
"""Style of the plots, in the colours of the page (``style.css``), which differ in the dark."""

COLOURS = {"good": "good", "bad": "bad", "partly": "mark", "": "soft"}
"""Colour of the page for each tone of a verdict."""


def forest(
    cells: Iterable[TableCell], titles: Mapping[str, str], of: Literal["difference", "gain"] = "difference"
) -> str:
    """Return differences below one another as an SVG element.

    Args:
        cells: cells of a paper; those without an interval are left out. If all runs of a side diverged, these
            words stand in the place of the number.
        titles: title of each item, the heading of its cells if there are several items.
        of: differences to published values, in margins, or gains in points.

    Returns:
        The element; empty without a cell, or with too many for a picture.
    """
    rows: list[dict[str, Any]] = []
    most = LIMIT if of == "difference" else POINTS
    for cell in cells:
        interval, middle = cell.interval("gain_" if of == "gain" else "difference_"), getattr(cell, of)
        unit = cell.margin if of == "difference" else float(cell.label.endswith("%"))
        if interval and unit and middle is not None and all(map(math.isfinite, interval)):
            verdict = cell.full_verdict if of == "difference" else cell.gain_verdict
            lost = cell.lost_gain if of == "gain" else "diverged" * cell.lost
            numbers = {"low": interval[0] / unit, "high": interval[1] / unit, "middle": middle / unit}
            numbers = dict.fromkeys(numbers, 0.0) if lost else numbers
            rows.append(
                {
                    "lost": lost,
                    **{name: max(-most, min(most, number)) for name, number in numbers.items()},
                    "cut": max(map(abs, numbers.values())) > most,
                    **{"item": cell.item, "label": cell.label, "place": cell.place},
                    "colour": f"var(--{COLOURS[tone(verdict or '')]})",
                }
            )
    if not 0 < len(rows) <= MOST:
        return ""
    frame = pd.DataFrame(rows)
    ends = most if of == "difference" else max(1, math.ceil(frame[["low", "high"]].abs().to_numpy().max()))
    groups = list(frame.groupby(["item", "label"], sort=False))
    several_items = frame["item"].nunique() > 1
    several_labels = len(groups) > frame["item"].nunique()
    axis = "difference to the published value, in margins (grey)" if of == "difference" else "gain, in points"
    axis += "; cut off at the ends" * bool(frame["cut"].any())
    panels: list[Spec] = []
    for _, shown in groups:
        item, label = shown[["item", "label"]].iloc[0]
        heading = [titles[item]] * several_items + [label.removesuffix(", %")] * several_labels
        title = axis if len(panels) == len(groups) - 1 else ""
        panels.append(_panel(", ".join(heading), shown, of, ends, title))
    return to_svg({"config": PAGE, "vconcat": panels, "spacing": 8})


def _panel(heading: str, shown: pd.DataFrame, of: str, ends: float, title: str) -> Spec:
    """Return the rows of a table's measure; the last panel has the axis and its title."""
    ticks = [-ends, -1, 0, 1, ends] if of == "difference" else [-ends, 0, ends]
    axis = {"values": ticks, "labels": bool(title), "ticks": bool(title), "labelFlush": False}
    axis |= {"domain": False, "grid": False, "format": "~g"}
    x = quantity(None, title or None, scale={"domain": [-ends, ends], "nice": False}, axis=axis)
    y: Spec = {"field": "place", "type": "nominal", "title": None, "sort": list(shown["place"])}
    y["axis"] = {"domain": False, "ticks": False, "labelPadding": 8}
    look: Spec = {"color": {"field": "colour", "type": "nominal", "scale": None}, "strokeWidth": {"value": 2}}
    return {
        "title": textwrap.wrap(heading, WIDTH // 6),
        **{"width": WIDTH, "height": {"step": ROW}},
        "data": {"values": shown.to_dict("records")},
        "layer": intervals("middle", shown, x, y, look, 1.0 if of == "difference" else None, "currentColor"),
    }
