"""Local-only training: every client trains alone in every round, for any cohort."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method
from fltrain.methods.local import LocalOnly
from fltrain.models.network import Network

from .helpers import Tracing, simulation
from .ordinary import check_steps, cross_entropy, replica

Models = dict[int, tuple[Tensor, Tensor]]
"""Weights and running statistics by client."""

ROUNDS = ([0, 3, 5], [1, 3], [0, 3, 5])
"""Cohorts by round: clients return after a pause or stay, 1 starts late, and 2 and 4 never take part."""


def taking_part(*methods: Method, rounds: tuple[list[int], ...] = ROUNDS, **settings: object) -> Simulation:
    """A traced federation with these cohorts; clients keep all personal parts."""
    settings = {"batchnorm": "local", "trainer": Tracing, "rounds": len(rounds), **settings}
    federation = simulation(*methods, **settings)
    federation.sample = rounds.__getitem__
    return federation


def initial_models(federation: Simulation) -> Models:
    """Models of the clients before the first round."""
    server = federation.server
    return {client: (server.weights.clone(), server.buffers.clone()) for client in range(6)}


def check_own_round(
    federation: Simulation,
    number: int,
    models: Models,
    loss: Callable[[int, Network, Tensor, Tensor], Tensor],
) -> None:
    """Run a round and compare each client with an ordinary loop from its model; update ``models``."""
    federation.round(number)
    for update in federation.trainer.updates:
        assert torch.equal(update.start, models[update.client][0])
        network = replica(federation, *models[update.client])
        check_steps(federation, number, update, network, partial(loss, update.client))
        models[update.client] = update.trained, update.buffers


def test_every_client_trains_alone_as_in_an_ordinary_loop() -> None:
    federation = taking_part(LocalOnly(), epochs=2, batch_size=6)
    models = initial_models(federation)
    for number in range(len(ROUNDS)):
        check_own_round(federation, number, models, cross_entropy)
