"""Statistics of a round in closed form and in runs: separability, drift, similarity, distances, gradients."""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from scipy.stats import skew
from torch import Tensor, nn
from torch.nn import functional

from fltrain.methods.fedavg import FedAvg
from fltrain.methods.scaffold import Scaffold
from fltrain.metrics.separability import separability
from fltrain.metrics.updates import layer_similarity, local_drift, skewness
from fltrain.models.base import Model
from fltrain.models.flat import Slot
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import Tracing, assert_same_model, by_name, drawn, layer_names, rows_of, simulation, trained

STATISTICS = ("divergence", "dissimilarity")


def block_of(name: str) -> str:
    return name.split(".")[0]


def norms(vectors: Tensor, network: Network, group: Callable[[str], str], *wanted: str) -> Tensor:
    """Norm of each vector ``[m, P]`` over the parameters in each group."""
    parameters = network.named_parameters()
    marks = [torch.full((parameter.numel(),), group(name) in wanted) for name, parameter in parameters]
    return vectors.double()[:, torch.cat(marks)].norm(dim=1)


@pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)
def test_divergence_in_a_run(model: Model) -> None:
    """From the new global weights, without buffers: as one vector, by layer (with its bias), by block."""
    federation = trained(Scaffold(), model=model, rounds=2, statistics=["divergence"], trainer=Tracing)
    _, row = rows_of(federation, "divergence")
    uploads = torch.stack([update.weights for update in federation.trainer.updates])
    distances = uploads - federation.server.weights
    network, lengths = federation.network, distances.double().norm(dim=1)
    assert row["weights"] == pytest.approx(float(lengths.mean()), rel=1e-6)
    assert row["weights"] > 0.01

    assert list(row["layers"]) == layer_names(model)
    for layer, value in row["layers"].items():
        expected = norms(distances, network, lambda name: name.rpartition(".")[0], layer)
        assert value == pytest.approx(float(expected.mean()), rel=1e-6), layer
    with_weights = [name for name, _ in network.named_parameters()]
    assert list(row["blocks"]) == list(dict.fromkeys(map(block_of, with_weights)))
    for block, value in row["blocks"].items():
        expected = norms(distances, network, block_of, block)
        assert value == pytest.approx(float(expected.mean()), rel=1e-6), block


def test_dissimilarity_of_a_network() -> None:
    """Gradients of the mean loss over all images of a client, by autograd on all of them at once."""
    federation = simulation(model=LeNet5(), statistics=["dissimilarity"])
    sampled, start = federation.sample(0), federation.server.weights.clone()
    (row,) = (row for row in federation.round(0) if row["kind"] == "dissimilarity")

    federation.model.load(start, federation.server.buffers, federation.server.counters)
    network, gradients = federation.network, []
    for client in sampled:
        images, labels = federation.data.train.batch(federation.data.clients[client])
        loss = functional.cross_entropy(network(images), labels)
        parts = torch.autograd.grad(loss, list(network.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    deviations = torch.stack(gradients).double() - torch.stack(gradients).double().mean(0)

    def expected(*blocks: str) -> float:
        return float(norms(deviations, network, block_of, *blocks).square().mean())

    assert row["all"] == pytest.approx(float(deviations.norm(dim=1).square().mean()), rel=1e-4)
    for block, value in row["blocks"].items():
        assert value == pytest.approx(expected(block), rel=1e-4), block


@pytest.mark.parametrize(
    ("model", "method"), [(MobileNetTiny(), FedAvg()), (LeNet5(), Scaffold())], ids=by_name
)
def test_measuring_changes_nothing(model: Model, method: FedAvg | Scaffold) -> None:
    """Measuring gradients runs the network in training mode, which must change nothing, bit for bit."""
    measured, plain = (
        trained(method, model=model, rounds=2, statistics=statistics) for statistics in (STATISTICS, ())
    )
    assert_same_model(measured, plain)
    for kind in STATISTICS:
        assert [row["round"] for row in rows_of(measured, kind)] == [1, 2]
        assert not rows_of(plain, kind)
    for row, other in zip(rows_of(measured, "evaluation"), rows_of(plain, "evaluation"), strict=True):
        assert row == other


class DroppingModel(Model):
    name: Literal["dropping"] = "dropping"
    min_side: ClassVar[int] = 1

    def network(self, channels: int, side: int, classes: int) -> Network:
        return Network(
            flatten=nn.Flatten(),
            hidden=nn.Sequential(nn.Linear(channels * side**2, 32), nn.ReLU(), nn.Dropout(0.5)),
            classifier=nn.Linear(32, classes),
        )


def test_dropout_in_the_gradients_is_reproducible() -> None:
    """The numbers neither depend on PyTorch's global generator nor change it."""
    rows, states = [], []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            federation = trained(model=DroppingModel(), rounds=2, statistics=["dissimilarity"])
            rows.append(rows_of(federation, "dissimilarity"))
            states.append(torch.equal(torch.get_rng_state(), before))
    assert rows[0] == rows[1]
    assert all(states)


def test_separability_by_hand() -> None:
    # Class 0: 0 and 2 on the first axis, mean (1, 0). Class 2: 0, 6 and 3 on the second axis, mean (0, 3).
    # Class 3: mean (2, 3).
    points = [[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 6.0], [0.0, 3.0], [1.0, 3.0], [3.0, 3.0]]
    measured = separability(torch.tensor(points), torch.tensor([0, 2, 0, 2, 2, 3, 3]), classes=4)
    between = (2 * math.hypot(1, 3) + 2) / 3
    assert measured["intra"] == pytest.approx((1 + 2 + 1) / 3)
    assert measured["intra_micro"] == pytest.approx((1 + 1 + 3 + 3 + 0 + 1 + 1) / 7)
    assert measured["inter"] == pytest.approx(between)
    assert measured["ratio"] == pytest.approx(between / (4 / 3))


def test_drift_ignores_a_common_displacement_and_the_order() -> None:
    rows = drawn(5, 7)
    drift = local_drift(rows)
    assert drift == pytest.approx(float((rows - rows.mean(0)).norm(dim=1).mean()), rel=1e-6)
    assert local_drift(rows + drawn(7, seed=1)) == pytest.approx(drift, rel=1e-6)
    assert local_drift(rows.flip(0)) == pytest.approx(drift, rel=1e-12)


LAYER = Slot("layer.weight", torch.Size([2, 8]), 0)


def similarity(rows: Tensor, shares: list[float] | None = None) -> float:
    (value,) = layer_similarity(rows, [LAYER], shares)
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


def test_skewness_is_the_population_skewness_without_nan() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=9).tolist()
    assert skewness([*values, math.nan]) == pytest.approx(skew(values, bias=True), rel=1e-10)
    assert skewness([math.nan]) == skewness([]) == 0
