"""Runs that differ only in their seed, trained together: records as trained alone, up to rounding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fltrain.core.errors import FltrainError, Stopped
from fltrain.engine.checkpoint import Interval
from fltrain.engine.executors.vectorized import VectorizedExecutor
from fltrain.engine.train import Execution, train, train_all
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.signals import Stopping

from .helpers import CPU, tiny

ALONE = Execution(CPU)
FLFA = {"name": "flfa", "strategy": "fixed", "layers": "all"}
FED2 = {"name": "fed2", "class_map": "random", "groups": 2, "decoupled": 1, "norm": "keep"}


def seeds(**settings: Any) -> list[RunSpec]:
    """Three runs, with two of ten clients in each of three rounds."""
    settings = {"model": "mlp", "evaluation": {"keep": "model"}, **settings}
    return [tiny(seed=seed, **settings) for seed in range(3)]


def assert_close(record: Record, other: Record) -> None:
    """Check that two records differ by rounding only."""
    assert record.run_id == other.run_id and record.summary["status"] == other.summary["status"]
    models = [load_file(one.folder / "models.safetensors") for one in (record, other)]
    for name in models[0]:
        np.testing.assert_allclose(models[0][name], models[1][name], atol=1e-4)
    for row, expected in zip(record.rows("train"), other.rows("train"), strict=True):
        assert row == {**expected, "loss": pytest.approx(expected["loss"], abs=1e-4)}


@pytest.mark.parametrize(
    ("settings", "sharing"),
    [
        ({"method": "fedavg", "training": {"epochs": 1, "batch_size": 8, "lr": 0.1}}, 3),
        pytest.param({"method": "scaffold"}, 3, marks=pytest.mark.slow),
        pytest.param({"method": "fedavg", "plugins": [FLFA]}, 3, marks=pytest.mark.slow),
        ({"method": "fedavg", "plugins": [{**FLFA, "feedback": "random"}]}, 3),
        ({"method": "ditto", "local_test": {"fraction": 0.3}}, 2),
        ({"method": FED2, "model": "lenet5", "dataset": {"name": "digits", "image_size": 16}}, 1),
        pytest.param({"method": "feddyn", "feature_skew": {"noise": 0.5}}, 3, marks=pytest.mark.slow),
    ],
    ids=["fedavg", "scaffold", "flfa", "random", "ditto", "fed2", "skew"],
)
def test_each_record_equals_that_of_the_run_trained_alone(
    settings: Any, sharing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fed2 draws other networks for other seeds, so that its runs share no steps. Noisy images differ, too.

    With local tests, the seeds have different numbers of training images, and two of three share steps.
    """
    shared, step = set(), VectorizedExecutor._step_together

    def counted(self: Any, lanes: Any, places: Any, *batch: int) -> None:
        shared.add(len({lanes.members[place].local.task.seed for place in places}))
        step(self, lanes, places, *batch)

    monkeypatch.setattr(VectorizedExecutor, "_step_together", counted)
    together = train_all(seeds(**settings), Results(tmp_path / "together"), ALONE)
    assert max(shared) == sharing
    for spec, record in zip(seeds(**settings), together, strict=True):
        alone = train(spec, Results(tmp_path / "alone"), ALONE)
        assert_close(record, alone)
        facts = record.provenance
        assert (facts["executor"], facts["stacked_seeds"]) == ("vectorized", [0, 1, 2])
        assert facts["determinism"] == "statistical" and "stacked_seeds" not in alone.provenance


class Ending(Stopping):
    """Stops training after a number of clients."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.left = clients

    def poll(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped("stopped by SIGTERM")


def test_runs_that_resume_after_different_rounds_meet_again(tmp_path: Path) -> None:
    """A signal comes in the second round of all seeds; one seed goes on alone for a round."""
    specs, results = seeds(method="scaffold"), Results(tmp_path / "parts")
    whole = train_all(specs, Results(tmp_path / "whole"), ALONE)
    often = replace(ALONE, checkpoints=Interval(rounds=1))
    with pytest.raises(Stopped, match="after round 1 of 3; the next start resumes after round 1"):
        train_all(specs, results, often, stopping=Ending(clients=3 + 6 + 3))
    with pytest.raises(Stopped, match="after round 2 of 3"):
        train(specs[1], results, often, stopping=Ending(clients=1 + 2 + 1))
    assert [results.saved_rounds(spec.run_id) for spec in specs] == [1, 2, 1]
    for record, expected in zip(train_all(specs, results, often), whole, strict=True):
        assert_close(record, expected)
        assert len(record.provenance["resumed"]) in (1, 2)


@pytest.mark.parametrize("lanes", [1, 5])
def test_lanes_are_a_setting_of_the_execution(lanes: int, tmp_path: Path) -> None:
    spec, *_ = seeds(method="scaffold")
    side_by_side = replace(ALONE, executor="vectorized", lanes=lanes)
    assert_close(
        train(spec, Results(tmp_path / "lanes"), side_by_side),
        train(spec, Results(tmp_path / "alone"), ALONE),
    )


def test_other_executors_have_no_lanes(tmp_path: Path) -> None:
    with pytest.raises(FltrainError, match=r"--lanes 2: executor 'auto' trains clients one by one; .*--exec"):
        train(tiny(), Results(tmp_path), replace(ALONE, lanes=2))


def test_a_run_that_diverges_does_not_end_the_others(tmp_path: Path) -> None:
    specs = seeds(training={"epochs": 1, "batch_size": 32, "lr": 1e3}, rounds=2)
    together = train_all(specs, Results(tmp_path / "together"), ALONE)
    alone = [train(spec, Results(tmp_path / "alone"), ALONE) for spec in specs]
    assert [one.summary["status"] for one in together] == ["completed", "diverged", "completed"]
    assert [one.summary["status"] for one in alone] == ["completed", "diverged", "completed"]


@pytest.mark.parametrize(
    ("changes", "execution", "message"),
    [
        ({"rounds": 4}, {}, r"digits-fedavg-\w+ and digits-fedavg-\w+ differ in rounds; .*but the seed"),
        ({"seed": 0}, {}, "two runs have the same seed"),
        ({}, {"executor": "sequential"}, "executor 'sequential' trains clients one by one"),
        ({}, {"workers": 2}, "executor 'vectorized' uses one process"),
        ({}, {"executor": "vectorized_cuda_graph"}, "needs a CUDA device"),
    ],
)
def test_other_runs_and_executors_are_refused(
    changes: Any, execution: Any, message: str, tmp_path: Path
) -> None:
    specs = [tiny(seed=0), tiny(**{"seed": 1, **changes})]
    with pytest.raises(FltrainError, match=message):
        train_all(specs, Results(tmp_path), replace(ALONE, **execution))
    assert not list(tmp_path.rglob("*.json"))
