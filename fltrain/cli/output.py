"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print a table, folded to the width of the terminal; at its full width into a file or pipe.

    An empty row is a line across the table. Columns with a heading in ``right`` are aligned to the right.
    """
    table = Table()
    for heading in headings:
        table.add_column(Text(heading), justify="right" if heading in right else "left", overflow="fold")
    for cells in rows:
        table.add_row(*map(Text, cells)) if cells else table.add_section()
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)
