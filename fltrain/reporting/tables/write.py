"""Tables written to files: CSV, Markdown, LaTeX and HTML, all from the same cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fltrain.core.files import write_text
from fltrain.experiments.layout import ItemJob
from fltrain.experiments.published import Published
from fltrain.reporting.frame import Runs, targets_text
from fltrain.reporting.pages import LATEX, TEMPLATES, render
from fltrain.reporting.tables.cells import cells, layout_of
from fltrain.reporting.tables.html import facts, sections
from fltrain.reporting.tables.render import LONG_FORM, Grid, Notes, gain_heading
from fltrain.reporting.tables.table_cell import to_csv
from fltrain.reporting.text import markdown_table, without_tags
from fltrain.runs.today import notes_on

TEXT_LINES = 45
"""Rows of a LaTeX table that fit its page."""


def write(sheet: ItemJob, runs: Runs, published: Path | None, outputs: Mapping[str, Path]) -> None:
    """Make a table and write it in the forms asked for, see ``texts``."""
    for form, text in texts(sheet, runs, published, outputs).items():
        write_text(outputs[form], text)


def texts(sheet: ItemJob, runs: Runs, published: Path | None, outputs: Mapping[str, Path]) -> dict[str, str]:
    """Make a table in the forms asked for.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run ID, complete or not.
        published: file of published values, or None.
        outputs: file by form: ``csv`` (one row for each cell), ``md``, ``tex`` and ``html``.
    """
    printed = Published.read(published)
    runs = cache(runs)  # all measures look into the same records
    judged = cells(sheet, runs, printed)
    records = [runs(cell.run) for cell in sheet.cells]
    notes = Notes.of(sheet, judged, notes_on(records), targets_text(sheet, runs, printed))
    grid, short = Grid.of(sheet, judged, notes.marks), Grid.of(sheet, judged, notes.marks, LONG_FORM)
    common = {"sheet": sheet, "heading": f"{sheet.title}. {sheet.scale_note}"}

    def markdown() -> str:
        lines = [[grid.corner, *(" · ".join(filter(None, column)) for column in grid.columns)]]
        lines += [[row, *(entry.marked for entry in entries)] for row, entries in grid.rows.items()]
        template = TEMPLATES.get_template("table.md")
        return without_tags(template.render(**common, table=markdown_table(lines), notes=notes))

    def latex() -> str:
        rows = list(short.rows)
        blocks = [rows[start : start + TEXT_LINES] for start in range(0, len(rows), TEXT_LINES)] or [[]]
        label = re.sub(r"[^A-Za-z0-9]+", "-", sheet.id)
        template = LATEX.get_template("table.tex")
        return template.render(**common, label=label, grid=short, blocks=blocks, notes=notes)

    def html() -> str:
        grid = Grid.of(sheet, judged, notes.marks, ["verdict"])
        folder = outputs["html"].parent
        return render(
            "table.html",
            folder,
            **common,
            name=Path(sheet.id).name,
            grid=grid,
            notes=notes,
            sections=sections(sheet, judged, runs, folder),
            facts=lambda cell: facts(cell, sheet.reduced, gain_heading(layout_of(sheet), cell)),
        )

    makers: dict[str, Callable[[], str]] = {"md": markdown, "tex": latex, "html": html}
    return {form: makers[form]() if form in makers else to_csv(judged) for form in outputs}
