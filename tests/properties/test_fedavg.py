"""Federated averaging: the mean over the sampled clients, buffers, and the local optimiser."""

import pytest
import torch
from torch import nn

from fltrain.methods.base import Method
from fltrain.methods.fedacg import FedACG
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedavgm import FedAvgM
from fltrain.methods.feddyn import FedDyn
from fltrain.methods.fednova import FedNova
from fltrain.methods.fedprox import FedProx
from fltrain.methods.scaffold import Scaffold
from fltrain.models.base import Model
from fltrain.models.networks.lenet5 import LeNet5

from .helpers import (
    Tiny,
    Tracing,
    assert_same_steps,
    by_name,
    mean_by_size,
    simulation,
    trained,
)
from .ordinary import check_round, cross_entropy

FORMS = ("heavy_ball", "dampened", "nesterov")


@pytest.mark.parametrize(
    "method",
    [FedAvg(), Scaffold(), FedDyn(), FedACG(), FedNova(), *(FedAvgM(form=form) for form in FORMS)],
    ids=str,
)
def test_running_statistics_are_averaged_by_data_size(method: Method) -> None:
    """For every rule that a method has for weights: no momentum, controls or normalisers."""
    federation = simulation(method, trainer=Tracing, batch_size=4)
    for number in range(3):
        federation.round(number)
        expected = mean_by_size(federation.trainer.updates, "buffers")
        torch.testing.assert_close(federation.server.buffers.double(), expected, rtol=1e-6, atol=1e-7)
    assert federation.server.buffers.dtype == torch.float32


@pytest.mark.parametrize(
    ("method", "same"),
    [
        (Scaffold(), FedAvg()),
        (Scaffold(option="I"), FedAvg()),  # which measures a full gradient
        (FedDyn(alpha=0.0), FedAvg()),
        (FedDyn(alpha=0.0, clip=None), FedAvg()),
        (FedAvgM(), FedAvg()),
        (FedNova(), FedAvg()),
        (FedNova(mu=0.5), FedProx(mu=0.5)),
        (FedACG(lam=0.0, beta=0.0), FedAvg()),
        (FedACG(lam=0.0, beta=0.05), FedProx(mu=0.1)),
    ],
    ids=str,
)
def test_clients_train_in_the_first_round_as_in_another_method_bit_for_bit(
    method: Method, same: Method
) -> None:
    one, other = (trained(method, rounds=1, epochs=2, trainer=Tracing) for method in (method, same))
    assert len(one.trainer.steps) > 6
    assert_same_steps(one, other)
    assert torch.equal(one.server.buffers, other.server.buffers)


def test_counters_stay_integers_and_take_the_maximum() -> None:
    federation = trained(FedAvg(), rounds=1, trainer=Tracing)
    updates = federation.trainer.updates
    steps = [update.steps for update in updates]
    assert len(set(steps)) > 1
    # Each client's counters started at 0 and counted its batches.
    assert [update.counters.unique().tolist() for update in updates] == [[count] for count in steps]
    counters = federation.server.counters
    assert counters.dtype == torch.int64
    assert counters.unique().tolist() == [max(steps)]
    assert len(counters) == sum(isinstance(module, nn.BatchNorm2d) for module in federation.network.modules())


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.0, "weight_decay": 0.1},
        {"momentum": 0.9, "weight_decay": 1e-3, "clip_norm": 0.1},
        {"momentum": 0.9, "weight_decay": 1e-3, "clip_norm": 1e9},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [Tiny(), LeNet5()], ids=by_name)
def test_local_training_equals_a_pytorch_loop(model: Model, settings: dict[str, float]) -> None:
    """The same batches through an ordinary loop with torch.optim.SGD and clip_grad_norm_, in two rounds."""
    federation = simulation(model=model, epochs=2, trainer=Tracing, **settings)
    for number in range(2):
        check_round(federation, number, cross_entropy)


def test_an_epoch_visits_every_image_of_the_client_once() -> None:
    federation = trained(rounds=2, epochs=2, trainer=Tracing)
    for round in range(2):
        for client in federation.sample(round):
            chosen = torch.cat([step.chosen for step in federation.trainer.of(client, round)])
            owned = federation.data.clients[client].sort().values
            first, second = chosen.chunk(2)
            assert torch.equal(first.sort().values, owned)
            assert torch.equal(second.sort().values, owned)
            assert not torch.equal(first, second)
