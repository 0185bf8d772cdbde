"""Intervals against margins as SVG: of one cell, and of all cells of a paper (forest plot)."""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.metadata import version
from statistics import median

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.version import reporting_version

TEMPLATES = Environment(
    loader=PackageLoader("fltrain.reporting"),
    autoescape=select_autoescape(("html", "svg")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["version"] = version("fltrain")
TEMPLATES.globals["reporting"] = reporting_version()


def script(name: str) -> Markup:
    """Return the JavaScript of a template file."""
    return Markup((resources.files("fltrain.reporting") / "templates" / name).read_text(encoding="utf-8"))


def policy(*scripts: str, evaluates: bool = False) -> str:
    """Return a Content-Security-Policy: only these scripts run, and nothing is loaded from elsewhere.

    ``evaluates`` also allows these scripts to compile code, as Vega does for its expressions.
    """
    hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts)
    allowed = [f"'sha256-{digest}'" for digest in hashes] + ["'unsafe-eval'"] * evaluates
    images = "img-src 'self' file: data: blob:"
    return (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src 'unsafe-inline'; {images}; "
        "base-uri 'none'; form-action 'none'"
    )


TEMPLATES.globals |= {"script": script, "policy": policy}

COLOURS = {
    "reproduced": "#2a7d4f",
    "size reproduced": "#2a7d4f",
    "direction reproduced": "#0b62a4",
    "not reproduced": "#b3261e",
    "opposite": "#b3261e",
    "better": "#2a7d4f",
    "equivalent": "#0b62a4",
    "worse": "#b3261e",
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

    @property
    def colour(self) -> str:
        """Colour of the verdict."""
        return COLOURS.get(self.verdict, GREY)

    @property
    def title(self) -> str:
        """Label, numbers and verdict, shown when the pointer rests on the bar."""
        numbers = f"{self.point:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"
        return f"{self.label} {numbers} {self.verdict}".strip()


def difference_bar(cell: TableCell, in_margins: bool = False, label: str = "") -> Bar | None:
    """Return the difference to the published value, or None without an interval; in margins if asked."""
    interval = cell.difference_interval
    if cell.difference is None or not interval or not cell.margin or not all(map(math.isfinite, interval)):
        return None
    unit = cell.margin if in_margins else 1.0
    edge = cell.margin / unit
    low, high = interval[0] / unit, interval[1] / unit
    return Bar(label, cell.difference / unit, low, high, (-edge, edge), verdict=cell.verdict or "")


def gain_bar(cell: TableCell, label: str = "") -> Bar | None:
    """Return our gain with its interval, against its margin (around the published gain), if there is one."""
    if cell.gain is None or not cell.gain_interval:
        return None
    bar = Bar(label, cell.gain, *cell.gain_interval, verdict=cell.gain_verdict or "")
    published, margin = cell.published_gain, cell.gain_margin
    if margin is None:
        return bar
    center = published or 0.0
    return replace(bar, margin=(center - margin, center + margin), mark=published)


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

    # For each drawn axis: its height, the length of its ticks, and the heights of its numbers and its name.
    axes = [(end, 4, end + 15, end + 29), (top, -4, top - 7, top - 21)][: 1 + (top > TOP)]
    picture = TEMPLATES.get_template("forest.svg").render(
        **{"bars": bars, "name": axis, "axes": axes, "ticks": _ticks(low, high), "x": x, "limit": limit},
        **{"left": left, "right": left + WIDTH, "top": top, "end": end, "row": ROW, "grey": GREY},
        height=end + BOTTOM,
    )
    return picture.replace("\n", "")


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
