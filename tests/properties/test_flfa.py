"""FLFA in training: against a loop that sends errors through B, and when it equals its base bit for bit."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Update
from fltrain.models.feedback import direct_feedback, feedback
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import BASES, VARIED, Tracing, assert_same_model, by_name, goes_with, simulation, trained
from .reference import Reference, check

SHARING = [base for base in BASES if by_name(base) in VARIED and goes_with(base(), Flfa())]
# Not Per-FedAvg, which takes several steps on one batch, and gradients away from the start of its steps.
STEPPING = [base for base in SHARING if base().needs.schedule is None]
stepping_bases = pytest.mark.parametrize("base", STEPPING, ids=by_name)


def pinned(*layers: str, **settings: object) -> Flfa:
    """FLFA on given layers in every round; on all layers by default."""
    return Flfa(strategy="fixed", layers=layers or "all", **settings)


def by_channel(source: Tensor, weight: Tensor) -> Tensor:
    """``scale_B`` of github.com/inch307/FLFA, commit 733fbc0, fa/fa_conv.py and fa_linear.py, literally."""
    weight_flat = weight.view(weight.size(0), -1)
    flat = source.view(source.size(0), -1)
    scaling = weight_flat.norm(p=2, dim=1, keepdim=True) / (flat.norm(p=2, dim=1, keepdim=True) + 1e-8)
    return (flat * scaling).view_as(source)


class Aligned(Reference):
    """FLFA on federated averaging: B is the received weight, or drawn once, and has the length of W.

    The tests of ``feedback`` and ``direct_feedback`` are in ``test_operator``.
    """

    def __init__(self, run: Simulation) -> None:
        super().__init__(run)
        self.plugin, self.drawn = run.composition.methods[1], dict[int, Tensor]()

    def start(self, client: int) -> Tensor:
        selected, layers = self.run.server.states["flfa"]["selected"].tolist(), self.run.model.layout.layers
        following = {consumer for index in selected for consumer in layers[index].consumers}
        self.routed = selected if self.plugin.target == "own" else sorted(following)
        return super().start(client)

    def begin(self, update: Update) -> None:
        traced = self.run.trainer.steps_of(update.client, self.number)[0].step_states["flfa"]
        assert {key for key in traced if key.startswith("feedback")} == {f"feedback.{i}" for i in self.routed}
        if self.plugin.feedback in ("random", "direct"):  # by the first client
            for i in self.routed:
                self.drawn.setdefault(i, traced.get(f"source.{i}", traced[f"feedback.{i}"]))

    def gradient(self, network: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        plugin, layout, tensors = self.plugin, self.run.model.layout, {}
        for i in self.routed:
            module = network.get_submodule(layout.layers[i].name)
            weight, source = module.weight.detach(), self.drawn.get(i, layout.weights[i].of(self.received))
            if plugin.feedback == "local":
                source = weight
            elif plugin.feedback != "direct" and plugin.scale != "none":
                scaled = source * weight.norm() / source.norm()
                source = by_channel(source, weight) if plugin.scale == "channel" else scaled
            tensors[module] = source
        direct = plugin.feedback == "direct"
        with direct_feedback(network, tensors) if direct else feedback(tensors):
            return super().gradient(network, images, labels)


@pytest.mark.parametrize(
    ("flfa", "model"),
    [
        *((pinned(feedback=kind), MobileNetTiny()) for kind in ("global", "random", "direct")),
        (pinned(scale="channel"), LeNet5()),
        (pinned(scale="none"), LeNet5()),
        (Flfa(n_fa=2), MobileNetTiny()),
        # The stem feeds stage 1 and, through the shortcut, stage 2.
        (pinned("stem.0", "stage1.depthwise", target="next"), MobileNetTiny()),
    ],
    ids=str,
)
def test_local_steps_send_errors_through_b(flfa: Flfa, model: object) -> None:
    check(Aligned, FedAvg(), flfa, model=model)


@stepping_bases
def test_with_local_feedback_it_is_backpropagation_bit_for_bit(base: type[Method]) -> None:
    """B := W before each step, in all layers, over whole rounds."""
    fed = trained(base(), pinned(feedback="local"), rounds=2, epochs=2)
    assert_same_model(fed, trained(base(), rounds=2, epochs=2))


def test_layers_without_an_input_error_have_no_effect() -> None:
    settings = {"model": MobileNetTiny(), "rounds": 2}
    plain = trained(FedAvg(), **settings)
    for flfa in (pinned("stem.0"), pinned("stem.0", feedback="direct"), pinned("classifier", target="next")):
        assert_same_model(trained(flfa, **settings), plain)


def feedback_tensors(kind: str, **settings: object) -> list[dict[str, Tensor]]:
    """The feedback of all layers in every step of two rounds."""
    federation = trained(pinned(feedback=kind, scale="none"), trainer=Tracing, **settings)
    assert len({(step.round, step.client) for step in federation.trainer.steps}) == 6
    return [step.step_states["flfa"] for step in federation.trainer.steps]


@pytest.mark.parametrize("kind", ["random", "direct"])
def test_random_tensors_are_drawn_once_per_run(kind: str) -> None:
    step_states = feedback_tensors(kind)
    for step_state in step_states:
        assert step_state.keys() == step_states[0].keys()
        assert all(torch.equal(step_state[key], step_states[0][key]) for key in step_state)
    flat = [tensor.flatten()[:9].tolist() for tensor in step_states[0].values()]
    assert not any(flat[i] == flat[j] for i in range(len(flat)) for j in range(i)), "layers share numbers"
    other = feedback_tensors(kind, seed=1)[0]
    assert not any(torch.equal(other[key], step_states[0][key]) for key in other)


def test_feedback_stays_zero_if_the_received_weight_is_zero() -> None:
    for scale in ("frobenius", "channel"):
        federation = simulation(pinned("last.0", scale=scale), trainer=Tracing)
        weights = federation.server.weights.clone()
        federation.model.layout.weights[1].of(weights).zero_()
        federation.server = replace(federation.server, weights=weights)
        federation.round(0)
        assert federation.server.weights.isfinite().all()
        assert not any(step.step_states["flfa"]["feedback.1"].any() for step in federation.trainer.steps)
