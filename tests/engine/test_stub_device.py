"""Every method and plug-in stays on its device, with every executor; local steps transfer nothing.

A stub device checks it, see ``stub``: the tests need no GPU.
"""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import Partition
from fltrain.engine.executors.sequential import SequentialExecutor
from fltrain.engine.executors.vectorized import VectorizedExecutor
from fltrain.engine.simulation import lockstep
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Local, State

from ..properties.helpers import EVERY, KINDS, by_name, simulation, small, with_tests
from ..properties.test_executors import Replaying, ReplayingLanes
from .stub import Transfers, on_stub_device, stub_device

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

EXECUTORS = {
    executor.name: executor
    for executor in (SequentialExecutor, VectorizedExecutor, Replaying, ReplayingLanes)
}

CAPTURING = {executor.name for executor in (Replaying, ReplayingLanes)}

METHODS = [
    *(methods for methods in EVERY if len(methods) < 3),
    next(methods for methods in EVERY if by_name(methods) in KINDS and len(methods) > 2),
]
"""Every base method and every plug-in, and all plug-ins together."""


READING = {
    *("engine.evaluation.accuracy", "engine.evaluation.loss", "engine.simulation._tested"),
    *("engine.simulation._finite", "metrics.updates.layer_similarity"),
    *("methods.fedamp.aggregate", "methods.fedfcd.server_step", "methods.fedimpro.report"),
    *("methods.fednova.aggregate", "methods.flfa.report"),
}
"""Functions that read values of the device outside of local steps, a few times per round."""

READING_OFTEN = {
    *("methods.ecgr._select", "methods.fedimpro.client_init", "methods.ops.prototypes.describe"),
    *("methods.ops.neuron_matching._nearest", "methods.ops.neuron_matching.match"),
}
"""Functions that do so for every client."""


UPLOADING = {
    *("engine.data.of", "engine.data.split", "engine.data.<genexpr>"),
    *("methods.fed2.aggregate", "methods.ops.classifier_head.train", "metrics.updates.layer_similarity"),
    *("methods.ops.neuron_matching._nearest", "methods.ops.neuron_matching.row_weights"),
}
"""Functions that copy to the device outside of local steps: for a run, or for a group of clients."""

UPLOADS_PER_CLIENT = {"runtime.devices.uploaded": 4, "methods.fed2.client_final": 1}
"""Functions that do so for every client, and how often; ``uploaded`` does not wait for the device."""


def run(executor: str, *methods: Method, seeds: int = 1) -> Transfers:
    """Train on the stub device: a client in a full and a smaller batch, another one in a full batch.

    In a second round, clients have states. Only executors that capture steps train it: they read all
    numbers of clients and rounds from tensors. Runs with several seeds train together.
    """
    personal = Composition(methods).personal
    first, second = (24, 13) if personal else (18, 10)
    clients = Partition([np.arange(first), np.arange(first, first + second)], digest="")
    rounds = 2 if executor in CAPTURING else 1
    with on_stub_device() as transfers:
        federations = [
            simulation(
                *methods,
                model=small(*methods),
                partition=with_tests(clients) if personal else clients,
                executor=EXECUTORS[executor],
                device=stub_device(),
                fraction=1.0,
                batch_size=10,
                clip_norm=1.0,
                evaluate_every=rounds,
                seed=seed,
            )
            for seed in range(seeds)
        ]
        for number in range(rounds):
            lockstep([federation.steps(number) for federation in federations])
    for server in (federation.server for federation in federations):
        assert {one.device for one in (server.weights, server.buffers, server.counters)} == {stub_device()}
    return transfers


@pytest.mark.parametrize(
    ("methods", "executor"),
    [
        pytest.param(methods, executor, id=f"{by_name(methods)}-{executor}")
        for methods in METHODS
        for executor in EXECUTORS
        if executor == "sequential" or by_name(methods) in KINDS
    ],
)
def test_training_mixes_no_devices_and_steps_transfer_nothing(
    methods: tuple[Method, ...], executor: str
) -> None:
    transfers = run(executor, *methods)
    assert transfers.in_steps == set()
    assert transfers.elsewhere <= READING | READING_OFTEN
    visits = 2 * (2 if executor in CAPTURING else 1)
    for place, count in transfers.uploads.items():
        assert place in UPLOADING or count <= visits * UPLOADS_PER_CLIENT.get(place, 0), place


def test_stacked_seeds_mix_no_devices() -> None:
    """FLFA's choice of layers is on the host, and differs between seeds."""
    assert run("vectorized", FedAvg(), Flfa(), seeds=2).in_steps == set()


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


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_mix_of_devices_is_found(executor: str) -> None:
    with pytest.raises(RuntimeError, match=r"device.*fgpu"):
        run(executor, Faulty(fault="mixes"))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", ["reads", "copies"])
def test_a_transfer_in_a_local_step_is_found(fault: str, executor: str) -> None:
    mapped = "PyTorch cannot map the step over clients"
    refusals = {
        "vectorized": mapped,
        "vectorized_cuda_graph": mapped,
        "cuda_graph": "cannot be captured",
    }
    if fault == "reads" and executor in refusals:
        with pytest.raises(FltrainError, match=refusals[executor]):
            run(executor, Faulty(fault=fault))
    else:
        assert run(executor, Faulty(fault=fault)).in_steps == {"methods.composition._guarded"}
