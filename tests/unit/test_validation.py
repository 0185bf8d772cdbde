"""Validation images: stratified, disjoint from all others, never trained on, equal for all methods."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fltrain.data.partition import Division, LocalTest
from fltrain.data.partition.dirichlet import Dirichlet
from fltrain.data.partition.plain import Iid
from fltrain.data.prepared import Partition, PreparedData, partition
from fltrain.engine.simulation import Simulation
from fltrain.runs.measures import lacking, measure
from fltrain.runs.record import Record
from fltrain.runs.spec import RunSpec

from .helpers import CPU, pixels, tiny, trained

TENTH = {"validation": 0.1}
PERSONAL = {
    "method": "fedamp",
    "local_test": 0.25,
    "partition": {"name": "dirichlet", "clients": 10, "min_size": 20},
}


def divided(data: PreparedData, spec: RunSpec) -> Partition:
    return partition(spec.division, data)


@pytest.mark.parametrize("share", [0.1, 0.37])
@pytest.mark.parametrize("scheme", [Iid(clients=7), Dirichlet(clients=10)], ids=["iid", "dirichlet"])
def test_the_split_is_stratified_and_disjoint_from_all_clients(
    digits: PreparedData, scheme: Any, share: float
) -> None:
    made = partition(Division(scheme, None, 3, share), digits)
    assert made.validation is not None and made.tests is None
    (held_out,) = made.validation
    indices = np.concatenate([held_out, *made.clients])
    assert sorted(indices) == list(range(len(digits.train_labels)))
    assert len(held_out) == int(np.ceil(share * len(indices)))
    counts, totals = (np.bincount(digits.train_labels[part], minlength=10) for part in (held_out, indices))
    assert (abs(counts - share * totals) < 1).all()

    # A stream of its own: the same images whatever the scheme, others with another seed.
    others = {
        seed: partition(Division(Iid(clients=3), None, seed, share), digits).validation for seed in (3, 4)
    }
    assert np.array_equal(others[3][0], held_out) and not np.array_equal(others[4][0], held_out)


def test_with_local_tests_it_is_a_stratified_part_of_each_clients_images(digits: PreparedData) -> None:
    scheme, local_test = Dirichlet(clients=10, min_size=20), LocalTest()
    made = partition(Division(scheme, local_test, 3, 0.2), digits)
    without = partition(Division(scheme, local_test, 3), digits)
    labels = digits.merged().train_labels
    for held, test, train, pool, other_test in zip(
        *(made.validation, made.tests, made.clients, without.clients, without.tests), strict=True
    ):
        assert sorted([*held, *train]) == sorted(pool) and np.array_equal(test, other_test)
        counts, totals = (np.bincount(labels[part], minlength=10) for part in (held, pool))
        assert len(held) == np.ceil(0.2 * len(pool) - 1e-9) and (abs(counts - 0.2 * totals) < 1.001).all()


@pytest.mark.parametrize("settings", [{}, PERSONAL], ids=["global", "personal"])
def test_validation_images_are_tested_but_never_trained_on(
    digits: PreparedData, settings: dict[str, Any]
) -> None:
    spec = tiny(**settings, evaluation=TENTH, rounds=2)
    parts = divided(digits, spec)
    held_out = np.concatenate(parts.validation)
    pool = digits.merged() if spec.local_test else digits
    images, labels = np.array(pool.train_images), np.array(pool.train_labels)
    images[held_out], labels[held_out] = pixels(*images[held_out].shape), (labels[held_out] + 1) % 10
    train = len(digits.train_labels)
    spoilt = replace(digits, train_images=images[:train], train_labels=labels[:train])
    if spec.local_test:
        spoilt = replace(spoilt, test_images=images[train:], test_labels=labels[train:])
    first, second = (Simulation(spec, data, parts, CPU) for data in (digits, spoilt))
    for rows, others in zip(first.run(), second.run(), strict=True):
        assert torch.equal(first.server.weights, second.server.weights)
        differing = [row.get("split") for row, other in zip(rows, others, strict=True) if row != other]
        assert differing == ["validation"]


def test_rows_summary_and_measures(digits: PreparedData, tmp_path: Path) -> None:
    spec = tiny(evaluation=TENTH)
    record = trained(spec, tmp_path)
    Record(record.folder).check()
    rows = [row for row in record.rows("evaluation") if row["split"] == "validation"]
    assert [row["round"] for row in rows] == [1, 2, 3]
    accuracies, summary = [row["accuracy"] for row in rows], record.summary["validation"]
    assert summary == {
        "last": accuracies[-1],
        "best": max(accuracies),
        "best_round": 1 + accuracies.index(max(accuracies)),
        "final": accuracies[-1],
        "loss": rows[-1]["loss"],
    }
    final = measure("validation_final_accuracy")
    assert final.of(record) == {"": pytest.approx(100 * summary["final"])}
    assert record.test_images == len(digits.test_labels), "test rows come first"
    plain = trained(tiny(), tmp_path)
    assert "validation" not in plain.summary and final.of(plain) is None
    assert lacking(tiny(), "validation_final_accuracy", "item") == "evaluation.validation"
    assert lacking(spec, "validation_final_accuracy", "item") == ""


def test_methods_of_a_seed_share_the_split() -> None:
    plain = tiny()
    specs = [
        tiny(evaluation=TENTH, **method) for method in ({}, {"method": "scaffold"}, {"plugins": ["flfa"]})
    ]
    assert len({spec.partition_id for spec in specs}) == 1 and len({spec.run_id for spec in specs}) == 3
    assert specs[0].partition_id != plain.partition_id
    assert tiny(evaluation={"validation": 0.0}).run_id == plain.run_id
