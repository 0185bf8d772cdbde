"""The overview of a scale: papers, tables, figures, verdicts, claims, costs and runs, as HTML. No torch.

The plan comes as plain data; results are read from the results folder.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fltrain.core.errors import count
from fltrain.core.files import read_json, write_text
from fltrain.experiments.layout import CURVES_FORM
from fltrain.experiments.progress import duration
from fltrain.reporting.claims import JUDGED
from fltrain.reporting.overview.listing import ListedItem, ListedPaper, Listing
from fltrain.reporting.pictures import TEMPLATES
from fltrain.reporting.tables.html import Run
from fltrain.reporting.tables.table_cell import read_csv, to_csv
from fltrain.reporting.verdict import GAIN_VERDICTS, VERDICTS
from fltrain.runs.record import Record, Results
from fltrain.runs.today import notes_on

FORMS = {form: f".{form}" for form in ("html", "pdf", "svg", "png", "csv", "md", "tex")}
FORMS["curves"] = CURVES_FORM
"""Endings, by form, of the files of tables and figures that the overview links to, if they exist."""

REPORT = "report.html"
"""Snakemake's report. It is made after the overview, so the overview cannot check that it exists."""

PICTURE_BYTES = 2 * 2**20
"""The overview contains pictures up to this size, so that you can pass it on alone, and links larger ones."""


@dataclass(frozen=True)
class RunCounts:
    """Number of planned, finished and diverged runs, and the wall time of the finished ones in seconds."""

    planned: int
    done: int
    diverged: int
    seconds: float

    @classmethod
    def of(cls, ids: Iterable[str], records: Mapping[str, Record]) -> RunCounts:
        """Count runs, each once."""
        distinct = dict.fromkeys(ids)
        done = [records[run] for run in distinct if records[run].usable]
        return cls(
            planned=len(distinct),
            done=len(done),
            diverged=sum(record.summary["status"] == "diverged" for record in done),
            seconds=sum(record.costs["seconds"]["total"] for record in done),
        )


TEMPLATES.filters["duration"] = duration

Counts = dict[str, dict[str, Any]]
"""Counts by verdict on published values, published gains, and differences among our own runs.

``expected`` numbers are those if every published value (or gain) were true. ``exploratory`` counts cells.
"""

COUNTED = ("verdicts", "expected", "gains", "expected_gains", "differences", "exploratory")


def _counts(summaries: Iterable[Mapping[str, Any]]) -> Counts:
    """Add up the counts of items or papers; nothing is counted where none were judged."""
    summaries = list(summaries)
    return {name: _added(one.get(name, {}) for one in summaries) for name in COUNTED}


@dataclass(frozen=True)
class ItemEntry:
    """A table or figure with its files.

    Attributes:
        files: addresses by form.
        picture: of a figure, as an address: where it is, or the picture itself; empty if there is none.
        counts: numbers of verdicts.
        rank_correlation: of our order with the published one: ``spearman``, ``kendall``, ``n`` groups; or {}.
    """

    paper: str
    listed: ListedItem
    progress: RunCounts
    files: dict[str, str]
    picture: str
    counts: Counts
    rank_correlation: dict[str, float]

    @property
    def id(self) -> str:
        """ID of the item, for example ``flfa/table1``."""
        return f"{self.paper}/{self.listed.name}"

    @property
    def address(self) -> str:
        """Address of the table's page, or of the figure on the overview."""
        return self.files.get("html") or (f"#{self.id}" if "png" in self.files else "")


@dataclass(frozen=True)
class PaperEntry:
    """A paper with its items, claims, aggregates over cells and forest plots.

    ``pooled`` states the measure and the items of the gain among the aggregates.
    """

    listed: ListedPaper
    progress: RunCounts
    items: list[ItemEntry]
    counts: Counts
    claims: list[dict[str, Any]]
    aggregates: dict[str, dict[str, float]]
    pooled: dict[str, Any]
    forests: list[Markup]

    @property
    def claim_verdicts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        return dict(Counter(claim["verdict"] for claim in self.claims))

    @property
    def pooled_gain(self) -> dict[str, float]:
        """The gain over all cells, for a paper: comparisons and controls pool different things."""
        return self.aggregates.get("gain", {}) if self.listed.kind == "paper" else {}

    @property
    def exploratory(self) -> str:
        """Exploratory verdicts in words, for example ``6 of 6 judged claims``; empty without any."""
        claims = sum(bool(claim.get("exploratory")) for claim in self.claims)
        judged = sum(claim["verdict"] in JUDGED for claim in self.claims)
        cells = self.counts["exploratory"].get("cells", 0)
        parts = [f"{claims} of {count(judged, 'judged claim')}"] if claims else []
        parts += [count(cells, "table cell")] if cells else []
        return " and ".join(parts)


VERDICT_FILE = "verdicts.csv"
"""Cells of all tables of a scale, in its folder."""


def write_cells(listing: Listing, folder: Path) -> None:
    """Write the cells of all tables of a scale that there are, as a tidy file."""
    tables = [
        folder / paper.name / f"{item.name}.csv"
        for paper in listing.papers
        for item in paper.items
        if item.kind == "table"
    ]
    cells = [cell for path in tables if path.exists() for cell in read_csv(path)]
    write_text(folder / VERDICT_FILE, to_csv(cells))


def write(listing: Listing, results: Results, index: Path, runs: Path) -> None:
    """Write the overview, the list of runs and the files of cells, next to the folders of the papers.

    Args:
        listing: what the scale consists of.
        results: where records are.
        index: page of papers, items, claims and figures.
        runs: page of runs.
    """
    write_cells(listing, index.parent)
    write_text(index, index_page(listing, results, index.parent, runs.name))
    write_text(runs, runs_page(listing, results, runs.parent, index.name))


def index_page(listing: Listing, results: Results, folder: Path, runs: str) -> str:
    """Render the overview of a scale.

    Args:
        listing: what the scale consists of.
        results: where records are.
        folder: where the page will stand, with a folder for each paper.
        runs: address of the page of runs.
    """
    records = _records(listing, results)
    papers = [_paper(paper, records, folder, listing.reduced) for paper in listing.papers]
    items = [item for paper in papers for item in paper.items]
    counted = [paper for paper in papers if paper.listed.kind != "control"]
    return TEMPLATES.get_template("index.html").render(
        listing=listing,
        papers=papers,
        items=items,
        ranked=any(item.rank_correlation for item in items),
        claims=[(paper, claim) for paper in papers for claim in paper.claims],
        progress=RunCounts.of(records, records),
        counts=_counts(paper.counts for paper in counted),
        controls=len(counted) < len(papers),
        compared=any(item.counts["verdicts"] for item in items),
        meanings={**VERDICTS, **GAIN_VERDICTS},
        verdict_file=VERDICT_FILE,
        claim_verdicts=_added(paper.claim_verdicts for paper in counted),
        remarks=notes_on(records.values()),
        runs=runs,
        report=REPORT,
    )


def runs_page(listing: Listing, results: Results, folder: Path, index: str) -> str:
    """Render the list of all runs of a scale, with links to their records and to the overview."""
    records = _records(listing, results)
    members: dict[str, list[tuple[str, str]]] = {run: [] for run in records}
    for paper in listing.papers:
        for item in paper.items:
            name = f"{paper.name}/{item.name}"
            pages = [page for ending in (".html", CURVES_FORM) if (folder / (page := name + ending)).exists()]
            for run in dict.fromkeys(item.runs):
                members[run].append((name, next(iter(pages), "")))
    rows = [
        (Run.of(record, record.spec["seed"] if record.usable else None, folder), record, members[run])
        for run, record in records.items()
    ]
    return TEMPLATES.get_template("runs.html").render(
        listing=listing,
        rows=rows,
        progress=RunCounts.of(records, records),
        remarks=notes_on(records.values()),
        index=index,
    )


def _records(listing: Listing, results: Results) -> dict[str, Record]:
    ids = (run for paper in listing.papers for item in paper.items for run in item.runs)
    return {run: results.record(run) for run in dict.fromkeys(ids)}


def _paper(listed: ListedPaper, records: Mapping[str, Record], folder: Path, reduced: bool) -> PaperEntry:
    path = folder / listed.name / "summary.json"
    summary: dict[str, Any] = read_json(path) if path.exists() else {"items": [], "claims": []}
    judged = {item["name"]: item for item in summary["items"]}

    def entry(item: ListedItem) -> ItemEntry:
        files = {
            form: f"{listed.name}/{item.name}{ending}"
            for form, ending in FORMS.items()
            if (folder / listed.name / f"{item.name}{ending}").exists()
        }
        found = judged.get(item.name, {})
        return ItemEntry(
            paper=listed.name,
            listed=item,
            progress=RunCounts.of(item.runs, records),
            files=files,
            picture=_picture(folder, files["png"]) if "png" in files else "",
            counts=_counts([found]),
            # Like verdicts, it would compare numbers that are not comparable.
            rank_correlation={} if reduced else found.get("rank_correlation") or {},
        )

    items = [entry(item) for item in listed.items]
    return PaperEntry(
        listed=listed,
        progress=RunCounts.of((run for item in listed.items for run in item.runs), records),
        items=items,
        counts=_counts(item.counts for item in items),
        claims=summary["claims"],
        aggregates=summary.get("aggregates", {}),
        pooled=summary.get("pooled", {}),
        forests=[Markup(picture) for picture in summary.get("forest", ()) if picture],
    )


def _picture(folder: Path, address: str) -> str:
    """Return the source of an image element: the PNG file itself, or its address if it is large."""
    file = folder / address
    if file.stat().st_size > PICTURE_BYTES:
        return address
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def _added(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
