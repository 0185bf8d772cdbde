"""Controls: tables with a known truth (``config/papers/controls.yaml``)."""

from pathlib import Path

import numpy as np
import pytest

from fltrain.experiments.plan import plan
from fltrain.experiments.published import Published
from fltrain.experiments.selection import Selection
from fltrain.reporting.pictures import tone
from fltrain.reporting.tables.cells import cells
from fltrain.reporting.tables.table_cell import TableCell, read_csv
from fltrain.reporting.verdict import RuleInputs, compare
from fltrain.runs.record import Results

from .helpers import trained

ROOT = Path(__file__).parents[2]


def raised(spiked: list[TableCell], positive: list[TableCell]) -> list[TableCell]:
    """The half of the cells whose published value is three points above the true one."""
    true = {(cell.row, cell.measure): cell.published for cell in positive}
    found = [cell for cell in spiked if cell.published == pytest.approx(true[cell.row, cell.measure] + 3)]
    assert len(found) == len(spiked) / 2
    return found


@pytest.mark.slow
def test_true_values_are_not_rejected_and_false_ones_are(tmp_path: Path) -> None:
    """On the digits. One test, because the tables share their runs."""
    items = tuple(f"controls/{name}" for name in ("positive", "positive_bare", "spiked"))
    planned = plan(ROOT / "config", "controls").restricted(Selection(items=items))
    for spec in planned.runs.values():
        trained(spec, tmp_path)
    shown: dict[str, list[TableCell]] = {}
    for item in planned.items:
        published = Published.read(ROOT / "config" / "reported" / str(item.sheet.reported))
        shown[item.name] = cells(item.sheet, Results(tmp_path).record, published)
    # With published deviations and seeds some are reproduced; without them, the interval is wider.
    assert {cell.verdict for cell in shown["positive"]} == {"reproduced", "inconclusive"}
    assert {cell.verdict for cell in shown["positive_bare"]} <= {"reproduced", "inconclusive"}
    false = raised(shown["spiked"], shown["positive"])
    assert {cell.full_verdict for cell in false} == {"not reproduced (as intended)"}
    true = [cell for cell in shown["spiked"] if cell not in false]
    assert {cell.verdict for cell in true} <= {"reproduced", "inconclusive"}


def published(name: str) -> list[TableCell]:
    """The cells of a published control; CI makes its file again from the records."""
    return read_csv(ROOT / "published" / "controls" / f"{name}.csv")


def test_published_controls_are_judged_correctly() -> None:
    assert {cell.verdict for name in ("positive", "positive_bare") for cell in published(name)} == {
        "inconclusive"
    }
    false = raised(published("spiked"), published("positive"))
    assert {cell.full_verdict for cell in false} == {"not reproduced (as intended)"}
    assert {cell.verdict for cell in published("spiked") if cell not in false} == {"inconclusive"}
    assert {tone(cell.full_verdict) for cell in false} == {"good"}
    assert tone("not reproduced (worse)") == "bad", "a true value that is rejected"
    assert {cell.verdict for cell in published("flower")} == {"reproduced"}
    assert [cell.gains for cell in published("neutral") if cell.gains] == [(0.0,) * 5] * 3


def test_a_twentieth_of_gains_without_an_effect_looks_positive() -> None:
    """2,000 gains of A/A tables: five cells with three seeds each, drawn from 60 runs of one setting."""
    (cell,) = published("other_seeds")
    draws, positive, tables = np.random.default_rng(0), 0, 400
    for _ in range(tables):
        one, other = draws.permutation(cell.values)[:30].reshape(2, 5, 3)
        judged = compare(
            [
                (TableCell(values=values, gains=gains, published_gain=1.0), RuleInputs())
                for values, gains in zip(one.tolist(), (one - other).tolist(), strict=True)
            ]
        )
        verdicts = [cell.gain_verdict for cell in judged]
        positive += sum(verdict in ("size reproduced", "direction reproduced") for verdict in verdicts)
    assert 0.03 < positive / (5 * tables) < 0.07
