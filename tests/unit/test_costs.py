"""Hours and the run table by hand; the measured speed with a clock by hand."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from fltrain.experiments import work as counting
from fltrain.experiments.costs import GPUS, hours, run_table, together
from fltrain.experiments.plan import plan
from fltrain.experiments.work import Work
from fltrain.runs.spec import RunSpec

from .conftest import Register
from .helpers import CPU, TINY, TWO_METHODS, tiny, write_config


def test_arithmetic_takes_the_peak_of_the_precision() -> None:
    """A multiply-add is two operations; 5 to 20 % of the peak are assumed."""
    h100 = {precision: hours(67e12 * 1800, GPUS["h100"].speed(precision)) for precision in ("fp32", "tf32")}
    assert h100 == {"fp32": pytest.approx((5, 20)), "tf32": pytest.approx((5 * 67 / 495, 20 * 67 / 495))}
    assert together(h100.values()) == pytest.approx((5 * (1 + 67 / 495), 20 * (1 + 67 / 495)))
    assert GPUS["v100"].speed("bf16") == GPUS["v100"].speed("fp32"), "it has no other peak"


def test_the_run_table_has_a_row_per_cell_and_seed(tmp_path: Path) -> None:
    planned = plan(write_config(tmp_path, {"table": TWO_METHODS}, seeds=2), "one")
    first, *others = planned.runs
    rows = run_table(planned, {first: 12.0}, {first: (1.0, 2.0)})
    assert [row["run"] for row in rows] == [first, *others]
    costs = [(row["multiply_adds"], row["hours_least"], row["hours_most"]) for row in rows]
    assert costs == [("12", 1.0, 2.0), *[("", "", "")] * 3]


def test_the_speed_is_the_work_of_a_round_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients with two batches of 32 each; a round ends after two ticks of a second."""
    clock = count()
    monkeypatch.setattr(counting, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    work, spec = Work(), tiny(method="moon", evaluation={"every": 3})
    one = tiny(rounds=1, partition={"name": "iid", "clients": 1}, participation=1.0)
    trained, _ = work.parts(one) or (0.0, 0.0)
    each = trained / 1438  # of an image, in the only epoch
    assert work.speed(spec, CPU) == 2 * 2 * 32 * each / 2
    assert work.speed(spec.model_copy(update={"seed": 1}), CPU) == 2 * 2 * 32 * each / 2, "measured once"


def test_runs_without_the_size_of_the_dataset_are_not_counted(register: Register) -> None:
    register({"mine": {"reader": "npz", "path": "mine.npz"}})
    spec = {**TINY, "dataset": "mine", "partition": {"name": "iid", "clients": 10}, "model": "lenet5"}
    assert Work().multiply_adds(RunSpec.parse(spec, "test")) is None
