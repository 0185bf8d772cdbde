"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print a table at its full width: folded columns are hard to read and to search.

    An empty row is a line across the table. Columns with a heading in ``right`` are aligned to the right.
    """
    table = Table()
    for heading in headings:
        table.add_column(Text(heading), justify="right" if heading in right else "left", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells)) if cells else table.add_section()
    Console(width=10_000).print(table)
