"""What jobs ask a cluster for."""

from pathlib import Path

import pytest

from fltrain.experiments.costs import (
    Calibration,
    DeviceCosts,
    Exchange,
    StepCost,
    Workload,
    calibration_file,
    estimate,
)
from fltrain.experiments.job_resources import (
    BASE_MB,
    CHECKPOINTS_MB,
    UNKNOWN_MINUTES,
    UNKNOWN_VRAM_MB,
    VRAM_BASE_MB,
    Demand,
    measured,
    most_vram_mb,
)
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec

from .helpers import TINY

SPEC = RunSpec.parse({**TINY, "seed": 0}, "run")


def costs(seconds: float, rows: int = 0) -> DeviceCosts:
    """As if a run took so long, and each round so many bytes of the record."""
    work = Workload.of(SPEC)
    assert work is not None
    return DeviceCosts(
        start=seconds,
        steps={work.step: StepCost(step=0.0, image=0.0)},
        factors={work.composition: 1.0},
        exchanges={work.exchange: Exchange(down=0, up=0, model=0, server=0.0, rows=rows)},
    )


def test_time_is_what_was_estimated_with_a_margin() -> None:
    assert Demand.of(SPEC, costs(seconds=3600)).minutes == 90 + 10


def test_without_measurements_of_it_a_run_has_half_a_day() -> None:
    for nothing in (None, DeviceCosts(start=1.0)):
        demand = Demand.of(SPEC, nothing)
        assert demand.minutes == UNKNOWN_MINUTES and demand.disk_mb == CHECKPOINTS_MB


def test_disk_is_for_the_record_and_two_checkpoints() -> None:
    known = costs(seconds=1, rows=10**9)
    work = Workload.of(SPEC)
    assert work is not None
    expected = estimate(work, known)
    assert expected is not None
    assert 0 <= Demand.of(SPEC, known).disk_mb - CHECKPOINTS_MB - expected.disk / 1e6 < 1


@pytest.mark.parametrize("name, megabytes", [("digits", 3), ("cifar10", 3 * 185)])
def test_memory_holds_the_images(name: str, megabytes: int) -> None:
    spec = RunSpec.parse({**TINY, "dataset": name, "seed": 0}, "run")
    assert Demand.of(spec, None).memory_mb == BASE_MB + megabytes


def taking(memory: int, kept: int = 0) -> DeviceCosts:
    """As if steps took so many megabytes of a GPU, and what a client keeps as many as said."""
    whole = costs(seconds=1)
    ((step, one),) = whole.steps.items()
    ((name, exchange),) = whole.exchanges.items()
    return whole.model_copy(
        update={
            "steps": {step: one.model_copy(update={"memory": memory * 10**6})},
            "exchanges": {
                name: exchange.model_copy(update={"model": 10**6, "up": 3 * 10**6, "kept": kept * 10**6})
            },
        }
    )


def test_memory_of_a_gpu_is_what_was_measured_with_a_margin() -> None:
    """Two of ten clients send 3 MB each round; the images of the digits are rounded up."""
    assert Demand.of(SPEC, taking(100)).vram_mb == VRAM_BASE_MB + 1.5 * (100 + 2 * 2 * 3) + 1
    kept = Demand.of(SPEC, taking(100, kept=50)).vram_mb - Demand.of(SPEC, taking(100)).vram_mb
    assert kept == 1.5 * 10 * 50


def test_what_clients_keep_fills_no_more_of_a_gpu_than_it_may() -> None:
    much, more = (Demand.of(SPEC, taking(100, kept=kept)).vram_mb for kept in (1000, 2000))
    assert much == more < 1.5 * 10 * 1000


def test_memory_of_a_gpu_that_was_not_measured() -> None:
    without = taking(100)
    for nothing in (None, costs(seconds=1), without.model_copy(update={"steps": {}})):
        assert Demand.of(SPEC, nothing).vram_mb == UNKNOWN_VRAM_MB


def test_runs_in_turn_need_what_the_largest_needs(tmp_path: Path) -> None:
    results = Results(tmp_path)
    Calibration(latest="gpu", devices={"gpu": taking(100)}).write(calibration_file(results))
    other = RunSpec.parse({**TINY, "method": "moon"}, "run")
    known = Demand.of(SPEC, taking(100)).vram_mb
    assert most_vram_mb([SPEC], results) == known < UNKNOWN_VRAM_MB
    assert most_vram_mb([SPEC, other], results) == UNKNOWN_VRAM_MB


def test_each_attempt_asks_for_more_up_to_three_times() -> None:
    demand = Demand(minutes=10, memory_mb=20, vram_mb=25, disk_mb=30)
    assert demand.grown(1) == demand
    assert demand.grown(2) == Demand(minutes=20, memory_mb=40, vram_mb=50, disk_mb=60)
    assert demand.grown(3) == demand.grown(11) == Demand(minutes=30, memory_mb=60, vram_mb=75, disk_mb=90)


def test_the_latest_measurements_count(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert measured(results) is None
    devices = {"old": costs(seconds=1), "new": costs(seconds=2)}
    Calibration(latest="new", devices=devices).write(calibration_file(results))
    assert measured(results) == devices["new"]
