"""A paper at a scale in one file: its main finding, verdicts next to expected numbers, claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fltrain.core.errors import count
from fltrain.experiments.layout import Bubbles, ItemJob, named
from fltrain.reporting.claims import JUDGED
from fltrain.reporting.figures.forest import forest
from fltrain.reporting.tables.cells import layout_of
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.verdict import (
    EXPECTED,
    EXPECTED_GAINS,
    GAIN_VERDICTS,
    INTENDED,
    VERDICTS,
    count_verdicts,
    expected_counts,
)

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
    every = [cell for shown in cells.values() for cell in shown]
    decided = [cell for cell in every if cell.item in confirmed]
    columns = ["where", "claim", "verdict", "listed", "exploratory", "evidence", "item"]
    claims: list[Any] = judged[columns].to_dict("records")
    measured: list[Any] = judged[judged["estimate"].notna()].to_dict("records")
    titles = {sheet.id.partition("/")[2]: sheet.title for sheet in sheets}
    figures = [
        sheet.id.partition("/")[2]
        for sheet in sheets
        if sheet.figure and not isinstance(sheet.figure, Bubbles)
    ]
    return {
        **paper,
        "finding": finding(paper["kind"], every, sheets, measured),
        "picture": next(
            (name for name in figures if confirmed.get(name, set()) - {"undecided"} or not confirmed), ""
        ),
        "forest": forest(every, titles) or forest(decided, titles, "gain"),
        "counts": verdict_counts(paper["kind"], every, claims),
        "claims": claims,
    }


def verdict_counts(kind: str, cells: Sequence[TableCell], claims: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts that are not empty. The truth of controls is known: they have no expected numbers."""
    gains: dict[bool, list[str]] = {True: [], False: []}
    for cell in cells:
        if cell.gain_verdict:
            gains[cell.published_gain is not None].append(cell.gain_verdict)
    values = count_verdicts(
        (cell.full_verdict if cell.intended else cell.verdict for cell in cells if cell.verdict),
        [*VERDICTS, *INTENDED],
    )
    found: Counts = {
        "published values": (values, expected_counts(cells, EXPECTED)),
        "published gains": (
            count_verdicts(gains[True], GAIN_VERDICTS),
            expected_counts(cells, EXPECTED_GAINS),
        ),
        "differences among our own runs": (count_verdicts(gains[False], GAIN_VERDICTS), {}),
        "claims": (
            Counter(claim["verdict"] + ", exploratory" * bool(claim["exploratory"]) for claim in claims),
            {},
        ),
    }
    return {
        heading: (verdicts, {} if kind == "control" else expected)
        for heading, (verdicts, expected) in found.items()
        if verdicts
    }


# ---------------------------------------------------------------- the main finding
def finding(
    kind: str,
    cells: Sequence[TableCell],
    sheets: Sequence[ItemJob],
    measured: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return one or two sentences with the main result and its numbers; empty without any number.

    Of a control, it is how many false and true values the rule rejects. Else it is the first of the claims
    that our runs decide, or a difference between methods if no claim has a number.

    Args:
        kind: of the paper: ``paper``, ``control`` ...
        cells: of all its tables.
        sheets: its items.
        measured: its claims with an estimate, in the order of their declaration.
    """
    if kind == "control":
        return _rejections(cells)
    return _main_claim(measured) or _main_difference(cells, sheets)


def _rejections(cells: Iterable[TableCell]) -> str:
    """Return how many false and true published values of controls the rule rejects."""
    judged = [cell for cell in cells if cell.verdict not in (None, "not run")]
    false = [cell.verdict for cell in judged if cell.falsified]
    true = [cell.verdict for cell in judged if not cell.falsified]
    rejects, confirms, leaves = (
        true.count(verdict) for verdict in ("not reproduced", "reproduced", "inconclusive")
    )
    parts = []
    if false:
        parts.append(f"The rule rejects {_part(false.count('not reproduced'), len(false), 'false value')}.")
    if true and confirms == len(true):
        parts.append(f"It confirms {_part(confirms, confirms, 'true value')}.")
    elif true:
        parts.append(
            f"Of {count(len(true), 'true value')}, it rejects {rejects or 'none'}, confirms "
            f"{confirms or 'none'} and leaves {leaves or 'none'} open."
        )
    return " ".join(parts)


def _part(number: int, whole: int, what: str) -> str:
    """Return a part of a whole in words, for example ``all 3 values`` or ``none of 2 values``."""
    if number == whole:
        return f"the one {what}" if whole == 1 else f"all {count(whole, what)}"
    return f"{number or 'none'} of {count(whole, what)}"


def _main_claim(measured: Iterable[Mapping[str, Any]]) -> str:
    """Return the first claim of the best rank, with its number; empty without a claim.

    Exploratory verdicts come last, undecided claims after decided ones. Supported and contradicted claims
    have the same rank, so that a page does not hide failures behind a success.
    """
    order = ("supported", "undecided", "reduced scale")

    def rank(claim: Mapping[str, Any]) -> tuple[bool, int]:
        return claim["exploratory"], order.index(claim["verdict"].replace("contradicted", "supported"))

    claim = min(measured, key=rank, default=None)
    if claim is None:
        return ""
    late = ", exploratory" if claim["exploratory"] else ""
    judged = f"{claim['verdict'].capitalize()}{late}: " if claim["verdict"] in JUDGED else ""
    return f"{judged}“{claim['claim']}” ({claim['where']}; {claim['number']})."


def _main_difference(cells: Sequence[TableCell], sheets: Iterable[ItemJob]) -> str:
    """Return the largest difference between methods with the best verdict: better, else worse.

    Exploratory verdicts count only if there is no other. Without verdicts, it is the largest difference of
    the first table that has any.
    """
    finite = [cell for cell in cells if cell.gain_interval and all(map(math.isfinite, cell.gain_interval))]
    if not finite:
        return ""
    shown = [one for one in finite if (one.item, one.label) == (finite[0].item, finite[0].label)]
    which = f"It is the largest of {count(len(shown), 'difference')}." if len(shown) > 1 else ""
    judged = [cell for cell in finite if cell.gain_verdict]
    for verdict in ("worse", "better"):
        if same := [cell for cell in judged if cell.gain_verdict == verdict]:
            shown = same
            more = "; it is the largest of these" if len(same) > 1 else ""
            number = f"{len(same)} {'is' if len(same) == 1 else 'are'}"
            which = f"Of {count(len(judged), 'difference')}, {number} {verdict}{more}."
    cell = max(shown, key=lambda cell: (not cell.exploratory, abs(cell.gain or 0.0)))
    (sheet,) = (one for one in sheets if one.id.partition("/")[2] == cell.item)
    layout = layout_of(sheet)
    base = next(one.gain_over for one in layout.measures if one.measure == cell.measure and one.gain_over)
    labels = {layout.panels: cell.panel, layout.rows: cell.row, layout.columns: cell.column}
    minuend = [labels.pop(axis) for axis in base if axis in labels]
    over = [named(axis, label) for axis, label in base.items()]
    places = [named(axis, label) for axis, label in labels.items() if label]
    low, high = cell.gain_interval or (0.0, 0.0)
    late = ["exploratory"] if cell.exploratory else []
    where = ", ".join([*places, count(len(cell.gains) or cell.n, "seed"), *late])
    return (
        f"{', '.join(minuend)} minus {', '.join(over)}, {cell.label.removesuffix(', %')}: "
        f"{cell.gain:+z.2f}{' points' if cell.label.endswith('%') else ''} "
        f"(90 % interval {low:+z.2f} to {high:+z.2f}; {where}). {which}"
    ).strip()
