"""Tables as HTML pages: each one file that opens from disk, with nothing loaded from elsewhere. No torch.

From every cell a link leads to the runs behind it: seed, status, files of the record, code and machine.
"""

from __future__ import annotations

import itertools
import operator
import os
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fltrain.experiments.layout import Sheet
from fltrain.runs.record import RECORD_FILES, Record

if TYPE_CHECKING:
    from fltrain.reporting.tables.write import Below, Grid, Shown

TEMPLATES = Environment(
    loader=PackageLoader("fltrain.reporting"),
    autoescape=select_autoescape(("html",)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["version"] = version("fltrain")

LINKED = (*RECORD_FILES, "train.log")
"""Files of a run's folder that pages link to, if they are there: archives of records hold no logs."""


@dataclass(frozen=True)
class Code:
    """Version of the code and numeric profile of a run: what its numbers may depend on besides the spec."""

    revision: str
    profile: str

    @classmethod
    def of(cls, provenance: dict[str, Any]) -> Code:
        """Read it off a record's provenance."""
        commit = provenance.get("commit")
        revision = commit[:10] if commit else f"fltrain {provenance.get('fltrain', 'of an unknown version')}"
        packages = provenance.get("packages", {})
        profile = [provenance.get("gpu") or provenance.get("device", "unknown device")]
        profile += [f"{name} {packages[name]}" for name in ("torch", "numpy") if name in packages]
        if provenance.get("cuda"):
            profile.append(f"CUDA {provenance['cuda']}")
        return cls(revision + (", changed" if provenance.get("dirty") else ""), ", ".join(profile))


@dataclass(frozen=True)
class Run:
    """A run as pages list it; ``files`` are addresses, relative to the page, of files that exist."""

    id: str
    seed: int | None
    status: str
    code: Code | None
    files: dict[str, str]

    @classmethod
    def of(cls, record: Record, seed: int | None, folder: Path, stale: str = "") -> Run:
        """Look at a record, complete or not, for a page in ``folder``.

        ``stale`` says, of one that is not, in what an older record of the run is stale, if there is one.
        """
        way = Path(os.path.relpath(record.folder, folder)).as_posix()
        files = {
            name.partition(".")[0]: f"{quote(way)}/{name}"
            for name in LINKED
            if (record.folder / name).exists()
        }
        if record.complete and not record.usable:
            return cls(record.run_id, seed, "damaged", None, files)
        if not record.complete:
            return cls(record.run_id, seed, f"stale: {stale}" if stale else "not run", None, files)
        status = record.summary["status"]
        if diverged := record.summary.get("diverged"):
            status += f" in round {diverged['round']}"
        return cls(record.run_id, seed, status, Code.of(record.provenance), files)


@dataclass(frozen=True)
class Behind:
    """The runs behind one cell, or behind several cells that show parts of the same runs."""

    anchor: str
    cells: list[str]
    runs: list[Run]


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table.

    ``kind`` says what kind of number it is, ``anchor`` where the runs behind it are listed; ``doubts`` and
    ``notes`` are the marks of what stands below the table.
    """

    text: str
    kind: str = ""
    anchor: str = ""
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def mixtures(runs: Iterable[Run]) -> dict[str, dict[str, int]]:
    """Runs by revision of the code and by numeric profile, as far as there are several of them."""
    codes = [code for code in {run.id: run.code for run in runs}.values() if code]
    counts = {
        "revisions of the code": Counter(code.revision for code in codes),
        "numeric profiles": Counter(code.profile for code in codes),
    }
    return {what: dict(count.most_common()) for what, count in counts.items() if len(count) > 1}


PUBLISHED = "published", "published (full scale)"
"""Headings of columns of published values."""


def table_page(
    sheet: Sheet, grid: Grid, shown: list[Shown], below: Below, runs: Callable[[str], Record], folder: Path
) -> str:
    """Render a table with the runs behind each cell.

    Args:
        sheet: the table.
        grid: its cells arranged.
        shown: its cells.
        below: what stands below it.
        runs: returns the record of a run id, complete or not.
        folder: where the page will stand: links are relative to it.
    """
    behind = _behind(sheet, shown, runs, folder)
    anchors = {cell: group.anchor for group in behind for cell in group.cells}
    notes = Notes.on(shown)
    return TEMPLATES.get_template("table.html").render(
        sheet=sheet,
        corner=grid.corner,
        heading_rows=heading_rows(grid.columns),
        rows=_entries(grid, shown, below, notes, anchors),
        below=below,
        notes=notes,
        behind=behind,
        mixtures=mixtures(run for group in behind for run in group.runs),
    )


def published_page(sheet: Sheet, grid: Grid, shown: list[Shown], below: Below) -> str:
    """Render the published values alone, arranged like ours."""
    notes = Notes.on(shown)
    kept = [index for index, place in enumerate(grid.places) if place[-1].startswith("published")]
    rows = _entries(grid, shown, below, notes, {})
    columns = [
        (*grid.columns[index][:-1], place[0] if (place := grid.places[index])[-1] in PUBLISHED else "gain")
        for index in kept
    ]
    return TEMPLATES.get_template("published.html").render(
        sheet=sheet,
        corner=grid.corner,
        heading_rows=heading_rows(columns),
        rows={row: [entries[index] for index in kept] for row, entries in rows.items()},
        below=below,
        notes=notes,
    )


def heading_rows(columns: Sequence[tuple[str, ...]]) -> list[list[tuple[str, int]]]:
    """Per level, the headings with the number of columns that each spans; the last level has one for each."""
    spanned = [
        [tuple(same) for _, same in itertools.groupby(columns, operator.itemgetter(slice(level)))]
        for level in range(1, len(columns[0]) if columns else 1)
    ]
    spans = [[(same[0][level], len(same)) for same in groups] for level, groups in enumerate(spanned)]
    return [*spans, [(place[-1], 1) for place in columns]] if columns else []


def _entries(
    grid: Grid, shown: list[Shown], below: Below, notes: Notes, anchors: Mapping[str, str]
) -> dict[str, list[Entry]]:
    """What stands in each place of a table, by row."""
    cells = {(cell.label, cell.panel, cell.column, cell.row): cell for cell in shown}

    def entry(row: str, place: tuple[str, str, str, str], text: str) -> Entry:
        *where, quantity = place
        cell = cells.get((where[0], where[1], where[2], row))
        if cell is None or not text:
            return Entry(text)
        if quantity == cell.label:
            return Entry(text, "own", anchors.get(_name(cell), ""))
        if quantity in PUBLISHED:
            doubts = tuple(below.marks[reason] for reason in cell.anomalies)
            bare = text.removesuffix("".join(f" [{mark}]" for mark in doubts))
            return Entry(bare, "published", doubts=doubts, notes=notes.of(cell))
        return Entry(text, quantity.split()[0])

    return {
        row: [entry(row, place, text) for place, text in zip(grid.places, texts, strict=True)]
        for row, texts in grid.rows.items()
    }


def _name(cell: Shown) -> str:
    return " / ".join(filter(None, (cell.panel, cell.row, cell.column)))


def _behind(sheet: Sheet, shown: list[Shown], runs: Callable[[str], Record], folder: Path) -> list[Behind]:
    """Group cells by the runs behind them; all measures of a cell have the same."""
    cells = {cell.run: cell for cell in sheet.cells}
    found = {run: Run.of(runs(run), cell.seed, folder, cell.stale) for run, cell in cells.items()}
    groups: dict[tuple[str, ...], list[str]] = {}
    for cell in shown:
        names = groups.setdefault(tuple(cell.runs), [])
        if _name(cell) not in names:
            names.append(_name(cell))
    return [
        Behind(f"runs-{number}", names, [found[run] for run in ids])
        for number, (ids, names) in enumerate(groups.items(), start=1)
    ]


@dataclass(frozen=True)
class Notes:
    """Notes on published values: ``general`` ones concern them all, the others have marks."""

    general: list[str]
    marks: dict[str, str]

    @classmethod
    def on(cls, shown: Iterable[Shown]) -> Notes:
        """Collect them."""
        noted = [cell.published_notes for cell in shown if cell.published_notes]
        every = dict.fromkeys(note for notes in noted for note in notes)
        general = [note for note in every if len(noted) > 1 and all(note in notes for notes in noted)]
        special = [note for note in every if note not in general]
        return cls(general, dict(zip(special, _letters(), strict=False)))

    def of(self, cell: Shown) -> tuple[str, ...]:
        """Marks of the notes on a cell that are not on all."""
        return tuple(self.marks[note] for note in cell.published_notes if note in self.marks)


def _letters() -> Iterator[str]:
    """Infinitely many marks: a, b ... z, aa, ab ..."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))
