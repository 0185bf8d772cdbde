"""Executors run local steps in different ways, and compute the same."""

import json
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.engine.executors import choose as executors
from fltrain.engine.executors import graph
from fltrain.engine.executors.choose import AutoExecutor
from fltrain.engine.executors.graph import GraphExecutor
from fltrain.engine.executors.loop import LoopExecutor
from fltrain.engine.executors.replay import record
from fltrain.engine.executors.stack import StackExecutor
from fltrain.engine.simulation import Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method as AnyMethod
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.feddyn import FedDyn
from fltrain.methods.training import Exponential
from fltrain.methods.types import Local, Outputs, State, Step
from fltrain.models.base import Model
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import (
    COMBINATIONS,
    REPRESENTATIVES,
    assert_same_model,
    by_name,
    fit_together,
    simulation,
)
from .test_statistics import DroppingModel

CASES = [
    *((MobileNetTiny(), methods) for methods in COMBINATIONS if fit_together(methods[0], MobileNetTiny())),
    *((LeNet5(), methods) for methods in COMBINATIONS if methods[0].name == "fedma"),
]
SETTINGS = {"epochs": 2, "batch_size": 8, "clip_norm": 1.0, "momentum": 0.5}


class Counting(GraphExecutor):
    """Counts steps in all, and those that were recorded."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.taken = self.recorded = 0

    def _step(self, *args):
        self.taken += 1
        return super()._step(*args)

    def _record(self, *args):
        self.recorded += 1
        return super()._record(*args)


def both(*methods: AnyMethod, rounds: int = 3, **settings: object) -> Simulation:
    """Train by the loop and by recorded steps, and return the latter after comparing every round."""
    loop, graph = (
        simulation(*methods, executor=executor, **{**SETTINGS, **settings})
        for executor in (LoopExecutor, Counting)
    )
    for number in range(rounds):
        assert loop.round(number) == graph.round(number)
    assert_same_model(loop, graph)
    return graph


@pytest.mark.parametrize(
    ("model", "methods"), CASES, ids=[f"{model.name}-{by_name(methods)}" for model, methods in CASES]
)
def test_recorded_steps_equal_the_loop(model: Model, methods: tuple[AnyMethod, ...]) -> None:
    """Bit for bit: weights, statistics of BatchNorm, what methods keep, and every row of the record."""
    executor = both(*methods, model=model).executor
    assert executor.recorded < executor.taken / 2


def test_all_methods_are_recorded() -> None:
    assert {method.name for _, methods in CASES for method in methods} == set(METHODS)


def test_a_step_is_recorded_for_every_number_of_images() -> None:
    """Also for batches that are not full: of all steps, few run as they are."""
    executor = both(FedAvg(), rounds=6, fraction=1.0).executor
    (session,) = executor.sessions.values()
    sizes = {size for _, size in session.recorded}
    assert len(sizes) > 2
    assert executor.recorded == len([steps for steps in session.recorded.values() if steps])


def test_a_step_holds_for_clients_of_whom_it_read_the_same() -> None:
    """FedDyn pulls clients by how many images they have."""
    executor = both(FedDyn(alpha_mode="data"), rounds=6, fraction=1.0).executor
    told = {
        tuple(step.numbers.items())
        for session in executor.sessions.values()
        for steps in session.recorded.values()
        for step in steps
    }
    assert len(told) > 2
    assert {name for numbers in told for (_, name), _ in numbers} == {"samples"}


def test_a_recorded_step_has_the_rate_of_the_round() -> None:
    both(FedAvg(), rounds=4, lr_schedule=Exponential(decay=0.5))


def test_dropout_is_drawn_anew_in_every_step() -> None:
    both(FedAvg(), model=DroppingModel(), rounds=3)


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from fltrain.methods.fedimpro import FedImpro

    monkeypatch.setattr(graph, "SESSIONS", 2)
    executor = both(FedAvg(), FedImpro(), fraction=1.0).executor
    assert len(executor.sessions) == 2


def test_recorded_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedDyn would have one for every client."""
    monkeypatch.setattr(graph, "STEPS", 2)
    executor = both(FedDyn(alpha_mode="data"), rounds=6, fraction=1.0).executor
    lengths = [len(steps) for one in executor.sessions.values() for steps in one.recorded.values()]
    assert max(lengths) == 2


class Growing(FedAvg):
    """Has a larger step state after the first step."""

    def next_state(
        self, outputs: Outputs, step: Step, weights: Tensor, local: Local, step_state: State
    ) -> State:
        return {"seen": weights.sum()}


def test_what_is_carried_keeps_its_names() -> None:
    with pytest.raises(
        FltrainError, match=r"the step state of 'fedavg' changes its names or shapes.*--executor loop"
    ):
        simulation(Growing(), executor=GraphExecutor, **SETTINGS).round(0)


# ------------------------------------------------------------------------------------ side by side
@pytest.mark.parametrize("methods", REPRESENTATIVES, ids=by_name)
def test_clients_side_by_side_agree_with_the_loop(methods: tuple[AnyMethod, ...]) -> None:
    """Up to rounding, which BatchNorm magnifies; counters agree exactly."""
    settings = {**SETTINGS, "epochs": 1, "fraction": 0.67}
    loop, stack = (
        simulation(*methods, executor=executor, **settings) for executor in (LoopExecutor, StackExecutor)
    )
    for number in range(2):
        loop.round(number)
        stack.round(number)
    refused = stack.executor.refused
    if any(method.name == "flfa" for method in methods):
        assert refused is not None
        assert "autograd.Function" in refused
    else:
        assert refused is None
    assert torch.allclose(loop.server.weights, stack.server.weights, atol=1e-3)
    assert torch.allclose(loop.server.buffers, stack.server.buffers, atol=1e-3)
    assert torch.equal(loop.server.counters, stack.server.counters)


def test_one_round_side_by_side_differs_by_rounding_alone() -> None:
    """Unequal clients, momentum, weight decay, clipping, augmented images."""
    settings = {**SETTINGS, "weight_decay": 0.01, "fraction": 1.0, "model": LeNet5()}
    loop, stack = (simulation(executor=executor, **settings) for executor in (LoopExecutor, StackExecutor))
    assert loop.round(0)[0]["loss"] == pytest.approx(stack.round(0)[0]["loss"], rel=1e-6)
    difference = (loop.server.weights - stack.server.weights).abs().max()
    assert 0 < difference < 1e-6


def test_dropout_is_not_drawn_side_by_side() -> None:
    loop, stack = (
        simulation(model=DroppingModel(), executor=executor, **SETTINGS)
        for executor in (LoopExecutor, StackExecutor)
    )
    assert loop.round(0) == stack.round(0)
    assert stack.executor.refused == "the network draws random numbers"


def test_what_clients_are_told_apart_by_parts_them() -> None:
    """FedDyn pulls clients by how many images they have: each goes by itself, and nothing is mixed up."""
    settings = {**SETTINGS, "fraction": 1.0, "model": LeNet5()}
    loop, stack = (
        simulation(FedDyn(alpha_mode="data"), executor=executor, **settings)
        for executor in (LoopExecutor, StackExecutor)
    )
    for number in range(2):
        loop.round(number)
        stack.round(number)
    assert stack.executor.reads == {("feddyn", "samples")}
    assert torch.allclose(loop.server.weights, stack.server.weights, atol=1e-5)


# ------------------------------------------------------------------------------------ recording
def test_recorded_operations_work_on_what_their_inputs_hold() -> None:
    """Forward and backward, views, operations in place, and tensors that autograd has kept."""
    layer = nn.Linear(6, 4)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    images, labels, moved = torch.randn(5, 3, 2), torch.tensor([0, 1, 2, 3, 0]), torch.zeros(6, 4)

    def work() -> Tensor:
        layer.weight.grad.zero_()
        layer.bias.grad.zero_()
        hidden = layer(images.flatten(1)).relu()
        first, second = hidden.chunk(2, 1)
        said = torch.cat([first.mul(2.0).add_(1.0), second.exp()], 1)
        functional.cross_entropy(said, labels).backward()
        moved.t().copy_(layer.weight.grad)
        return layer.bias.grad * said.detach().sum()

    work()
    result, replay = record(work)
    assert torch.equal(result, work())
    with torch.no_grad():
        layer.weight.mul_(-1.5)
        images.copy_(torch.randn(5, 3, 2))
        labels.copy_(labels.flip(0))
    replayed, shown = replay(), moved.clone()
    moved.zero_()
    assert torch.equal(replayed, work())
    assert torch.equal(shown, moved)
    assert not torch.equal(replayed, result)


# ------------------------------------------------------------------------------------ the choice
def automatic(found: Path, *methods: AnyMethod, **more: object) -> Simulation:
    def make(clients):
        return AutoExecutor(clients, kind={"work": "of a test"}, found=found, **more)

    return simulation(*methods, executor=make, **SETTINGS)


@pytest.fixture
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is long enough for a trial, which does not wait for good figures."""
    monkeypatch.setattr(executors, "WORTH", 0.0)
    monkeypatch.setattr(executors, "PATIENCE", 0.0)


def test_short_runs_are_not_worth_a_trial(tmp_path: Path) -> None:
    run = automatic(tmp_path)
    for number in range(2):
        run.round(number)
    assert run.executor.name == "loop"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("faster", "chosen"), [(0.5, "graph"), (0.99, "loop"), (2.0, "loop")])
def test_the_faster_one_is_chosen(
    tmp_path: Path, worthwhile: None, monkeypatch: pytest.MonkeyPatch, faster: float, chosen: str
) -> None:
    """What takes nearly as long as the loop is not; what was found is used without another trial."""
    measured = AutoExecutor._trial
    tried = []

    def told(self, name, *args):
        tried.append(name)
        return measured(self, name, *args)[0], {"loop": 1.0, "graph": faster}[name]

    monkeypatch.setattr(AutoExecutor, "_trial", told)
    plain = simulation(**SETTINGS)
    for _ in range(2):
        run = automatic(tmp_path)
        for number in range(3):
            run.round(number)
        assert run.executor.name == chosen
    assert tried == ["loop", "graph"]
    for number in range(3):
        plain.round(number)
    assert_same_model(run, plain)


def test_a_trial_is_measured(tmp_path: Path, worthwhile: None) -> None:
    run = automatic(tmp_path)
    for number in range(2):
        run.round(number)
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["kind"] == {"work": "of a test"}
    assert {name: seconds > 0 for name, seconds in found["seconds_per_step"].items()} == {
        "loop": True,
        "graph": True,
    }


@pytest.mark.parametrize("content", ["", "[]", '{"seconds_per_step": {"graph": 1}}'])
def test_a_useless_file_is_replaced(tmp_path: Path, worthwhile: None, content: str) -> None:
    run = automatic(tmp_path)
    run.executor.file.write_text(content)
    for number in range(2):
        run.round(number)
    assert "loop" in json.loads(run.executor.file.read_text())["seconds_per_step"]


class Counted(FedAvg):
    """Breaks the contract: counts its steps on the host."""

    name: Literal["fedavg"] = "fedavg"

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient * (1.0 + 0.1 * next(COUNTER))


COUNTER = count()


def test_a_method_that_cannot_be_recorded_is_trained_by_the_loop(
    tmp_path: Path, worthwhile: None, caplog: pytest.LogCaptureFixture
) -> None:
    run = automatic(tmp_path, Counted())
    for number in range(2):
        run.round(number)
    assert run.executor.name == "loop"
    assert "executor graph is not used: its weights are not those of the loop" in caplog.text


# ------------------------------------------------------------------------------------ precision
PASSING = {"fedavg", "moon", "fedsol", "fedfcd", "fedproto", "gpfl"}
"""Base methods that differ in what they do with a forward and backward pass."""


@pytest.mark.parametrize(
    "methods", [methods for methods in REPRESENTATIVES if methods[0].name in PASSING], ids=by_name
)
def test_methods_train_in_bfloat16(methods: tuple[AnyMethod, ...]) -> None:
    """Near to what single precision gives, and recorded steps equal the loop."""
    exact = simulation(*methods, **SETTINGS)
    rounded = both(*methods, precision="bf16", rounds=2)
    row, *_ = exact.round(0)
    first, *_ = simulation(*methods, precision="bf16", **SETTINGS).round(0)
    assert first["loss"] == pytest.approx(row["loss"], rel=0.05)
    assert first["loss"] != row["loss"]
    assert rounded.server.weights.dtype == torch.float32


def test_bfloat16_rounds_the_factors_of_products() -> None:
    """They have eight bits; what the network says is in single precision."""
    network = simulation(model=LeNet5()).network.eval()
    seen: list[torch.dtype] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda _module, _args, output: seen.append(output.dtype))
    images = torch.randn(4, 1, 16, 16)
    with torch.no_grad():
        exact = network.features(images)
        network.products = torch.bfloat16
        features = network.features(images)
        network.classifier(features)
    count = len(seen) // 2
    assert seen == [torch.float32] * count + [torch.bfloat16] * count + [torch.float32]
    assert features.dtype == torch.float32
    assert torch.allclose(features, exact, rtol=0.05, atol=0.05)
