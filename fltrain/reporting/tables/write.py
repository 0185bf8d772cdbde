"""Tables written to files: CSV, Markdown, LaTeX and HTML, all from the same cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fltrain.core.files import write_text
from fltrain.experiments.layout import ItemJob
from fltrain.experiments.published import Published
from fltrain.reporting.frame import Runs, targets_text
from fltrain.reporting.tables.cells import absent, cells
from fltrain.reporting.tables.html import table_page
from fltrain.reporting.tables.render import Grid, Notes, to_latex, to_markdown
from fltrain.reporting.tables.table_cell import to_csv
from fltrain.runs.today import notes_on


def write(
    sheet: ItemJob,
    runs: Runs,
    published: Path | None,
    outputs: Mapping[str, Path],
    anomalies: Path | None = None,
) -> None:
    """Make a table and write it in the forms asked for, see ``texts``."""
    for form, text in texts(sheet, runs, published, outputs, anomalies).items():
        write_text(outputs[form], text)


def texts(
    sheet: ItemJob,
    runs: Runs,
    published: Path | None,
    outputs: Mapping[str, Path],
    anomalies: Path | None = None,
) -> dict[str, str]:
    """Make a table in the forms asked for.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run ID, complete or not.
        published: file of published values, or None.
        outputs: file by form: ``csv`` (one row for each cell), ``md``, ``tex`` and ``html``.
        anomalies: file of reasons to doubt published values, or None.
    """
    printed = Published.read(published, anomalies)
    runs = cache(runs)  # all measures look into the same records
    shown = cells(sheet, runs, printed)
    missing = absent(sheet, printed, shown)
    records = [runs(cell.run) for cell in sheet.cells]
    notes = Notes.of(sheet, shown, missing, notes_on(records), targets_text(sheet, runs, printed))
    grid, short = (Grid.of(sheet, shown, notes.marks, form) for form in (False, True))
    in_short = notes.naming(short.quantity)
    notes = notes.naming(grid.quantity)
    render: dict[str, Callable[[], str]] = {
        "csv": lambda: to_csv([*shown, *missing]),
        "md": lambda: to_markdown(sheet, grid, notes),
        "tex": lambda: to_latex(sheet, short, in_short),
        "html": lambda: table_page(sheet, grid, shown, notes, runs, outputs["html"].parent),
    }
    return {form: render[form]() for form in outputs}
