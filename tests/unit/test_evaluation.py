"""Tests of the global model: accuracy and loss against a direct computation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.data.partition.plain import Iid
from fltrain.data.prepared import Partition, PreparedData, load_or_prepare
from fltrain.engine.data import FederatedData, ImageSet
from fltrain.engine.evaluation import test as evaluate
from fltrain.engine.simulation import Simulation
from fltrain.models.base import build
from fltrain.models.network import Network
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.runs.record import Record, Results, on_split

from .conftest import Register
from .helpers import CPU, federation, labels, pixels, tiny, trained, write_npz


@pytest.fixture(scope="module")
def split(digits: PreparedData) -> ImageSet:
    partition = Partition(Iid(clients=1).split(digits.train_labels, 10, seed=0), digest="")
    return FederatedData.of(digits, partition, CPU).test


def full_batch(split: ImageSet) -> tuple[Tensor, Tensor]:
    return split.batch(torch.arange(len(split)))


@pytest.fixture
def network(split: ImageSet) -> Network:
    """A network whose running statistics differ from a new network's."""
    network = build(MobileNetTiny(), channels=1, side=8, classes=10, seed=0)
    network.train()(split.batch(torch.arange(64))[0])
    return network


def test_accuracy_and_loss_equal_a_direct_computation(split: ImageSet, network: Network) -> None:
    result = evaluate(network, split)
    with torch.no_grad():
        images, labels = full_batch(split)
        logits = network.eval().double()(images.double())
    correct = int((logits.argmax(1) == labels).sum())
    assert torch.equal(result.correct, logits.argmax(1) == labels)
    assert result.accuracy == correct / len(split)
    losses = functional.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(result.losses.double(), losses, atol=1e-5)
    assert result.loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-6)


def test_features_are_the_inputs_of_the_classifier(split: ImageSet, network: Network) -> None:
    assert evaluate(network, split, keep_features=False).features is None
    features = evaluate(network, split, keep_features=True).features
    with torch.no_grad():
        assert torch.allclose(features, network.eval().features(full_batch(split)[0]), atol=1e-5)
    assert not features.requires_grad


def normalised(images: Any, mean: Any, std: Any) -> Tensor:
    """Images in double precision, by the definition."""
    shape = (1, -1, 1, 1)
    values = torch.tensor(np.asarray(images)).double() / 255
    return (values - torch.tensor(mean).double().view(shape)) / torch.tensor(std).double().view(shape)


def answers(simulation: Simulation, images: Tensor, labels: Any) -> tuple[Tensor, Tensor]:
    """Correctness and cross entropy of the current global model on each image."""
    expected = torch.tensor(np.asarray(labels))
    network = simulation.network.eval().double()
    with torch.no_grad():
        logits = network(images)
    network.float()
    return logits.argmax(1) == expected, functional.cross_entropy(logits, expected, reduction="none")


def test_a_run_ends_when_it_reaches_its_target_accuracy(tmp_path: Path) -> None:
    long = trained(tiny(rounds=6), tmp_path)
    rounds = {row["round"]: row["accuracy"] for row in long.rows("evaluation")}
    last = next(round for round, accuracy in rounds.items() if accuracy >= rounds[2])
    short = trained(tiny(rounds=6, evaluation={"until": rounds[2]}), tmp_path)
    assert short.metrics == [row for row in long.metrics if row["round"] <= last]
    assert short.summary["accuracy"]["final"] == rounds[last]
    assert short.summary["status"] == "completed"
    Record(short.folder).check()


MINE: dict[str, Any] = {
    "reader": "npz",
    **{"classes": 4, "channels": 3, "side": 8},
    **{"mean": [0.2, 0.3, 0.4], "std": [0.5, 0.6, 0.7]},
}
SHIFTED: dict[str, Any] = {
    "reader": {"name": "cifar10_1", "version": "v4"},
    **{"classes": 4, "channels": 3, "side": 8, "train_images": 0},
    **{"mean": [0.7, 0.7, 0.7], "std": [0.1, 0.1, 0.1]},
}


@pytest.fixture
def shifted(tmp_path: Path, register: Register) -> None:
    """A custom dataset, and another one for tests of its models."""
    mine = write_npz(tmp_path / "mine.npz", shape=(8, 8, 3))
    folder = tmp_path / "shifted"
    folder.mkdir()
    np.save(folder / "cifar10.1_v4_data.npy", pixels(30, 8, 8, 3, seed=9))
    np.save(folder / "cifar10.1_v4_labels.npy", labels(30))
    register({"mine": {**MINE, "path": str(mine)}, "shifted": {**SHIFTED, "path": str(folder)}})


IID: dict[str, Any] = {"name": "iid", "clients": 4}
OWN: dict[str, Any] = {"dataset": "mine", "partition": IID, "model": "mlp", "rounds": 12}


@pytest.mark.usefixtures("shifted")
def test_further_test_sets_use_the_runs_normalisation(tmp_path: Path) -> None:
    spec = tiny(**OWN, evaluation={"extra": ["shifted"]})
    results = Results(tmp_path / "results")
    data, more = (
        load_or_prepare(dataset, results.data(dataset), results.downloads)
        for dataset in (spec.dataset, *spec.evaluation.extra)
    )
    assert (len(more.train_labels), len(more.test_labels)) == (0, 30)
    assert more.mean == (0.7, 0.7, 0.7)
    simulation = federation(spec, data, extra={"shifted": more})
    test, extra = (row for row in simulation.round(0) if row["kind"] == "evaluation")
    assert (test["split"], test["images"]) == ("test", 20)
    assert (extra["split"], extra["images"], extra["view"]) == ("shifted", 30, "global")
    correct, losses = answers(simulation, normalised(more.test_images, data.mean, data.std), more.test_labels)
    assert extra["accuracy"] == int(correct.sum()) / 30
    assert extra["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    _, others = answers(simulation, normalised(more.test_images, more.mean, more.std), more.test_labels)
    assert float(others.mean()) != pytest.approx(extra["loss"], rel=1e-2)


@pytest.mark.usefixtures("shifted")
def test_further_test_sets_add_rows_and_change_nothing_else(tmp_path: Path) -> None:
    plain = trained(tiny(**OWN, evaluation={"every": 5}), tmp_path)
    record = trained(tiny(**OWN, evaluation={"every": 5, "extra": ["shifted"]}), tmp_path)
    extra = [row for row in record.metrics if row.get("split") == "shifted"]
    assert [row["round"] for row in extra] == [5, 10, 11, 12]
    assert [row for row in record.metrics if row not in extra] == plain.metrics
    final = (extra[2]["accuracy"] + extra[3]["accuracy"]) / 2
    assert record.summary["extra"] == {"shifted": pytest.approx(final)}
    assert plain.summary["extra"] == {}
    assert record.summary["accuracy"] == plain.summary["accuracy"]
    assert record.run_id != plain.run_id


@pytest.mark.usefixtures("shifted")
def test_further_test_sets_test_the_global_model_of_a_run_that_tests_each_client(tmp_path: Path) -> None:
    settings = {**OWN, "rounds": 1, "local_test": {}}
    record = trained(tiny(**settings, evaluation={"point": "after_local", "extra": ["shifted"]}), tmp_path)
    (row,) = on_split("shifted", record.metrics)
    assert record.summary["extra"] == {"shifted": row["accuracy"]}
