"""Figures of trained models: class preferences of neurons by layer and client."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fltrain.analysis.trained_model import TrainedRun
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_arrays
from fltrain.engine.evaluation import test as evaluate
from fltrain.reporting.figures import draw as figures
from fltrain.runs.record import MODELS_FILE, Record, Results

from .helpers import CPU, Cells, tiny, trained

CASES = {"plain": "fedavg", "grouped": {"name": "fed2", "decoupled": 3, "groups": 5}}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Two runs, with and without Fed2, whose records contain the clients' models."""
    root = tmp_path_factory.mktemp("models")
    common: dict[str, Any] = {
        "dataset": {"name": "digits", "image_size": 16},
        "partition": {"name": "iid", "clients": 3},
        "model": "lenet5",
        "rounds": 2,
        "participation": {"fraction": 1.0},
        "evaluation": {"keep": "clients"},
    }
    return {label: trained(tiny(**common, method=method), root) for label, method in CASES.items()}


def results_of(records: dict[str, Record]) -> Results:
    return Results(next(iter(records.values())).folder.parents[1])


def drawn(records: dict[str, Record], figure: dict[str, Any], folder: Path) -> pd.DataFrame:
    """The numbers of a figure, after writing it."""
    outputs = [folder / name for name in ("figure.pdf", "figure.csv")]
    cells = Cells(results_of(records).root)
    for label, record in records.items():
        cells.place({"case": label}, record.run_id)
    figures.save(*figures.draw(cells.sheet(figure=figure), cells.results), outputs)
    assert all(path.stat().st_size > 0 for path in outputs)
    return pd.read_csv(outputs[-1])


def test_saved_models_are_the_final_models_of_the_run(records: dict[str, Record]) -> None:
    """The global model has the recorded accuracy, and is the average of the clients' models."""
    record = records["plain"]
    run = TrainedRun(record, results_of(records), CPU)
    run.load_global()
    assert evaluate(run.network, run.data.test).accuracy == record.summary["accuracy"]["last"]
    sizes = torch.tensor([len(run.data.clients[client]) for client in run.each_client()]).double()
    mean = (sizes / sizes.sum()) @ run.arrays["client_weights"].double()
    torch.testing.assert_close(run.arrays["weights"].double(), mean, rtol=1e-5, atol=1e-6)


def test_models_of_another_training_are_refused(records: dict[str, Record], tmp_path: Path) -> None:
    record = Record(Path(shutil.copytree(records["plain"].folder, tmp_path / records["plain"].run_id)))
    models = {name: array + 1 for name, array in record.models().items()}
    write_arrays(record.folder / MODELS_FILE, models, {"run_id": record.run_id})
    with pytest.raises(FltrainError, match=f"^{record.run_id}: {MODELS_FILE} is of another training"):
        TrainedRun(record, results_of(records), CPU)


def test_preferences_are_drawn_neuron_by_neuron(records: dict[str, Record], tmp_path: Path) -> None:
    figure = {"kind": "preference", "columns": "case", "layers": 2}
    numbers = drawn(records, figure, tmp_path)
    assert set(numbers["panel"]) == set(CASES)
    assert set(numbers["client"]) == {0, 1, 2}
    assert numbers["top_class"].between(-1, 9).all()
    plain = numbers[numbers["panel"] == "plain"]
    assert plain.groupby("layer").size().to_dict() == {"fc1.0": 3 * 120, "fc2.0": 3 * 84}


def test_preferences_of_convolutions_only(records: dict[str, Record], tmp_path: Path) -> None:
    figure = {"kind": "preference", "columns": "case", "layers": 2, "begins": "conv"}
    numbers = drawn(records, figure, tmp_path)
    assert set(numbers["layer"]) == {"conv1.0", "conv2.0"}
    with pytest.raises(FltrainError, match=r"figure\.layers: 3, but plain has only 2 layers to show"):
        drawn(records, {**figure, "layers": 3}, tmp_path)


@pytest.mark.slow
def test_variances_are_drawn_layer_by_layer(records: dict[str, Record], tmp_path: Path) -> None:
    numbers = drawn(records, {"kind": "variance", "columns": "case"}, tmp_path)
    plain = numbers[numbers["panel"] == "plain"]
    assert plain["layer"].tolist() == ["conv1.0", "conv2.0", "fc1.0", "fc2.0", "classifier"]
    assert (numbers[["unit_norm", "raw"]] >= 0).all(axis=None)
    assert (numbers["unit_norm"] <= 1 + 1e-9).all(), "vectors of length one"
