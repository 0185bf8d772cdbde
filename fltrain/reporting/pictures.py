"""Intervals against margins as SVG: of one cell, and of all cells of a paper (forest plot)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from fltrain.reporting.tables.cells import TableCell

COLOURS = {
    "reproduced": "#2a7d4f",
    "size reproduced": "#2a7d4f",
    "direction reproduced": "#0b62a4",
    "not reproduced": "#b3261e",
    "opposite": "#b3261e",
}
GREY = "#777777"
WIDTH, ROW, TOP, BOTTOM = 360, 16, 8, 34
LONG = 30
"""Lines of a forest plot from which on its axis stands above, too."""


@dataclass(frozen=True)
class Bar:
    """One line of a forest plot: a point with its interval, against a margin.

    ``mark`` is a published value on the same axis; ``verdict`` decides the colour.
    """

    label: str
    point: float
    low: float
    high: float
    margin: tuple[float, float] | None = None
    mark: float | None = None
    verdict: str = ""


def difference_bar(cell: TableCell, in_margins: bool = False, label: str = "") -> Bar | None:
    """Return the difference to the published value, or None without an interval; in margins if asked."""
    if cell.difference is None or cell.difference_low is None or cell.difference_high is None:
        return None
    if not cell.margin or not all(map(math.isfinite, (cell.difference_low, cell.difference_high))):
        return None
    unit = cell.margin if in_margins else 1.0
    ends = cell.difference / unit, cell.difference_low / unit, cell.difference_high / unit
    edge = cell.margin / unit
    return Bar(label, *ends, (-edge, edge), verdict=cell.verdict or "")


def gain_bar(cell: TableCell, label: str = "") -> Bar | None:
    """Return our gain with its interval, against the published gain and its margin, if there is one."""
    if cell.gain is None or cell.gain_low is None or cell.gain_high is None:
        return None
    margin = None
    if cell.gain_margin is not None and cell.published_gain is not None:
        margin = cell.published_gain - cell.gain_margin, cell.published_gain + cell.gain_margin
    ends = cell.gain, cell.gain_low, cell.gain_high
    mark = cell.published_gain if margin else None
    return Bar(label, *ends, margin, mark, cell.gain_verdict or "")


def forest(bars: Sequence[Bar], axis: str, limit: float = math.inf) -> str:
    """Return bars below one another on a common axis, as an SVG element.

    Args:
        bars: from the top down.
        axis: text below the axis.
        limit: largest number shown on either side; an arrow stands for what lies beyond.
    """
    if not bars:
        return ""
    ends = [0.0, *(end for bar in bars for end in (bar.low, bar.high, *(bar.margin or ())))]
    low, high = max(min(ends), -limit), min(max(ends), limit)
    pad = 0.05 * (high - low) or 1.0
    low, high = low - pad, high + pad
    left = 12 + round(6.2 * max(len(bar.label) for bar in bars))
    top = TOP if len(bars) <= LONG else BOTTOM  # a long plot has its axis above, too
    end = top + ROW * len(bars)

    def x(value: float) -> str:
        return f"{left + WIDTH * (min(max(value, low), high) - low) / (high - low):.1f}"

    parts = [
        f'<svg class="forest" role="img" aria-label="{escape(axis)}" xmlns="http://www.w3.org/2000/svg" '
        f'width="{left + WIDTH + 12}" height="{end + BOTTOM}" font-family="sans-serif" font-size="11" '
        'fill="currentColor">'
    ]
    for number, bar in enumerate(bars):
        parts += _bar(bar, x, top + ROW * number, left, limit)
    parts.append(
        f'<path d="M{x(0)} {top}V{end}" stroke="{GREY}" stroke-dasharray="2 2" fill="none"/>'
        f'<path d="M{left} {end}H{left + WIDTH}" stroke="{GREY}" fill="none"/>'
    )
    for edge, tick_length, numbers, name in [(end, 4, end + 15, end + 29), (top, -4, top - 7, top - 21)]:
        if edge == end or top > TOP:
            for tick in _ticks(low, high):
                parts.append(
                    f'<path d="M{x(tick)} {edge}v{tick_length}" stroke="{GREY}" fill="none"/>'
                    f'<text x="{x(tick)}" y="{numbers}" text-anchor="middle">{tick:g}</text>'
                )
            parts.append(
                f'<text x="{left + WIDTH / 2}" y="{name}" text-anchor="middle">{escape(axis)}</text>'
            )
    return "".join([*parts, "</svg>"])


def _bar(bar: Bar, x: Callable[[float], str], top: int, left: int, limit: float) -> Iterable[str]:
    middle, colour = top + ROW / 2, COLOURS.get(bar.verdict, GREY)
    shift = f"{bar.point:+.3g} [{bar.low:+.3g}, {bar.high:+.3g}] {bar.verdict}".strip()
    yield f"<g><title>{escape(f'{bar.label} {shift}'.strip())}</title>"
    if bar.margin:
        start, stop = x(bar.margin[0]), x(bar.margin[1])
        width = float(stop) - float(start)
        yield f'<rect x="{start}" y="{top + 1}" width="{width:.1f}" height="{ROW - 2}" opacity=".15"/>'
    if bar.mark is not None:
        yield f'<path d="M{x(bar.mark)} {top + 2}v{ROW - 4}" stroke="currentColor" stroke-width="1.5"/>'
    yield f'<path d="M{x(bar.low)} {middle}H{x(bar.high)}" stroke="{colour}" stroke-width="2" fill="none"/>'
    if abs(bar.point) <= limit:
        yield f'<circle cx="{x(bar.point)}" cy="{middle}" r="3" fill="{colour}"/>'
    else:
        arrow = "▶" if bar.point > 0 else "◀"
        yield f'<text x="{x(bar.point)}" y="{middle + 4}" text-anchor="middle" fill="{colour}">{arrow}</text>'
    if bar.label:
        yield f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>'
    yield "</g>"


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two ends."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step) + 1)]


LIMIT = 6.0
"""Largest difference that the forest plot of a paper shows, in margins."""


def _typical(bars: Sequence[Bar]) -> float:
    """Return four times the usual reach of the bars, so that few large ones do not flatten the others."""
    return max(1.0, 4 * median(max(abs(bar.low), abs(bar.high)) for bar in bars)) if bars else 1.0


def paper_forest(cells: Iterable[TableCell]) -> tuple[str, str]:
    """Return the forest plots of a paper: differences in units of their margins, and gains in points."""
    cells = list(cells)
    labels = {(cell.item, cell.label) for cell in cells}
    several = {item for item, count in Counter(item for item, _ in labels).items() if count > 1}

    def name(cell: TableCell) -> str:
        return f"{cell.item}: {cell.place}" + (f" ({cell.label})" if cell.item in several else "")

    differences = [difference_bar(cell, True, name(cell)) for cell in cells]
    gains = [bar for cell in cells if (bar := gain_bar(cell, name(cell)))]
    return (
        forest([bar for bar in differences if bar], "difference to the published value, in margins", LIMIT),
        forest(gains, "gain over the base method, points", _typical(gains)),
    )
