"""What jobs ask a cluster for."""

from pathlib import Path

import pytest

from fltrain.costs import (
    Calibration,
    DeviceCosts,
    Exchange,
    StepCost,
    Workload,
    calibration_file,
    estimate,
)
from fltrain.demands import BASE_MB, CHECKPOINTS_MB, UNKNOWN_MINUTES, Demand, measured
from fltrain.records import Results
from fltrain.spec import RunSpec

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


def test_each_attempt_asks_for_more_up_to_three_times() -> None:
    demand = Demand(minutes=10, memory_mb=20, disk_mb=30)
    assert demand.grown(1) == demand
    assert demand.grown(2) == Demand(minutes=20, memory_mb=40, disk_mb=60)
    assert demand.grown(3) == demand.grown(11) == Demand(minutes=30, memory_mb=60, disk_mb=90)


def test_the_latest_measurements_count(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert measured(results) is None
    devices = {"old": costs(seconds=1), "new": costs(seconds=2)}
    Calibration(latest="new", devices=devices).write(calibration_file(results))
    assert measured(results) == devices["new"]
