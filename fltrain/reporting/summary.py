"""A paper at a scale in one file: its main claims, verdicts next to expected numbers, all claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fltrain.core.errors import count
from fltrain.experiments.layout import Bubbles, ItemJob, Table, named
from fltrain.reporting.claims import JUDGED, full_verdict
from fltrain.reporting.figures.forest import forest
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.verdict import EXPECTED, EXPECTED_GAINS, expected_counts

Counts = dict[str, tuple[Mapping[str, float], Mapping[str, float]]]
"""Counts of verdicts, and the numbers expected if all published values were true, by heading."""


def paper_summary(
    paper: Mapping[str, Any],
    sheets: Sequence[ItemJob],
    judged: pd.DataFrame,
    cells: Mapping[str, Sequence[TableCell]],
) -> dict[str, Any]:
    """Return a summary of a paper's items and claims, as plain data for ``summary.json``.

    Args:
        paper: heading of the file: paper, title, kind, scale, reduced.
        sheets: the paper's items at the scale.
        judged: its claims, see ``fltrain.reporting.claims``.
        cells: cells of each table by ID of its sheet.
    """
    # The verdicts on the claims of each item whose protocol is older than its runs.
    confirmed: dict[str, set[str]] = {}
    for claim in judged.itertuples():
        for name in str(claim.item).split(", ") if claim.verdict in JUDGED and not claim.exploratory else ():
            confirmed.setdefault(name, set()).add(str(claim.verdict))
    tables = {sheet.name: sheet.table for sheet in sheets if sheet.table}
    every = [_with_axes(cell, tables[cell.item]) for shown in cells.values() for cell in shown]
    decided = [cell for cell in every if cell.item in confirmed]
    columns = ["where", "claim", "verdict", "dropped", "exploratory", "number", "evidence", "item"]
    claims: list[Any] = judged[columns].to_dict("records")
    titles = {sheet.name: sheet.title for sheet in sheets}
    bases = {name: f"{title}{_minus(tables.get(name))}" for name, title in titles.items()}
    figures = [sheet.name for sheet in sheets if sheet.figure and not isinstance(sheet.figure, Bubbles)]
    return {
        **paper,
        "findings": findings(claims),
        "picture": next(
            (name for name in figures if confirmed.get(name, set()) - {"undecided"} or not confirmed), ""
        ),
        "forest": forest(every, titles) or forest(decided, bases, "gain"),
        "counts": verdict_counts(paper["kind"], every, claims),
        "claims": claims,
    }


def _with_axes(cell: TableCell, table: Table) -> TableCell:
    """Return a cell whose labels that are numbers come with the name of their axis."""
    axes = {"panel": table.panels, "row": table.rows, "column": table.columns}
    return cell.replace(**{place: named(axis, getattr(cell, place)) for place, axis in axes.items()})


def _minus(table: Table | None) -> str:
    """Return the base of a table's gains, for example ``: minus FedAvg``; empty without one base."""
    over = [one.gain_over for one in table.measures if one.gain_over] if table else []
    bases = {", ".join(named(axis, label) for axis, label in labels.items()) for labels in over}
    return f": minus {bases.pop()}" if len(bases) == 1 else ""


def verdict_counts(kind: str, cells: Sequence[TableCell], claims: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts that are not empty. Of controls, the heading counts the true values."""
    control = kind == "control"
    values = Counter(cell.full_verdict if cell.intended else cell.verdict for cell in cells if cell.verdict)
    gains: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for cell in cells:
        gains[cell.published_gain is not None].update([cell.gain_verdict] if cell.gain_verdict else [])
    found: Counts = {
        true_values(cells) if control else "published values": (values, expected_counts(cells, EXPECTED)),
        "published gains": (gains[True], expected_counts(cells, EXPECTED_GAINS)),
        "differences among our own runs": (gains[False], {}),
        "claims": (Counter(map(full_verdict, claims)), {}),
    }
    return {
        heading: (verdicts, {} if control else expected)
        for heading, (verdicts, expected) in found.items()
        if verdicts
    }


def true_values(cells: Iterable[TableCell]) -> str:
    """Return how many true values controls have, in how many cells, and the expected confirmations."""
    true = [cell for cell in cells if cell.verdict and not cell.falsified]
    distinct = count(len({(cell.measure, cell.published) for cell in true}), "true value")
    expected = expected_counts(true, EXPECTED).get("reproduced", 0.0)
    return f"{distinct} in {count(len(true), 'cell')} (expected to be reproduced: {expected:.1f})"


def findings(claims: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the first claim of each verdict, with its number: no page hides failures behind a success.

    Exploratory verdicts appear only if there are no others. Claims without a number do not count.
    """
    measured = [claim for claim in claims if claim["number"]]
    firm = [claim for claim in measured if not claim["exploratory"]] or measured
    first = {claim["verdict"]: claim for claim in reversed(firm)}
    ordered = [first[verdict] for verdict in (*JUDGED, "reduced scale") if verdict in first]
    verdicts = [
        full_verdict(claim).capitalize() if claim["verdict"] in JUDGED else "Claim, not judged at this scale"
        for claim in ordered
    ]
    return [
        f"{verdict}: “{claim['claim']}” ({claim['where']}; {claim['number']})."
        for verdict, claim in zip(verdicts, ordered, strict=True)
    ]
