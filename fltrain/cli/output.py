"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_text(text: str) -> None:
    """Print a line, folded between words to the width of the terminal; whole into a file or pipe."""
    _console().print(Text(text))


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 10_000)


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    optional: Sequence[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Print a table, folded to the width of the terminal; at its full width into a file or pipe.

    An empty row is a line across the table. Columns with a heading in ``right`` are aligned to the right. If
    the terminal is narrow, ``optional`` columns are left out, one after another, until the table fits with
    columns of at most a third of the width. Columns with a heading in ``whole`` are never folded.
    """
    console = _console()
    for number in range(len(optional) + 1):
        absent = optional[:number]
        table = Table(caption=f"without {', '.join(absent)}" if absent else None, caption_justify="left")
        kept = [place for place, heading in enumerate(headings) if heading not in absent]
        for heading in (headings[place] for place in kept):
            justify: Literal["left", "right"] = "right" if heading in right else "left"
            widest = console.width // 3 if optional else None
            fixed = heading in whole
            table.add_column(Text(heading), justify=justify, overflow="fold", max_width=widest, no_wrap=fixed)
        for cells in rows:
            table.add_row(*(Text(cells[place]) for place in kept)) if cells else table.add_section()
        if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
            break
    console.print(table)
