"""The method contract: hyper-parameters and a few optional hooks. The engine owns every loop.

One round, with the hooks in the order in which the engine calls them::

    server    broadcast(server, state, client)   the weights that a client starts from
              payload(state)                     what goes down beside weights and buffers
    client    receive(weights, client)           the weights it starts from, given those received
              begin(client)                      tensors kept during local training (the carry)
              schedule                           which parameters train in which pass (owned by one method)
              per step:  route(network, carry)   context in which forward and backward run
                         forward(network, ...)   what the network says of the batch (owned by one method)
                         logits(logits, ...)     change the logits that the loss sees
                         criterion(logits, ...)  the loss of the logits (owned by one method)
                         loss(loss, ...)         add to the loss
                         gradient(step, ...)     where and of what to take the gradient (owned by one)
                         observe(outputs, ...)   renew the carry by what the network said
                         correct(gradient, ...)  change the gradient before weight decay and momentum
                         settle(weights, ..)     move the weights after the optimiser's step
                         after_step(weights, ..) renew the carry
              finish(update, ...)                what goes up; the client's state
    server    aggregate(server, updates, ...)    new global weights and own state (owned by one)
              aggregate_buffers(server, updates) new BatchNorm statistics (owned by one)
              server_step(state, ...)            the method's new state on the server
    tests     personalise(weights, client)       the weights that a client is tested with
              predict(network, images, client)   its decisions (owned by one method)

Weights named by ``private`` never leave their client: they start from what it kept, and are not averaged.
A method that needs to hear from all clients before the first round defines ``introduce``.

Hooks of several methods run in the order base, plug-ins as written. ``finish`` alone runs the other way round
(plug-ins, then the base), so that a base method sees both what it trained and what will go up.

Parameters, gradients, control variates ... are flat vectors ``[P]`` in the order of the network's
parameters. Whatever runs inside a local step takes tensors and returns tensors: no Python state, no
reading of values on the host (nor branching on them), no random numbers. Then steps can be run one by one,
captured, or stacked over clients, with the same result.

This module and every method module are imported when a workflow is planned, so torch enters them under
``TYPE_CHECKING`` or inside hooks only.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError
from fltrain.core.registry import Component
from fltrain.core.rng import Purpose, stream
from fltrain.methods.types import (
    Footprint,
    Local,
    Outputs,
    Recording,
    Schedule,
    Server,
    State,
    Step,
    Task,
    Update,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fltrain.models.network import Network
    from fltrain.models.part import Part


class Method(Component):
    """Base class of federated methods; as it stands, federated averaging."""

    plugin: ClassVar[bool] = False
    """Whether the method is written in ``plugins`` (acts on any base) rather than in ``method``."""

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Hyper-parameters with which the method equals its base bit for bit; None if there are none."""

    needs_uploads: ClassVar[bool] = False
    """Whether the method works on weights that clients send, so that it needs a base that sends some."""

    global_model: ClassVar[bool] = True
    """Whether the weights that the server has are a model, where none are private."""

    frozen_models: ClassVar[int] = 0
    """How many different weights the method passes to ``step.frozen`` in one step."""

    footprint: ClassVar[Footprint] = Footprint()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Refuse what is called almost like a hook: it would never be called, and the method be its base."""
        hooks = [name for name, hook in vars(Method).items() if callable(hook) and not name.startswith("_")]
        for name in vars(cls):
            own = not name.startswith("_") and name not in cls.model_fields and not hasattr(Method, name)
            if own and (near := suggest(name, hooks, 0.8)):
                told = f"{cls.__module__}.{cls.__name__}: there is no hook {name!r}{near}"
                raise FltrainError(f"{told} Begin names of your own with an underscore")

    # ---------------------------------------------------------------- before the first round
    def adapt(self, network: Network, classes: int) -> Network:
        """Return the network that is trained, which may differ from the configured one in its structure."""
        return network

    def init_server(self, task: Task, start: Tensor) -> State:
        """State on the server before the first round; ``start`` holds the initial weights ``[P]``."""
        return {}

    @property
    def recording(self) -> Recording | None:
        """What ``finish`` wants to find in ``update.trajectory``."""
        return None

    @property
    def private(self) -> Part | None:
        """The parameters that clients keep for themselves, None if there are none."""
        return None

    @property
    def everyone(self) -> bool:
        """Whether all clients have to take part in every round."""
        return False

    @property
    def schedule(self) -> Schedule:
        """How local training goes over the images of a client."""
        return Schedule()

    def introduce(self, local: Local) -> State:
        """Return what every client uploads once, before the first round, under the run's initial model.

        The server takes it in as the extras of updates, in a ``server_step`` of this method.
        """
        return {}

    # ---------------------------------------------------------------- server, before the round
    def broadcast(self, weights: Tensor, state: State, client: int) -> Tensor:
        """Return the weights r^t ``[P]`` that a client starts from, given the global ones."""
        return weights

    def payload(self, state: State) -> State:
        """Return what every client that trains or is tested receives beside weights and buffers."""
        return {}

    # ---------------------------------------------------------------- client
    def init_client(self, task: Task, start: Tensor) -> State:
        """State of a client that takes part for the first time."""
        return {}

    def receive(self, weights: Tensor, local: Local) -> Tensor:
        """Return the weights ``[P]`` that the client starts from, given those that came down."""
        return weights

    def begin(self, local: Local) -> State:
        """Return the carry: the tensors that the hooks of the local steps work with."""
        return {}

    def route(self, network: Network, local: Local, carry: State) -> AbstractContextManager[None]:
        """Context of one forward and backward pass, to change how the network computes."""
        return nullcontext()

    def forward(self, network: Network, step: Step, local: Local, carry: State) -> Outputs:
        """Return what the network in training says of the step's batch."""
        features = network.features(step.images)
        return Outputs(features, network.classifier(features))

    def logits(self, logits: Tensor, local: Local, carry: State) -> Tensor:
        """Return the logits ``[n, classes]`` that the training loss sees; testing never does."""
        return logits

    def criterion(self, logits: Tensor, labels: Tensor, local: Local, carry: State) -> Tensor:
        """Return the loss of the logits, a scalar: the mean cross entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels)

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, carry: State) -> Tensor:
        """Return the training loss, a scalar, given that of the criterion and the methods before."""
        return loss

    def gradient(self, step: Step, weights: Tensor, local: Local, carry: State) -> tuple[Tensor, Tensor]:
        """Return the gradient ``[P]`` of the step, and the loss that it belongs to."""
        return step.differentiate()

    def observe(self, outputs: Outputs, step: Step, local: Local, carry: State) -> State:
        """Return the carry, given what the network said in the pass that the step's gradient is from."""
        return carry

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, carry: State) -> Tensor:
        """Return the gradient ``[P]`` that the optimiser shall use."""
        return gradient

    def settle(self, weights: Tensor, local: Local, carry: State) -> Tensor:
        """Return the weights ``[P]`` that the step ends at, given those after the optimiser."""
        return weights

    def after_step(self, weights: Tensor, local: Local, carry: State) -> State:
        """Return the carry for the next step, given the weights after the step."""
        return carry

    def finish(self, update: Update, local: Local, carry: State) -> tuple[Update, State]:
        """Return the update to upload and the client's new state."""
        return update, local.state

    # ---------------------------------------------------------------- server, after the round
    def aggregate(
        self, task: Task, state: State, before: Server, updates: Sequence[Update]
    ) -> tuple[Tensor, State]:
        """Return the new global weights ``[P]`` and the method's state: the mean by data size, the old state.

        ``before`` is the server when the round began, ``state`` this method's part of it.
        """
        from fltrain.methods.ops.vectors import data_weighted_mean

        return data_weighted_mean(updates, [update.weights for update in updates]), state

    def aggregate_buffers(self, before: Server, updates: Sequence[Update]) -> Tensor:
        """Return the new BatchNorm statistics ``[B]``: the mean by data size."""
        from fltrain.methods.ops.vectors import data_weighted_mean

        return data_weighted_mean(updates, [update.buffers for update in updates])

    def server_step(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> State:
        """Return the method's state after the round, for methods that leave ``aggregate`` to others."""
        return state

    def report(self, task: Task, state: State, updates: Sequence[Update]) -> dict[str, Any] | None:
        """Return what the record keeps about the round that ran under ``state``, or None."""
        return None

    # ---------------------------------------------------------------- tests on clients' own images
    def personalise(self, weights: Tensor, local: Local) -> Tensor:
        """Return the weights ``[P]`` that a client is tested with, given those of its model.

        ``local`` is the client as it would begin the next round.
        """
        return weights

    def predict(self, network: Network, images: Tensor, local: Local) -> Tensor:
        """Return the logits ``[n, classes]`` by which a client decides; the network is its own."""
        logits: Tensor = network(images)
        return logits

    # ---------------------------------------------------------------- for the methods themselves
    def random(self, task: Task, *, round: int = 0, client: int = 0, use: str = "") -> np.random.Generator:
        """Return this method's own stream of random numbers at the given coordinates, one for each use."""
        name = zlib.crc32((self.name + use).encode())
        return stream(task.seed, Purpose.METHOD, round=round, client=client, epoch=name)
