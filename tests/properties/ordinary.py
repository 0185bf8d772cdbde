"""References for methods: ordinary loops on copies of the network, and single local steps."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, vector_to_parameters

from fltrain.engine.local import LocalStep
from fltrain.engine.simulation import Simulation
from fltrain.methods.types import Update
from fltrain.models.network import Network

from .helpers import local_of


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Concatenate the tensors into one vector."""
    return torch.cat([*(tensor.detach().flatten() for tensor in tensors), torch.zeros(0)])


def running(network: Network) -> Tensor:
    """Running statistics of a network."""
    return flat(buffer for buffer in network.buffers() if buffer.is_floating_point())


def replica(federation: Simulation, weights: Tensor, buffers: Tensor) -> Network:
    """An independent network in training mode with copies of the weights and buffers."""
    network = copy.deepcopy(federation.network).train()
    vector_to_parameters(weights.clone(), network.parameters())
    taken = 0
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.copy_(buffers[taken : taken + buffer.numel()].view_as(buffer))
            taken += buffer.numel()
    assert taken == len(buffers)
    return network


def features(network: Network, images: Tensor) -> Tensor:
    """The input of the classifier."""
    for name, block in network.named_children():
        if name != "classifier":
            images = block(images)
    return images


def gradient_of(loss: Tensor, network: Network) -> Tensor:
    """Gradient of a loss in all parameters of a network; zero for unused parameters."""
    parameters = list(network.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return flat(
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    )


def cross_entropy(client: int, network: Network, images: Tensor, labels: Tensor) -> Tensor:
    """The plain loss of a client."""
    return functional.cross_entropy(network(images), labels)


def check_round(
    federation: Simulation, number: int, loss: Callable[[int, Network, Tensor, Tensor], Tensor]
) -> None:
    """Run a round and compare each client with an ordinary loop on this loss of client, network and batch.

    The federation must be traced. Every step starts from the traced weights: a rounding error can move an
    activation over the kink of a ReLU, after which trajectories separate.
    """
    received = federation.server
    federation.round(number)
    for update in federation.trainer.updates:
        network = replica(federation, received.weights, received.buffers)
        check_steps(federation, number, update, network, partial(loss, update.client))
        torch.testing.assert_close(update.weights, update.trained, rtol=0, atol=0)


def check_steps(
    federation: Simulation,
    number: int,
    update: Update,
    network: Network,
    loss: Callable[[Network, Tensor, Tensor], Tensor],
    *,
    penalty: Callable[[Network], Tensor] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Compare a client's steps in a finished round with an ordinary loop on this loss.

    ``network`` is the model at the start of its training; a penalty is minimised but not reported.
    """
    training, losses = federation.spec.training, []
    settings = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    optimiser = torch.optim.SGD(network.parameters(), lr=training.lr, **settings)
    steps = federation.trainer.of(update.client, number)
    assert len(steps) == update.steps
    for step in steps:
        optimiser.zero_grad()
        value = loss(network, *federation.data.train.batch(step.chosen))
        (value + penalty(network) if penalty else value).backward()
        if training.clip_norm is not None:
            clip_grad_norm_(network.parameters(), training.clip_norm)
        optimiser.step()
        losses.append(value.item())
        torch.testing.assert_close(step.weights, flat(network.parameters()), rtol=rtol, atol=atol)
        vector_to_parameters(step.weights.clone(), network.parameters())
    torch.testing.assert_close(update.trained, step.weights, rtol=0, atol=0)
    torch.testing.assert_close(update.buffers, running(network), rtol=rtol, atol=1e-6)
    assert float(update.loss) == pytest.approx(sum(losses) / len(losses), rel=rtol)


def step_of(
    federation: Simulation,
    *,
    kind: type[LocalStep] = LocalStep,
    weights: Tensor,
) -> LocalStep:
    """A step of the first client, which received the global model and is now at ``weights``."""
    composition, server, data = federation.composition, federation.server, federation.data
    local = local_of(server.weights, task=federation.task, counts=data.class_counts[0])
    hooks = composition.client_init(
        replace(local, round=1, buffers=server.buffers), composition.payload(server.states), {}
    )
    federation.model.load(weights, server.buffers, server.counters)
    federation.network.train()
    batch = data.train.batch(data.clients[0])
    return kind(*batch, "all", federation.model, hooks)


def elsewhere(federation: Simulation, seed: int = 0, distance: float = 0.05) -> tuple[Tensor, Tensor]:
    """Weights and buffers that differ from the global ones; ``distance`` is the typical change per weight."""
    random = torch.Generator().manual_seed(seed)
    weights, buffers = federation.server.weights, federation.server.buffers
    factors = torch.rand(len(buffers), generator=random) + 0.5
    return weights + distance * torch.randn(len(weights), generator=random), buffers * factors


Description = dict[int, tuple[float, Tensor]]
"""Number and mean features of a client's images, by class."""


def averages(descriptions: list[Description], averaging: str) -> dict[int, Tensor]:
    """The mean of each class over the clients that have it, as a prototype method computes it."""
    found: dict[int, Tensor] = {}
    for label in range(10):
        held = [own[label] for own in descriptions if label in own]
        if not held:
            continue
        images = sum(count for count, _ in held)
        found[label] = sum(count * mean for count, mean in held) / images
        if averaging == "plain":
            found[label] = sum(mean for _, mean in held) / len(held)
        if averaging == "fedproto":
            found[label] = found[label] / len(held)
    return found


def check_tests(
    federation: Simulation,
    rounds: int,
    model_of: Callable[[int, Update | None], tuple[Tensor, Tensor]],
    view: str = "personal",
) -> dict[int, Update]:
    """Run rounds, and check each test against every client's model; return the last updates.

    A model is given by weights and buffers; a client's last update is None if it has never trained.
    """
    last: dict[int, Update] = {}
    for number in range(rounds):
        *_, row = federation.round(number)
        last.update({update.client: update for update in federation.trainer.updates})

        def logits(client: int, images: Tensor) -> Tensor:
            return replica(federation, *model_of(client, last.get(client))).eval()(images)

        check_client_tests(federation, row, logits, view)
    return last


def check_client_tests(
    federation: Simulation,
    row: dict[str, Any],
    logits: Callable[[int, Tensor], Tensor],
    view: str = "personal",
) -> None:
    """Check all values of a test row against the logits of each client for its test images."""
    correct, losses = [], []
    for client, chosen in enumerate(federation.data.tests):
        images, labels = federation.data.train.batch(chosen)
        with torch.no_grad():
            found = logits(client, images)
        correct.append((found.argmax(1) == labels).double())
        losses.append(functional.cross_entropy(found, labels, reduction="none").double())
    shares = torch.stack([own.mean() for own in correct])
    assert (row["kind"], row["split"], row["view"]) == ("evaluation", "local_test", view)
    assert row["images"] == len(torch.cat(correct))
    assert row["accuracy"] == pytest.approx(torch.cat(correct).mean().item())
    assert row["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)
    assert row["macro"] == pytest.approx(shares.mean().item())
    assert row["std"] == pytest.approx(shares.std(unbiased=False).item())
