"""Environment of the templates, and the colours of verdicts on pages. No torch."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fltrain.core.errors import duration
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
