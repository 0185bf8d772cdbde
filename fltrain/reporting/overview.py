"""Front page of a scale, with a card for each paper, and the list of all runs, as HTML. No torch.

The plan comes as plain data; results are read from the results folder.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fltrain.core.files import read_json, write_text
from fltrain.reporting.claims import DROPPED_CLAIMS
from fltrain.reporting.pages import TONES, render
from fltrain.reporting.tables.html import described
from fltrain.reporting.tables.render import DROPPED
from fltrain.reporting.tables.table_cell import read_csv, to_csv
from fltrain.reporting.verdict import NO_INTERVAL, WITH_MISSES
from fltrain.runs.record import Results
from fltrain.runs.today import notes_on

VERDICT_FILE = "verdicts.csv"
"""Cells of all tables of a scale, in its folder."""

JUDGED_IN = {"paper": "under the papers' own protocol", "comparison": "in replications or comparisons"}
"""Kind of paper -> where its values and claims are judged. Controls are left out: they test the rule."""

SUMMED = {*TONES, *(name + DROPPED for name in TONES), "inconclusive", WITH_MISSES, NO_INTERVAL}
"""Verdicts in the sums over all papers."""


def write(listing: Mapping[str, Any], results: Results, index: Path, runs: Path) -> None:
    """Write the front page, the list of runs and the file of cells, next to the folders of the papers.

    Args:
        listing: content of the scale (``fltrain.experiments.jobs``).
        results: where records are.
        index: front page.
        runs: page of runs.
    """
    folder = index.parent
    contents = [
        (f"{paper['name']}/{item['name']}", item) for paper in listing["papers"] for item in paper["contents"]
    ]
    tables = [folder / f"{name}.csv" for name, item in contents if item["table"]]
    cells = [cell for path in tables if path.exists() for cell in read_csv(path)]
    write_text(folder / VERDICT_FILE, to_csv(cells))
    items: dict[str, list[dict[str, str]]] = {}
    for name, item in contents:
        page = f"{name}.html"
        link = {"name": name, "title": item["title"], "page": page if (folder / page).exists() else ""}
        for run, cell in item["runs"].items():
            items.setdefault(run, []).append({**link, "cell": cell})
    records = {run: results.record(run) for run in items}
    done = [record for record in records.values() if record.usable]
    progress = {
        "planned": len(records),
        "done": len(done),
        "diverged": sum(record.summary["status"] == "diverged" for record in done),
        "seconds": sum(record.costs["seconds"]["total"] for record in done),
    }
    summaries = _summaries(listing["papers"], folder)
    cards = _cards(listing["papers"], summaries, folder)
    sections = [*itertools.chain(*cards.values())]
    counts = (verdicts for section in sections for verdicts, _ in section["counts"].values())
    common = {"listing": listing, "remarks": notes_on(records.values()), "progress": progress}
    front = render(
        "index.html",
        folder,
        **common,
        overall=list(overall(summaries.values())),
        verdicts=[*itertools.chain.from_iterable(counts)],
        cards=cards,
        sections=sections,
        runs=runs.name,
        verdict_file=VERDICT_FILE,
    )
    write_text(index, front)
    rows: dict[str, list[Any]] = {}
    for run, record in records.items():
        entry = described(record, record.spec["seed"] if record.usable else None, folder)
        rows.setdefault(items[run][0]["name"], []).append((entry, record, items[run]))
    write_text(runs, render("runs.html", folder, **common, rows=rows, index=index.name))


def verdict_lines(folder: Path) -> list[str]:
    """Return a line for each table of a scale that has verdicts, with their numbers."""
    counts: dict[str, Counter[str]] = {}
    for cell in read_csv(folder / VERDICT_FILE):
        if cell.verdict:
            counts.setdefault(f"{cell.paper}/{cell.item}", Counter())[cell.full_verdict] += 1
    return [f"{table}: {_listed(dict(sorted(verdicts.items())))}" for table, verdicts in counts.items()]


def _listed(counts: Mapping[str, int]) -> str:
    """Return numbers of verdicts as text."""
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items())


def main_results(listing: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the rows of the front page's first table as lines: paper, conclusion, numbers of verdicts."""
    papers, lines = listing["papers"], []
    cards = _cards(papers, _summaries(papers, folder), folder)
    has_table = len(cards) > 1 and not listing["reduced"]
    for section, *_ in cards.values() if has_table else ():
        if section["headline"]:
            verdicts = "; ".join(
                f"{judged}: " * bool(judged) + _listed(counts)
                for judged, counts in section["verdicts"].items()
            )
            lines.append(f"{section['short']}: {section['headline']}{f' ({verdicts})' * bool(verdicts)}")
    return lines


def _main_result(conclusion: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conclusion on a paper (``headline``) and its confirmatory ``verdicts`` with their numbers.

    Without a conclusion, these are the text and the verdict of the first result or claim. Without any of
    these, nothing is shown.
    """
    if not (findings := part["results"] or part["examples"]):
        return {"headline": "", "verdicts": {}}
    if conclusion:
        verdicts = {}
        for heading, (counts, _) in part["counts"].items():
            if confirmatory := {name: number for name, number in counts.items() if name in SUMMED}:
                verdicts[heading.partition(" (")[0]] = confirmatory
        return {"headline": conclusion, "verdicts": verdicts}
    verdict, about, lines = findings[0]
    text = "; ".join(filter(None, [about, *lines])) if part["results"] else f"Paper's claim: {about}."
    return {"headline": text, "verdicts": {"": {verdict: 1}} if verdict else {}}


def overall(summaries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """Yield for each kind of verdicts over all papers: total and name, confirmatory and exploratory ones."""
    best = {"published values": "reproduced", "published gains": "size reproduced", "claims": "supported"}
    totals: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for summary in summaries:
        where = JUDGED_IN.get(summary["kind"])
        for heading, (verdicts, _) in summary["counts"].items() if where else ():
            title = f"{heading} {where}" if heading in best else heading.partition(" (")[0]
            # Papers' own protocols show that nothing holds.
            wanted = {best[heading]: 0} if summary["kind"] == "paper" and heading in best else {}
            sides = totals.setdefault(title, (Counter(wanted), Counter()))
            for verdict, number in verdicts.items():
                name, _, exploratory = verdict.partition(", ")
                if name in SUMMED:
                    sides[bool(exploratory)][name] += number
    for title, sides in totals.items():
        if number := sum(side.total() for side in sides):
            confirmatory, exploratory = (side if side.total() else Counter() for side in sides)
            yield f"{number} {title}", confirmatory, exploratory


def _summaries(papers: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the summary of each paper from its folder; without one, it is empty."""
    empty: dict[str, Any] = dict.fromkeys(("kind", "note", "picture"), "")
    empty |= {"results": [], "examples": [], "conclusions": {}, "forest": {}, "counts": {}}
    files = {paper["name"]: folder / paper["name"] / "summary.json" for paper in papers}
    return {name: empty | (read_json(file) if file.exists() else {}) for name, file in files.items()}


def _cards(
    papers: Iterable[Mapping[str, Any]], summaries: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return the parts of each card by its paper."""
    cards: dict[str, list[dict[str, Any]]] = {}
    for paper in papers:
        for subject, section in _sections(paper, summaries[paper["name"]], folder):
            cards.setdefault(subject, []).append(section)
    return cards


def _sections(
    paper: Mapping[str, Any], summary: Mapping[str, Any], folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield parts of cards, each with the paper that the card is on.

    A part has results, examples of claims, a picture, counts by verdict and the address of the page. A
    comparison has a part in the card of each of several papers that its claims are on.
    """
    page = f"{paper['name']}/index.html"
    for cited, part in (summary.get("parts") or {"": summary}).items():
        pictures = [folder / paper["name"] / f"{part['picture']}.{form}" for form in ("svg", "png")]
        place = f"{page}#{part['items'][0]}" if cited else page
        dropped = any(DROPPED in verdict for verdicts, _ in part["counts"].values() for verdict in verdicts)
        yield (
            cited.lower() or paper["name"],
            {
                **part,
                "dropped": DROPPED_CLAIMS if dropped else "",
                "cited": cited,
                "conclusion": (conclusion := summary["conclusions"].get(cited, "")),
                **_main_result(conclusion, part),
                # The method's name, with which titles of papers begin or end.
                "short": cited or re.sub(r".*\((.+)\)$|(\w+): .*", r"\1\2", paper["title"]),
                "name": f"{paper['name']} {cited}".strip().replace(" ", "-"),
                "title": paper["title"],
                "page": place if (folder / page).exists() else "",
                "picture": next(filter(Path.exists, pictures), None),
            },
        )
