"""FedSOL: the gradient is computed uphill on the proximal loss and applied at the original weights."""

from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fltrain.engine.local import LocalStep
from fltrain.engine.simulation import Simulation
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedsol import FedSOL
from fltrain.methods.flfa import Flfa
from fltrain.models.base import Model
from fltrain.models.feedback import feedback
from fltrain.models.network import Network
from fltrain.models.networks.lenet5 import LeNet5
from fltrain.models.networks.mobilenet_tiny import MobileNetTiny
from fltrain.models.parts import mean_pool

from .helpers import FULL_BATCH, Tracing, assert_same_model, simulation, trained
from .ordinary import elsewhere, flat, gradient_of, replica, running, step_of

SETTINGS = [
    {},
    {"perturbation": "fixed", "rho": 0.5, "temperature": 1.0},
    {"part": "head"},
    {"perturbation": "fixed", "part": "body"},
    {"perturbation": "fixed", "teacher": "train"},
    {"proximal": "l2"},
    {"proximal": "l2", "perturbation": "fixed", "part": "head"},
]


class SmoothModel(Model):
    """Two convolutions with hyperbolic tangents: without kinks, rounding errors stay small."""

    name: Literal["smooth"] = "smooth"
    min_side: ClassVar[int] = 1
    normed: bool = True

    def network(self, channels: int, side: int, classes: int) -> Network:
        def block(inputs: int, width: int, stride: int) -> nn.Sequential:
            norm = nn.BatchNorm2d(width) if self.normed else nn.Identity()
            return nn.Sequential(nn.Conv2d(inputs, width, 3, stride, padding=1), norm, nn.Tanh())

        blocks = {"stem": block(channels, 6, stride=2), "body": block(6, 8, stride=1)}
        return Network(**blocks, pool=mean_pool(), classifier=nn.Linear(8, classes))


def divergence(network: Network, teacher: Network, images: Tensor, temperature: float) -> Tensor:
    """KL(teacher || network) of softened predictions, mean over the batch."""
    with torch.no_grad():
        target = (teacher(images) / temperature).softmax(1)
    own = (network(images) / temperature).log_softmax(1)
    return (target * (target.log() - own)).sum(1).mean()


def proximal_gradient(method: FedSOL, network: Network, teacher: Network, images: Tensor) -> list[Tensor]:
    """Gradient of the proximal loss, one tensor per parameter, zero for parameters that are not moved."""
    received = list(teacher.parameters())
    if method.proximal == "kl":
        loss = divergence(network, teacher, images, method.temperature)
    else:
        pairs = zip(network.parameters(), received, strict=True)
        loss = sum((own - other.detach()).square().sum() for own, other in pairs) / 2
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    names = [name for name, _ in network.named_parameters()]
    moved = {"all": ("head", "body"), "head": ("head",), "body": ("body",)}[method.part]
    return [
        gradient if ("head" if name.startswith("classifier.") else "body") in moved else 0 * gradient
        for name, gradient in zip(names, gradients, strict=True)
    ]


def naive_move(method: FedSOL, network: Network, teacher: Network, images: Tensor) -> Tensor:
    """rho Lambda g / ||g|| as one vector."""
    gradients = proximal_gradient(method, network, teacher, images)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    if method.perturbation == "fixed" and norm < 1e-5:
        return torch.zeros_like(flat(gradients))
    moves = []
    for own, other, gradient in zip(network.parameters(), teacher.parameters(), gradients, strict=True):
        move = method.rho * gradient / (norm + 1e-12)
        if method.perturbation == "adaptive":
            move = move * functional.normalize((own - other).abs(), dim=0)
        moves.append(move)
    return flat(moves)


def naive_gradient(
    method: FedSOL, federation: Simulation, network: Network, teacher: Network, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient and loss at the perturbed weights, taken on a copy; ``network`` sees the batch once."""
    here, buffers = flat(network.parameters()), running(network)
    move = naive_move(method, network, teacher, images)
    perturbed = replica(federation, here + move, buffers)
    loss = functional.cross_entropy(perturbed(images), labels)
    if method.proximal == "l2":  # the only forward pass
        for own, other in zip(network.buffers(), perturbed.buffers(), strict=True):
            own.copy_(other)
    return gradient_of(loss, perturbed), loss.detach()


@dataclass(frozen=True)
class Request:
    """A request of a method to a step: the weights for the gradient, and the options."""

    at: Tensor | None
    options: dict[str, object]


@dataclass(frozen=True)
class Watched(LocalStep):
    """A step that records the requests to it."""

    asked: list[Request] = field(default_factory=list)

    def differentiate(self, loss=None, *, at=None, **options):
        self.asked.append(Request(None if at is None else at.clone(), options))
        return super().differentiate(loss, at=at, **options)


def move_of(method: FedSOL, federation: Simulation, weights: Tensor) -> Tensor:
    """Displacement from ``weights`` at which the method takes the gradient, for a client at ``weights``."""
    step = step_of(federation, kind=Watched, weights=weights)
    here = federation.model.weights
    method.gradient(step, here, step.hooks.locals_["fedsol"], {})
    assert torch.equal(here, weights), "the method changed the weights"
    return step.asked[-1].at - weights


@cache
def after_a_round() -> Simulation:
    """A federation whose running statistics differ from those of a new network; never trained further."""
    return trained(FedSOL(), rounds=1)


def teacher_of(method: FedSOL, federation: Simulation) -> Network:
    server = federation.server
    return replica(federation, server.weights, server.buffers).train(method.teacher == "train")


@pytest.mark.parametrize(
    ("settings", "normed"), [*((settings, True) for settings in SETTINGS), ({}, False)], ids=str
)
def test_a_step_equals_a_naive_step_on_copies_of_the_network(settings: dict, normed: bool) -> None:
    """In every step of two rounds, with the running statistics."""
    method = FedSOL(**settings)
    training = {"epochs": 2, "momentum": 0.0, "fraction": 0.5}
    federation = simulation(method, model=SmoothModel(normed=normed), trainer=Tracing, **training)
    for number in range(2):
        received = federation.server
        federation.round(number)
        for update in federation.trainer.updates:
            network, losses = replica(federation, received.weights, received.buffers), []
            teacher = replica(federation, received.weights, received.buffers).train(method.teacher == "train")
            steps = federation.trainer.of(update.client, number)
            for step in steps:
                batch = federation.data.train.batch(step.chosen)
                here = flat(network.parameters())
                gradient, loss = naive_gradient(method, federation, network, teacher, *batch)
                expected = here - 0.05 * (gradient + 1e-3 * here)
                torch.testing.assert_close(step.weights, expected, rtol=0, atol=1e-6)
                vector_to_parameters(step.weights.clone(), network.parameters())
                losses.append(loss.item())
            torch.testing.assert_close(update.buffers, running(network), rtol=1e-5, atol=1e-6)
            assert float(update.loss) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
            # Each batch was counted once, for any number of passes.
            assert ((update.counters - received.counters) == len(steps)).all()


@pytest.mark.parametrize(
    ("model", "settings"), [(MobileNetTiny(), {}), (LeNet5(), {"teacher": "train"})], ids=str
)
def test_one_adaptive_step_is_federated_averaging_bit_for_bit(model: Model, settings: dict) -> None:
    """At the received weights the move is zero."""
    one = {"model": model, "rounds": 3, "batch_size": FULL_BATCH}
    assert_same_model(trained(FedSOL(rho=2.0, **settings), **one), trained(FedAvg(), **one))


def test_the_first_adaptive_move_is_zero_and_later_ones_are_not() -> None:
    federation = after_a_round()
    received = federation.server.weights
    assert not move_of(FedSOL(), federation, received).any()
    assert move_of(FedSOL(), federation, elsewhere(federation)[0]).any()


def test_parameters_that_have_not_moved_are_not_perturbed() -> None:
    """Columns of |w - r| that are zero stay zero; no division by zero."""
    federation = after_a_round()
    weights = federation.server.weights.clone()
    slot = federation.model.layout.weights[-1]
    slot.of(weights)[:, 3] += 0.1  # one input of the classifier
    move = move_of(FedSOL(), federation, weights)
    assert move.isfinite().all()
    touched = slot.of(move).clone()
    assert touched[:, 3].any()
    touched[:, 3] = 0
    assert not touched.any()
    slot.of(move).zero_()
    assert not move.any()


def test_rounding_noise_is_not_scaled_up_to_a_fixed_move() -> None:
    """Student and teacher agree at the received weights if both use batch statistics."""
    fixed = FedSOL(perturbation="fixed", teacher="train")
    federation = after_a_round()
    assert not move_of(fixed, federation, federation.server.weights).any()
    one = {"rounds": 3, "batch_size": FULL_BATCH}
    assert_same_model(trained(fixed, **one), trained(FedAvg(), **one))
    # A teacher in evaluation mode differs by more than noise.
    evaluating = FedSOL(perturbation="fixed")
    assert move_of(evaluating, federation, federation.server.weights).norm() == pytest.approx(1, rel=1e-5)


def test_the_fixed_move_has_length_rho() -> None:
    """||eps|| = rho to 1e-5 over the moved parameters; the others stay."""
    federation = after_a_round()
    weights, _ = elsewhere(federation, seed=1)
    head = federation.model.layout.head
    for rho in (0.5, 1.0, 2.0):
        for part in ("all", "head", "body"):
            move = move_of(FedSOL(rho=rho, perturbation="fixed", part=part), federation, weights).double()
            assert abs(move.norm().item() - rho) < 1e-5 * rho
            assert move[:head].any() == (part != "head")
            assert move[head:].any() == (part != "body")


@pytest.mark.parametrize(
    "settings", [{"perturbation": "fixed"}, {"proximal": "l2"}, {"temperature": 1.0}], ids=str
)
def test_the_move_is_uphill_on_the_proximal_loss(settings: dict) -> None:
    """A small move raises the proximal loss by the amount that its gradient predicts."""
    method = FedSOL(rho=1e-3, **settings)
    federation = after_a_round()
    weights, _ = elsewhere(federation, seed=1, distance=0.02)
    images = step_of(federation, weights=weights).images.double()
    teacher = teacher_of(method, federation).double()
    move = move_of(method, federation, weights)
    buffers = federation.server.buffers

    def loss(at: Tensor) -> float:
        network = replica(federation, at, buffers).double()
        vector_to_parameters(at.double(), network.parameters())
        if method.proximal == "kl":
            return divergence(network, teacher, images, method.temperature).item()
        pairs = zip(network.parameters(), teacher.parameters(), strict=True)
        return sum((own - other).square().sum().item() for own, other in pairs) / 2

    network = replica(federation, weights, buffers).double()
    slope = (
        torch.cat([g.flatten() for g in proximal_gradient(method, network, teacher, images)]) @ move.double()
    )
    raised = loss(weights.double() + move.double()) - loss(weights)
    assert slope > 0
    assert raised == pytest.approx(slope.item(), rel=0.2)


def rerouted(federation: Simulation, step: LocalStep, network: Network) -> dict[Network, Tensor]:
    """Feedback tensors of FLFA by module of another network."""
    names = [layer.name for layer in federation.model.layout.layers]
    return {
        network.get_submodule(names[int(key.partition(".")[2])]): tensor
        for key, tensor in step.hooks.step_states["flfa"].items()
        if key.startswith("feedback.")
    }


@pytest.mark.parametrize("passes", ["both", "loss"])
def test_feedback_alignment_acts_in_both_passes_or_in_the_loss_pass_only(passes: str) -> None:
    method = FedSOL(perturbation="fixed", feedback=passes)
    flfa = Flfa(strategy="fixed", layers=("stage1.project", "head_conv1.0"), feedback="random", scale="none")
    federation = trained(method, flfa, rounds=1)
    here, _ = elsewhere(federation, seed=1)
    step = step_of(federation, kind=Watched, weights=here)
    found, _ = step.hooks.gradient(step, federation.model.weights)
    found = found.clone()

    buffers, teacher = federation.server.buffers, teacher_of(method, federation)
    moves = {}
    for aligned in (True, False):
        network = replica(federation, here, buffers)
        with feedback(rerouted(federation, step, network) if aligned else {}):
            moves[aligned] = naive_move(method, network, teacher, step.images)
    assert (moves[True] - moves[False]).norm() > 0.1, "feedback alignment has no effect"
    move = step.asked[-1].at - here
    torch.testing.assert_close(move, moves[passes == "both"], rtol=1e-3, atol=1e-6)

    network = replica(federation, step.asked[-1].at, buffers)
    with feedback(rerouted(federation, step, network)):
        expected = gradient_of(functional.cross_entropy(network(step.images), step.labels), network)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
