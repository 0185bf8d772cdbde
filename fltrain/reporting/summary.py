"""A paper at a scale in one file: its main claims, verdicts next to expected numbers, all claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fltrain.core.errors import count
from fltrain.experiments.claims import Claim, cited_paper, quantities
from fltrain.experiments.layout import Bubbles, ItemJob, named
from fltrain.reporting.claim_text import labels_text
from fltrain.reporting.claims import JUDGED, full_verdict, result_lines
from fltrain.reporting.figures.forest import forest
from fltrain.reporting.tables.render import bases_of, gain_text
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.verdict import (
    AMONG_OWN,
    EXPECTED,
    EXPECTED_GAINS,
    expected_counts,
    repeated,
    without_interval,
)

Counts = dict[str, tuple[Mapping[str, float], Mapping[str, float]]]
"""Counts of verdicts, and the numbers expected if all published values were true, by heading."""

COLUMNS = (
    *("where", "claim", "verdict", "dropped", "exploratory", "number", "needed", "reason"),
    *("evidence", "item"),
)
"""Columns of judged claims in a summary."""

Finding = tuple[str, str, list[str]]
"""A verdict with its marks, the claim (with its place in the paper) or cell that has it, and our numbers."""


def paper_summary(
    paper: Mapping[str, Any],
    sheets: Sequence[ItemJob],
    judged: pd.DataFrame,
    cells: Mapping[str, Sequence[TableCell]],
    claims: Iterable[Claim] = (),
) -> dict[str, Any]:
    """Return a summary of a paper's items and claims, as plain data for ``summary.json``.

    A comparison with claims on several papers has ``parts``: by the name of each of them, a summary of its
    claims and their items.

    Args:
        paper: heading of the file: paper, title, note, kind, scale, reduced.
        sheets: the paper's items at the scale.
        judged: its claims, see ``fltrain.reporting.claims``.
        cells: cells of each table by ID of its sheet.
        claims: declarations of the claims.
    """
    # The verdicts on the claims of each item whose protocol is older than its runs.
    confirmed: dict[str, set[str]] = {}
    for claim in judged.itertuples():
        for name in str(claim.item).split(", ") if claim.verdict in JUDGED and not claim.exploratory else ():
            confirmed.setdefault(name, set()).add(str(claim.verdict))
    titles = {sheet.name: sheet.title for sheet in sheets}
    claims = list(claims)
    parts = {}
    by_paper = judged.groupby(judged["where"].map(cited_paper), sort=False)
    for cited, group in by_paper if paper["kind"] == "comparison" and len(by_paper) > 1 else ():
        items = {name for names in group["item"] for name in names.split(", ")}
        if chosen := [sheet for sheet in sheets if sheet.name in items]:
            parts[cited] = paper_summary(paper, chosen, group, cells, claims)
    numbers = [number for claim in claims for number in quantities(claim.test)]
    reverse = {(number.item, labels_text(number.over)) for number in numbers if number.reverse}
    headings, all_cells, gains, quotable = dict(titles), [], [], []
    differences = dict.fromkeys(titles, "difference from its base")
    for sheet in sheets:
        if (table := sheet.table) is None:
            continue
        name, bases = sheet.name, bases_of(table)
        axes = {"panel": table.panels, "row": table.rows, "column": table.columns}
        table_cells = [
            cell.replace(**{place: named(axis, getattr(cell, place)) for place, axis in axes.items()})
            for cell in cells.get(sheet.id, ())
        ]
        all_cells += table_cells
        over = [measured.gain_over for measured in table.measures if measured.gain_over]
        base_columns = {named(table.columns, base[table.columns]) for base in over if table.columns in base}
        # Methods with the settings of their base come first.
        quotable += sorted(table_cells, key=lambda cell: cell.column not in (base_columns or {cell.column}))
        # As in its claims: the paper's method minus its rivals, not theirs minus the method.
        turned = {(name, base) for base in bases} <= reverse
        if len(bases) == 1:
            differences[name] = f"difference from {bases[0]}"
            headings[name] += f": {bases[0]} minus each" if turned else f": gain over {bases[0]}"
        gains += [_turned(cell) if turned else cell for cell in table_cells if name in confirmed]
    rows: list[Any] = judged[[*COLUMNS]].to_dict("records")
    figures = [sheet.name for sheet in sheets if sheet.figure and not isinstance(sheet.figure, Bubbles)]
    decided = (name for name in figures if confirmed.get(name, set()) - {"inconclusive"} or not confirmed)
    picture = next(decided, "")
    # Small runs decide nothing: there, the claim that the figure shows comes first.
    ordered = sorted(rows, key=lambda row: paper["reduced"] and picture not in row["item"].split(", "))
    examples = claim_findings(ordered)
    return {
        **paper,
        "results": missed_values(all_cells if paper["kind"] == "paper" else (), titles)
        or ([] if examples else cell_findings(paper["kind"], quotable, titles, differences)),
        "examples": examples,
        "picture": picture,
        "forest": forest(all_cells, titles) or forest(gains, headings, "gain"),
        "counts": verdict_counts(paper["kind"], all_cells, rows),
        "claims": rows,
        "items": list(titles),
        "parts": parts,
    }


def _turned(cell: TableCell) -> TableCell:
    """Return a cell with the other sign of its gain."""
    columns = {"gain": cell.gain, "gain_low": cell.gain_high, "gain_high": cell.gain_low}
    return cell.replace(**{name: None if value is None else -value for name, value in columns.items()})


def verdict_counts(kind: str, cells: Sequence[TableCell], claims: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts that are not empty. Of controls, the heading counts the cells with true values.

    Exploratory verdicts are counted apart. The expected numbers are of the other cells; controls have none.
    """
    values = Counter(
        without_interval(cell.reason) or _marked(cell.full_verdict if cell.intended else cell.verdict, cell)
        for cell in cells
        if cell.verdict
    )
    gains: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for cell in cells:
        marked = [_marked(cell.gain_verdict, cell)] if cell.gain_verdict else []
        gains[cell.published_gain is not None].update(marked)
    firm = [cell for cell in cells if not cell.exploratory and kind != "control"]
    of_values = f"controls ({true_values(cells)})" if kind == "control" else "published values"
    duplicates = repeated(cells)
    repeats = f" ({count(duplicates, 'duplicate')}: their settings coincide)" if duplicates else ""
    among_own = "differences among our own runs" + repeats
    counts: Counts = {
        of_values: (values, expected_counts(firm, EXPECTED)),
        "published gains": (gains[True], expected_counts(firm, EXPECTED_GAINS)),
        among_own: (gains[False], {}),
        "claims": (Counter(map(full_verdict, claims)), {}),
    }
    return {heading: (verdicts, expected) for heading, (verdicts, expected) in counts.items() if verdicts}


def _marked(verdict: str, cell: TableCell) -> str:
    """Return a verdict of a cell with the mark of exploratory ones."""
    return verdict + ", exploratory" * (cell.exploratory and verdict != "not run")


def true_values(cells: Iterable[TableCell]) -> str:
    """Return how many true values the rule should confirm, of how many."""
    true = [cell for cell in cells if cell.verdict and not cell.falsified]
    expected = expected_counts(true, EXPECTED).get("reproduced", 0.0)
    values = count(len(true), "true value")
    why = "with so few seeds, " * (2 * expected < len(true))
    return f"{why}we expect about {expected:.1f} of {values} to be reproduced"


def missed_values(cells: Iterable[TableCell], titles: Mapping[str, str]) -> list[Finding]:
    """Return for each table how far our values are from the published ones that they do not reproduce."""
    judged = [cell for cell in cells if cell.verdict and cell.published]
    findings: list[Finding] = []
    for item in dict.fromkeys(cell.item for cell in judged if cell.verdict == "not reproduced"):
        values = [cell for cell in judged if cell.item == item]
        missed = [cell for cell in values if cell.verdict == "not reproduced"]
        shares = sorted(100 * cell.mean / cell.published for cell in missed if cell.mean and cell.published)
        ends = " to ".join(dict.fromkeys(f"{share:.0f}" for share in shares[:1] + shares[-1:]))
        lines = [f"published values that are not reproduced: {len(missed)} of {len(values)}"]
        lines += [f"our values, in per cent of the published ones: {ends} %"] * bool(ends)
        findings.append(("not reproduced", titles[item], lines))
    return findings


def cell_findings(
    kind: str, cells: Sequence[TableCell], titles: Mapping[str, str], differences: Mapping[str, str]
) -> list[Finding]:
    """Return results of tables without claims: false values that a rule rejects, or the first difference."""
    if kind == "control":
        rejected: dict[bool, list[bool]] = {True: [], False: []}
        for cell in cells:
            rejected[cell.falsified] += [cell.verdict == "not reproduced"] if cell.verdict else []
        true, false = (f"{sum(side) or 'none'} of {len(side)}" for side in (rejected[False], rejected[True]))
        different = len({cell.published for cell in cells if cell.verdict and not cell.falsified})
        text = f"{false} false values and {true} true ones ({count(different, 'different number')})"
        return [("", "", [f"The rule rejects {text}."])]
    first = {cell.gain_verdict: cell for cell in reversed(cells) if not cell.exploratory}
    return [
        (
            verdict,
            f"{example.place} ({titles[example.item]})",
            [f"{differences[example.item]}, in points: {gain_text(example)}"],
        )
        for verdict in AMONG_OWN
        if (example := first.get(verdict))
    ]


def claim_findings(rows: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return the first claim of each verdict: no page hides failures behind a success.

    Exploratory verdicts appear only if there are no others. Claims without a number do not count.
    """
    measured = [row for row in rows if row["number"]]
    firm = [row for row in measured if not row["exploratory"]] or measured
    first = {row["verdict"]: row for row in reversed(firm)}
    return [
        (full_verdict(row), f"{row['claim']} ({row['where']})", result_lines(row))
        for verdict in (*JUDGED, "reduced scale")
        if (row := first.get(verdict))
    ]
