"""Federated averaging in plain PyTorch, whose parts other methods override; the engine is compared with it.

A reference uses the data of a run, copies of its network, and PyTorch's optimisers, but no hook of a method.
It follows the traced steps of the run: every step, client and round begins where the run's did. Otherwise a
rounding error could move an activation over the kink of a ReLU, after which trajectories separate.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, vector_to_parameters

from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.training import Exponential
from fltrain.methods.types import Update
from fltrain.models.network import Network

from .helpers import Step, Tracing, mean_by_size, simulation

COHORTS = ([0, 2, 3, 5], [1, 3, 5], [0, 2, 3])
"""Clients return after a pause or stay, 1 starts late, and 4 never takes part."""

SETTINGS = {"trainer": Tracing, "epochs": 2, "batch_size": 8, "lr_schedule": Exponential(decay=0.5)}


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Concatenate the tensors into one vector."""
    return torch.cat([*(tensor.detach().flatten() for tensor in tensors), torch.zeros(0)])


def running_statistics(network: Network) -> Tensor:
    """Running statistics of a network."""
    return flat(buffer for buffer in network.buffers() if buffer.is_floating_point())


def replica(federation: Simulation, weights: Tensor, buffers: Tensor) -> Network:
    """An independent network in training mode with copies of the weights and buffers."""
    network = copy.deepcopy(federation.network).train()
    vector_to_parameters(weights.float().clone(), network.parameters())
    offset = 0
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.copy_(buffers[offset : offset + buffer.numel()].view_as(buffer))
            offset += buffer.numel()
    assert offset == len(buffers)
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
    return flat(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


class Reference:
    """Federated averaging, one client and one step after the other.

    Attributes:
        run: the run to compare with.
        method: its base method, with the settings.
        weights, buffers: of the server.
        updates: the last update of each client.
        models: references of all models that a client trains, of the uploaded one first.
        client, received, received_buffers: the training client and its model at the start.
        number, lr: the round, counted from 0, and its learning rate.
        private: parameters that stay with their client, bool ``[P]``.
        local_buffers: BatchNorm statistics stay with their client.
        tolerance: relative and absolute, of weights after a step.
    """

    tolerance = 1e-5, 1e-6

    def __init__(self, run: Simulation) -> None:
        self.run, self.method = run, run.composition.methods[0]
        self.weights, self.buffers = run.server.weights, run.server.buffers
        self.initial, self.updates = self.weights, dict[int, Update]()
        self.models = [self]
        self.private, self.local_buffers = self.mask(), run.spec.batchnorm == "local"

    def mask(self, *beginnings: str) -> Tensor:
        """True for parameters whose name has one of these beginnings, ``[P]``."""
        slots = self.run.model.layout.parameters
        return torch.cat(
            [torch.full((slot.stop - slot.start,), slot.name.startswith(beginnings)) for slot in slots]
        )

    def images(self, client: int) -> tuple[Tensor, Tensor]:
        """Training images of a client, and their labels."""
        return self.run.data.train.batch(self.run.data.clients[client])

    def counts(self, client: int) -> list[int]:
        """Training images of a client by class."""
        labels = self.run.data.train.labels[self.run.data.clients[client]]
        return labels.bincount(minlength=10).tolist()

    # ---------------------------------------------------------------- steps that methods override
    def start(self, client: int) -> Tensor:
        """Weights before local training."""
        client_weights = self.updates[client].trained if client in self.updates else self.initial
        return torch.where(self.private, client_weights, self.weights)

    def start_buffers(self, client: int) -> Tensor:
        """BatchNorm statistics before local training."""
        return self.updates[client].buffers if self.local_buffers and client in self.updates else self.buffers

    def begin(self, update: Update) -> None:
        """Prepare the local training of a client."""

    def loss(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        """Training loss."""
        return functional.cross_entropy(network(images), labels)

    def gradient(self, network: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient ``[P]`` and loss of a step."""
        loss = self.loss(network, images, labels)
        return gradient_of(loss, network), loss

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Gradient that the optimiser gets."""
        return gradient

    def after_step(self, weights: Tensor) -> Tensor:
        """Weights after a step, given the ones after the optimiser."""
        return weights

    def optimisers(self, network: Network) -> dict[str, torch.optim.Optimizer]:
        """An optimiser for each part that trains in turn."""
        return {"all": self.optimiser(network.parameters(), self.lr)}

    def turns(self, steps: int) -> list[str]:
        """The part that trains in each step."""
        return ["all"] * steps

    def finish(self, update: Update) -> None:
        """Read the upload of a client."""

    def serve(self, updates: Sequence[Update]) -> Tensor:
        """New weights of the server."""
        mean = mean_by_size(updates, "weights")
        return torch.where(self.private, self.weights.double(), mean)

    def serve_buffers(self, updates: Sequence[Update]) -> Tensor:
        """New BatchNorm statistics of the server."""
        return self.buffers if self.local_buffers else mean_by_size(updates, "buffers")

    def tested(self, client: int) -> tuple[Tensor, Tensor]:
        """Weights and buffers that a client is tested with."""
        if self.run.spec.evaluation.point == "after_local" and client in self.updates:
            return self.updates[client].trained, self.updates[client].buffers
        return self.start(client), self.start_buffers(client)

    def logits(self, client: int, network: Network, images: Tensor) -> Tensor:
        """Logits of a client for test images, given the network to test in evaluation mode."""
        return network(images)

    # ---------------------------------------------------------------- comparison
    def optimiser(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """PyTorch's SGD with the run's settings."""
        training = self.run.spec.training
        return torch.optim.SGD(
            list(parameters), lr=lr, momentum=training.momentum, weight_decay=training.weight_decay
        )

    def round(self, number: int) -> None:
        """Run a round and compare all of it."""
        run, cohort = self.run, self.run.sample(number)
        for model in self.models:
            model.at(number)
        starts = [
            {client: (m.start(client), m.start_buffers(client)) for client in cohort} for m in self.models
        ]
        rows = run.round(number)
        for model, trainer, start in zip(self.models, run.trainers, starts, strict=True):
            for update in trainer.updates:
                model.follow(update, trainer.steps_of(update.client, number), *start[update.client])
            model.updates.update({update.client: update for update in trainer.updates})
        updates = run.trainer.updates
        expected, buffers = self.serve(updates), self.serve_buffers(updates)
        torch.testing.assert_close(run.server.weights, expected.float(), rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(run.server.buffers, buffers.float(), rtol=1e-5, atol=1e-6)
        self.weights, self.buffers = run.server.weights, run.server.buffers
        self.at(number + 1)
        for row in rows:
            if row["kind"] == "evaluation":
                self.check_tests(row)

    def at(self, number: int) -> None:
        """Set the number of the next round, and its learning rate."""
        training = self.run.spec.training
        self.number, self.lr = number, training.lr * training.lr_schedule.decay**number

    def follow(self, update: Update, steps: Sequence[Step], start: Tensor, buffers: Tensor) -> None:
        """Compare the local training of a client, step by step."""
        rtol, atol = self.tolerance
        self.client, self.received, self.received_buffers = update.client, update.start, buffers
        torch.testing.assert_close(update.start, start.float(), rtol=1e-5, atol=2e-6)
        assert len(steps) == update.steps
        network, losses = replica(self.run, update.start, buffers), []
        self.begin(update)
        optimisers = self.optimisers(network)
        for step, part in zip(steps, self.turns(len(steps)), strict=True):
            gradient, loss = self.gradient(network, *self.run.data.train.batch(step.chosen))
            corrected = self.correct(gradient.detach(), flat(network.parameters()))
            for parameter, slot in zip(network.parameters(), self.run.model.layout.parameters, strict=True):
                parameter.grad = slot.of(corrected).clone()
            if (limit := self.run.spec.training.clip_norm) is not None:
                clip_grad_norm_(network.parameters(), limit)
            optimisers[part].step()
            expected = self.after_step(flat(network.parameters()))
            torch.testing.assert_close(step.weights, expected, rtol=rtol, atol=atol)
            torch.testing.assert_close(step.buffers, running_statistics(network), rtol=1e-5, atol=1e-6)
            vector_to_parameters(step.weights.clone(), network.parameters())
            losses.append(loss.item())
        assert torch.equal(update.trained, step.weights)
        assert float(update.loss) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        if len(self.run.composition.methods) == 1:
            assert torch.equal(update.weights, torch.where(self.private, update.start, update.trained))
        self.finish(update)

    def check_tests(self, row: dict[str, Any]) -> None:
        """Check all values of a test row, image by image."""
        data = self.run.data
        parts = [torch.arange(len(data.test))] if data.tests is None else data.tests
        split, hits, losses = data.test if data.tests is None else data.train, [], []
        for client, indices in enumerate(parts):
            network = replica(self.run, *self.tested(client)).eval()
            batch, labels = split.batch(indices)
            with torch.no_grad():
                logits = self.logits(client, network, batch)
            hits.append((logits.argmax(1) == labels).double())
            losses.append(functional.cross_entropy(logits, labels, reduction="none").double())
        assert row["images"] == len(torch.cat(hits))
        assert row["accuracy"] == pytest.approx(torch.cat(hits).mean().item())
        assert row["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)
        if data.tests is None:
            assert (row["split"], row["view"]) == ("test", "global")
            return
        accuracies = torch.stack([client_hits.mean() for client_hits in hits])
        assert (row["split"], row["view"]) == (
            "local_test",
            "personal" if self.run.spec.personal else "global",
        )
        assert row["macro"] == pytest.approx(accuracies.mean().item())
        assert row["std"] == pytest.approx(accuracies.std(unbiased=False).item())


def check(
    kind: type[Reference], *methods: Method, cohorts: Sequence[list[int]] = COHORTS, **settings: object
) -> Reference:
    """Compare the rounds of a run with a reference, and return the reference."""
    run = simulation(*methods, **{**SETTINGS, "rounds": len(cohorts) + 1, **settings})
    run.sample = cohorts.__getitem__
    reference = kind(run)
    for number in range(len(cohorts)):
        reference.round(number)
    return reference
