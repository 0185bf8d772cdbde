"""Tables on the terminal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Sequence
from typing import Literal

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_WORD = 16
"""Longer words, such as paths, may be folded."""


def print_text(text: str) -> None:
    """Print a line, folded between words to the width of the terminal; whole into a file or pipe."""
    _console().print(Text(text))


def print_entries(entries: Sequence[tuple[str, str, str]], label_width: int | None = None) -> None:
    """Print labels, each with a text and its details on the right.

    All are folded between words to the width of the terminal, or to 100 columns into a file or pipe; labels
    also to their width, if you state one.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", max_width=label_width)
    grid.add_column(overflow="fold")
    for label, text, details in entries:
        below = Padding(Text(details), (0, 0, 0, 2))
        grid.add_row(Text(label), Group(Text(text), below) if details else Text(text))
    _console(piped=100).print(grid)


def _console(piped: int = 10_000) -> Console:
    """Return a console with the width of the terminal, or ``piped`` columns for a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else piped)


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    optional: Sequence[str] = (),
    unfolded: Collection[str] = (),
    grouped: Collection[str] = (),
    below: Collection[str] = (),
) -> None:
    """Print a table, folded to the width of the terminal; at its full width into a file or pipe.

    An empty row is a line across the table. Columns with a heading in ``right`` are aligned to the right. If
    the terminal is narrow, ``optional`` columns are left out, one after another, until the table fits with
    columns of at most a third of the width, except the ``unfolded`` ones, which are never folded.
    Words of other columns are folded only if the table does not fit without spaces at the lines either.
    Before that, a number replaces the ``grouped`` columns, and a list below the table has their values; or
    each row has its columns ``below`` on a second line. The terminal folds these lines: copies are whole.
    """
    console = _console()
    for number in range(len(optional) + 1):
        absent = optional[:number]
        places = [place for place, heading in enumerate(headings) if heading not in absent]
        columns = [[headings[place], *(cells[place] for cells in rows if cells)] for place in places]
        widest = console.width // 3 if optional else console.width
        limits = [console.width if texts[0] in unfolded else widest for texts in columns]
        most = [min(max(map(len, texts)), limit) for texts, limit in zip(columns, limits, strict=True)]
        if sum(most) + 3 * len(most) < console.width:
            break
    fixed = [width * (texts[0] in unfolded) for texts, width in zip(columns, most, strict=True)]
    longest = [max(map(len, " ".join(texts).split()), default=0) for texts in columns]
    unbroken = list(map(max, fixed, longest))
    words = [max(width, min(_WORD, word)) for width, word in zip(fixed, longest, strict=True)]
    narrow = sum(unbroken) + len(unbroken) >= console.width
    if grouped and narrow:
        _print_grouped(headings, rows, right, unfolded, grouped)
        return
    if below and narrow:
        for cells in filter(None, [headings, *rows]):
            named = list(zip(headings, cells, strict=True))
            for low, indent in ((False, ""), (True, "    ")):
                if texts := [text for name, text in named if text and (name in below) == low]:
                    console.print(Text(indent + "  ".join(texts)), soft_wrap=True)
        return
    least_widths = (1, unbroken), (0, unbroken), (1, words), (0, words), (0, fixed)
    trials = itertools.product(least_widths, range(console.width, 0, -1))
    for (padding, least), level in trials:  # the widest columns shrink first
        widths = [max(small, min(large, level)) for small, large in zip(least, most, strict=True)]
        if sum(widths) + (1 + 2 * padding) * len(widths) < console.width:
            break
    caption = f"Hidden columns: {', '.join(absent)}; wider terminals show them" if absent else None
    table = Table(caption=caption, caption_justify="left", padding=(0, padding))
    for (heading, *_), width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(Text(heading), justify=justify, overflow="fold", width=width)
    for cells in rows:
        table.add_row(*(Text(cells[place]) for place in places)) if cells else table.add_section()
    console.print(table)


def _print_grouped(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    unfolded: Collection[str],
    grouped: Collection[str],
) -> None:
    """Print a table with a number instead of the grouped columns, and the list of these numbers."""
    lines = [dict(zip(headings, cells, strict=True)) for cells in rows]
    keys = [", ".join(f"{name}={line[name]}" for name in headings if name in grouped) for line in lines]
    numbers = {text: str(number) for number, text in enumerate(dict.fromkeys(keys), 1)}
    names = [name for name in headings if name not in grouped]
    cells = [[numbers[text], *(line[name] for name in names)] for text, line in zip(keys, lines, strict=True)]
    print_table(["case", *names], cells, right, unfolded=unfolded)
    print_entries([(f"case {number}:", text, "") for text, number in numbers.items()])
