"""Page of a paper: its main finding, verdicts, claims, tables and figures, as HTML. No torch."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fltrain.core.errors import count
from fltrain.core.statistics import Interval
from fltrain.experiments.layout import CURVES_FORM, Bubbles, ItemJob
from fltrain.reporting.claims import JUDGED, claim_notes
from fltrain.reporting.pictures import TEMPLATES
from fltrain.reporting.tables.html import anchors, explained
from fltrain.reporting.tables.render import DROPPED_CELLS, Grid, Notes
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import number_text
from fltrain.reporting.verdict import GAIN_VERDICTS, VERDICTS

FORMS = {"seeds, verdicts, runs": ".html", "interactive curves": CURVES_FORM}
FORMS |= {ending: f".{ending}" for ending in ("pdf", "svg", "png", "csv", "md", "tex")}
"""Endings of the files of an item, by their names on the page."""


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
            others have no runs (``untrained``).
        sheets: its items.
        cells: cells of each table by ID of its sheet.
        folder: of the page and of the items' files.
    """
    shown = {key: [cell for cell in group if cell.runs] for key, group in cells.items()}
    notes = {sheet.id: Notes.of(sheet, shown[sheet.id], []) for sheet in sheets if sheet.table}
    grids = {
        sheet.id: Grid.of(sheet, shown[sheet.id], notes[sheet.id].marks) for sheet in sheets if sheet.table
    }
    claims, counts = summary["claims"], counted(summary)
    dropped = any(not cell.listed for group in shown.values() for cell in group)
    scale_notes = {sheet.scale_note for sheet in sheets}
    assumptions: dict[str, list[str]] = {}
    for sheet in sheets:
        for text in sheet.assumptions:
            assumptions.setdefault(text, []).append(sheet.title)
    return TEMPLATES.get_template("paper.html").render(
        summary=summary,
        about=about,
        sheets={_name(sheet): sheet for sheet in sheets},
        files={_name(sheet): _files(folder, _name(sheet)) for sheet in sheets},
        grids=grids,
        notes=notes,
        anchors={key: anchors(group) for key, group in shown.items()},
        explained=" ".join(filter(None, (explained(*grids.values()), DROPPED_CELLS * dropped))),
        claim_notes=" ".join(claim_notes(bool(claim["listed"]) for claim in claims)),
        counts=counts,
        meanings=_meanings(counts),
        exploratory=_exploratory(summary),
        judged=[claim for claim in claims if claim["verdict"] != "not run"],
        not_run=[claim for claim in claims if claim["verdict"] == "not run"],
        scale_note=scale_notes.pop() if len(scale_notes) == 1 else "",
        assumptions=assumptions,
    )


def _name(sheet: ItemJob) -> str:
    return sheet.id.partition("/")[2]


def _files(folder: Path, name: str) -> dict[str, str]:
    """Return the addresses of the files of an item that exist, by their names on the page."""
    return {form: file for form, ending in FORMS.items() if (folder / (file := name + ending)).exists()}


def _meanings(counts: Mapping[str, tuple[Mapping[str, float], object]]) -> dict[str, str]:
    """Return the meaning of each verdict on a value or gain that occurs."""
    given = {verdict for what, (verdicts, _) in counts.items() if what != "claims" for verdict in verdicts}
    meanings = [*VERDICTS.items(), *GAIN_VERDICTS.items()]
    return {verdict: meaning for verdict, meaning in meanings if verdict in given}


def _exploratory(summary: Mapping[str, Any]) -> str:
    """Return the number of exploratory verdicts in words; empty without any."""
    claims = sum(bool(claim["exploratory"]) for claim in summary["claims"])
    judged = sum(claim["verdict"] in JUDGED for claim in summary["claims"])
    cells = sum(item["exploratory"].get("cells", 0) for item in summary["items"])
    parts = [f"{claims} of {count(judged, 'judged claim')}"] if claims else []
    return " and ".join([*parts, *([count(cells, "table cell")] if cells else [])])


# ---------------------------------------------------------------- findings
HEADINGS = {
    "published values": ("verdicts", "expected"),
    "published gains": ("gains", "expected_gains"),
    "differences among our own runs": ("differences", ""),
}


def counted(summary: Mapping[str, Any]) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Add up verdicts over a paper's items, by heading, with the numbers expected if all values were true.

    The truth of controls is known, so they have no expected numbers.
    """
    found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for heading, (verdicts, expected) in HEADINGS.items():
        totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for item in summary.get("items", ()):
            totals[0].update(item.get(verdicts, {}))
            totals[1].update(item.get(expected, {}) if summary["kind"] != "control" else {})
        found[heading] = (dict(totals[0]), dict(totals[1]))
    found["claims"] = (dict(Counter(claim["verdict"] for claim in summary.get("claims", ()))), {})
    return {heading: counts for heading, counts in found.items() if counts[0]}


def finding(summary: Mapping[str, Any], cells: Mapping[str, Sequence[TableCell]]) -> str:
    """Return one sentence with the main number of a paper and its interval; empty without any number.

    It is the gain of the paper's plug-in in its first item; else the range of the differences to published
    values, of the gains over a base, or of our values, with intervals if there are any.
    """
    titles = {item["name"]: item["title"] for item in summary["items"]}
    if (gain := summary["main_gain"]) and summary["kind"] == "paper":
        low, high = gain["interval"]
        return (
            f"Gain over the base method, {gain['measure']}: {gain['estimate']:+z.2f} points (90 % interval "
            f"{low:+z.2f} to {high:+z.2f}; mean over {count(gain['cells'], 'cell')} of "
            f"“{titles[gain['item']]}”, {count(gain['seeds'], 'seed')})."
        )
    whose = "published" if summary["kind"] == "paper" else "reference"
    for what, column, ends in (
        (f"Ours minus {whose}", "difference", "difference_interval"),
        ("Differences from the base method", "gain", "gain_interval"),
        ("Our values", "mean", "interval"),
        ("Our values", "mean", ""),
    ):
        finite = [cell for group in cells.values() for cell in group if _finite(cell, column, ends)]
        if finite:
            return _range(what, finite, column, ends, titles)
    return ""


def _finite(cell: TableCell, column: str, ends: str) -> bool:
    """Return True if a number of a cell, and its interval if named, are there and finite."""
    interval: Interval | None = getattr(cell, ends) if ends else (0.0, 0.0)
    values = (getattr(cell, column), *(interval or [None]))
    return all(value is not None and math.isfinite(value) for value in values)


def _range(what: str, cells: Sequence[TableCell], column: str, ends: str, titles: Mapping[str, str]) -> str:
    """Return a sentence on the smallest and the largest number of the most common accuracy."""
    counts = Counter(cell.label for cell in cells)
    label = max(counts, key=lambda name: ("%" in name, counts[name]))
    ranked = sorted((cell for cell in cells if cell.label == label), key=operator.attrgetter(column))
    several, sign = len({cell.item for cell in ranked}) > 1, "" if column == "mean" else "+"

    def text(cell: TableCell) -> str:
        interval = getattr(cell, ends) if ends else None
        value = number_text(getattr(cell, column), cell.decimals, sign, None, interval)
        return f"{value} ({f'{titles[cell.item]}: ' if several else ''}{cell.place})"

    shown = " to ".join(dict.fromkeys((text(ranked[0]), text(ranked[-1]))))
    known = "90 % intervals" if ends else "no intervals"
    return f"{what}, {label}: {shown}; {count(len(ranked), 'cell')}, {known}."


def main_figure(sheets: Sequence[ItemJob]) -> str:
    """Return the name of the first figure of results; empty without any."""
    figures = [sheet for sheet in sheets if sheet.figure and not isinstance(sheet.figure, Bubbles)]
    return _name(figures[0]) if figures else ""
