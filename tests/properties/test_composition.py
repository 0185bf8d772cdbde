"""Several methods together: order of hooks, values passed between them, refused combinations."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fltrain.methods.base import Method, Needs
from fltrain.methods.composition import EXCLUSIVE_HOOKS, EXCLUSIVE_NEEDS, Composition
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Footprint, Outputs, Recording, Schedule, Server, Update
from fltrain.metrics.updates import layer_similarity

from .helpers import Tracing, local_of, rows_of, simulation, trained, update_of


class Changing(Method):
    """Changes every value that passes through its hooks: times ``factor``, plus ``summand``.

    Two of them give different results in different orders. The input of ``client_final`` is stored in the
    statistics of the update.
    """

    factor: float = 1.0
    summand: float = 0.0

    def _changed(self, tensor: Tensor) -> Tensor:
        return self.factor * tensor + self.summand

    def start_weights(self, weights, state, local):
        return self._changed(weights)

    def loss(self, loss, outputs, step, local, step_state):
        return self._changed(loss)

    def correct(self, gradient, weights, local, step_state):
        return self._changed(gradient)

    def post_step(self, weights, local, step_state):
        return self._changed(weights)

    def client_final(self, update: Update, local, step_state):
        inputs = {self.name: {"weights": update.weights, "others": torch.tensor(len(update.statistics))}}
        changed = self._changed(update.weights)
        return replace(update, weights=changed, statistics={**update.statistics, **inputs}), {}


class Base(Changing):
    name: Literal["base"] = "base"


class Doubling(Changing):
    name: Literal["doubling"] = "doubling"
    factor: float = 2.0


class Adding(Changing):
    name: Literal["adding"] = "adding"
    summand: float = 1.0


@pytest.mark.parametrize(
    ("plugins", "last", "first"),
    [
        ((), [1.0, 5.0], [10.0, 50.0]),
        ((Doubling(), Adding()), [3.0, 11.0], [21.0, 101.0]),
        ((Adding(), Doubling()), [4.0, 12.0], [22.0, 102.0]),
    ],
    ids=str,
)
def test_the_base_finishes_last_and_is_first_in_all_other_hooks(
    plugins: tuple[Method, ...], last: list[float], first: list[float]
) -> None:
    """Plug-ins run in their order; the base, which returns the upload, receives the trained weights, too."""
    value, methods = torch.tensor([1.0, 5.0]), (Base(factor=10.0), *plugins)
    empty_states = {method.name: {} for method in methods}
    hooks = Composition(methods).client_init(local_of(torch.zeros(2)), empty_states, empty_states)
    update, states = hooks.client_final(update_of(torch.zeros(2), value))
    assert update.statistics["base"]["weights"].tolist() == last
    assert update.weights.tolist() == [10 * number for number in last]
    assert torch.equal(update.trained, value)
    assert [int(update.statistics[p.name]["others"]) for p in plugins] == list(range(len(plugins)))
    assert states.keys() == empty_states.keys()

    assert hooks.correct(value, value).tolist() == first
    moved = value.clone()
    hooks.post_step(moved)
    assert moved.tolist() == first
    empty = torch.zeros(0)
    server = Server(value, empty, empty.long(), empty_states)
    started = hooks.composition.start_weights(local_of(value), server, empty_states, empty_states)
    assert started.start.tolist() == first
    logits, step = torch.tensor([[0.1, 0.3]]), SimpleNamespace(labels=torch.tensor([1]))
    loss = functional.cross_entropy(logits, step.labels)
    for method in methods:
        loss = method.factor * loss + method.summand
    torch.testing.assert_close(hooks.loss(Outputs(logits, logits), step), loss)


def test_flfa_selects_layers_by_uploads_and_reports_trained_weights() -> None:
    """Similarities use the re-aggregated updates; scale and cosine of B use the trained weights."""
    federation = simulation(Flfa(n_fa=2), Ecgr(beta=0.0), epochs=3, trainer=Tracing)
    federation.round(0)
    updates = federation.trainer.updates
    assert not any(torch.equal(update.trained, update.weights) for update in updates)
    slots = federation.model.layout.weights
    similarities = layer_similarity(torch.stack([update.displacement for update in updates]), slots)
    lowest = sorted(range(len(similarities)), key=lambda layer: similarities[layer])[:2]
    assert federation.server.states["flfa"]["selected"].tolist() == lowest
    settings = {"rounds": 1, "epochs": 3}
    flfa = Flfa(strategy="fixed", layers="all")
    (alone,), (together,) = (
        rows_of(trained(*plugins, **settings), "flfa") for plugins in ((flfa,), (flfa, Ecgr()))
    )
    assert together == alone


DEFINED: dict[str, Any] = {
    **{hook: getattr(Method, hook) for hook in EXCLUSIVE_HOOKS},
    "private": Needs(private="head"),
    "recording": Needs(recording=Recording("gradient", "float32")),
    "schedule": Needs(schedule=Schedule()),
    "second": Needs(second=FedAvg()),
}


@pytest.mark.parametrize("name", [*EXCLUSIVE_HOOKS, *EXCLUSIVE_NEEDS])
def test_two_methods_cannot_define_the_same_exclusive_hook_or_need(name: str) -> None:
    def defining(base: type[Method]) -> Method:
        attributes: dict[str, Any] = {"needs": property(lambda self: DEFINED[name])}
        if name in EXCLUSIVE_HOOKS:  # a new function: the base class's own hook does not count as defined
            attributes = {name: lambda self, *args: DEFINED[name](self, *args)}
        return type("Defining", (base,), {"__module__": __name__, **attributes})()

    first, second = defining(Base), defining(Doubling)
    for methods in ((first, second), (first, Adding(), second)):
        message = f"^'base' and 'doubling' cannot be combined: both define '{name}'$"
        with pytest.raises(ValueError, match=message):
            Composition(methods)
    assert Composition((first, Adding())).name == "base+adding"


class Compressing(Method):
    """Declares compressed uploads."""

    name: Literal["compressing"] = "compressing"
    plugin: ClassVar[bool] = True
    share: float = 1.0

    @property
    def footprint(self) -> Footprint:
        return Footprint(upload=self.share)


def test_compressed_uploads_are_less_traffic() -> None:
    """The factor concerns the weights, upwards; BatchNorm statistics are sent as they are."""
    plain, run = (trained(Compressing(share=share), rounds=1, fraction=0.5) for share in (1.0, 0.1))
    weights, buffers = run.server.weights.nbytes, run.server.buffers.nbytes
    assert plain.bytes_up == plain.bytes_down == run.bytes_down == 3 * (weights + buffers)
    assert run.bytes_up == 3 * (math.ceil(0.1 * weights) + buffers)
