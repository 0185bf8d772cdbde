"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import typer
from rich.cells import cell_len


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print a table at its full width: folded columns are hard to read and to search.

    An empty row is a line across the table. Columns with a heading in ``right`` are aligned to the right.
    """
    columns = zip(headings, *filter(None, rows), strict=True)
    widths = [max(map(cell_len, cells)) for cells in columns]

    def line(left: str, fill: str, middle: str, end: str) -> str:
        return left + middle.join(fill * (width + 2) for width in widths) + end

    def row(side: str, cells: Sequence[str]) -> str:
        placed = []
        for heading, cell, width in zip(headings, cells, widths, strict=True):
            padding = " " * (width - cell_len(cell))
            placed.append(padding + cell if heading in right else cell + padding)
        return f"{side} {f' {side} '.join(placed)} {side}"

    lines = [line("┏", "━", "┳", "┓"), row("┃", headings), line("┡", "━", "╇", "┩")]
    lines += [row("│", cells) if cells else line("├", "─", "┼", "┤") for cells in rows]
    typer.echo("\n".join([*lines, line("└", "─", "┴", "┘")]))
