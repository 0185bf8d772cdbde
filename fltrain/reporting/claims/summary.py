"""A paper at a scale in one file: verdicts on its tables, rank correlations, claims. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fltrain.experiments.layout import Sheet
from fltrain.reporting.claims import judge as judgement
from fltrain.reporting.claims.judge import Judged
from fltrain.reporting.numbers import comparison
from fltrain.reporting.numbers.comparison import Verdict, rank_correlation
from fltrain.reporting.numbers.published import Published
from fltrain.reporting.numbers.readings import Runs
from fltrain.reporting.tables import write as tables


def summarise(
    paper: dict[str, Any],
    sheets: Iterable[Sheet],
    judged: Sequence[Judged],
    runs: Runs,
    published: Callable[[Sheet], Published],
) -> dict[str, Any]:
    """Sum up a paper's items and claims, as plain data for ``summary.json``.

    Verdicts on cells are given at full scale only, and count published values that no cell stands for as not
    run. The rank correlation is that of the first measure of a table that has published values.

    Args:
        paper: what heads the file: paper, title, scale, reduced.
        sheets: the paper's items at the scale.
        judged: its claims.
        runs: returns the record of a run id, complete or not.
        published: returns the published values behind an item.
    """
    items = [_item(sheet, runs, published(sheet)) for sheet in sheets]
    cells = Counter[Verdict]()
    for item in items:
        cells.update(item["verdicts"])
    return {
        **paper,
        "items": items,
        "claims": [
            {
                "where": one.where,
                "claim": one.claim,
                "verdict": one.finding.verdict,
                "evidence": one.finding.evidence,
                "item": one.item,
                "value": one.stated,
            }
            for one in judged
        ],
        "totals": {"cells": comparison.count(cells.elements()), "claims": judgement.count(judged)},
    }


def _item(sheet: Sheet, runs: Runs, published: Published) -> dict[str, Any]:
    item = {"id": sheet.id, "name": sheet.id.partition("/")[2], "title": sheet.title}
    if sheet.table is None:
        places = {tuple(cell.labels.items()) for cell in sheet.cells}
        return {**item, "kind": "figure", "cells": len(places), "verdicts": {}, "rank_correlation": None}
    shown = tables.cells(sheet, runs, published)
    verdicts: list[Verdict] = [cell.compared.verdict for cell in shown if cell.compared]
    verdicts += ["not run" for _ in tables.absent(sheet, published, shown)]
    facing = [(cell.measure, cell.facing) for cell in shown if cell.facing and cell.row != tables.AVERAGE]
    ranked = rank_correlation([one for name, one in facing if name == facing[0][0]])
    return {
        **item,
        "kind": "table",
        "cells": len(shown),
        "verdicts": comparison.count(verdicts),
        "rank_correlation": asdict(ranked) if ranked else None,
    }
