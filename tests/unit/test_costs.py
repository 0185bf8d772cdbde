"""Cost estimates against sums by hand, and measurements against records of real runs."""

import os
from pathlib import Path
from typing import Any

import pytest

from fltrain.core.files import write_json
from fltrain.experiments import calibrate as calibration
from fltrain.experiments.calibrate import calibrate
from fltrain.experiments.costs import (
    JSON_BYTES,
    Calibration,
    Estimate,
    Measurement,
    PlanCosts,
    Workload,
    calibration_file,
    device_name,
    estimate,
)
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.scale_file import write_scale
from fltrain.experiments.selection import Selection
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.provenance import gather

from .helpers import CPU, TINY, tiny, trained, write_config

Yaml = dict[str, Any]

PLUGIN = {"none": {"set": {"plugins": []}}, "FLFA": {"set": {"plugins": ["flfa"]}}}
METHODS = ["fedavg", "scaffold", "moon"]
TABLE: Yaml = {
    "title": "Methods",
    "axes": {"method": METHODS, "plugin": PLUGIN},
    "table": {"rows": "method", "columns": "plugin", "measures": [{"measure": "final_accuracy"}]},
}


def toy(folder: Path, **settings: Any) -> Plan:
    """A plan of six compositions with two seeds each."""
    return plan(write_config(folder, {"table": TABLE}, seeds=2, **settings), "one")


def costs_of(work: Workload) -> Calibration:
    """Measurements: a step takes 3 s, an image 0.25 s."""
    cost = Measurement(step=3.0, image=0.25, server=0.5, down=100, up=50, model=80, rows=7)
    return Calibration(device="a device", start=10.0, runs={work.key: cost})


def workload(**settings: Any) -> Workload:
    work = Workload.of(tiny(**settings))
    assert work is not None
    return work


def test_the_work_of_a_run_is_rounds_clients_steps_and_tests() -> None:
    """Digits: 1,438 images on 10 clients are 144 each; in batches of 32 they are 4.5 steps."""
    work = workload(rounds=20, training={"epochs": 2, "batch_size": 32}, evaluation={"every": 5})
    assert (work.images, work.batch, work.tested) == (144, 32, 359)
    assert work.steps == 2 * 144 / 32
    assert work.tests == 5, "rounds 5, 10, 15, 20, and 19, of the last tenth"
    client = 9 * 3.0 + 0.5
    found = estimate(work, costs_of(work))
    assert found == Estimate(
        seconds=10 + 20 * 2 * client + 5 * 359 * 0.25, traffic=20 * 2 * 150, disk=JSON_BYTES + 20 * 7
    )


def test_runs_without_measurements_are_not_estimated() -> None:
    assert estimate(workload(method="fedprox"), costs_of(workload())) is None
    unknown = {**TINY, "dataset": "femnist-leaf", "partition": {"name": "by_writer", "clients": 10}}
    assert Workload.of(RunSpec.parse({**unknown, "model": "lenet5"}, "test")) is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make measurements of the engine very short."""
    monkeypatch.setattr(calibration, "PATIENCE", 0.0)
    monkeypatch.setattr(calibration, "_start_up", lambda: 1.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.mark.slow
def test_traffic_and_disk_are_those_of_the_records(tmp_path: Path, quick: None) -> None:
    planned, results = toy(tmp_path, seed=0, evaluation={"statistics": ["drift"]}), Results(tmp_path / "out")
    calibrate(planned, results, CPU, lambda line: None)
    costs = PlanCosts.of(planned, results)
    assert not costs.unknown
    for spec in [entry.spec for entry in planned.items[0].entries if entry.seed == 0][:3]:
        record, expected = trained(spec, results.root), costs.estimates[spec.run_id]
        exchanged = record.summary["bytes"]["down"] + record.summary["bytes"]["up"]
        # To the byte, except that FLFA sends no indices before its first round.
        assert expected.traffic == pytest.approx(exchanged, rel=1e-4), spec.composition.name
        size = sum(file.stat().st_size for file in record.folder.glob("*.json*"))
        assert expected.disk == pytest.approx(size, rel=0.5)


def test_only_missing_measurements_are_made(tmp_path: Path, quick: None) -> None:
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    lines: list[str] = []
    some = planned.restricted(Selection(where=("method=fedavg",)))
    calibrate(some, results, CPU, lines.append)
    assert len(lines) == 2, "two compositions"
    first = Calibration.read(calibration_file(results))
    assert first is not None and first.device == device_name(gather(CPU, 1))
    calibrate(planned, results, CPU, lines.append)
    assert len(lines) == 2 + 4 and lines[-1].startswith("4 of 4: moon")
    second = Calibration.read(calibration_file(results))
    assert second is not None
    assert second.runs.items() >= first.runs.items(), "earlier measurements remain"
    calibrate(planned, results, CPU, lines.append)
    assert len(lines) == 6


@pytest.mark.slow
def test_cheapest_sorts_items_with_claims_by_remaining_work(papers: Plan) -> None:
    planned = papers.restricted(Selection(items=("flfa",)))
    ordered = PlanCosts(planned, None, {}, frozenset()).cheapest().items
    works = [[Workload.of(planned.runs[run]) for run in item.run_ids] for item in ordered]
    images = [sum(work.trained for work in some if work) for some in works]
    assert images == sorted(images)
    assert {item.name for item in ordered} == {item.name for item in planned.items if item.claims}


@pytest.mark.parametrize(
    ("order", "hours", "done", "expected"),
    [
        (["toy"], 12, [], {"toy/table": [0, 1], "toy/figure": [0, 1]}),
        (["toy"], 11, [], {"toy/table": [0], "toy/figure": [0, 1]}),
        (["toy"], 5, [], {"toy/figure": [0, 1]}),
        (["toy/figure", "toy/table"], 6, [], {"toy/figure": [0], "toy/table": [0]}),
        (["toy"], 5, ["moon"], {"toy/table": [0], "toy/figure": [0]}),
    ],
)
def test_a_budget_is_spent_seed_by_seed_in_the_order_of_the_items(
    tmp_path: Path, order: list[str], hours: float, done: list[str], expected: dict[str, list[int]]
) -> None:
    """The table's 12 runs, 6 per seed, contain the figure's 4; each run takes an hour."""
    whole = two_items(tmp_path, order)
    finished = frozenset(run for run, spec in whole.runs.items() if spec.method.name in done)
    costs = PlanCosts(whole, None, dict.fromkeys(whole.runs, Estimate(3600.0, 0, 0)), finished)
    part = costs.within(hours)
    assert {item.id: sorted({entry.seed for entry in item.entries}) for item in part.items} == expected
    assert len(part.runs.keys() - finished) <= hours
    path = tmp_path / "scales" / "mine.yaml"
    write_scale(path, part, "a part")
    again = plan(tmp_path, "mine")
    assert again.runs.keys() == part.runs.keys()
    assert [item.id for item in again.items] == [item.id for item in part.items]
    assert again.scale.title == "a trial; a part"


def two_items(folder: Path, order: list[str]) -> Plan:
    """Return a plan of a table and a figure; the scale has an axis and an exception for the table only."""
    panels = [{"curve": "test_accuracy", "label": ""}]
    figure = {"kind": "curves", "series": "plugin", "panels": panels}
    table = {**TABLE, "axes": {"method": [*METHODS, "fedprox"], "plugin": PLUGIN}}
    drawn = {"title": "Plug-ins", "axes": {"plugin": PLUGIN}, "figure": figure}
    write_config(folder, {"table": table, "figure": drawn}, seeds=2)
    scale = {"scale": "one", "title": "a trial", "reduced": True, "items": order, "axes": {"method": METHODS}}
    scale["exceptions"] = [{"when": {"method": "moon"}, "set": {"training": {"lr": 0.02}}}]
    write_json(folder / "scales" / "one.yaml", scale)
    return plan(folder, "one")


def test_estimates_are_checked_against_finished_runs_on_this_device(tmp_path: Path) -> None:
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    records = [trained(spec, results.root) for spec in list(planned.runs.values())[:2]]
    first, second = sorted(record.costs["seconds"]["total"] for record in records)
    estimates = {run: Estimate(36.0 + 2 * first, 0, 0) for run in planned.runs}
    finished = frozenset(record.run_id for record in records)
    here = Calibration(device=device_name(gather(CPU, 1)), start=36.0)
    middle, high = (first + second) / 4 / first, second / 2 / first
    line = PlanCosts(planned, here, estimates, finished).check(results)
    assert line == f"2 finished runs: actual / estimated median {middle:.2f} (0.50 to {high:.2f})"
    elsewhere = Calibration(device="another", start=36.0)
    assert PlanCosts(planned, elsewhere, estimates, finished).check(results) is None
    assert PlanCosts(planned, here, estimates, frozenset()).check(results) is None
    for record in records:
        (record.folder / "summary.json").write_text("{}")
    assert PlanCosts(planned, here, estimates, finished).check(results) is None, "damaged"
