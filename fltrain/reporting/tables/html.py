"""Tables as HTML pages: each is one file that opens from disk and loads nothing from elsewhere. No torch.

Every cell links to a section with its values per seed, its interval against the margin, its verdict and runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from fltrain.experiments.layout import ItemJob
from fltrain.reporting.frame import curve_place
from fltrain.reporting.pictures import TEMPLATES, interval_picture
from fltrain.reporting.tables.render import Grid, Notes, entries_of
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import number_text
from fltrain.runs.record import RECORD_FILES, Record

LINKED = (*RECORD_FILES, "train.log")
"""Files of a run's folder that pages link to, if they are there: archives of records hold no logs."""


@dataclass(frozen=True)
class Run:
    """A run as pages list it.

    Attributes:
        files: addresses, relative to the page, of files that exist.
        code: version of the code that trained it; empty without a record.
        profile: device and versions of packages, as numbers may depend on them, too.
    """

    id: str
    seed: int | None
    status: str
    files: dict[str, str]
    code: str = ""
    profile: str = ""

    @classmethod
    def of(cls, record: Record, seed: int | None, folder: Path, stale: str = "") -> Run:
        """Describe a record, complete or not, for a page in ``folder``.

        ``stale`` names the change that made an older record of the run stale, if there is one.
        """
        way = Path(os.path.relpath(record.folder, folder)).as_posix()
        files = {
            name.partition(".")[0]: f"{quote(way)}/{name}"
            for name in LINKED
            if (record.folder / name).exists()
        }
        if not record.usable:
            lacking = f"stale: {stale}" if stale else "not run"
            return cls(record.run_id, seed, "damaged" if record.complete else lacking, files)
        status = record.summary["status"]
        if diverged := record.summary.get("diverged"):
            status += f" in round {diverged['round']}"
        return cls(record.run_id, seed, status, files, *_code_and_profile(record.provenance))


def _code_and_profile(provenance: dict[str, Any]) -> tuple[str, str]:
    """Return the version of the code, and the device with versions of packages."""
    commit, packages = provenance.get("commit"), provenance.get("packages", {})
    code = commit[:10] if commit else f"fltrain {provenance.get('fltrain', 'of an unknown version')}"
    profile = [provenance.get("gpu") or provenance.get("device", "unknown device")]
    profile += [f"{name} {packages[name]}" for name in ("torch", "numpy") if name in packages]
    profile += [f"CUDA {provenance['cuda']}"] if provenance.get("cuda") else []
    return code + (", changed" if provenance.get("dirty") else ""), ", ".join(profile)


# ---------------------------------------------------------------- cells
def pictures(cell: TableCell) -> list[Markup]:
    """Return pictures of a cell's intervals: its difference to the published value, and its gain."""
    unit = " (points)" if cell.label.endswith("%") else ""
    difference, gain = cell.difference_interval, cell.gain_interval
    drawn: list[Markup] = []
    if cell.difference is not None and difference and cell.margin and all(map(math.isfinite, difference)):
        name, margin = f"ours minus published{unit}; shaded: margin", (-cell.margin, cell.margin)
        drawn.append(interval_picture(name, cell.difference, difference, margin, None, cell.verdict or ""))
    if cell.gain is not None and gain:
        half, published = cell.gain_margin, cell.published_gain
        around = None if half is None else ((published or 0.0) - half, (published or 0.0) + half)
        mark = published if around else None
        name = f"gain{unit}{'; line: published' if mark is not None else ''}"
        drawn.append(interval_picture(name, cell.gain, gain, around, mark, cell.gain_verdict or ""))
    return drawn


def by_seed(cell: TableCell, gains: bool = False) -> dict[int, str]:
    """Return our value of each seed, or our gain."""
    seeds, values = (cell.gain_seeds, cell.gains) if gains else (cell.value_seeds, cell.values)
    texts = (number_text(value, cell.decimals, "+" if gains else "") for value in values)
    return dict(zip(seeds, texts, strict=True))


def facts(cell: TableCell, reduced: bool) -> dict[str, str]:
    """Return a cell's numbers and verdicts by name, with intervals, margin and seeds that would decide."""
    shown = {heading: entry.text for heading, entry in entries_of(cell, True, reduced).items() if entry.text}
    if cell.verdict and cell.margin is not None:
        shown["margin"] = f"±{cell.margin:.3g}"
    if cell.seeds_needed is not None:
        none = "none, the published value is too uncertain"
        shown["seeds that would decide"] = none if math.isinf(cell.seeds_needed) else f"{cell.seeds_needed:g}"
    return shown


@dataclass(frozen=True)
class CellSection:
    """Section of a page for one place of a table: its cells, one for each measure, and the runs behind them.

    ``panel`` is the one that shows its curves.
    """

    anchor: str
    name: str
    panel: str
    cells: list[TableCell]
    runs: list[Run]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the numbers and of the runs, in order."""
        numbers = [seed for cell in self.cells for seed in (*cell.value_seeds, *cell.gain_seeds)]
        return sorted({*numbers, *(run.seed for run in self.runs if run.seed is not None)})

    def run(self, seed: int) -> Run | None:
        """Return the run of a seed; None if there are several, as for averages."""
        runs = [run for run in self.runs if run.seed == seed]
        return runs[0] if len(runs) == 1 else None


def anchors(shown: Iterable[TableCell]) -> dict[tuple[str, str, str], str]:
    """Return the anchor of the section of each place of a table, by panel, row and column."""
    places = dict.fromkeys((cell.panel, cell.row, cell.column) for cell in shown)
    return {place: f"cell-{number}" for number, place in enumerate(places, start=1)}


def cell_sections(
    sheet: ItemJob, shown: Sequence[TableCell], runs: Callable[[str], Record], folder: Path
) -> list[CellSection]:
    """Return a section for each place of a table."""
    planned = {cell.run: cell for cell in sheet.cells}
    listed = {run: Run.of(runs(run), cell.seed, folder, cell.stale) for run, cell in planned.items()}
    places: dict[tuple[str, str, str], list[TableCell]] = {}
    for cell in shown:
        places.setdefault((cell.panel, cell.row, cell.column), []).append(cell)
    return [
        CellSection(
            anchor=anchor,
            name=cells[0].place,
            panel=_panel(sheet, cells[0]),
            cells=cells,
            runs=[listed[run] for run in dict.fromkeys(run for cell in cells for run in cell.runs)],
        )
        for anchor, cells in zip(anchors(shown).values(), places.values(), strict=True)
    ]


def _panel(sheet: ItemJob, shown: TableCell) -> str:
    """Return the panel with the curves of a table's cell: a run can be in several places."""
    here = {shown.row, shown.column, shown.panel}
    cells = sorted(
        (cell for cell in sheet.cells if cell.run in shown.runs),
        key=lambda cell: len(here & set(cell.labels.values())),
    )
    return curve_place(sheet, cells[-1])[0] if cells else ""


# ---------------------------------------------------------------- pages
def table_page(
    sheet: ItemJob,
    grid: Grid,
    shown: Sequence[TableCell],
    notes: Notes,
    runs: Callable[[str], Record],
    folder: Path,
) -> str:
    """Render a table with a section for each cell.

    Args:
        sheet: the table.
        grid: its cells arranged.
        shown: its cells.
        notes: texts below it.
        runs: returns the record of a run ID, complete or not.
        folder: of the page; links are relative to it.
    """
    return TEMPLATES.get_template("table.html").render(
        sheet=sheet,
        grid=grid,
        anchors=anchors(shown),
        notes=notes,
        sections=cell_sections(sheet, shown, runs, folder),
        facts=lambda cell: facts(cell, sheet.reduced),
        pictures=pictures,
        by_seed=by_seed,
        name=Path(sheet.id).name,
        explained=explained(grid),
    )


BEST = "Bold: best of its column."
TIED = "≈: not shown to be worse (one-sided tests at 5 %, paired by seed, with Holm's correction)."
TONES = {
    "up": "Blue: a gain whose 90 % interval excludes zero, for the better.",
    "down": "Red: a gain whose 90 % interval excludes zero, for the worse.",
}


def explained(*grids: Grid) -> str:
    """Explain the marks and colours of numbers that the tables have."""
    entries = [entry for grid in grids for row in grid.rows.values() for entry in row]
    parts = [BEST] if any(entry.best for entry in entries) else []
    parts += [TIED] if any(entry.tied for entry in entries) else []
    parts += [text for tone, text in TONES.items() if any(entry.tone == tone for entry in entries)]
    return " ".join(parts)
