"""Numbers, intervals and tables as text."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from fltrain.core.statistics import LEVEL, Interval


def number_text(
    value: float | None,
    decimals: int,
    sign: str = "",
    std: float | None = None,
    interval: Interval | None = None,
    unit: str = "",
) -> str:
    """Format a number, for example ``67.34 ± 0.52``, ``67.34 [66.05, 68.63]``, or ``never`` (infinite).

    A number that rounds to zero has no sign. An end of an interval that would look like zero has up to
    two more decimals, which show on which side of zero it lies.
    """
    if value is None:
        return ""
    text = ("never" if math.isinf(value) else _fixed(value, decimals, sign)) + unit
    if interval:
        low, high = (_fixed(end, _beside_zero(decimals, end), sign) for end in interval)
        return f"{text} [{low}, {high}]"
    return text if std is None else f"{text} ± {std:.{decimals}f}"


def _fixed(value: float, decimals: int, sign: str) -> str:
    """Return a number as text, without a sign if it rounds to zero."""
    text = f"{value:{sign}z.{decimals}f}"
    return text if text.strip("+0.") else text.removeprefix("+")


def shared_decimals(value: float, interval: Interval | None) -> int:
    """Return the decimals that a number shares with its interval: two digits of the half-width.

    Without a half-width they are three digits of the number, or two below 1. Up to two more decimals show the
    side of zero on which an end lies.
    """
    half = (interval[1] - interval[0]) / 2 if interval else 0.0
    size, digits = (half, 2) if half else (abs(value), 2 if 0 < abs(value) < 1 else 3)
    if not math.isfinite(size):
        return 0
    exponent = int(f"{size:.{digits - 1}e}".partition("e")[2])
    return _beside_zero(max(0, digits - 1 - exponent), *(interval or ()))


def _beside_zero(least: int, *ends: float) -> int:
    """Return decimals, at most two more than ``least``, with which no end looks like zero; else ``least``."""
    enough = (more for more in range(least, least + 3) if all(round(end, more) for end in ends))
    return next(enough, least)


def p_text(p: float) -> str:
    """Format a p value, for example ``p 0.032`` or ``p < 0.001``; more digits show a side of the level."""
    if p < 0.001:
        return "p < 0.001"
    texts = (f"{p:.{decimals}f}" for decimals in range(3, 8))
    return f"p {next((text for text in texts if float(text) != LEVEL), f'{p:.3f}')}"


def expected_text(expected: Mapping[str, float]) -> str:
    """Return a sentence on the expected number of cells with each verdict, without those below a half."""
    counts = [f"{number:.0f} {verdict}" for verdict, number in expected.items() if number > 0.5]
    cells = f"{sum(expected.values()):.0f} with an interval"
    return f"If all published values were true, we would expect about {joined(counts)} (of {cells})."


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in order, for example ``0 to 4`` or ``42, 999 and 2025``."""
    ordered = sorted(seeds)
    is_range = len(ordered) > 2 and ordered == [*range(ordered[0], ordered[-1] + 1)]
    return f"{ordered[0]} to {ordered[-1]}" if is_range else joined([*map(str, ordered)])


def name_and_value(line: str) -> tuple[str, str]:
    """Split a line ``name: value``. Other lines are a name without a value."""
    name, _, value = line.rpartition(": ")
    return (name, value) if name else (line, "")


def markdown_table(lines: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """Return a Markdown table; the first line is its heading, columns after the first are ``numbers``."""
    first, *body = ([" ".join(text.split("\n")) for text in line] for line in lines)
    rule = ["---", *(["---:" if numbers else "---"] * (len(first) - 1))]
    texts = (" | ".join(text.replace("|", r"\|") for text in line) for line in (first, rule, *body))
    return "\n".join(f"| {line} |" for line in texts)


def unbroken(text: Any) -> Any:
    """Return a value; texts break no line at ``B = 10``, ``90 %``, ``± SD``, ``+ ECGR``."""
    spaces = r"(?<==) | (?==)|(?<=\d) (?=%)|(?<=±) |(?<=(?<!\S)\+) "
    return type(text)(re.sub(spaces, "\u00a0", text)) if isinstance(text, str) else text


def without_tags(text: str) -> str:
    """Escape what Markdown would take for HTML: texts of imported records can contain it."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


# ---------------------------------------------------------------- LaTeX
_CHARSETS = ("cp1252", "iso8859_2", "iso8859_9", "iso8859_13")
_EUROPEAN = "".join(bytes(range(256)).decode(charset, "ignore") for charset in _CHARSETS)
TEXT_CHARACTERS = set(filter(str.isprintable, _EUROPEAN))
"""Characters that LaTeX can read as UTF-8 in a document with ``\\usepackage[T1]{fontenc}``."""
_MATH = """∞ infty, ≤ le, ≥ ge, ≠ ne, ≈ approx, \u223c sim, ∈ in, √ surd, ∑ sum, ∂ partial, ∇ nabla,
← leftarrow, → rightarrow, ↔ leftrightarrow, ↑ uparrow, ↓ downarrow, ⇒ Rightarrow, \u2113 ell, ς varsigma"""
_GREEK = "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03bf"
"""Letters without a command, because they look like Latin ones."""
_LATEX = {
    **{character: "\\" + character for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "|": r"\textbar{}"},
    **{"`": r"\textasciigrave{}", '"': r"\textquotedbl{}", "<": "$<$", ">": "$>$"},
    # After the end of a line, TeX would take them for an argument.
    **{"[": "{[}", "*": "{*}"},
    **{"\N{MINUS SIGN}": "$-$", "\N{PRIME}": "$'$"},
    **{"\N{HYPHEN}": "{-}", "\N{NON-BREAKING HYPHEN}": "{-}", "\N{SOFT HYPHEN}": r"\-"},
    **{"\N{NO-BREAK SPACE}": "~", "\n": " "},
    **dict(zip(_GREEK, "ABEZHIKMNOPTXo", strict=True)),
    **{character: rf"$\{name}$" for character, name in (pair.split() for pair in _MATH.split(","))},
}
_MINUS = re.compile(r"(?<![\w.,)\]-])-(?=\.?\d)")
_LIGATURE = re.compile(r"(?<=[-\u2013\u2018\u2019',!?])(?=[-\u2018\u2019',])")


def latex(text: str) -> str:
    r"""Return a text for pdfLaTeX in a document with ``\usepackage[T1]{fontenc}``.

    Characters that it cannot show become their code. Braces keep TeX from joining punctuation, for example
    hyphens to a dash.
    """
    composed = unicodedata.normalize("NFC", text)
    parts = _LIGATURE.split(_MINUS.sub("\N{MINUS SIGN}", composed))
    return "{}".join("".join(map(_in_latex, part)) for part in parts)


def _in_latex(character: str) -> str:
    if command := _LATEX.get(character):
        return command
    if character in TEXT_CHARACTERS:
        return character
    kind, _, name = unicodedata.name(character, "").replace("LAMDA", "LAMBDA").partition(" LETTER ")
    if "\u0391" <= character <= "\u03c9" and name.isalpha():  # Greek without accents
        return rf"$\{name.capitalize() if kind == 'GREEK CAPITAL' else name.lower()}$"
    return f"{{[}}U+{ord(character):04X}]"


def joined(names: Sequence[str]) -> str:
    """Return names as a list in a sentence, for example ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
