"""Environment of the templates, and the colours of verdicts on pages. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from fltrain.core.errors import duration
from fltrain.reporting.text import expected_text, latex, name_and_value, unbroken
from fltrain.reporting.version import reporting_version
from fltrain.runs.today import serious

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


CASE = (
    "A case is one setting or method of a claim. The weakest case supports the claim least (largest p value)."
)
"""Meaning of a word in numbers of claims."""


def in_lines(numbers: Sequence[str]) -> Markup:
    """Return lines ``name: value`` as terms and values of a list, and other lines as terms.

    The pointer shows the meaning of a case.
    """
    terms = []
    for name, value in map(name_and_value, filter(None, numbers)):
        terms.append(f"<dt>{escape(unbroken(name))}</dt>")
        terms += [f"<dd>{escape(unbroken(value))}</dd>"] * bool(value)
    return Markup(re.sub(r"\bcases?\b", rf'<abbr title="{CASE}">\g<0></abbr>', "".join(terms)))


def cited(text: str) -> Markup:
    """Return a citation with links from its arXiv number and DOI to the paper."""
    hosts = {"arXiv": "arxiv.org/abs", "doi": "doi.org"}

    def link(match: re.Match[str]) -> str:
        return f'<a href="https://{hosts[match[1]]}/{match[2]}">{match[0]}</a>'

    return Markup(re.sub(r"\b(arXiv|doi) ([\w./-]*\w)", link, str(escape(text))))


def size_and_caption(picture: Path) -> tuple[Markup, Markup]:
    """Return attributes with the size of an SVG, so that pages keep its place, and its caption, both or none.

    Style sheets enlarge the ``--width``, because labels are smaller than the text of pages.
    """
    head = r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"[^>]*>(?:<desc>([^<]*)</desc>)?'
    if picture.suffix != ".svg" or not (match := re.match(head, picture.read_text("utf-8"))):
        return Markup(), Markup()
    width, height = (f"{float(side):.0f}" for side in match.groups()[:2])
    size = f' width="{width}" height="{height}" style="--width:{width}px"'
    return Markup(size), Markup(match[3] or "")


TEMPLATES = Environment(
    loader=PackageLoader("fltrain.reporting"),
    autoescape=select_autoescape(("html",)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals |= {"case": CASE, "version": version("fltrain"), "reporting": reporting_version()}
TEMPLATES.filters |= {
    "tone": tone,
    "cited": cited,
    "in_lines": in_lines,
    "expected_text": expected_text,
    "duration": duration,
    "size_and_caption": size_and_caption,
    "serious": serious,
    "latex": latex,
}
PAGES = TEMPLATES.overlay(finalize=unbroken)
"""Templates of HTML pages."""
LATEX = TEMPLATES.overlay("<%", "%>", "<<", ">>", "<#", "#>")
"""Templates with delimiters that LaTeX does not use."""


def render(template: str, folder: Path, **values: Any) -> str:
    """Return a page of a folder, with links to the files of its project that it names."""
    page = PAGES.get_template(template).render(folder=folder, **values)

    def link(match: re.Match[str]) -> str:
        # The front page lies one level above the pages of papers.
        for up in ("../..", "../../.."):
            # Browsers do not render Markdown, so the site comes first if somebody has built it.
            for file in (f"site/{match['file'].removesuffix('.md')}.html", match["file"]):
                if (folder / up / file).exists():
                    return f'<a data-file href="{up}/{file}{match["place"] or ""}">{match[0]}</a>'
        return match[0]

    names = r"(?<![\w/])(?P<file>(?:docs|published|tests)/[\w/-]+\.(?:md|py))(?P<place>#[\w-]+)?"
    return re.sub(names, link, page)
