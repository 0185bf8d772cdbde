"""Controls: tables with a known truth (``config/papers/controls.yaml``), on the digits."""

from pathlib import Path

import numpy as np
import pytest

from fltrain.experiments.plan import plan
from fltrain.experiments.published import Published
from fltrain.experiments.selection import Selection
from fltrain.reporting.tables.cells import cells
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.verdict import Basis, compare
from fltrain.runs.record import Results

from .helpers import trained

CONFIG = Path(__file__).parents[2] / "config"


@pytest.mark.slow
def test_tables_of_known_truth_are_judged_correctly(tmp_path: Path) -> None:
    """One test, because all tables share their runs."""
    names = ("positive", "positive_bare", "flower", "spiked", "neutral", "other_seeds")
    items = tuple(f"controls/{name}" for name in names)
    planned = plan(CONFIG, "controls").restricted(Selection(items=items, seeds=40))
    for spec in planned.runs.values():
        trained(spec, tmp_path)
    shown: dict[str, list[TableCell]] = {}
    for item in planned.items:
        published = Published.read(CONFIG / "reported" / item.sheet.reported if item.sheet.reported else None)
        shown[item.name] = cells(item.sheet, Results(tmp_path).record, published)

    # With published deviations and seeds some are reproduced; without them, the interval is wider.
    assert {cell.verdict for cell in shown["positive"]} == {"reproduced", "inconclusive"}
    assert {cell.verdict for cell in shown["positive_bare"]} <= {"reproduced", "inconclusive"}
    assert {cell.verdict for cell in shown["flower"]} == {"reproduced"}
    # Values three points too high are refuted, the others are not.
    true = {(cell.row, cell.measure): cell.published for cell in shown["positive"]}
    spiked = shown["spiked"]
    raised = [cell for cell in spiked if cell.published == pytest.approx(true[cell.row, cell.measure] + 3)]
    assert len(raised) == len(spiked) / 2
    assert {cell.full_verdict for cell in raised} == {"not reproduced (worse)"}
    assert {cell.verdict for cell in spiked if cell not in raised} <= {"reproduced", "inconclusive"}
    # Neutral settings have a gain of exactly zero.
    gains = [cell.gains for cell in shown["neutral"] if cell.gains]
    assert gains == [(0.0,) * 5] * 3
    # A/A tables of five cells with three seeds each: of 2,000 gains, a twentieth may look positive.
    (cell,) = shown["other_seeds"]
    draws, positive, tables = np.random.default_rng(0), 0, 400
    for _ in range(tables):
        one, other = draws.permutation(cell.values)[:30].reshape(2, 5, 3)
        judged = compare(
            [
                (TableCell(values=values, gains=gains, gain=np.mean(gains), published_gain=1.0), Basis())
                for values, gains in zip(one.tolist(), (one - other).tolist(), strict=True)
            ]
        )
        verdicts = [cell.gain_verdict for cell in judged]
        positive += sum(verdict in ("size reproduced", "direction reproduced") for verdict in verdicts)
    assert 0.02 < positive / (5 * tables) < 0.08
