"""Numbers, intervals and tables as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fltrain.core.statistics import Interval


def interval_text(interval: Interval, decimals: int, sign: str = "") -> str:
    """Format an interval, for example ``[66.05, 68.63]``."""
    low, high = interval
    return f"[{low:{sign}.{decimals}f}, {high:{sign}.{decimals}f}]"


def number_text(
    value: float | None,
    decimals: int,
    sign: str = "",
    std: float | None = None,
    interval: Interval | None = None,
) -> str:
    """Format a number, for example ``67.34 ± 0.52``, ``67.34 [66.05, 68.63]``, or ``never`` (infinite)."""
    if value is None:
        return ""
    text = "never" if math.isinf(value) else f"{value:{sign}.{decimals}f}"
    if interval:
        return f"{text} {interval_text(interval, decimals, sign)}"
    return text if std is None else f"{text} ± {std:.{decimals}f}"


def p_text(p: float) -> str:
    """Format a p value, for example ``p 0.032`` or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def markdown_table(lines: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """Return a Markdown table; the first line is its heading, columns after the first are ``numbers``."""
    first, *rest = lines
    rule = ["---", *(["---:" if numbers else "---"] * (len(first) - 1))]
    return "\n".join(
        "| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in (first, rule, *rest)
    )
