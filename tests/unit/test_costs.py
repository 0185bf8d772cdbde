"""What runs will cost: estimates against sums done by hand, measurements against records of real runs."""

import csv
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
    DeviceCosts,
    Estimate,
    Exchange,
    PlanCosts,
    StepCost,
    Workload,
    affordable,
    calibration_file,
    device_name,
    estimate,
    run_table,
)
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.selection import Selection
from fltrain.runs.record import Results
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


def costs_of(work: Workload, **exchange: Any) -> DeviceCosts:
    """A device on which a step takes 2 s, an image 0.25 s; this method takes 1.5 times as long."""
    numbers = {"down": 100, "up": 50, "model": 80, "server": 0.5, "rows": 7, **exchange}
    return DeviceCosts(
        start=10.0,
        steps={work.step: StepCost(step=2.0, image=0.25)},
        factors={work.composition: 1.5},
        exchanges={work.exchange: Exchange(**numbers)},
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


def test_memory_of_a_gpu_is_counted_on_a_processor(quick: None) -> None:
    """An MLP keeps its input, what ReLU makes of the hidden layer, and little else, for each image."""
    small, large = (
        calibration.Bench(CPU, DeviceCosts(start=0.0)).step(
            workload(model={"name": "mlp", "hidden": 50}, training={"batch_size": size})
        )
        for size in (20, 40)
    )
    weights = 4 * (64 * 50 + 50 + 50 * 10 + 10)
    # Tests of 1,024 images at once need more than a small batch: the input, and as much again.
    assert small.memory == large.memory == 4 * weights + 2 * 1024 * 64 * 4


def test_memory_of_a_step_is_what_its_backward_pass_needs(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(calibration.MOST, "cuda", 1)
    bench = calibration.Bench(CPU, DeviceCosts(start=0.0))
    taken = [
        bench.step(workload(model="lenet5", dataset="mnist", training={"batch_size": size})).memory or 0
        for size in (8, 16, 24)
    ]
    first, second = taken[1] - taken[0], taken[2] - taken[1]
    assert first == second, "so much for every image"
    convolved = 4 * (6 * 28 * 28 + 6 * 14 * 14 + 16 * 10 * 10 + 16 * 5 * 5)
    assert 8 * convolved < first < 3 * 8 * convolved


def test_what_clients_keep_is_measured(quick: None) -> None:
    bench = calibration.Bench(CPU, DeviceCosts(start=0.0))
    nothing, variate = (bench.exchange(workload(method=name)) for name in ("fedavg", "scaffold"))
    assert nothing.kept == 0
    assert variate.kept and 0.9 * variate.model < variate.kept <= variate.model, "weights, but no buffers"


def test_only_what_is_missing_is_measured(tmp_path: Path, quick: None) -> None:
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    said: list[str] = []
    some = planned.restricted(Selection(methods=("fedavg",)))
    calibrate(some, results, CPU, said.append)
    assert len(said) == 1 + 2 + 2, "one network and batch, two compositions"
    first = Calibration.read(calibration_file(results))
    assert first is not None and first.latest == device_name(gather(CPU, 1))
    calibrate(planned, results, CPU, said.append)
    assert len(said) == 5 + 4 + 4 and said[-1].startswith("8 of 8: moon")
    second = Calibration.read(calibration_file(results))
    assert second is not None
    costs, before = (one.devices[one.latest] for one in (second, first))
    assert costs.factors.items() >= before.factors.items(), "what was measured before is kept"
    calibrate(planned, results, CPU, said.append)
    assert len(said) == 13


def test_what_refuses_to_be_measured_is_left_out_and_said(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise FltrainError("not on this network")

    monkeypatch.setattr(calibration.Bench, "_factor", refuse)
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    said: list[str] = []
    calibrate(planned, results, CPU, said.append)
    assert sum("is left out: not on this network" in line for line in said) == 6
    costs = PlanCosts.of(planned, results)
    assert costs.unknown == list(planned.runs)
    with pytest.raises(FltrainError, match="has not been measured yet; run `fltrain plan --scale one"):
        affordable(planned, Selection(hours=1), results)


def test_a_factor_is_the_composition_over_federated_averaging(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(simulation: Simulation) -> float:
        return {"fedavg": 2.0, "moon": 3.0}[simulation.composition.name]

    monkeypatch.setattr(calibration, "_trained", seconds)
    bench = calibration.Bench(CPU, DeviceCosts(start=0))
    assert bench.factor(workload(method="moon")) == 1.5


# ---------------------------------------------------------------- plans
@pytest.fixture
def measured(tmp_path: Path) -> tuple[Plan, Results]:
    """A plan, and measurements by which each run takes 36 s."""
    planned, results = toy(tmp_path), Results(tmp_path / "out")
    device = device_name(gather(CPU, 1))
    parts = DeviceCosts(start=36.0)
    for spec in planned.runs.values():
        work = Workload.of(spec)
        assert work is not None
        parts.steps[work.step] = StepCost(step=0.0, image=0.0)
        parts.factors[work.composition] = 1.0
        parts.exchanges[work.exchange] = Exchange(down=1, up=1, model=0, server=0.0, rows=0)
    Calibration(latest=device, devices={device: parts}).write(calibration_file(results))
    return planned, results


def test_a_plan_adds_up_its_runs(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    costs = PlanCosts.of(planned, results)
    assert costs.sum(planned.runs) == Estimate(12 * 36.0, 12 * 3 * 2 * 2, 12 * JSON_BYTES)
    assert costs.remaining() == dict.fromkeys(planned.runs, 36.0)
    done = next(iter(planned.runs.values()))
    trained(done, results.root)
    assert PlanCosts.of(planned, results).remaining() == {
        run: 0.0 if run == done.run_id else 36.0 for run in planned.runs
    }


def test_a_budget_leaves_room_for_what_is_done(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    hours = 6 * 36 / 3600  # one seed of the table
    one = affordable(planned, Selection(hours=hours), results)
    assert {entry.seed for item in one.items for entry in item.entries} == {0}
    for spec in one.runs.values():
        trained(spec, results.root)
    assert affordable(planned, Selection(hours=hours), results).runs == planned.runs


def test_estimates_are_checked_against_finished_runs_on_this_device(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    assert PlanCosts.of(planned, results).check(results) is None
    records = [trained(spec, results.root) for spec in list(planned.runs.values())[:2]]
    first, second = sorted(record.costs["seconds"]["total"] for record in records)
    costs = PlanCosts.of(planned, results)
    estimates = {run: Estimate(36.0 + 2 * first, 0, 0) for run in planned.runs}
    said = PlanCosts(planned, costs.device, 36.0, estimates, costs.done).check(results)
    middle, high = (first + second) / 4 / first, second / 2 / first
    assert said == f"2 finished runs: actual / estimated median {middle:.2f} (0.50 to {high:.2f})"
    elsewhere = PlanCosts(planned, "another", 36.0, estimates, costs.done)
    assert elsewhere.check(results) is None


def test_records_of_unknown_devices_are_not_compared(measured: tuple[Plan, Results]) -> None:
    """Provenance is read as it is; a record may be older than some of its fields."""
    planned, results = measured
    record = trained(next(iter(planned.runs.values())), results.root)
    costs = PlanCosts.of(planned, results)
    known = PlanCosts(planned, costs.device, 0.0, costs.estimates, costs.done)
    assert known.check(results) is not None
    write_json(record.folder / "provenance.json", {"commit": None})
    assert known.check(results) is None


def test_the_run_table_has_estimates_where_there_are_some(measured: tuple[Plan, Results]) -> None:
    planned, _ = measured
    first = next(iter(planned.runs))
    text = run_table(planned, {first: Estimate(36.4, 12, 34)})
    rows = list(csv.DictReader(text.splitlines()))
    priced = [[row[name] for name in ("estimated_seconds", "traffic_bytes", "disk_bytes")] for row in rows]
    assert priced == [["36", "12", "34"] if row["run"] == first else ["", "", ""] for row in rows]


def test_a_device_that_was_not_measured(measured: tuple[Plan, Results]) -> None:
    planned, results = measured
    with pytest.raises(FltrainError, match=r"nothing was measured on 'H100' \(known: '.+'\)"):
        PlanCosts.of(planned, results, "H100")
    nowhere = Results(results.root / "nowhere")
    assert PlanCosts.of(planned, nowhere).device is None
    with pytest.raises(FltrainError, match=r"nothing was measured on 'H100', .*fltrain plan .*--calibrate"):
        PlanCosts.of(planned, nowhere, "H100")
    calibration_file(results).write_text("{}")
    with pytest.raises(FltrainError, match=r"calibration\.json: .*latest"):
        PlanCosts.of(planned, results)
