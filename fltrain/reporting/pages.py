"""Environment of the templates, and the colours of verdicts on pages. No torch."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from fltrain.core.errors import duration
from fltrain.reporting.text import latex
from fltrain.reporting.version import reporting_version

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


TERMS = {
    "cases?": "Case: a setting or method that a claim names.",
    "least certain": "Least certain: the case with the largest p value.",
    "allowed": "Allowed: the range in which the claim puts the number.",
}
"""Meanings of words in numbers of claims, by pattern."""


def in_lines(numbers: str) -> Markup:
    """Return numbers of a claim with each part on its own line, and each number next to its interval.

    The pointer shows the meanings of ``TERMS``.
    """
    number_unit_interval = r"[-+]?\d\S*(?: \S+)? \[[^]]*\]"
    kept = re.sub(number_unit_interval, lambda one: one[0].replace(" ", "\u00a0"), numbers)
    text = str(Markup("<br>").join(map(escape, kept.replace(" = ", "\u00a0=\u00a0").split("; "))))
    for word, meaning in TERMS.items():
        text = re.sub(rf"\b{word}\b", rf'<abbr title="{meaning}">\g<0></abbr>', text)
    return Markup(text)


def meanings_in(numbers: str) -> list[str]:
    """Return the meanings of the ``TERMS`` in numbers of claims."""
    return [meaning for word, meaning in TERMS.items() if re.search(rf"\b{word}\b", numbers)]


def with_links(page: str, folder: Path) -> str:
    """Return a page with links to the documentation that it names, if its project has that file."""

    def link(name: re.Match[str]) -> str:
        known = (folder / "../../.." / name[1]).exists()
        return f'<a data-file href="../../../{name[0]}">{name[0]}</a>' if known else name[0]

    return re.sub(r"(docs/[\w-]+\.md)(#[\w-]+)?", link, page)


TEMPLATES = Environment(
    loader=PackageLoader("fltrain.reporting"),
    autoescape=select_autoescape(("html",)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals |= {"version": version("fltrain"), "reporting": reporting_version()}
TEMPLATES.filters |= {
    "tone": tone,
    "in_lines": in_lines,
    "meanings_in": meanings_in,
    "duration": duration,
    "latex": latex,
}
LATEX = TEMPLATES.overlay("<%", "%>", "<<", ">>", "<#", "#>")
"""Templates with delimiters that LaTeX does not use."""
