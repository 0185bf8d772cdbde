"""FedGH: clients have their own extractors and share one classifier, which the server trains."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.engine.simulation import Simulation
from fltrain.methods.fedgh import FedGh
from fltrain.methods.types import Update

from .ordinary import check_tests, cross_entropy, flat
from .test_local import (
    ROUNDS,
    Models,
    check_own_round,
    initial_models,
    taking_part,
)

Pairs = tuple[Tensor, Tensor]
"""Class means and their classes."""


def head_of(federation: Simulation, method: FedGh) -> Tensor:
    """The server's classifier."""
    return federation.server.states[method.name]["head"]


def pairs_of(federation: Simulation, method: FedGh) -> Pairs:
    """All uploads of the last round."""
    sent = [update.extras[method.name] for update in federation.trainer.updates]
    return torch.cat([one["means"] for one in sent]), torch.cat([one["classes"] for one in sent])


def descended(head: Tensor, batches: list[Pairs], lr: float) -> Tensor:
    """The classifier after a step of plain SGD on each batch of pairs."""
    classifier = nn.Linear(batches[0][0].shape[1], 10)
    nn.utils.vector_to_parameters(head.clone(), classifier.parameters())
    optimiser = torch.optim.SGD(classifier.parameters(), lr=lr)
    for means, classes in batches:
        optimiser.zero_grad()
        functional.cross_entropy(classifier(means), classes).backward()
        optimiser.step()
    return flat(classifier.parameters())


def test_clients_train_their_extractor_with_the_servers_classifier() -> None:
    """Cross entropy of the client's last extractor and the server's newest classifier, both trained."""
    method = FedGh(server_lr=0.3)
    federation = taking_part(method, batch_size=6)
    models = initial_models(federation)
    for number in range(len(ROUNDS)):
        head = head_of(federation, method)
        models: Models = {
            c: (torch.cat([weights[: -len(head)], head]), own) for c, (weights, own) in models.items()
        }
        check_own_round(federation, number, models, cross_entropy)


def test_the_server_trains_its_classifier_on_the_pairs_of_the_round() -> None:
    """A batch holds all pairs: one step of an ordinary loop per epoch, from the previous classifier."""
    method = FedGh(server_lr=0.2, server_epochs=3)
    federation = taking_part(method, batch_size=64)
    for number in range(len(ROUNDS)):
        before = head_of(federation, method)
        federation.round(number)
        batches = [pairs_of(federation, method)] * method.server_epochs
        assert 1 < len(batches[0][1]) <= 64
        expected = descended(before, batches, method.server_lr)
        torch.testing.assert_close(head_of(federation, method), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("point", ["after_download", "after_local"])
def test_all_clients_are_tested_at_the_configured_point(point: str) -> None:
    """All clients, with the server's newest classifier or with the one that they last trained."""
    method = FedGh(server_lr=0.5)
    federation = taking_part(method, point=point, lr=0.2)
    initial = federation.server

    def model_of(client: int, update: Update | None) -> tuple[Tensor, Tensor]:
        weights, buffers = (update.trained, update.buffers) if update else (initial.weights, initial.buffers)
        if point == "after_download" or update is None:
            head = head_of(federation, method)
            weights = torch.cat([weights[: -len(head)], head])
        return weights, buffers

    assert check_tests(federation, len(ROUNDS), model_of).keys() == {0, 1, 3, 5}
