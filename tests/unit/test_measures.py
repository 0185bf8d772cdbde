"""Measures of whole curves, on hand-made curves."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json
from fltrain.data.datasets import registry
from fltrain.runs.measures import MEASURES, measure
from fltrain.runs.record import Results, sealed, write_record

from .helpers import TINY, accuracies, tiny, trained, write_rows


def measured(
    name: str, curve: Sequence[float], root: Path, status: str = "completed", target: float | None = None
) -> float | None:
    """The measure of a run with these accuracies after each round."""
    accuracy = {"best": max(curve), "last": curve[-1]}
    summary = {"run_id": "run", "status": status, "accuracy": accuracy}
    rows = accuracies(*curve)
    write_record(Results(root).run("run"), tiny(), rows, summary, {"round_seconds": [1.0]}, {})
    record = Results(root).record("run")
    values = measure(name).of(record) if target is None else measure(name).of(record, target)
    return values[""] if values else None


SETTLE, FALL, CROSS = "rounds_to_settle", "fall", "interpolated_rounds_to_target"


@pytest.mark.parametrize(
    ("name", "accuracies", "expected"),
    [
        (SETTLE, [0.5, 0.7, 0.88, 0.875, 0.89], 3),  # exactly one point below the best is enough,
        (SETTLE, [0.5, 0.7, 0.879, 0.875, 0.89], 5),  # a larger distance is not,
        (SETTLE, [0.9, 0.5, 0.6], 1),  # and later values do not matter.
        (SETTLE, [0.3, 0.3, 0.3], 1),
        (FALL, [0.5, 0.9, 0.6], 30.0),
        (FALL, [0.5, 0.6, 0.9], 0.0),
        # Crossings of 0.7, as in the FedAvg paper:
        (CROSS, [0.5, 0.6, 0.8], 2.5),  # half of the way from round 2 to round 3
        (CROSS, [0.6, 0.2, 0.9], 2 + 1 / 3),  # from the best so far, 0.6, not from 0.2
        (CROSS, [0.5, 0.7, 0.9], 2),  # exactly
        (CROSS, [0.9, 0.1], 1),
        (CROSS, [0.5, 0.6, 0.69], math.inf),
    ],
)
def test_measures_of_curves(tmp_path: Path, name: str, accuracies: list[float], expected: float) -> None:
    target = 0.7 if name == CROSS else None
    assert measured(name, accuracies, tmp_path, target=target) == pytest.approx(expected, abs=1e-9)


def test_chance_accuracy_needs_the_number_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the mean of a cell would leave out the seeds that diverged."""
    assert measured("last_accuracy", [0.9], tmp_path, status="diverged") is None
    record = Results(tmp_path).record("run")
    assert measure("last_accuracy").of_diverged(record) == 10.0
    assert measure("rounds_to_target").of_diverged(record) == math.inf
    assert math.isnan(measure("drift").of_diverged(record))
    unknown = registry()["digits"].model_copy(update={"classes": None})
    monkeypatch.setattr("fltrain.runs.measures.registry", lambda: {"digits": unknown})
    with pytest.raises(FltrainError, match=r"run diverged .* classes of dataset 'digits'; add 'classes'"):
        measure("last_accuracy").of_diverged(record)


@pytest.mark.parametrize("name", [SETTLE, FALL])
def test_a_run_that_diverged_neither_settles_nor_falls(tmp_path: Path, name: str) -> None:
    assert measured(name, [0.5, 0.9], tmp_path, status="diverged") is None


@pytest.mark.parametrize(
    ("method", "at_equal_traffic"), [("fedavg", 0.8), ("scaffold", 0.6), ("fednova", 0.8), ("local", 0.8)]
)
def test_costs_to_a_target_and_accuracy_at_equal_traffic(
    tmp_path: Path, method: str, at_equal_traffic: float
) -> None:
    spec = tiny(method=method, model="mlp", rounds=4, local_test={} if method == "local" else None)
    record = trained(spec, tmp_path)
    spent = sum(record.summary["bytes"].values())
    # By hand: the same run with other times and accuracies. SCAFFOLD sends twice as much: half of the rounds.
    # Local-only training sends nothing: all rounds.
    write_json(record.folder / "costs.json", sealed({**record.costs, "round_seconds": [3.0] * 4}))
    rows = [row for row in record.metrics if row["kind"] == "train"]
    tests = [{**row, "split": spec.test_split} for row in accuracies(0.5, 0.6, 0.7, 0.8)]
    write_rows(record.folder, rows + tests)
    again = Results(tmp_path).record(record.run_id)
    assert measure("accuracy_at_equal_traffic").of(again) == {"": pytest.approx(100 * at_equal_traffic)}
    assert measure("traffic_to_target").of(again, 0.65) == {"": pytest.approx(2.5 / 4 * spent / 1e6)}
    assert measure("seconds_to_target").of(again, 0.65) == {"": pytest.approx(2.5 * 3)}
    assert measure("traffic_to_target").of(again, 0.9) == {"": math.inf}
    assert measure("accuracy_at_equal_time").of(again, 6.0) == {"": pytest.approx(60)}
    assert measure("accuracy_at_equal_time").of(again, 2.9) is None


@pytest.mark.parametrize("name", ["traffic_to_target", "seconds_to_target", "accuracy_at_equal_traffic"])
def test_costs_of_a_run_that_diverged_at_once(tmp_path: Path, name: str) -> None:
    record = trained(tiny(model="mlp", training={**TINY["training"], "lr": 1e30}), tmp_path)
    assert record.summary["diverged"]["round"] == 1
    targeted = MEASURES[name].targeted
    values = measure(name).of(record, 0.5) if targeted else measure(name).of(record)
    assert values == ({"": math.inf} if targeted else None)


@pytest.mark.parametrize(
    ("measure", "margin"), [("final_accuracy", 1.0), ("rounds_to_target", 40.0), ("round_seconds", 50.0)]
)
def test_margins_of_the_protocol(measure: str, margin: float) -> None:
    """A point of accuracy, a fifth of the rounds to a target, a quarter of the seconds per round."""
    assert MEASURES[measure].margin.around(200.0) == margin
