"""The method contract: hyper-parameters and a few optional hooks. The engine owns every loop.

One round, with the hooks in the order in which the engine calls them:

    server    payload(state)                     what goes down beside weights and buffers
    client    begin(client)                      tensors kept during local training (the carry)
              per step:  route(network, carry)   context in which forward and backward run
                         correct(gradient, ...)  change the gradient before weight decay and momentum
                         after_step(weights, ..) renew the carry
              finish(update, ...)                what goes up; the client's state
    server    aggregate(server, updates)         the new global weights (owned by one method only)
              server_step(state, ...)            the method's new state on the server

Parameters, gradients, control variates ... are flat vectors ``[P]`` in the order of the network's
parameters. Whatever runs inside a local step takes tensors and returns tensors: no Python state, no
reading of values on the host (nor branching on them), no random numbers. Then steps can be run one by one,
captured, or stacked over clients, with the same result.

This module and every method module are imported when a workflow is planned, so torch enters them under
``TYPE_CHECKING`` or inside hooks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fltrain.component import Component

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fltrain.engine.flat import Layout

State = dict[str, "Tensor"]
"""Named tensors that a method keeps, sends or carries."""


@dataclass(frozen=True)
class Task:
    """What is fixed for the whole run: the shape of the problem that the methods work on."""

    layout: Layout
    classes: int
    clients: int
    momentum: float
    seed: int


@dataclass(frozen=True)
class Server:
    """The server between two rounds: global weights ``[P]``, float buffers ``[B]``, method states by name."""

    weights: Tensor
    buffers: Tensor
    counters: Tensor
    states: Mapping[str, State]


@dataclass(frozen=True)
class Local:
    """A client at the start of its local training, as one method sees it.

    Attributes:
        start: received weights r^t ``[P]``; never written to.
        lr: learning rate of this round, constant during the round.
        steps: number of local steps K.
        payload: what the server sent for this method.
        state: what this client kept for this method since its last participation.
    """

    task: Task
    client: int
    round: int
    start: Tensor
    lr: float
    steps: int
    payload: State
    state: State


@dataclass(frozen=True)
class Update:
    """What a client sends back.

    Attributes:
        start: weights r^t ``[P]`` that the client received.
        weights: its weights ``[P]`` after local training, as far as no method replaced them.
        buffers, counters: BatchNorm statistics and counters after local training.
        loss: mean training loss over the local steps, a scalar.
        extras: further uploads by method name; they count as traffic.
        statistics: measurements for the record by method name; they do not.
    """

    client: int
    samples: int
    steps: int
    start: Tensor
    weights: Tensor
    buffers: Tensor
    counters: Tensor
    loss: Tensor
    extras: Mapping[str, State] = field(default_factory=dict)
    statistics: Mapping[str, State] = field(default_factory=dict)

    @property
    def displacement(self) -> Tensor:
        """w_k - r^t ``[P]``."""
        return self.weights - self.start


class Method(Component):
    """Base class of federated methods; as it stands, federated averaging."""

    plugin: ClassVar[bool] = False
    """Whether the method is written in ``plugins`` (acts on any base) rather than in ``method``."""

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Hyper-parameters with which the method equals its base bit for bit; None if there are none."""

    # ---------------------------------------------------------------- server, before the round
    def init_server(self, task: Task, start: Tensor) -> State:
        """State on the server before the first round; ``start`` holds the initial weights ``[P]``."""
        return {}

    def payload(self, state: State) -> State:
        """Return what every sampled client receives beside weights and buffers."""
        return {}

    # ---------------------------------------------------------------- client
    def init_client(self, task: Task, start: Tensor) -> State:
        """State of a client that takes part for the first time."""
        return {}

    def begin(self, local: Local) -> State:
        """Return the carry: the tensors that the hooks of the local steps work with."""
        return {}

    def route(self, network: nn.Module, local: Local, carry: State) -> AbstractContextManager[None]:
        """Context of one step's forward and backward pass, to change how the network computes."""
        return nullcontext()

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, carry: State) -> Tensor:
        """Return the gradient ``[P]`` that the optimiser shall use."""
        return gradient

    def after_step(self, weights: Tensor, local: Local, carry: State) -> State:
        """Return the carry for the next step, given the weights after the optimiser step."""
        return carry

    def finish(self, update: Update, local: Local, carry: State) -> tuple[Update, State]:
        """Return the update to upload and the client's new state."""
        return update, local.state

    # ---------------------------------------------------------------- server, after the round
    def aggregate(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Return the new global weights ``[P]``: the mean of the clients' weights by data size."""
        from fltrain.engine.aggregation import data_weighted_mean

        return data_weighted_mean(updates, [update.weights for update in updates])

    def server_step(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> State:
        """Return the method's state after the round; ``before`` is the server when the round began."""
        return state

    def report(self, task: Task, state: State, updates: Sequence[Update]) -> dict[str, Any] | None:
        """Return what the record keeps about the round that ran under ``state``, or None."""
        return None
