"""Page of a paper: its main findings, verdicts, claims, tables and figures, as HTML. No torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fltrain.experiments.items import FORMS
from fltrain.experiments.layout import ItemJob
from fltrain.reporting.claims import DROPPED_CLAIMS
from fltrain.reporting.pages import render
from fltrain.reporting.tables.render import DROPPED_CELLS, GENERAL, Grid, Notes
from fltrain.reporting.tables.table_cell import TableCell

WIDEST = 10
"""Columns of a table here. A wider one shows differences from published values on its own page only."""


def page(
    summary: Mapping[str, Any],
    about: Mapping[str, Any],
    sheets: Sequence[ItemJob],
    cells: Mapping[str, Sequence[TableCell]],
    folder: Path,
) -> str:
    """Render the page of a paper.

    Args:
        summary: the paper's ``summary.json``.
        about: its citation, the published tables and figures that each item covers (``covers``), and why
            others have no runs here (``untrained``).
        sheets: its items.
        cells: cells of each table by ID of its sheet.
        folder: of the page and of the items' files.
    """
    items: dict[str, dict[str, Any]] = {}
    assumptions: dict[str, list[str]] = {}
    planned = [claim for claim in summary["claims"] if not claim["exploratory"]] or summary["claims"]
    judged = {name for claim in planned if claim["number"] for name in claim["item"].split(", ")}
    main = {sheet.name for sheet in sheets if sheet.name in judged or about["covers"][sheet.name]}
    # Items of confirmatory claims come first.
    for sheet in sorted(sheets, key=lambda sheet: sheet.name not in judged):
        name = sheet.name
        forms = {form: f"{name}.{form}" for form in FORMS["table" if sheet.table else "figure"]}
        files = {form: file for form, file in forms.items() if (folder / file).exists()}
        texts = {"scale_note": sheet.scale_note, "caption": sheet.caption}
        items[name] = {"sheet": sheet, "files": files, **texts, "further": bool(main) and name not in main}
        if sheet.table:
            notes = Notes.of(sheet, cells[sheet.id])
            grid = Grid.of(sheet, cells[sheet.id], notes.marks, ["verdict"])
            if len(grid.columns) > WIDEST:
                grid = Grid.of(sheet, cells[sheet.id], notes.marks, ["verdict", "difference"])
            items[name] |= {"grid": grid, "notes": notes, "caption": f"{sheet.caption} {notes.seeds}"}
        for text in sheet.assumptions:
            assumptions.setdefault(text, []).append(sheet.title)
    return render(
        "paper.html",
        folder,
        summary=summary,
        about=about,
        items=items,
        verdicts=[*itertools.chain(*itertools.chain(*summary["counts"].values()))],
        dropped_claims=DROPPED_CLAIMS,
        dropped=DROPPED_CELLS,
        scale_note=" ".join(_once(items.values(), "scale_note")),
        captions=_once(items.values(), "caption") if len(items) > 1 else [],
        assumptions=assumptions,
    )


def _once(items: Iterable[dict[str, Any]], text: str) -> list[str]:
    """Take the sentences that a page has once out of a text of its items: shared by all, or general ones."""
    by_item = [re.split(r"(?<=\.) ", item[text]) for item in items]
    distinct = dict.fromkeys(itertools.chain.from_iterable(by_item))
    once = [note for note in distinct if note in GENERAL.values() or all(note in notes for notes in by_item)]
    for item, notes in zip(items, by_item, strict=True):
        item[text] = " ".join(note for note in notes if note not in once)
    return once
