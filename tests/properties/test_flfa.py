"""FLFA in training: when it equals its base bit for bit, when it differs, and the feedback B."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fltrain.methods.base import Method
from fltrain.methods.flfa import Flfa
from fltrain.methods.types import Task
from fltrain.models.base import Model
from fltrain.models.feedback import feedback
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
    layer_names,
    reference,
    rows_of,
    simulation,
    trained,
)

STEM, CLASSIFIER = LAYERS[0], LAYERS[-1]
SHARING = [base for base in BASES if by_name(base) in VARIED and goes_with(base(), Flfa())]
# Not Per-FedAvg, which takes several steps on one batch, and gradients away from the start of its steps.
STEPPING = [base for base in SHARING if base().needs.schedule is None]
stepping_bases = pytest.mark.parametrize("base", STEPPING, ids=by_name)


def pinned(*layers: str, **settings: object) -> Flfa:
    """FLFA on given layers in every round; on all layers by default."""
    return Flfa(strategy="fixed", layers=layers or "all", **settings)


def after_steps(steps: int, *methods: Method, **settings: object):
    """A federation after one round in which every client took ``steps`` full-batch steps."""
    return reference(*methods, rounds=1, epochs=steps, batch_size=FULL_BATCH, trainer=Tracing, **settings)


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


@pytest.mark.parametrize("model", [MobileNetTiny(), LeNet5()], ids=by_name)
def test_on_the_first_layer_only_it_is_the_base_bit_for_bit(model: Model) -> None:
    first, plain = layer_names(model)[0], reference(model=model, rounds=2)
    for settings in ({}, {"feedback": "random"}, {"feedback": "direct"}, {"scale": "none"}):
        fed = trained(pinned(first, **settings), model=model, rounds=2)
        assert_same_model(fed, plain)
        assert all(row["effective"] is False for row in rows_of(fed, "flfa"))


@stepping_bases
def test_one_local_step_is_the_base_bit_for_bit(base: type[Method]) -> None:
    settings = {"rounds": 2, "batch_size": FULL_BATCH, "fraction": 0.3}
    plain = trained(base(), **settings)
    for layers in ((LAYERS[1], LAYERS[3]), ()):
        for target in ("own", "next"):
            assert_same_model(trained(base(), pinned(*layers, target=target), **settings), plain)


@stepping_bases
def test_with_local_feedback_it_is_backpropagation_bit_for_bit(base: type[Method]) -> None:
    """B := W before each step, in all layers, over whole rounds."""
    fed = trained(base(), pinned(feedback="local"), rounds=2, epochs=2)
    assert_same_model(fed, trained(base(), rounds=2, epochs=2))


def test_weights_differ_from_the_second_step_on_and_upstream_only() -> None:
    """B = W in the first step; then W moves and B stays fixed. Only upstream layers are affected."""
    for name in ("stage1.project", "stage2.expand", CLASSIFIER):
        flfa = pinned(name)
        assert departures(1, flfa) == set(), name
        assert departures(2, flfa) == upstream(name), name


def test_the_next_layers_feedback_reaches_the_layer_itself() -> None:
    assert departures(1, pinned("stage1.depthwise", target="next")) == set()
    assert departures(2, pinned("stage1.depthwise", target="next")) == upstream("stage1.project")
    # The stem feeds stage 1 and, through the shortcut, stage 2.
    both = trained(pinned(STEM, target="next"), rounds=2, epochs=2)
    assert_same_model(both, trained(pinned("stage1.expand", "stage2.expand"), rounds=2, epochs=2))
    assert departures(2, pinned(STEM, target="next")) == upstream("stage2.expand")
    assert departures(4, pinned(CLASSIFIER, target="next")) == set()


def test_feedback_is_a_multiple_of_the_received_weight() -> None:
    """After every step | ||B|| - ||W|| | < 1e-6 ||W|| and cos(B, received weight) = 1."""
    federation = simulation(pinned(), epochs=4, fraction=1.0, trainer=Tracing)
    for number in range(2):
        received = federation.server.weights
        federation.round(number)
        directions = {client: [] for client in federation.sample(number)}
        for step in federation.trainer.steps:
            if step.round != number:
                continue
            for index, slot in enumerate(federation.model.layout.weights):
                tensor = step.step_states[by_name(Flfa)][f"feedback.{index}"].double()
                weight, start = slot.of(step.weights).double(), slot.of(received).double()
                assert abs(tensor.norm() - weight.norm()) < 1e-6 * weight.norm()
                cosine = torch.cosine_similarity(tensor.flatten(), start.flatten(), dim=0)
                assert abs(cosine - 1) < 1e-6
                directions[step.client].append(
                    torch.cosine_similarity(weight.flatten(), start.flatten(), dim=0)
                )
        assert all(min(cosines) < 1 - 1e-4 for cosines in directions.values()), "the weights hardly moved"


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


@pytest.mark.parametrize("kind", ["random", "direct"])
def test_random_numbers_of_a_layer_are_drawn_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients and rounds of a run share them; another run in the same process draws other ones."""
    draws: Counter[tuple[int, int]] = Counter()
    draw = Flfa.random

    def counted(self: Flfa, task: Task, **where: int) -> np.random.Generator:
        draws[task.seed, where["client"]] += 1
        return draw(self, task, **where)

    monkeypatch.setattr(Flfa, "random", counted)
    runs = [simulation(pinned(feedback=kind), seed=seed, fraction=1.0) for seed in range(2)]
    for number in range(2):
        for run in runs:
            run.round(number)
    assert draws == Counter((seed, layer) for seed in range(2) for layer in range(len(LAYERS)))


@pytest.mark.parametrize("kind", ["random", "direct"])
def test_workers_have_the_same_random_feedback(kind: str) -> None:
    plain, divided = (trained(pinned(feedback=kind), rounds=3, workers=count) for count in (1, 2))
    assert_same_model(plain, divided)


def test_random_feedback_has_the_distribution_of_initial_weights() -> None:
    """Uniform in +-1/sqrt(fan in), fan in = input channels per group times kernel size."""
    fan_in = dict(zip(LAYERS, [9, 16, 9, 32, 16, 9, 32, 24, 64], strict=True))
    (step_state, *_) = feedback_tensors("random")
    federation = simulation()
    for index, (name, slot) in enumerate(zip(LAYERS, federation.model.layout.weights, strict=True)):
        tensor, bound = step_state[f"feedback.{index}"], fan_in[name] ** -0.5
        assert tensor.shape == slot.shape
        assert tensor.abs().max() <= bound
        assert tensor.abs().max() > 0.95 * bound
        # The variance of the uniform distribution is a third of the squared bound.
        assert tensor.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.3)


def test_direct_feedback_is_drawn_from_a_normal_distribution() -> None:
    """R is input channels by classes with entries N(0, 1/classes)."""
    (step_state, *_) = feedback_tensors("direct")
    inputs = [1, 16, 32, 32, 16, 32, 32, 24, 64]
    assert [tuple(tensor.shape) for tensor in step_state.values()] == [(width, 10) for width in inputs]
    entries = torch.cat([tensor.flatten() for tensor in step_state.values()])
    assert entries.std().item() == pytest.approx(10**-0.5, rel=0.1)
    assert abs(entries.mean().item()) < 0.03


def test_random_feedback_is_scaled_to_the_weight_from_the_first_step_on() -> None:
    federation = simulation(pinned(feedback="random"), epochs=2, trainer=Tracing)
    federation.round(0)
    for step in federation.trainer.steps:
        for index, slot in enumerate(federation.model.layout.weights):
            ratio = step.step_states["flfa"][f"feedback.{index}"].norm() / slot.of(step.weights).norm()
            assert abs(ratio - 1) < 1e-6


def test_the_scale_is_one_if_the_received_weight_is_zero() -> None:
    federation = simulation(pinned("stage2.expand"), trainer=Tracing)
    weights = federation.server.weights.clone()
    federation.model.layout.weights[LAYERS.index("stage2.expand")].of(weights).zero_()
    federation.server = replace(federation.server, weights=weights)
    federation.round(0)
    assert federation.server.weights.isfinite().all()
    for step in federation.trainer.steps:
        assert not step.step_states["flfa"][f"feedback.{LAYERS.index('stage2.expand')}"].any()


def test_scaled_feedback_makes_the_input_error_independent_of_the_weights_scale() -> None:
    """With BatchNorm, W -> 3 W does not change backpropagation's input error; an unscaled B gives a third."""
    random = torch.Generator().manual_seed(0)
    conv, norm = nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, eps=1e-12)
    input = torch.randn(8, 4, 6, 6, generator=random).requires_grad_()
    error = torch.randn(8, 6, 4, 4, generator=random)
    received = conv.weight.detach().clone()

    def input_error(tensor: Tensor) -> Tensor:
        with feedback({conv: tensor}):
            return torch.autograd.grad(norm(conv(input)), input, error)[0]

    before = input_error(received)
    conv.weight.data *= 3
    torch.testing.assert_close(input_error(received), before / 3, rtol=1e-4, atol=1e-6)
    scale = conv.weight.detach().norm() / received.norm()
    torch.testing.assert_close(input_error(scale * received), before, rtol=1e-4, atol=1e-6)
