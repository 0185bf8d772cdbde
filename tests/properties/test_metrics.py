"""Closed forms of the metrics: separability, drift, layer similarity, skewness."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import skew
from torch import Tensor

from fltrain.metrics.separability import separability
from fltrain.metrics.updates import layer_similarity, local_drift, skewness
from fltrain.models.flat import Slot

from .helpers import drawn


def test_separability_by_hand() -> None:
    # Class 0: 0 and 2 on the first axis, mean 1. Class 2: 0, 6 and 3 on the second axis, mean 3.
    features = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 6.0], [0.0, 3.0]])
    measured = separability(features, torch.tensor([0, 2, 0, 2, 2]), classes=3)
    assert measured["intra"] == pytest.approx((1 + 2) / 2)
    assert measured["intra_micro"] == pytest.approx((1 + 1 + 3 + 3 + 0) / 5)
    assert measured["inter"] == pytest.approx(math.hypot(1, 3))
    assert measured["ratio"] == pytest.approx(math.hypot(1, 3) / 1.5)


def test_inter_class_distance_is_the_mean_over_pairs() -> None:
    # Class means at 0, 1, 3 and 7: 2 / (C (C - 1)) times the sum over pairs.
    means = [0.0, 1.0, 3.0, 7.0]
    features = torch.tensor([[mean + shift] for mean in means for shift in (-0.5, 0.5)])
    measured = separability(features, torch.arange(4).repeat_interleave(2), classes=4)
    pairs = [abs(a - b) for i, a in enumerate(means) for b in means[:i]]
    assert measured["inter"] == pytest.approx(2 / (4 * 3) * sum(pairs))
    assert measured["intra"] == pytest.approx(0.5)


def test_drift_ignores_a_common_displacement_and_the_order() -> None:
    rows = drawn(5, 7)
    drift = local_drift(rows)
    assert drift == pytest.approx(float((rows - rows.mean(0)).norm(dim=1).mean()), rel=1e-6)
    assert local_drift(rows + drawn(7, seed=1)) == pytest.approx(drift, rel=1e-6)
    assert local_drift(rows.flip(0)) == pytest.approx(drift, rel=1e-12)


WHOLE = Slot("layer.weight", torch.Size([2, 8]), 0)


def similarity(rows: Tensor, shares: list[float] | None = None) -> float:
    (value,) = layer_similarity(rows, [WHOLE], shares)
    return value


def test_similarity_by_hand() -> None:
    rows = torch.zeros(2, 16)
    rows[0, 0], rows[1, 1] = 3.0, 4.0  # mean (1.5, 2), norm 2.5: cosines 0.6 and 0.8
    assert similarity(rows) == pytest.approx(0.7, abs=1e-12)
    # With shares 3 : 1 the mean is (2.25, 1).
    assert similarity(rows, [30, 10]) == pytest.approx((2.25 + 1) / 2 / math.hypot(2.25, 1), abs=1e-12)
    assert similarity(rows, [5, 5]) == pytest.approx(0.7, abs=1e-12)


def test_similarity_of_a_layer_uses_its_weight_only() -> None:
    weights = [Slot("a.weight", torch.Size([3]), 1), Slot("b.weight", torch.Size([2, 2]), 6)]
    rows = drawn(4, 12)
    alone = [
        layer_similarity(rows[:, slot.start : slot.stop], [Slot("x", slot.shape, 0)]) for slot in weights
    ]
    assert layer_similarity(rows, weights) == [value for (value,) in alone]


def test_layers_without_a_direction_have_no_similarity() -> None:
    rows = drawn(3, 16)
    cases = {
        "one client did not move": rows * torch.tensor([[1.0], [0.0], [1.0]]),
        "nobody moved": 0 * rows,
        "the mean vanishes": torch.stack([rows[0], -rows[0]]),
        "infinite": rows.index_fill(1, torch.tensor([3]), math.inf),
        "not a number": rows.index_fill(1, torch.tensor([3]), math.nan),
    }
    for name, case in cases.items():
        assert math.isnan(similarity(case)), name


@pytest.mark.parametrize("seed", range(5))
def test_skewness_is_the_population_skewness(seed: int) -> None:
    values = np.random.default_rng(seed).gamma(2.0, size=9).tolist()
    assert skewness(values) == pytest.approx(skew(values, bias=True), rel=1e-10)


def test_skewness_ignores_nan() -> None:
    assert skewness([0.0, math.nan, 0.0, 0.0, 4.0]) == skewness([0.0, 0.0, 0.0, 4.0])
    assert skewness([math.nan]) == skewness([]) == 0
