"""Cost estimates: against sums done by hand, and measurements against records of real runs."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json
from fltrain.engine.simulation import Simulation
from fltrain.experiments import calibrate as calibration
from fltrain.experiments.calibrate import calibrate
from fltrain.experiments.costs import (
    JSON_BYTES,
    Calibration,
    Estimate,
    Exchange,
    PlanCosts,
    StepCost,
    Workload,
    calibration_file,
    device_name,
    estimate,
    run_table,
)
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.scale_file import scale_file, write_scale
from fltrain.experiments.selection import Selection
from fltrain.runs.record import Results, with_digest
from fltrain.runs.spec import RunSpec
from fltrain.runtime.provenance import gather

from .helpers import CPU, TINY, tiny, trained

Yaml = dict[str, Any]

PAPER: Yaml = {
    "paper": "toy",
    "title": "A toy",
    "citation": "none",
    "settings": TINY,
    "seeds": 2,
    "items": {
        "table": {
            "title": "Methods",
            "axes": {
                "method": ["fedavg", "scaffold", "moon"],
                "plugin": {"none": {"set": {"plugins": []}}, "FLFA": {"set": {"plugins": ["flfa"]}}},
            },
            "table": {"rows": "method", "columns": "plugin", "measures": [{"measure": "final_accuracy"}]},
        }
    },
}


def toy(folder: Path, **settings: Any) -> Plan:
    """A plan of six compositions with two seeds each."""
    paper = {**PAPER, "settings": {**TINY, **settings}}
    scale = {"scale": "one", "title": "a trial", "reduced": True, "items": ["toy"]}
    for path, data in (("papers/toy", paper), ("scales/one", scale)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{path}.yaml").write_text(yaml.safe_dump(data))
    return plan(folder, "one")


def costs_of(work: Workload) -> Calibration:
    """Measurements: a step takes 2 s, an image 0.25 s, and the method takes 1.5 times as long as FedAvg."""
    return Calibration(
        device="a device",
        start=10.0,
        steps={work.step: StepCost(step=2.0, image=0.25)},
        factors={work.composition: 1.5},
        exchanges={work.exchange: Exchange(down=100, up=50, model=80, server=0.5, rows=7)},
    )


def workload(**settings: Any) -> Workload:
    work = Workload.of(tiny(**settings))
    assert work is not None
    return work


# ---------------------------------------------------------------- sums by hand
def test_a_run_is_made_of_rounds_clients_steps_and_tests() -> None:
    """Digits: 1,438 images on 10 clients are 144 each; in batches of 32 they are 4.5 steps."""
    work = workload(rounds=20, training={"epochs": 2, "batch_size": 32}, evaluation={"every": 5})
    assert (work.images, work.batch, work.tested) == (144, 32, 359)
    assert work.steps == 2 * 144 / 32
    assert work.tests == 5, "rounds 5, 10, 15, 20, and 19, of the last tenth"
    client = 9 * 2.0 * 1.5 + 0.5
    found = estimate(work, costs_of(work))
    assert found == Estimate(
        seconds=10 + 20 * 2 * client + 5 * 359 * 0.25, traffic=20 * 2 * 150, disk=JSON_BYTES + 20 * 7
    )


def test_a_client_with_less_than_a_batch_makes_one_step_of_what_it_has() -> None:
    work = workload(training={"epochs": 3, "batch_size": 500})
    assert (work.batch, work.steps) == (144, 3)
    assert work.step != workload(training={"batch_size": 100}).step, "which is measured for itself"


def test_images_that_clients_set_aside_are_tested_and_not_trained() -> None:
    work = workload(local_test={"fraction": 0.25}, participation={"fraction": 1.0})
    assert work.tested == round((1438 + 359) / 4)
    assert work.images == round((1438 + 359) * 3 / 4 / 10)


def test_kept_models_and_gradients_are_counted() -> None:
    base, kept = workload(), workload(evaluation={"keep": "clients"})
    sizes = [estimate(work, costs_of(work)) for work in (base, kept)]
    assert sizes[0] and sizes[1] and sizes[1].disk - sizes[0].disk == (1 + 2) * 80
    measured = workload(evaluation={"statistics": ["dissimilarity"]})
    with_, without = (estimate(work, costs_of(work)) for work in (measured, base))
    assert with_ and without
    assert with_.seconds - without.seconds == pytest.approx(3 * 2 * (144 / 32) * 2.0), "an epoch each"


def test_what_was_not_measured_is_not_estimated() -> None:
    work = workload()
    whole = costs_of(work)
    for kind in ("steps", "factors", "exchanges"):
        assert estimate(work, whole.model_copy(update={kind: {}})) is None
    assert estimate(workload(method="fedprox"), whole) is None
    unknown = {**TINY, "dataset": "femnist-leaf", "partition": {"name": "by_writer", "clients": 10}}
    assert Workload.of(RunSpec.parse({**unknown, "model": "lenet5"}, "test")) is None


# ---------------------------------------------------------------- measured, against real runs
@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that take no time; they are the engine's all the same."""
    monkeypatch.setattr(calibration, "PATIENCE", 0.0)
    monkeypatch.setattr(calibration, "_start_up", lambda: 1.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def test_traffic_and_disk_are_those_of_the_records(tmp_path: Path, quick: None) -> None:
    planned, results = toy(tmp_path, seed=0, evaluation={"statistics": ["drift"]}), Results(tmp_path / "out")
    calibrate(planned, results, CPU, lambda line: None)
    costs = PlanCosts.of(planned, results)
    assert not costs.unknown
    for spec in [entry.spec for entry in planned.items[0].entries if entry.seed == 0]:
        record, expected = trained(spec, results.root), costs.estimates[spec.run_id]
        exchanged = record.summary["bytes"]["down"] + record.summary["bytes"]["up"]
        # To the byte, but that FLFA has nothing to announce before its first round.
        assert expected.traffic == pytest.approx(exchanged, rel=1e-4), spec.composition.name
        size = sum(file.stat().st_size for file in record.folder.glob("*.json*"))
        assert expected.disk == pytest.approx(size, rel=0.5)


def test_only_what_is_missing_is_measured(tmp_path: Path, quick: None) -> None:
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    said: list[str] = []
    some = planned.restricted(Selection(methods=("fedavg",)))
    calibrate(some, results, CPU, said.append)
    assert len(said) == 1 + 2 + 2, "one network and batch, two compositions"
    first = Calibration.read(calibration_file(results))
    assert first is not None and first.device == device_name(gather(CPU, 1))
    calibrate(planned, results, CPU, said.append)
    assert len(said) == 5 + 4 + 4 and said[-1].startswith("8 of 8: moon")
    second = Calibration.read(calibration_file(results))
    assert second is not None
    assert second.factors.items() >= first.factors.items(), "earlier measurements are kept"
    calibrate(planned, results, CPU, said.append)
    assert len(said) == 13


def test_measurements_of_another_device_are_replaced(tmp_path: Path, quick: None) -> None:
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    some = planned.restricted(Selection(methods=("fedavg",)))
    other = Calibration(device="another", start=1.0, factors={"fedavg": 7.0})
    write_json(calibration_file(results), other.model_dump(mode="json"))
    calibrate(some, results, CPU, lambda line: None)
    after = Calibration.read(calibration_file(results))
    assert after is not None and after.device != "another" and 7.0 not in after.factors.values()


def test_calibration_warns_on_a_busy_machine(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = toy(tmp_path).restricted(Selection(methods=("fedavg",)))
    warned = []
    for load in (0.0, 2.0 * (os.cpu_count() or 1)):
        said: list[str] = []
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        calibrate(some, Results(tmp_path / str(load)), CPU, said.append)
        warned.append(said[0].startswith("warning: other processes"))
    assert warned == [False, True]


def test_what_refuses_to_be_measured_is_left_out_and_said(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise FltrainError("not on this network")

    monkeypatch.setattr(calibration.Stopwatch, "factor", refuse)
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    said: list[str] = []
    calibrate(planned, results, CPU, said.append)
    assert sum("is left out: not on this network" in line for line in said) == 6
    assert PlanCosts.of(planned, results).unknown == list(planned.runs)


def test_a_factor_is_the_composition_over_federated_averaging(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(simulation: Simulation) -> float:
        return {"fedavg": 2.0, "moon": 3.0}[simulation.composition.name]

    monkeypatch.setattr(calibration, "_trained", seconds)
    bench = calibration.Stopwatch(CPU, Calibration(device="a device", start=0.0))
    assert bench.factor(workload(method="moon")) == 1.5


def test_cheapest_lists_items_that_decide_a_claim_by_the_work_that_is_left() -> None:
    planned = plan(Path(__file__).parents[2] / "config", "paper").restricted(Selection(items=("flfa",)))
    ordered = PlanCosts(planned, None, {}, frozenset()).cheapest().items
    works = [[Workload.of(planned.runs[run]) for run in item.run_ids] for item in ordered]
    images = [sum(work.trained for work in some if work) for some in works]
    assert images == sorted(images)
    assert {item.name for item in planned.items} - {item.name for item in ordered} == {
        item.name for item in planned.items if not item.claims
    }
    first = planned.runs[ordered[0].run_ids[0]]
    work = Workload.of(first)
    assert work is not None
    per_round = first.participation.per_round(first.partition.clients)
    assert work.trained == pytest.approx(
        first.rounds * per_round * first.training.epochs * work.images, rel=0.01
    )


# ---------------------------------------------------------------- plans
@pytest.fixture
def measured(tmp_path: Path) -> tuple[Plan, Results]:
    """A plan, and measurements by which each run takes 36 s."""
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    costs = Calibration(device=device_name(gather(CPU, 1)), start=36.0)
    for spec in planned.runs.values():
        work = Workload.of(spec)
        assert work is not None
        costs.steps[work.step] = StepCost(step=0.0, image=0.0)
        costs.factors[work.composition] = 1.0
        costs.exchanges[work.exchange] = Exchange(down=1, up=1, model=0, server=0.0, rows=0)
    write_json(calibration_file(results), costs.model_dump(mode="json"))
    return planned, results


def test_a_plan_adds_up_its_runs(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    costs = PlanCosts.of(planned, results)
    assert costs.sum(planned.runs) == Estimate(12 * 36.0, 12 * 3 * 2 * 2, 12 * JSON_BYTES)


# Items with the run hours of their seeds, the hours of the budget, trained runs, seeds that fit by item.
BUDGETS: dict[str, tuple[list[str], float, list[str], dict[str, list[int]]]] = {
    "everything": ([], 12, [], {"toy/table": [0, 1], "toy/figure": [0, 1]}),
    "seed by seed": ([], 11, [], {"toy/table": [0], "toy/figure": [0, 1]}),
    "one seed": ([], 7, [], {"toy/table": [0], "toy/figure": [0]}),
    "the cheaper item": ([], 5, [], {"toy/figure": [0, 1]}),
    "order of the scale": (["toy/figure", "toy/table"], 6, [], {"toy/figure": [0], "toy/table": [0]}),
    "trained runs are free": ([], 5, ["moon"], {"toy/table": [0], "toy/figure": [0]}),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_a_budget_is_spent_seed_by_seed_in_the_order_of_the_items(tmp_path: Path, case: str) -> None:
    """The table's 12 runs, 6 per seed, contain the figure's 4; each run takes an hour."""
    order, hours, done, expected = BUDGETS[case]
    whole = two_items(tmp_path, order or ["toy"])
    finished = frozenset(run for run, spec in whole.runs.items() if spec.method.name in done)
    costs = PlanCosts(whole, None, dict.fromkeys(whole.runs, Estimate(3600.0, 0, 0)), finished)
    part = costs.within(hours)
    assert {item.id: sorted({entry.seed for entry in item.entries}) for item in part.items} == expected
    assert len(part.runs.keys() - finished) <= hours
    path = tmp_path / "scales" / "mine.yaml"
    write_scale(path, tmp_path, part, "a part")
    again = plan(tmp_path, "mine")
    assert again.runs.keys() == part.runs.keys()
    assert [item.id for item in again.items] == [item.id for item in part.items]
    assert again.scale.title == "a trial; a part"


def test_a_budget_for_nothing(tmp_path: Path) -> None:
    whole = two_items(tmp_path, ["toy"])
    costs = PlanCosts(whole, None, dict.fromkeys(whole.runs, Estimate(3600.0, 0, 0)), frozenset())
    with pytest.raises(FltrainError, match="--hours: no item fits into 1 hours"):
        costs.within(1)


def two_items(folder: Path, order: list[str]) -> Plan:
    """Return a plan of a table and a figure; the scale has an axis and an exception for the table only."""
    toy(folder)
    paper = yaml.safe_load((folder / "papers" / "toy.yaml").read_text())
    table = paper["items"]["table"]
    table["axes"]["method"].append("fedprox")
    paper["items"]["figure"] = {
        "title": "Plug-ins",
        "axes": {"plugin": table["axes"]["plugin"]},
        "figure": {"kind": "curves", "series": "plugin", "panels": [{"curve": "test_accuracy", "label": ""}]},
    }
    (folder / "papers" / "toy.yaml").write_text(yaml.safe_dump(paper))
    scale = {"scale": "one", "title": "a trial", "reduced": True, "items": order}
    scale["axes"] = {"method": ["fedavg", "scaffold", "moon"]}
    scale["exceptions"] = [{"when": {"method": "moon"}, "set": {"training": {"lr": 0.02}}}]
    (folder / "scales" / "one.yaml").write_text(yaml.safe_dump(scale))
    return plan(folder, "one")


def test_where_a_new_scale_is_written(tmp_path: Path) -> None:
    toy(tmp_path)
    target = tmp_path / "scales" / "mine.yaml"
    assert scale_file(tmp_path, Path("mine.yaml")) == scale_file(tmp_path, target) == target
    for path, text in (
        ("elsewhere/mine.yaml", "is not in"),
        ("one.yaml", "exists"),
        ("a b.yaml", "scale"),
    ):
        with pytest.raises(FltrainError, match=text):
            scale_file(tmp_path, Path(path))


def test_estimates_are_checked_against_finished_runs_on_this_device(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    assert PlanCosts.of(planned, results).check(results) is None
    records = [trained(spec, results.root) for spec in list(planned.runs.values())[:2]]
    first, second = sorted(record.costs["seconds"]["total"] for record in records)
    costs = PlanCosts.of(planned, results)
    assert costs.calibration
    estimates = {run: Estimate(36.0 + 2 * first, 0, 0) for run in planned.runs}
    said = replace(costs, estimates=estimates).check(results)
    middle, high = (first + second) / 4 / first, second / 2 / first
    assert said == f"2 finished runs: actual / estimated median {middle:.2f} (0.50 to {high:.2f})"
    elsewhere = costs.calibration.model_copy(update={"device": "another"})
    assert replace(costs, calibration=elsewhere).check(results) is None


def test_records_of_unknown_devices_are_not_compared(measured: tuple[Plan, Results]) -> None:
    """Provenance is read as it is; a record may be older than some of its fields."""
    planned, results = measured
    record = trained(next(iter(planned.runs.values())), results.root)
    costs = PlanCosts.of(planned, results)
    costs = replace(costs, estimates={run: Estimate(99.0, 0, 0) for run in planned.runs})
    assert costs.check(results) is not None
    write_json(record.folder / "provenance.json", with_digest({"commit": None}))
    assert costs.check(results) is None


def test_the_run_table_has_estimates_where_there_are_some(measured: tuple[Plan, Results]) -> None:
    planned, _ = measured
    first = next(iter(planned.runs))
    text = run_table(planned, {first: Estimate(36.4, 12, 34)})
    rows = list(csv.DictReader(text.splitlines()))
    priced = [[row[name] for name in ("estimated_seconds", "traffic_bytes", "disk_bytes")] for row in rows]
    assert priced == [["36", "12", "34"] if row["run"] == first else ["", "", ""] for row in rows]


def test_measurements_of_another_version_are_refused(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    assert PlanCosts.of(planned, Results(results.root / "nowhere")).calibration is None
    calibration_file(results).write_text("{}")
    with pytest.raises(FltrainError, match=r"calibration\.json: .*device.*; delete the file"):
        PlanCosts.of(planned, results)
