"""Captured steps compute the same as the loop; precisions of the layers."""

import gc
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.data.augmentation import Augmentation
from fltrain.engine.clients import Clients
from fltrain.engine.cuda_graph import Captured, CapturedTraining
from fltrain.engine.local import LocalTraining
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method as AnyMethod
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.feddyn import FedDyn
from fltrain.methods.scaffold import Scaffold
from fltrain.methods.training import Exponential
from fltrain.methods.types import Local, Outputs, State, Step
from fltrain.models.networks.lenet5 import LeNet5

from .helpers import (
    KINDS,
    REPRESENTATIVES,
    by_name,
    reference,
    simulation,
    slow_unless,
    trained,
)
from .tape import taped
from .test_statistics import DroppingModel

Work = Callable[[], tuple[Tensor, Tensor]]
SHORT = {"epochs": 1, "fraction": 0.67}
SETTINGS = {"epochs": 2, "batch_size": 8, "clip_norm": 1.0, "momentum": 0.5}


class Counting(CapturedTraining):
    """Counts captures and replays."""

    def __init__(self, clients: Clients, **settings: object) -> None:
        super().__init__(clients, **settings)
        self.captures = self.replays = 0

    def recorded(self, work: Work) -> Captured:
        return super().capture(work)

    def capture(self, work: Work) -> Captured:
        graph, result = self.recorded(work)
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            graph.replay()

        return SimpleNamespace(replay=replay), result


class Replaying(Counting):
    """The same on the CPU, with tapes instead of CUDA graphs, and learning rates in tensors as on CUDA."""

    def __init__(self, clients: Clients, **settings: object) -> None:
        super().__init__(clients, **settings)
        for optimiser in self.optimisers:
            optimiser.rate = torch.zeros_like(self.model.weights[0])

    @classmethod
    def check(cls, device: torch.device) -> None:
        """Accept the CPU."""

    def recorded(self, work: Work) -> Captured:
        with taped():
            return super().recorded(work)


def graphs(device: torch.device) -> type[Counting]:
    return Counting if device.type == "cuda" else Replaying


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Double precision: BatchNorm magnifies rounding errors, and how much depends on the CPU."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(SINGLE)


SINGLE = torch.get_default_dtype()
reference_in_double = cache(trained)


def compared(
    trainer: type[LocalTraining], *methods: AnyMethod, rounds: int = 2, **settings: object
) -> tuple[Simulation, Simulation]:
    """Train by the loop and with captured steps."""
    settings = {**SETTINGS, "rounds": rounds, "evaluate_every": 100, **settings}
    plain = reference if torch.get_default_dtype() == SINGLE else reference_in_double
    return plain(*methods, **settings), trained(*methods, trainer=trainer, **settings)


def assert_equal_up_to_rounding(plain: Simulation, other: Simulation, limit: float = 1e-12) -> None:
    """Check weights, buffers and counters of models that were trained in double precision."""
    assert plain.server.weights.dtype == torch.float64
    for name in ("weights", "buffers", "counters"):
        expected, values = getattr(plain.server, name), getattr(other.server, name)
        torch.testing.assert_close(values, expected, rtol=0, atol=limit)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("methods", slow_unless(KINDS, REPRESENTATIVES), ids=by_name)
def test_a_step_in_fixed_memory_equals_the_reference(
    methods: tuple[AnyMethod, ...], device: torch.device
) -> None:
    """Up to rounding: numbers of the round are tensors there."""
    plain, captured = compared(graphs(device), *methods, **SHORT, device=device)
    assert captured.trainer.replays >= captured.trainer.captures > 0
    assert_equal_up_to_rounding(plain, captured)


def test_one_recording_serves_all_clients_rounds_and_learning_rates(device: torch.device) -> None:
    """FedDyn's pull depends on a client's number of images; the learning rate changes every round.

    These numbers are float32 tensors here, and Python floats in the reference. BatchNorm magnifies this
    rounding: the network has none.
    """
    schedule = Exponential(decay=0.5)
    plain, captured = compared(
        *(graphs(device), FedDyn(alpha_mode="data")),
        **{"rounds": 4, "fraction": 1.0, "lr_schedule": schedule, "device": device, "model": LeNet5()},
    )
    sizes = {len(images) % 8 for images in captured.data.clients} - {0}
    assert captured.trainer.captures <= 2 * (1 + len(sizes)), "clients with a dual state, and without one"
    torch.testing.assert_close(plain.server.weights, captured.server.weights, rtol=1e-5, atol=1e-6)


REFUSED = r"(?m)^--cuda-graph: a local step cannot be captured \(%s\); leave out --cuda-graph$"


@pytest.mark.parametrize("name", ["graph", "CUDAGraph", "graph_pool_handle"])
def test_a_capture_that_cuda_refuses_ends_the_run(name: str) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise RuntimeError("CUDA error:\nout of memory")

    class Refused(Replaying):
        def recorded(self, work: Work) -> Captured:
            with taped(), patch.object(torch.cuda, name, refuse):
                return CapturedTraining.capture(self, work)

    with pytest.raises(FltrainError, match=REFUSED % "CUDA error: out of memory"):
        simulation(trainer=Refused, **SETTINGS).round(0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "settings", [{"augmentation": Augmentation(flip=True)}, {"model": DroppingModel(), "rounds": 3}], ids=str
)
def test_every_step_has_new_images_and_dropout_masks(
    settings: dict[str, object], device: torch.device
) -> None:
    assert_equal_up_to_rounding(*compared(graphs(device), FedAvg(), **settings, device=device))


class Swapping(FedAvg):
    """Keeps the weights of the last two steps, in each other's memory, and tensors that steps only read."""

    def client_init(self, local: Local) -> State:
        return {
            "before": local.start,
            "last": local.start,
            "counts": 2 * local.class_counts,
            "one": local.start.new_zeros(1),
        }

    def next_state(
        self, outputs: Outputs, step: Step, weights: Tensor, local: Local, step_state: State
    ) -> State:
        ones = local.task.constant("one", lambda: local.start.new_ones(1))
        return {
            "before": step_state["last"],
            "last": weights.clone(),
            "counts": local.class_counts,
            "one": ones,
        }

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        pull = 0.001 * weights * (local.class_counts.sum() + step_state["counts"].sum())
        pull = pull * step_state["one"]
        return gradient + 0.1 * (step_state["last"] - step_state["before"]) + pull


@pytest.mark.usefixtures("double")
def test_step_states_in_shared_memory_do_not_overwrite_each_other() -> None:
    assert_equal_up_to_rounding(*compared(Replaying, Swapping(), fraction=1.0))


class Sized(FedAvg):
    """Has a step state of another shape for each client and round."""

    def client_init(self, local: Local) -> State:
        return {"own": local.start.new_ones(1 + local.client + 10 * local.round)}


@pytest.mark.usefixtures("double")
def test_states_of_many_shapes_are_captured_again(device: torch.device) -> None:
    """A session goes with its graphs, and the memory that they shared."""
    plain, other = compared(graphs(device), Sized(), fraction=1.0, device=device)
    assert len(other.trainer.sessions) < 12
    assert_equal_up_to_rounding(plain, other)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda:0"], indirect=True)
@pytest.mark.parametrize("method", [FedAvg(), FedDyn(alpha_mode="data")], ids=by_name)
def test_one_round_on_a_gpu_differs_by_rounding_only(method: AnyMethod, device: torch.device) -> None:
    """Unequal clients, momentum, weight decay, clipping; a pull that depends on the number of images."""
    settings = {**SETTINGS, "rounds": 1, "weight_decay": 0.01, "fraction": 1.0, "model": LeNet5()}
    plain, other = reference(method, **settings), trained(method, device=device, **settings)
    assert 0 < (plain.server.weights - other.server.weights.cpu()).abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda:0"], indirect=True)
@pytest.mark.parametrize("trainer", [LocalTraining, CapturedTraining])
def test_rounds_keep_no_memory_of_a_gpu(trainer: type[LocalTraining], device: torch.device) -> None:
    run, allocated = simulation(Scaffold(), Ecgr(), trainer=trainer, device=device, fraction=1.0), []
    for number in range(4):
        run.round(number)
        gc.collect()
        allocated.append(torch.cuda.memory_allocated())
    assert allocated[2] == allocated[3] > 0


PASSING = {"fedavg", "moon", "fedsol", "gpfl"}
"""Base methods that differ in their forward and backward passes."""


@pytest.mark.parametrize(
    "methods",
    slow_unless(PASSING, (methods for methods in REPRESENTATIVES if methods[0].name in PASSING)),
    ids=by_name,
)
def test_methods_train_in_bfloat16(methods: tuple[AnyMethod, ...], device: torch.device) -> None:
    """Losses are near those in single precision; weights stay in single precision."""
    exact, rounded = (
        simulation(*methods, precision=kind, device=device, **SETTINGS) for kind in ("fp32", "bf16")
    )
    expected, *_ = exact.round(0)
    row, *_ = rounded.round(0)
    assert row["loss"] == pytest.approx(expected["loss"], rel=0.05) and row["loss"] != expected["loss"]
    assert rounded.server.weights.dtype == torch.float32


def test_bfloat16_rounds_the_factors_of_products() -> None:
    """Factors have eight bits; features and logits are in single precision."""
    network = simulation(model=LeNet5()).network.eval()
    dtypes: list[torch.dtype] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda _module, _args, output: dtypes.append(output.dtype))
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = network.features(images)
        network.products = torch.bfloat16
        features = network.features(images)
        network.classifier(features)
    count = len(dtypes) // 2
    assert dtypes == [torch.float32] * count + [torch.bfloat16] * count + [torch.float32]
    assert features.dtype == torch.float32
    assert torch.allclose(features, exact, rtol=0.05, atol=0.05)


class Noting(FedAvg):
    """Records PyTorch's TF32 flag in a hook."""

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        NOTED["hook"].append(torch.backends.cuda.matmul.allow_tf32)
        return gradient


NOTED: dict[str, list[bool]] = {}


def test_tf32_is_used_in_layers_only(device: torch.device) -> None:
    """PyTorch's flag is global: it is off outside the passes of the network."""
    NOTED.update(forward=[], backward=[], hook=[])
    run = simulation(Noting(), model=LeNet5(), device=device, **SETTINGS)
    run.network.tf32 = True

    def noting(place: str) -> Callable[..., None]:
        return lambda *_: NOTED[place].append(torch.backends.cuda.matmul.allow_tf32)

    layer = next(module for module in run.network.modules() if isinstance(module, nn.Linear))
    layer.register_forward_pre_hook(noting("forward"))
    layer.register_full_backward_hook(noting("backward"))
    run.round(0)
    assert {name: set(flags) for name, flags in NOTED.items()} == {
        "forward": {True},
        "backward": {True},
        "hook": {False},
    }
    assert not torch.backends.cuda.matmul.allow_tf32
