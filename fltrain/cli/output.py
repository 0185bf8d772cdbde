"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

NARROW = 36
"""Largest width of columns of text on a terminal that is too narrow for all columns."""


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table, folded to the width of the terminal; at its full width into a file or pipe.

    An empty row is a line across the table. Columns with a heading in ``right`` are aligned to the right. If
    the terminal is narrow, ``optional`` columns are left out, one after another, until the table fits.
    """
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    unlimited = console.options.update(max_width=10_000)
    absent = [optional[:number] for number in range(len(optional) + 1)] if optional else []
    tables = [_table(headings, rows, right), *(_table(headings, rows, right, one, NARROW) for one in absent)]
    fitting = (one for one in tables if console.measure(one, options=unlimited).maximum <= console.width)
    console.print(next(fitting, tables[-1]))


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    absent: Sequence[str] = (),
    widest: int | None = None,
) -> Table:
    """Return a table without the columns ``absent``, with columns of text at most ``widest`` wide."""
    table = Table(caption=f"without {', '.join(absent)}" if absent else None, caption_justify="left")
    kept = [place for place, heading in enumerate(headings) if heading not in absent]
    for heading in (headings[place] for place in kept):
        if heading in right:
            table.add_column(Text(heading), justify="right", overflow="fold")
        else:
            table.add_column(Text(heading), overflow="fold", max_width=widest)
    for cells in rows:
        table.add_row(*(Text(cells[place]) for place in kept)) if cells else table.add_section()
    return table
