"""Closed forms of the metrics: separability, drift, layer similarity, skewness."""

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from scipy.stats import skew
from torch import Tensor

from fltrain.metrics.separability import separability
from fltrain.metrics.updates import layer_similarity, local_drift, skewness
from fltrain.models.flat import Slot


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------ separability
def test_separability_by_hand() -> None:
    # Class 0: 0 and 2 on the first axis, mean 1. Class 2: 0, 6 and 3 on the second axis, mean 3.
    features = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 6.0], [0.0, 3.0]])
    labels = torch.tensor([0, 2, 0, 2, 2])
    measured = separability(features, labels, classes=3)
    assert measured.intra == pytest.approx((1 + 2) / 2)
    assert measured.intra_micro == pytest.approx((1 + 1 + 3 + 3 + 0) / 5)
    assert measured.inter == pytest.approx(math.hypot(1, 3))
    assert measured.ratio == pytest.approx(math.hypot(1, 3) / 1.5)


def test_inter_class_distance_is_the_mean_over_pairs() -> None:
    # Class means at 0, 1, 3 and 7: 2 / (C (C - 1)) times the sum over pairs.
    means = [0.0, 1.0, 3.0, 7.0]
    features = torch.tensor([[mean + shift] for mean in means for shift in (-0.5, 0.5)])
    labels = torch.arange(4).repeat_interleave(2)
    measured = separability(features, labels, classes=4)
    pairs = [abs(a - b) for i, a in enumerate(means) for b in means[:i]]
    assert measured.inter == pytest.approx(2 / (4 * 3) * sum(pairs))
    assert measured.intra == pytest.approx(0.5)


def test_identical_features_per_class_have_no_intra_class_distance() -> None:
    labels = torch.arange(12) % 3
    measured = separability(drawn(3, 5)[labels], labels, classes=3)
    assert measured.intra == measured.intra_micro == 0
    assert measured.inter > 0
    assert measured.ratio == math.inf


def test_macro_and_micro_mean_agree_on_balanced_sets() -> None:
    measured = separability(drawn(30, 4), torch.arange(30) % 3, classes=3)
    assert measured.intra == pytest.approx(measured.intra_micro)


def test_separability_ignores_order_and_its_ratio_the_scale() -> None:
    features, labels = drawn(40, 6), torch.arange(40) % 3
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    measured = separability(features, labels, classes=3)
    shuffled = separability(features[order], labels[order], classes=3)
    assert astuple(shuffled) == pytest.approx(astuple(measured), rel=1e-12)
    scaled = separability(8 * features, labels, classes=3)
    assert scaled.ratio == pytest.approx(measured.ratio, rel=1e-12)
    assert scaled.inter == pytest.approx(8 * measured.inter, rel=1e-12)


def test_separability_accumulates_in_double_precision() -> None:
    features = drawn(1000, 3) + 1e4
    labels = torch.arange(1000) % 2
    wide = features.double()
    means = torch.stack([wide[labels == label].mean(0) for label in (0, 1)])
    measured = separability(features, labels, classes=2)
    assert measured.inter == pytest.approx(float((means[0] - means[1]).norm()), rel=1e-9)


# ------------------------------------------------------------------------------------ drift
def test_identical_clients_do_not_drift() -> None:
    assert local_drift(drawn(1, 7).expand(4, 7)) == 0


def test_drift_of_opposite_clients_is_their_norm() -> None:
    vector = drawn(7)
    assert local_drift(torch.stack([vector, -vector])) == pytest.approx(float(vector.norm()), rel=1e-6)


def test_drift_ignores_a_common_displacement_and_the_order() -> None:
    rows = drawn(5, 7)
    drift = local_drift(rows)
    assert drift == pytest.approx(float((rows - rows.mean(0)).norm(dim=1).mean()), rel=1e-6)
    assert local_drift(rows + drawn(7, seed=1)) == pytest.approx(drift, rel=1e-6)
    assert local_drift(rows.flip(0)) == pytest.approx(drift, rel=1e-12)


# ------------------------------------------------------------------------------------ layer similarity
WHOLE = Slot("layer.weight", torch.Size([2, 8]), 0)


def similarity(rows: Tensor, shares: list[float] | None = None) -> float:
    (value,) = layer_similarity(rows, [WHOLE], shares)
    return value


def test_identical_updates_are_fully_similar() -> None:
    assert similarity(drawn(1, 16).expand(5, 16)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("clients", [2, 4, 10, 16])
def test_orthogonal_updates_of_equal_norm(clients: int) -> None:
    assert similarity(3 * torch.eye(clients, 16)) == pytest.approx(1 / math.sqrt(clients), abs=1e-12)


def test_similarity_by_hand() -> None:
    rows = torch.zeros(2, 16)
    rows[0, 0], rows[1, 1] = 3.0, 4.0  # mean (1.5, 2), norm 2.5: cosines 0.6 and 0.8
    assert similarity(rows) == pytest.approx(0.7, abs=1e-12)
    # With shares 3 : 1 the mean is (2.25, 1).
    assert similarity(rows, [30, 10]) == pytest.approx((2.25 + 1) / 2 / math.hypot(2.25, 1), abs=1e-12)
    assert similarity(rows, [5, 5]) == pytest.approx(0.7, abs=1e-12)


def test_similarity_of_a_layer_looks_at_its_weight_only() -> None:
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


def test_similarity_accumulates_in_double_precision() -> None:
    # In single precision the squares underflow, or overflow.
    for scale in (1e-30, 1e30):
        assert similarity(scale * torch.eye(4, 16)) == pytest.approx(0.5, abs=1e-6)


# ------------------------------------------------------------------------------------ skewness
@pytest.mark.parametrize("seed", range(5))
def test_skewness_is_the_population_skewness(seed: int) -> None:
    values = np.random.default_rng(seed).gamma(2.0, size=9).tolist()
    assert skewness(values) == pytest.approx(skew(values, bias=True), rel=1e-10)


def test_skewness_by_hand() -> None:
    # Deviations -1, -1, -1, 3: m2 = 3, m3 = 6.
    assert skewness([0.0, 0.0, 0.0, 4.0]) == pytest.approx(6 / 3**1.5)
    assert skewness([0.0, 4.0, 4.0, 4.0]) == pytest.approx(-6 / 3**1.5)


def test_symmetric_values_are_not_skewed() -> None:
    assert skewness([-3.0, -1.0, 0.0, 1.0, 3.0]) == pytest.approx(0, abs=1e-12)
    assert skewness([0.5] * 4) == 0


def test_skewness_leaves_out_what_is_no_number() -> None:
    assert skewness([0.0, math.nan, 0.0, 0.0, 4.0]) == skewness([0.0, 0.0, 0.0, 4.0])
    assert skewness([math.nan]) == skewness([]) == 0
