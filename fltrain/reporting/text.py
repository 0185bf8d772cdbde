"""Numbers, intervals and tables as text."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from fltrain.core.statistics import LEVEL, Interval


def number_text(
    value: float | None,
    decimals: int,
    sign: str = "",
    std: float | None = None,
    interval: Interval | None = None,
) -> str:
    """Format a number, for example ``67.34 ± 0.52``, ``67.34 [66.05, 68.63]``, or ``never`` (infinite).

    A negative number that rounds to zero has no minus sign.
    """
    if value is None:
        return ""
    text = "never" if math.isinf(value) else f"{value:{sign}z.{decimals}f}"
    if interval:
        low, high = (f"{end:{sign}z.{decimals}f}" for end in interval)
        return f"{text} [{low}, {high}]"
    return text if std is None else f"{text} ± {std:.{decimals}f}"


def p_text(p: float) -> str:
    """Format a p value, for example ``p 0.032`` or ``p < 0.001``; more digits show a side of the level."""
    if p < 0.001:
        return "p < 0.001"
    shown = (f"{p:.{decimals}f}" for decimals in range(3, 8))
    return f"p {next((text for text in shown if float(text) != LEVEL), f'{p:.3f}')}"


def markdown_table(lines: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """Return a Markdown table; the first line is its heading, columns after the first are ``numbers``."""
    first, *rest = ([" ".join(text.split("\n")) for text in line] for line in lines)
    rule = ["---", *(["---:" if numbers else "---"] * (len(first) - 1))]
    texts = (" | ".join(text.replace("|", r"\|") for text in line) for line in (first, rule, *rest))
    return "\n".join(f"| {line} |" for line in texts)


def without_tags(text: str) -> str:
    """Escape what Markdown would take for HTML: texts of imported records can contain it."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


# ---------------------------------------------------------------- LaTeX
_MATH = """± pm, † dagger, ‡ ddagger, \u00d7 times, · cdot, ∞ infty, ≤ le, ≥ ge, ≠ ne, ≈ approx, ∈ in, √ surd,
∑ sum, ∂ partial, → rightarrow, ← leftarrow, ↔ leftrightarrow, ↑ uparrow, ↓ downarrow, ⇒ Rightarrow, ° circ,
\u00b5 mu, ς varsigma"""
_TEXT = r"""\ \textbackslash{}, | \textbar{}, ^ \textasciicircum{}, ~ \textasciitilde{}, — ---,
… \ldots{}, “ ``, ” '', ß \ss{}, ø \o{}, Ø \O{}, æ \ae{}, Æ \AE{}, ł \l{}, Ł \L{}"""
_LATEX = {
    **{character: "\\" + character for character in "&%$#_{}"},
    **{
        "<": "$<$",
        ">": "$>$",
        "\N{MINUS SIGN}": "$-$",
        "\N{FRACTION SLASH}": "/",
        "\N{EN DASH}": "--",
        "\N{NO-BREAK SPACE}": "~",
        "\n": " ",
    },
    **{"\N{LEFT SINGLE QUOTATION MARK}": "`", "\N{RIGHT SINGLE QUOTATION MARK}": "'"},
    **{character: rf"$\{name}$" for character, name in (pair.split() for pair in _MATH.split(","))},
    **dict(pair.split() for pair in _TEXT.split(",")),
}
_ACCENTS = dict(
    zip(
        "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327\u0328",
        "`'^~=u.\"rHvck",
        strict=True,
    )
)
"""Combining accents and their commands."""
_FORMS = {"<super>": r"\textsuperscript{%s}", "<sub>": r"\textsubscript{%s}"}
_FORMS |= {"<fraction>": "%s", "<compat>": "%s"}
"""Commands for characters that Unicode defines as a form of others, such as \u00b2, \u00bd and \u03d5."""
_CAPITALS = ["Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega"]
_MINUS = re.compile(r"(?<![\w.,)\]-])-(?=\.?\d)")


def latex(text: str) -> str:
    """Return a text for pdfLaTeX: plain ASCII that needs no package. Unknown characters become their code.

    Braces keep TeX from joining hyphens to a dash.
    """
    parts = re.split("(?<=-)(?=-)", _MINUS.sub("\N{MINUS SIGN}", text))
    return "{}".join("".join(map(_in_latex, part)) for part in parts)


def _in_latex(character: str) -> str:
    if found := _LATEX.get(character):
        return found
    if " " <= character <= "~":
        return character
    base, *marks = list(unicodedata.normalize("NFD", character))
    if base.isascii() and base.isalpha() and marks and all(mark in _ACCENTS for mark in marks):
        for mark in marks:
            base = rf"\{_ACCENTS[mark]}{{{base}}}"
        return base
    if form := _FORMS.get(unicodedata.decomposition(character).partition(" ")[0]):
        return form % latex(unicodedata.normalize("NFKD", character))
    kind, _, name = unicodedata.name(character, "").partition(" LETTER ")
    if kind == "GREEK SMALL" and name.isalpha():
        return "o" if name == "OMICRON" else rf"$\{name.replace('LAMDA', 'LAMBDA').lower()}$"
    if kind == "GREEK CAPITAL" and name.isalpha():
        name = name.replace("LAMDA", "LAMBDA").capitalize()
        return rf"$\{name}$" if name in _CAPITALS else unicodedata.normalize("NFKD", name)[0]
    return f"[U+{ord(character):04X}]"
