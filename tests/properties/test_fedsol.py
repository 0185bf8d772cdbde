"""FedSOL: the gradient is computed uphill on the proximal loss and applied at the original weights."""

from dataclasses import dataclass, field
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
class Watched(LocalStep):
    """A step that records the weights at which it differentiates."""

    asked: list[Tensor | None] = field(default_factory=list)

    def differentiate(self, loss=None, *, at=None, **options):
        self.asked.append(None if at is None else at.clone())
        return super().differentiate(loss, at=at, **options)


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


def test_rounding_noise_is_not_scaled_up_to_a_fixed_move() -> None:
    """Student and teacher agree at the received weights if both use batch statistics."""
    one = {"rounds": 3, "batch_size": FULL_BATCH}
    plain = trained(FedAvg(), **one)
    assert_same_model(trained(FedSOL(perturbation="fixed", teacher="train"), **one), plain)
    # A teacher in evaluation mode differs by more than noise.
    moved = trained(FedSOL(perturbation="fixed"), **one)
    assert not torch.equal(moved.server.weights, plain.server.weights)


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
    federation = trained(method, flfa, model=MobileNetTiny(), rounds=1)
    here, _ = elsewhere(federation, seed=1)
    step = step_of(federation, kind=Watched, weights=here)
    found, _ = step.hooks.gradient(step, federation.model.weights)
    found = found.clone()

    buffers = federation.server.buffers
    teacher = replica(federation, federation.server.weights, buffers).eval()
    moves = {}
    for aligned in (True, False):
        network = replica(federation, here, buffers)
        with feedback(rerouted(federation, step, network) if aligned else {}):
            moves[aligned] = naive_move(method, network, teacher, step.images)
    assert (moves[True] - moves[False]).norm() > 0.1, "feedback alignment has no effect"
    move = step.asked[-1] - here
    torch.testing.assert_close(move, moves[passes == "both"], rtol=1e-3, atol=1e-6)

    network = replica(federation, step.asked[-1], buffers)
    with feedback(rerouted(federation, step, network)):
        expected = gradient_of(functional.cross_entropy(network(step.images), step.labels), network)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
