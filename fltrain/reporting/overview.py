"""Front page of a scale, with a card for each paper, and the list of all runs, as HTML. No torch.

The plan comes as plain data; results are read from the results folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fltrain.core.errors import count
from fltrain.core.files import read_json, write_text
from fltrain.experiments.layout import CURVES_FORM
from fltrain.reporting.listing import ListedPaper, Listing
from fltrain.reporting.paper import counted
from fltrain.reporting.pictures import TEMPLATES
from fltrain.reporting.tables.html import Run
from fltrain.reporting.tables.table_cell import read_csv, to_csv
from fltrain.runs.record import Record, Results
from fltrain.runs.today import notes_on

OPEN = ("not judged", "reduced scale", "not run")
"""Verdicts that say nothing about results: the front page counts those of claims at its end."""

VERDICT_FILE = "verdicts.csv"
"""Cells of all tables of a scale, in its folder."""


def _progress(records: Collection[Record]) -> dict[str, float]:
    """Count planned, finished and diverged runs; add the wall time of the finished ones, in seconds."""
    done = [record for record in records if record.usable]
    return {
        "planned": len(records),
        "done": len(done),
        "diverged": sum(record.summary["status"] == "diverged" for record in done),
        "seconds": sum(record.costs["seconds"]["total"] for record in done),
    }


def write(listing: Listing, results: Results, index: Path, runs: Path) -> None:
    """Write the front page, the list of runs and the file of cells, next to the folders of the papers.

    Args:
        listing: content of the scale.
        results: where records are.
        index: front page.
        runs: page of runs.
    """
    folder = index.parent
    tables = [folder / paper.name / f"{name}.csv" for paper in listing.papers for name in paper.tables]
    cells = [cell for path in tables if path.exists() for cell in read_csv(path)]
    write_text(folder / VERDICT_FILE, to_csv(cells))
    ids = (run for paper in listing.papers for runs in paper.items.values() for run in runs)
    records = {run: results.record(run) for run in dict.fromkeys(ids)}
    every = records.values()
    common = {"listing": listing, "remarks": notes_on(every), "progress": _progress(every)}
    cards = [_card(paper, folder) for paper in listing.papers]
    front = TEMPLATES.get_template("index.html").render(
        **common,
        cards=cards,
        controls=any(card["kind"] == "control" for card in cards),
        open_claims={verdict: sum(card["open"].get(verdict, 0) for card in cards) for verdict in OPEN},
        runs=runs.name,
        verdict_file=VERDICT_FILE,
    )
    write_text(index, front)
    rows = [
        (Run.of(record, record.spec["seed"] if record.usable else None, folder), record, pages)
        for (run, record), pages in zip(records.items(), _pages(listing, records, folder), strict=True)
    ]
    write_text(runs, TEMPLATES.get_template("runs.html").render(**common, rows=rows, index=index.name))


@dataclass(frozen=True)
class ItemLink:
    """A table or figure of a run, with its page; empty if there is none."""

    name: str
    title: str
    page: str


def _pages(listing: Listing, records: Iterable[str], folder: Path) -> Iterable[list[ItemLink]]:
    """Return the items of each run."""
    members: dict[str, dict[ItemLink, None]] = {run: {} for run in records}
    for paper in listing.papers:
        for item, runs in paper.items.items():
            name = f"{paper.name}/{item}"
            pages = [page for ending in (".html", CURVES_FORM) if (folder / (page := name + ending)).exists()]
            link = ItemLink(name, paper.titles[item], next(iter(pages), ""))
            for run in runs:
                members[run][link] = None
    return map(list, members.values())


def _card(listed: ListedPaper, folder: Path) -> dict[str, Any]:
    """Return what a card shows: finding, picture, counts by verdict and address of the paper's page."""
    path = folder / listed.name / "summary.json"
    summary: dict[str, Any] = read_json(path) if path.exists() else {}
    picture = summary.get("picture", "")
    files = [f"{listed.name}/{picture}.{form}" for form in ("svg", "png")] if picture else []
    page = f"{listed.name}/index.html"
    contents = {"table": listed.tables, "figure": listed.items.keys() - listed.tables}
    return {
        "listed": listed,
        "kind": summary.get("kind", ""),
        "page": page if (folder / page).exists() else "",
        "finding": summary.get("finding", ""),
        "picture": next((file for file in files if (folder / file).exists()), ""),
        "forest": summary.get("forest", ""),
        "counts": {
            heading: judged
            for heading, (verdicts, _) in counted(summary).items()
            if (judged := {verdict: number for verdict, number in verdicts.items() if verdict not in OPEN})
        },
        "open": counted(summary).get("claims", ({}, {}))[0],
        "contents": ", ".join(count(len(names), what) for what, names in contents.items() if names),
    }
