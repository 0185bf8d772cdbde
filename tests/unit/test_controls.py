"""Controls: tables with a known truth (``config/papers/controls.yaml``), on the digits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.published import Published
from fltrain.reporting.tables.cells import TableCell, cells
from fltrain.reporting.verdict import CellNumbers, compare
from fltrain.runs.record import Results

from .helpers import trained

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "config"


class Controls:
    """The control tables with all runs trained, except those of the source."""

    def __init__(self, root: Path) -> None:
        self.plan: Plan = plan(CONFIG, "controls")
        self.results = Results(root)
        self.items = {item.name: item for item in self.plan.items if item.name != "source"}
        for run in dict.fromkeys(run for item in self.items.values() for run in item.run_ids):
            trained(self.plan.runs[run], root)

    def cells(self, name: str) -> list[TableCell]:
        sheet = self.items[name].sheet
        published = Published.read(CONFIG / "reported" / sheet.reported if sheet.reported else None)
        return cells(sheet, self.results.record, published)


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controls]:
    yield Controls(tmp_path_factory.mktemp("controls"))


def test_correct_values_are_not_refuted(controls: Controls) -> None:
    """With published deviations and seeds some are reproduced; without them, the interval is wider."""
    verdicts = {
        name: [cell.verdict for cell in controls.cells(name)] for name in ("positive", "positive_bare")
    }
    assert set(verdicts["positive"]) == {"reproduced", "inconclusive"}
    assert set(verdicts["positive_bare"]) <= {"reproduced", "inconclusive"}


def test_values_three_points_too_high_are_refuted_and_the_others_are_not(controls: Controls) -> None:
    true = {(cell.row, cell.measure): cell.published for cell in controls.cells("positive")}
    spiked = controls.cells("spiked")
    raised = [cell for cell in spiked if cell.published == pytest.approx(true[cell.row, cell.measure] + 3)]
    assert len(raised) == len(spiked) / 2
    assert {cell.full_verdict for cell in raised} == {"not reproduced (worse)"}
    assert {cell.verdict for cell in spiked if cell not in raised} <= {"reproduced", "inconclusive"}


def test_neutral_settings_have_a_gain_of_exactly_zero(controls: Controls) -> None:
    gains = {cell.row: cell.gains for cell in controls.cells("neutral") if cell.gains}
    assert len(gains) == 3
    assert all(gain == (0.0,) * 5 for gain in gains.values())


def test_gains_between_seeds_are_found_at_the_level_of_the_test(controls: Controls) -> None:
    """A/A tables of five cells with three seeds each: of 2,000 gains, a twentieth may look positive."""
    (cell,) = controls.cells("other_seeds")
    draws, positive, tables = np.random.default_rng(0), 0, 400
    for _ in range(tables):
        one, other = draws.permutation(cell.values)[:30].reshape(2, 5, 3)
        judged = compare(
            [
                CellNumbers(tuple(values), gains=tuple(gains), published_gain=1.0)
                for values, gains in zip(one, one - other, strict=True)
            ]
        )
        verdicts = [judgement.gain.verdict for judgement in judged if judgement.gain]
        positive += sum(verdict in ("size reproduced", "direction reproduced") for verdict in verdicts)
    assert 0.02 < positive / (5 * tables) < 0.08
