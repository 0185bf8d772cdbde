"""Parts of a table's HTML page: a section for each cell with values per seed, verdict and runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fltrain.experiments.layout import ItemJob
from fltrain.reporting.tables.cells import layout_of
from fltrain.reporting.tables.render import entries_of, gain_heading
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import number_text
from fltrain.runs.record import RECORD_FILES, Record


def described(record: Record, seed: int | None, folder: Path) -> dict[str, Any]:
    """Return a run as pages list it: ``id``, ``seed``, ``status`` and ``files``.

    ``files`` are those that exist: archives of records hold no logs. ``provenance.json`` has code and device.

    Args:
        record: the record, complete or not.
        seed: seed of the run, if known.
        folder: of the page; addresses are relative to it.
    """
    address = quote(Path(os.path.relpath(record.folder, folder)).as_posix())
    names = [name for name in (*RECORD_FILES, "train.log") if (record.folder / name).exists()]
    files = {name.partition(".")[0]: f"{address}/{name}" for name in names}
    status = "damaged" if record.complete else "not run"
    if record.usable:
        ended = record.summary.get("diverged")
        status = record.summary["status"] + (f" in round {ended['round']}" if ended else "")
    return {"id": record.run_id, "seed": seed, "status": status, "files": files}


def facts(cell: TableCell, reduced: bool, gain: str = "gain") -> dict[str, str]:
    """Return a cell's numbers and verdicts by name, with intervals, margin, p and seeds that would decide."""
    entries = entries_of(cell, True, reduced, gain=gain)
    texts = {heading: entry.text for heading, entry in entries.items() if entry.text}
    if cell.interval() and cell.spread is not None and (cell.spread_cells or 0) > 1:
        moderated = f"estimated from {cell.spread_cells} similar cells, this one included (docs/protocol.md)"
        texts["spread behind the interval"] = f"{cell.spread:.{cell.decimals}f}, {moderated}"
    if cell.verdict and cell.margin is not None:
        texts["margin"] = f"±{cell.margin:.3g}"
    if cell.seeds_needed is not None:
        none = "none, the published value is too uncertain"
        texts["seeds that would decide"] = none if math.isinf(cell.seeds_needed) else f"{cell.seeds_needed:g}"
    if cell.among_own and cell.gain_p is not None:
        texts["one-sided p, not corrected"] = f"{cell.gain_p:.3g}"
    return texts


def sections(
    sheet: ItemJob, table_cells: Sequence[TableCell], runs: Callable[[str], Record], folder: Path
) -> list[dict[str, Any]]:
    """Return a section for each place of a table: its cells, one for each measure, and the runs behind them.

    ``rows`` have a seed, the values and gains of the cells with it (``headings``), and its run; None if there
    are several, as for averages.
    """
    listed = {cell.run: described(runs(cell.run), cell.seed, folder) for cell in sheet.cells}
    places: dict[str, list[TableCell]] = {}
    for cell in table_cells:
        places.setdefault(cell.anchor, []).append(cell)
    parts: list[dict[str, Any]] = []
    for anchor, cells in places.items():
        members = [listed[run] for run in dict.fromkeys(run for cell in cells for run in cell.runs)]
        headings: list[str] = []
        columns: list[dict[int, str]] = []
        for cell in cells:
            headings.append(cell.label)
            columns.append(_by_seed(cell.value_seeds, cell.values, cell.decimals, ""))
            if cell.gains and not cell.lost_gain:
                headings.append(gain_heading(layout_of(sheet), cell))
                columns.append(_by_seed(cell.gain_seeds, cell.gains, cell.decimals, "+"))
        rows = []
        for seed in sorted({run["seed"] for run in members}.union(*columns)):
            seed_runs = [run for run in members if run["seed"] == seed]
            values = [column.get(seed, "") for column in columns]
            rows.append((seed, values, seed_runs[0] if len(seed_runs) == 1 else None))
        section = {"anchor": anchor, "name": cells[0].place, "cells": cells, "headings": headings}
        parts.append({**section, "rows": rows, "runs": members})
    return parts


def _by_seed(seeds: Sequence[int], values: Sequence[float], decimals: int, sign: str) -> dict[int, str]:
    return {seed: number_text(value, decimals, sign) for seed, value in zip(seeds, values, strict=True)}
