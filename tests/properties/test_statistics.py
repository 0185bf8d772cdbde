"""Statistics of a round: distance of the clients' weights, dissimilarity of their gradients."""

from collections.abc import Callable
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.methods.fedavg import FedAvg
from fltrain.methods.scaffold import Scaffold
from fltrain.models.base import Model
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import Tracing, assert_same_model, by_name, layer_names, rows_of, simulation, trained

BOTH = ("divergence", "dissimilarity")


def block_of(name: str) -> str:
    return name.split(".")[0]


def layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def norms(vectors: Tensor, network: Network, group: Callable[[str], str], *wanted: str) -> Tensor:
    """Norm of each vector ``[m, P]`` over the parameters in each group."""
    named = network.named_parameters()
    marks = [torch.full((parameter.numel(),), group(name) in wanted) for name, parameter in named]
    return vectors.double()[:, torch.cat(marks)].norm(dim=1)


@pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)
def test_divergence_in_a_run(model: Model) -> None:
    """From the new global weights, without buffers: as one vector, by layer (with its bias), by block."""
    federation = trained(Scaffold(), model=model, rounds=2, statistics=["divergence"], trainer=Tracing)
    _, row = rows_of(federation, "divergence")
    sent = torch.stack([update.weights for update in federation.trainer.updates])
    distances = sent - federation.server.weights
    network, everything = federation.network, distances.double().norm(dim=1)
    assert row["weights"] == pytest.approx(float(everything.mean()), rel=1e-6)
    assert row["weights"] > 0.01

    assert list(row["layers"]) == layer_names(model)
    for layer, value in row["layers"].items():
        expected = norms(distances, network, layer_of, layer)
        assert value == pytest.approx(float(expected.mean()), rel=1e-6), layer
    with_weights = [name for name, _ in network.named_parameters()]
    assert list(row["blocks"]) == list(dict.fromkeys(map(block_of, with_weights)))
    squares = torch.zeros(len(sent), dtype=torch.float64)
    for block, value in row["blocks"].items():
        expected = norms(distances, network, block_of, block)
        assert value == pytest.approx(float(expected.mean()), rel=1e-6), block
        squares += expected.square()
    torch.testing.assert_close(squares, everything.square())


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
        trained(method, model=model, rounds=2, statistics=statistics) for statistics in (BOTH, ())
    )
    assert_same_model(measured, plain)
    for kind in BOTH:
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
