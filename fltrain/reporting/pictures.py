"""Templates of pages, and the intervals of a cell against their margins as SVG."""

from __future__ import annotations

import base64
import hashlib
import math
from importlib import resources
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fltrain.core.errors import duration
from fltrain.core.statistics import Interval
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import latex
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
    if "as intended" in verdict:
        return "good"
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
TEMPLATES.filters |= {"tone": tone, "duration": duration, "latex": latex}
LATEX = TEMPLATES.overlay("<%", "%>", "<<", ">>", "<#", "#>")
"""Templates with delimiters that LaTeX does not use."""

WIDTH, EDGE = 360, 30
"""Width of a picture between its ends, and the space next to them, in pixels."""


def interval_picture(
    name: str, point: float, interval: Interval, margin: Interval | None, mark: float | None, verdict: str
) -> Markup:
    """Return a point with its interval as an SVG element; numbers stand at zero and the ends of the margin.

    Args:
        name: text below the axis.
        point: our number.
        interval: its interval.
        margin: shaded area.
        mark: published number, an upright line.
        verdict: decides the colour.
    """
    ends = [0.0, *interval, *(margin or ())]
    low, high = min(ends), max(ends)

    def x(value: float) -> float:
        share: float = (value - low) / ((high - low) or 1.0)
        return EDGE + WIDTH * share

    template = TEMPLATES.get_template("interval.svg")
    numbers = {"name": name, "point": point, "interval": interval, "margin": margin, "mark": mark}
    return Markup(template.render(x=x, width=WIDTH + 2 * EDGE, verdict=verdict, **numbers))


def pictures(cell: TableCell) -> list[Markup]:
    """Return pictures of a cell's intervals: its difference to the published value, and its gain."""
    unit = " (points)" if cell.label.endswith("%") else ""
    difference, gain = cell.difference_interval, cell.gain_interval
    drawn: list[Markup] = []
    if cell.difference is not None and difference and cell.margin and all(map(math.isfinite, difference)):
        name, margin = f"ours minus published{unit}; shaded: margin", (-cell.margin, cell.margin)
        drawn.append(interval_picture(name, cell.difference, difference, margin, None, cell.full_verdict))
    if cell.gain is not None and gain:
        half, published = cell.gain_margin, cell.published_gain
        around = None if half is None else ((published or 0.0) - half, (published or 0.0) + half)
        mark = published if around else None
        name = f"gain{unit}{'; line: published' if mark is not None else ''}"
        drawn.append(interval_picture(name, cell.gain, gain, around, mark, cell.gain_verdict or ""))
    return drawn
