"""Templates of pages, and intervals against margins as SVG: of one cell, or of all cells (forest plot)."""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from statistics import median

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fltrain.experiments.progress import duration
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.version import reporting_version


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


TONES = {
    **dict.fromkeys(("reproduced", "size reproduced", "better", "supported"), "good"),
    **dict.fromkeys(("direction reproduced", "equivalent"), "partly"),
    **dict.fromkeys(("not reproduced", "opposite", "worse", "contradicted"), "bad"),
}
"""Class of colour of each verdict; the others have none."""


def tone(verdict: str) -> str:
    """Return the class of colour of a verdict, which a side or a note can follow."""
    return TONES.get(verdict.partition(" (")[0].partition(",")[0], "")


TEMPLATES = Environment(
    loader=PackageLoader("fltrain.reporting"),
    autoescape=select_autoescape(("html", "svg")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals |= {"version": version("fltrain"), "reporting": reporting_version()}
TEMPLATES.globals |= {"script": script, "policy": policy}
TEMPLATES.filters |= {"tone": tone, "duration": duration}

WIDTH, ROW, AXIS = 360, 16, 34
"""Width of the axis, height of a line, and height of the axis with its numbers and name, in pixels."""
LONG = 30
"""Lines of a forest plot from which on its axis stands above, too."""
LIMIT = 6.0
"""Largest difference that the forest plot of a paper shows, in margins."""


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
    published, half = cell.published_gain, cell.gain_margin
    center = published or 0.0
    margin = None if half is None else (center - half, center + half)
    mark = None if half is None else published
    return Bar(label, cell.gain, *cell.gain_interval, margin, mark, cell.gain_verdict or "")


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
    top = 8 if len(bars) <= LONG else AXIS
    end = top + ROW * len(bars)

    def x(value: float) -> float:
        share: float = (min(max(value, low), high) - low) / (high - low)
        return round(left + WIDTH * share, 1)

    # For each drawn axis: its height, the length of its ticks, and the heights of its numbers and its name.
    axes = [(end, 4, end + 15, end + 29), (top, -4, top - 7, top - 21)][: 1 + (len(bars) > LONG)]
    picture = TEMPLATES.get_template("forest.svg").render(
        **{"bars": bars, "name": axis, "axes": axes, "ticks": _ticks(low, high), "x": x, "limit": limit},
        **{"left": left, "right": left + WIDTH, "top": top, "end": end, "row": ROW, "height": end + AXIS},
    )
    return picture.replace("\n", "")


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two ends."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step) + 1)]


def paper_forest(cells: Iterable[TableCell]) -> tuple[str, str]:
    """Return the forest plots of a paper: differences in units of their margins, and gains in points."""
    cells = [cell for cell in cells if cell.runs]
    labels = {(cell.item, cell.label) for cell in cells}
    items = Counter(item for item, _ in labels)

    def name(cell: TableCell) -> str:
        item = f"{cell.item}: " if len(items) > 1 else ""
        return item + cell.place + (f" ({cell.label})" if items[cell.item] > 1 else "")

    differences = [bar for cell in cells if (bar := difference_bar(cell, True, name(cell)))]
    gains = [bar for cell in cells if (bar := gain_bar(cell, name(cell)))]
    # Four times the usual reach, so that few large gains do not flatten the others.
    limit = 4 * median(max(abs(bar.low), abs(bar.high)) for bar in gains) if gains else 1.0
    return (
        forest(differences, "difference to the published value, in margins", LIMIT),
        forest(gains, "gain over the base method, points", max(1.0, limit)),
    )
