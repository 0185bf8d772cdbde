"""Several methods together: order of hooks, values passed between them, refused combinations."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor

from fltrain.methods.base import Method, Needs
from fltrain.methods.composition import EXCLUSIVE_HOOKS, Composition, LocalHooks
from fltrain.methods.ecgr import Ecgr
from fltrain.methods.fedacg import FedACG
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedsol import FedSOL
from fltrain.methods.flfa import Flfa
from fltrain.methods.scaffold import Scaffold
from fltrain.methods.types import Outputs, Recording, Server, Update
from fltrain.metrics.updates import layer_similarity

from .helpers import Tracing, assert_same_model, by_name, local_of, rows_of, simulation, trained, update_of


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
        seen = {self.name: {"weights": update.weights, "others": torch.tensor(len(update.statistics))}}
        changed = self._changed(update.weights)
        return replace(update, weights=changed, statistics={**update.statistics, **seen}), {}


class Base(Changing):
    name: Literal["base"] = "base"


class Doubling(Changing):
    name: Literal["doubling"] = "doubling"
    factor: float = 2.0


class Adding(Changing):
    name: Literal["adding"] = "adding"
    summand: float = 1.0


def hooks_of(*methods: Method, start: Tensor) -> LocalHooks:
    nothing = {method.name: {} for method in methods}
    return Composition(methods).client_init(local_of(start), nothing, nothing)


def test_plugins_finish_in_order_and_the_base_last() -> None:
    """The base receives the upload in addition to the trained weights, and returns the final upload."""
    weights = torch.tensor([1.0, 5.0])
    for plugins, expected in (
        ((), [1.0, 5.0]),
        ((Doubling(), Adding()), [3.0, 11.0]),
        ((Adding(), Doubling()), [4.0, 12.0]),
    ):
        bound = hooks_of(Base(factor=10.0), *plugins, start=torch.zeros(2))
        update, states = bound.client_final(update_of(torch.zeros(2), weights))
        assert update.statistics["base"]["weights"].tolist() == expected
        assert update.weights.tolist() == [10 * value for value in expected]
        assert torch.equal(update.trained, weights)
        assert [int(update.statistics[p.name]["others"]) for p in plugins] == list(range(len(plugins)))
        assert states.keys() == {"base", *(plugin.name for plugin in plugins)}


def test_all_other_hooks_run_base_first_then_plugins_in_order() -> None:
    value = torch.tensor([1.0, 5.0])
    base = Base(factor=10.0)
    for plugins, expected in (
        ((), [10.0, 50.0]),
        ((Doubling(), Adding()), [21.0, 101.0]),
        ((Adding(), Doubling()), [22.0, 102.0]),
    ):
        hooks = hooks_of(base, *plugins, start=torch.zeros(2))
        assert hooks.correct(value, value).tolist() == expected
        moved = value.clone()
        hooks.post_step(moved)
        assert moved.tolist() == expected
        states = {method.name: {} for method in (base, *plugins)}
        empty = torch.zeros(0)
        server = Server(value, empty, empty.long(), states)
        started = hooks.composition.start_weights(local_of(value), server, states, states)
        assert started.start.tolist() == expected


def test_losses_pass_through_all_methods_after_the_cross_entropy() -> None:
    logits, labels = torch.tensor([[0.1, 0.3]]), torch.tensor([1])
    entropy = math.log1p(math.exp(0.1 - 0.3))

    def loss(*plugins: Method) -> float:
        hooks = hooks_of(Base(), *plugins, start=torch.zeros(2))
        return hooks.loss(Outputs(logits, logits), SimpleNamespace(labels=labels)).item()

    assert loss() == pytest.approx(entropy, rel=1e-5)
    assert loss(Doubling(), Adding()) == pytest.approx(2 * entropy + 1, rel=1e-5)
    assert loss(Adding(), Doubling()) == pytest.approx(2 * (entropy + 1), rel=1e-5)


SEVERAL = [FedAvg(), Scaffold(), FedSOL()]


@pytest.mark.parametrize("base", SEVERAL, ids=by_name)
def test_the_order_of_flfa_and_ecgr_does_not_matter_bit_for_bit(base: Method) -> None:
    """FLFA changes local steps, ECGR changes the upload."""
    settings = {"rounds": 3, "epochs": 2, "statistics": ("drift", "similarity")}
    one = trained(base, Flfa(n_fa=2), Ecgr(), **settings)
    other = trained(base, Ecgr(), Flfa(n_fa=2), **settings)
    assert_same_model(one, other)
    for kind in ("train", "flfa", "ecgr", "updates", "evaluation"):
        assert rows_of(one, kind) == rows_of(other, kind)


def test_flfa_selects_layers_by_uploads_and_reports_trained_weights() -> None:
    """Similarities use the re-aggregated updates; scale and cosine of B use the trained weights."""
    federation = simulation(Flfa(n_fa=2), Ecgr(beta=0.0), epochs=3, trainer=Tracing)
    federation.round(0)
    updates = federation.trainer.updates
    assert not any(torch.equal(update.trained, update.weights) for update in updates)
    slots = federation.model.layout.weights
    sent = layer_similarity(torch.stack([update.displacement for update in updates]), slots)
    lowest = sorted(range(len(sent)), key=lambda layer: sent[layer])[:2]
    assert federation.server.states["flfa"]["selected"].tolist() == lowest
    pinned = {"rounds": 1, "epochs": 3}
    everywhere = Flfa(strategy="fixed", layers="all")
    (alone,), (together,) = (
        rows_of(trained(*plugins, **pinned), "flfa") for plugins in ((everywhere,), (everywhere, Ecgr()))
    )
    assert together == alone


@pytest.mark.parametrize("base", [FedAvg(), FedACG(), FedSOL()], ids=by_name)
def test_feedback_is_the_weight_that_the_client_received(base: Method) -> None:
    """In rounds 1 and 2, in every step: B is r, which is not the server's weight if there is a lookahead."""
    flfa = Flfa(strategy="fixed", layers="all", scale="none")
    federation = simulation(base, flfa, epochs=2, trainer=Tracing)
    for number in range(2):
        server = federation.server
        received = federation.trainer.clients.receive(federation.at(number), 0, None)[0].start.clone()
        federation.round(number)
        for update in federation.trainer.updates:
            assert torch.equal(update.start, received)
            for step in federation.trainer.of(update.client, number):
                for index, slot in enumerate(federation.model.layout.weights):
                    tensor = step.step_states[by_name(Flfa)][f"feedback.{index}"]
                    assert torch.equal(tensor, slot.of(received))
    looks_ahead = isinstance(base, FedACG)
    assert torch.equal(received, server.weights) != looks_ahead


class First(Method):
    name: Literal["first"] = "first"


class Second(Method):
    name: Literal["second"] = "second"
    plugin: ClassVar[bool] = True


def implement(hook: str, monkeypatch: pytest.MonkeyPatch, *methods: type[Method]) -> None:
    """Let methods override a hook with the default implementation."""
    default = getattr(Method, hook)
    for method in methods:
        monkeypatch.setattr(method, hook, lambda self, *args: default(self, *args))


@pytest.mark.parametrize("hook", EXCLUSIVE_HOOKS)
def test_two_methods_cannot_override_an_exclusive_hook(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Composition((First(), Second())).name == "first+second"
    implement(hook, monkeypatch, First)
    assert Composition((First(), Second())).name == "first+second"
    implement(hook, monkeypatch, Second)
    with pytest.raises(ValueError, match=f"^'first' and 'second' cannot be combined: both define '{hook}'$"):
        Composition((First(), Second()))
    with pytest.raises(ValueError, match=f"both define '{hook}'"):
        Composition((FedAvg(), Second(), First()))
    assert Composition((FedAvg(), Second())).name == "fedavg+second"


class OtherRecorder(Method):
    name: Literal["other_recorder"] = "other_recorder"

    needs: ClassVar[Needs] = Needs(recording=Recording("gradient", "float32"))


def test_two_methods_cannot_both_request_recordings_of_steps() -> None:
    with pytest.raises(ValueError, match="'other_recorder' and 'ecgr' cannot be combined: both define 'rec"):
        Composition((OtherRecorder(), Ecgr()))
    recording = Composition((FedAvg(), Ecgr(vector="gradient"))).needs.recording
    assert recording == Recording("gradient", "float32")
    assert Composition((FedAvg(), Flfa())).needs.recording is None
