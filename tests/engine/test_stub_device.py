"""Every method and plug-in stays on its device, also with captured steps; local steps transfer nothing.

A stub device checks it, see ``stub``: the tests need no GPU.
"""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.engine.local import LocalTraining
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.types import Local, State

from ..properties.helpers import EVERY, KINDS, by_name, simulation, with_tests
from ..properties.test_cuda_graph import Replaying
from .stub import Transfers, on_stub_device, stub_device

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

TRAINERS = {trainer.name: trainer for trainer in (LocalTraining, Replaying)}

ALL_PLUGINS = next(methods for methods in EVERY if by_name(methods) in KINDS and len(methods) > 2)
METHODS = [*(methods for methods in EVERY if len(methods) < 3), ALL_PLUGINS]
"""Every base method and every plug-in, and all plug-ins together."""

CAPTURED = ("ditto", by_name(ALL_PLUGINS))
"""Methods whose captured steps `make test` checks, too; other captured steps differ little from the loop."""

TRANSFERS = {"methods.fed2.aggregate": 6, "methods.ops.neuron_matching._nearest": 16}
"""Functions that read or copy more often outside of local steps than four times per visit of a client."""


def run(trainer: str, *methods: Method) -> Transfers:
    """Train on the stub device: a client in a full and a smaller batch, another one in a full batch.

    In a second round, clients have states. Only captured steps train it: they read all numbers of clients and
    rounds from tensors.
    """
    personal = Composition(methods).personal
    first, second = (24, 13) if personal else (18, 10)
    clients = Partition([np.arange(first), np.arange(first, first + second)], digest="")
    rounds = 2 if trainer == Replaying.name else 1
    with on_stub_device() as transfers:
        federation = simulation(
            *methods,
            partition=with_tests(clients) if personal else clients,
            trainer=TRAINERS[trainer],
            device=stub_device(),
            fraction=1.0,
            batch_size=10,
            clip_norm=1.0,
            evaluate_every=rounds,
        )
        for number in range(rounds):
            federation.round(number)
    server = federation.server
    assert {tensor.device for tensor in (server.weights, server.buffers, server.counters)} == {stub_device()}
    return transfers


@pytest.mark.parametrize(
    ("methods", "trainer"),
    [
        pytest.param(
            *(methods, trainer),
            id=f"{by_name(methods)}-{trainer}",
            marks=pytest.mark.slow if trainer == Replaying.name and by_name(methods) not in CAPTURED else (),
        )
        for methods in METHODS
        for trainer in TRAINERS
        if trainer == LocalTraining.name or by_name(methods) in KINDS
    ],
)
def test_training_mixes_no_devices_and_steps_transfer_nothing(
    methods: tuple[Method, ...], trainer: str
) -> None:
    transfers = run(trainer, *methods)
    assert transfers.in_steps == set()
    visits = 2 * (2 if trainer == Replaying.name else 1)
    for place, count in transfers.elsewhere.items():
        assert count <= visits * TRANSFERS.get(place, 4), place


class Faulty(FedAvg):
    """Adds a tensor of the host in a local step, or reads the norm of the gradient."""

    name: Literal["faulty"] = "faulty"
    fault: Literal["mixes", "reads", "copies"]

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        if self.fault == "mixes":
            return gradient + torch.ones(len(gradient))
        if self.fault == "copies":
            return gradient + gradient.new_tensor([1.0] * len(gradient))
        return gradient * float(gradient.norm())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_mix_of_devices_is_found(trainer: str) -> None:
    with pytest.raises(RuntimeError, match=r"device.*fgpu"):
        run(trainer, Faulty(fault="mixes"))


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("fault", ["reads", "copies"])
def test_a_transfer_in_a_local_step_is_found(fault: str, trainer: str) -> None:
    if fault == "reads" and trainer == Replaying.name:
        with pytest.raises(FltrainError, match="cannot be captured"):
            run(trainer, Faulty(fault=fault))
    else:
        assert run(trainer, Faulty(fault=fault)).in_steps == {"methods.checks.guarded"}
