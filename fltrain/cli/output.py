"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.cells import cell_len
from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table at its full width: folded columns are hard to read and to search.

    Rich itself would take a minute for ten thousand runs.
    """
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    widths = [max(map(cell_len, cells)) for cells in columns]
    right = [column.justify == "right" for column in table.columns]

    def line(left: str, fill: str, middle: str, end: str) -> str:
        return left + middle.join(fill * (width + 2) for width in widths) + end

    def row(side: str, cells: Sequence[str]) -> str:
        padding = [" " * (width - cell_len(cell)) for width, cell in zip(widths, cells, strict=True)]
        placed = [
            pad + cell if to_right else cell + pad
            for cell, pad, to_right in zip(cells, padding, right, strict=True)
        ]
        return f"{side} {f' {side} '.join(placed)} {side}"

    head, *rows = zip(*columns, strict=True)
    lines = [str(table.title)] if table.title else []
    lines += [line("┏", "━", "┳", "┓"), row("┃", head), line("┡", "━", "╇", "┩")]
    for cells, state in zip(rows, table.rows, strict=True):
        lines.append(row("│", cells))
        if state.end_section:
            lines.append(line("├", "─", "┼", "┤"))
    typer.echo("\n".join([*lines, line("└", "─", "┴", "┘")]))
