"""FLFA in training: when it equals its base bit for bit, when it differs, and the feedback B."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fltrain.methods.base import Method
from fltrain.methods.fedacg import FedACG
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedsol import FedSOL
from fltrain.methods.flfa import Flfa
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny

from .helpers import (
    BASES,
    FORWARD_ORDER,
    FULL_BATCH,
    LAYERS,
    VARIED,
    Tracing,
    assert_same_model,
    by_name,
    changed_parameters,
    goes_with,
    reference,
    simulation,
    trained,
)

STEM, CLASSIFIER = LAYERS[0], LAYERS[-1]
MOBILE = {"model": MobileNetTiny()}
SHARING = [base for base in BASES if by_name(base) in VARIED and goes_with(base(), Flfa())]
# Not Per-FedAvg, which takes several steps on one batch, and gradients away from the start of its steps.
STEPPING = [base for base in SHARING if base().needs.schedule is None]
stepping_bases = pytest.mark.parametrize("base", STEPPING, ids=by_name)


def pinned(*layers: str, **settings: object) -> Flfa:
    """FLFA on given layers in every round; on all layers by default."""
    return Flfa(strategy="fixed", layers=layers or "all", **settings)


def after_steps(steps: int, *methods: Method, **settings: object):
    """A federation after one round in which every client took ``steps`` full-batch steps."""
    settings = {**MOBILE, "rounds": 1, "epochs": steps, "batch_size": FULL_BATCH, **settings}
    return reference(*methods, trainer=Tracing, **settings)


def departures(steps: int, *methods: Method, **settings: object) -> set[str]:
    """Modules whose weights differ from federated averaging on some client after ``steps`` steps."""
    plain, other = after_steps(steps), after_steps(steps, *methods, **settings)
    found = [
        changed_parameters(plain, one.weights, two.weights)
        for one, two in zip(plain.trainer.updates, other.trainer.updates, strict=True)
    ]
    return {name.rpartition(".")[0] for names in found for name in names}


def upstream(name: str) -> set[str]:
    """Modules strictly upstream of a layer of mobilenet_tiny."""
    return set(FORWARD_ORDER[: FORWARD_ORDER.index(name)])


@stepping_bases
def test_with_local_feedback_it_is_backpropagation_bit_for_bit(base: type[Method]) -> None:
    """B := W before each step, in all layers, over whole rounds."""
    fed = trained(base(), pinned(feedback="local"), rounds=2, epochs=2)
    assert_same_model(fed, trained(base(), rounds=2, epochs=2))


def test_weights_differ_from_the_second_step_on_and_upstream_only() -> None:
    """B = W in the first step; then W moves and B stays fixed. Only upstream layers are affected."""
    for name in (STEM, "stage1.project", "stage2.expand", CLASSIFIER):
        flfa = pinned(name)
        assert departures(1, flfa) == set(), name
        assert departures(2, flfa) == upstream(name), name
    for kind in ("random", "direct"):
        assert departures(2, pinned(STEM, feedback=kind)) == set()


def test_the_next_layers_feedback_reaches_the_layer_itself() -> None:
    assert departures(1, pinned("stage1.depthwise", target="next")) == set()
    assert departures(2, pinned("stage1.depthwise", target="next")) == upstream("stage1.project")
    # The stem feeds stage 1 and, through the shortcut, stage 2.
    settings = {**MOBILE, "rounds": 2, "epochs": 2}
    both = trained(pinned(STEM, target="next"), **settings)
    assert_same_model(both, trained(pinned("stage1.expand", "stage2.expand"), **settings))
    assert departures(2, pinned(STEM, target="next")) == upstream("stage2.expand")
    assert departures(4, pinned(CLASSIFIER, target="next")) == set()


@pytest.mark.parametrize(
    ("base", "kind"),
    [*((base, "global") for base in (FedAvg(), FedACG(), FedSOL())), (FedAvg(), "random")],
    ids=str,
)
def test_feedback_is_a_multiple_of_the_received_weight(base: Method, kind: str) -> None:
    """After every step ||B|| = ||W||, and cos(B, r) = 1 unless B is random.

    The received weight r is not the server's weight if that looks ahead.
    """
    federation = simulation(base, pinned(feedback=kind), epochs=4, fraction=0.5, trainer=Tracing)
    for number in range(2):
        before = federation.server.weights
        federation.round(number)
        for update in federation.trainer.updates:
            assert torch.equal(update.start, before) != (number > 0 and isinstance(base, FedACG))
            cosines = []
            for step in federation.trainer.of(update.client, number):
                for index, slot in enumerate(federation.model.layout.weights):
                    tensor = step.step_states["flfa"][f"feedback.{index}"].double().flatten()
                    weight, start = (slot.of(one).double().flatten() for one in (step.weights, update.start))
                    assert abs(tensor.norm() - weight.norm()) < 1e-6 * weight.norm()
                    assert (torch.cosine_similarity(tensor, start, dim=0) > 1 - 1e-6) == (kind == "global")
                    cosines.append(torch.cosine_similarity(weight, start, dim=0))
            assert min(cosines) < 1 - 1e-4, "the weights hardly moved"


def rescaled_by_theirs(feedback: Tensor, weight: Tensor) -> Tensor:
    """``scale_B`` of github.com/inch307/FLFA, commit 733fbc0, fa/fa_conv.py and fa_linear.py, literally."""
    weight_flat = weight.view(weight.size(0), -1)
    flat = feedback.view(feedback.size(0), -1)
    scaling = weight_flat.norm(p=2, dim=1, keepdim=True) / (flat.norm(p=2, dim=1, keepdim=True) + 1e-8)
    return (flat * scaling).view_as(feedback)


def test_scaling_by_channel_is_that_of_the_authors_code() -> None:
    """Convolutions and linear layers; the authors rescale the last step's B, we the received weight."""
    federation = simulation(pinned(scale="channel"), model=LeNet5(), epochs=4, batch_size=32, trainer=Tracing)
    federation.round(0)
    differences = []
    for update in federation.trainer.updates:
        steps = federation.trainer.of(update.client, 0)
        assert len(steps) >= 4
        for index, slot in enumerate(federation.model.layout.weights):
            theirs = slot.of(update.start)
            for step in steps:
                weight, ours = slot.of(step.weights), step.step_states["flfa"][f"feedback.{index}"]
                theirs = rescaled_by_theirs(theirs, weight)
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
                whole = slot.of(update.start) * weight.norm() / slot.of(update.start).norm()
                differences.append((ours - whole).abs().max() / whole.abs().max())
    assert max(differences) > 1e-3, "one factor for the layer would do the same"


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


@pytest.mark.parametrize("scale", ["frobenius", "channel"])
def test_the_scale_is_one_if_the_received_weight_is_zero(scale: str) -> None:
    federation = simulation(pinned("last.0", scale=scale), trainer=Tracing)
    weights = federation.server.weights.clone()
    federation.model.layout.weights[1].of(weights).zero_()
    federation.server = replace(federation.server, weights=weights)
    federation.round(0)
    assert federation.server.weights.isfinite().all()
    for step in federation.trainer.steps:
        assert not step.step_states["flfa"]["feedback.1"].any()
