"""The method contract: hyper-parameters and optional hooks. The engine owns every loop.

``Method`` has the hooks in the order of their calls; docs/method-interface.md describes their arguments.
Import everything that a method needs from here: ``__all__`` lists it.

Several methods run as a base method and plug-ins. An exclusive hook (``forward``, ``gradient``, ``predict``)
belongs to one of them. All other hooks are chained: base method first, then the plug-ins in the order of the
configuration. Only ``client_final`` runs the other way round (plug-ins in order, then the base method), so
that the base method sees the final upload. Only one method may return weights from ``aggregate``.

Weights, gradients and control variates are flat vectors ``[P]`` in the order of the network's parameters.
Hooks do not write into their arguments. The hooks of a step take tensors and return tensors: they must not
change Python state, read values on the host, branch on values, or draw from a random generator, so that a
captured step computes the same result.

Planning imports this module and all method files, so they take PyTorch from ``fltrain.core.lazy``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError
from fltrain.core.lazy import Tensor
from fltrain.core.registry import Component
from fltrain.core.rng import Purpose, stream
from fltrain.methods.types import (
    Aggregate,
    Footprint,
    Layout,
    Local,
    Network,
    Outputs,
    Phase,
    Recording,
    Schedule,
    Server,
    State,
    Step,
    Task,
    Update,
)
from fltrain.methods.workload import Workload
from fltrain.models.base import Private

__all__ = ["Aggregate", "Footprint", "Layout", "Local", "Method", "Needs", "Network", "Outputs", "Phase"]
__all__ += ["Recording", "Schedule", "Server", "State", "Step", "Task", "Update", "Workload"]


@dataclass(frozen=True)
class Needs:
    """Requirements of a method on the engine, in addition to its hooks.

    All but ``uploads`` and ``global_model`` are exclusive: only one method may set each.

    Attributes:
        private: parameters that never leave their client: they start from the client's previous values and
            are not averaged. With ``all`` and ``batchnorm``, BatchNorm statistics also stay with the client.
        schedule: which clients train when, and their passes over the images; one ordinary pass per epoch if
            None.
        second: method that trains a second model of each client, after the ordinary training and on the same
            batches. Clients keep this model and are tested with it. It begins with the global model of the
            client's first round; the payload ``global`` holds the global weights ``[P]``.
        recording: a record of the local steps, for ``update.trajectory`` in ``client_final``.
        uploads: the method changes uploaded weights, so its base method must upload some.
        global_model: the server's weights are a model that can be tested.
    """

    private: Private | None = None
    schedule: Schedule | None = None
    second: Method | None = None
    recording: Recording | None = None
    uploads: bool = False
    global_model: bool = True


class Method(Component):
    """Base class of federated methods; without overridden hooks it is federated averaging."""

    plugin: ClassVar[bool] = False
    """True for plug-ins (setting ``plugins``), False for base methods (setting ``method``)."""

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Hyper-parameters that make the method equal to its base bit for bit; None if it has none."""

    footprint: ClassVar[Footprint] = Footprint()
    """Traffic and state; a property if they depend on hyper-parameters."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Refuse public names that resemble a hook: the engine would never call them."""
        super().__pydantic_init_subclass__(**options)
        hooks = [name for name, hook in vars(Method).items() if callable(hook) and not name.startswith("_")]
        for name in vars(cls):
            public = not name.startswith("_") and name not in cls.model_fields and not hasattr(Method, name)
            if public and (near := suggest(name, [*hooks, "needs"], 0.8)):
                raise FltrainError(
                    f"{cls.__module__}.{cls.__name__}: there is no hook {name!r}{near}"
                    " Begin the names of helper functions with an underscore"
                )

    @property
    def needs(self) -> Needs:
        """Requirements on the engine in addition to the hooks."""
        return Needs()

    # ---------------------------------------------------------------- before the first round
    def adapt(self, network: Network, classes: int) -> Network:
        """Return the network to train, with a changed structure if the method needs one."""
        return network

    def server_init(self, task: Task, start: Tensor) -> State:
        """Return the method's state on the server; ``start`` holds the initial weights ``[P]``."""
        return {}

    # ---------------------------------------------------------------- server, before the round
    def payload(self, state: State) -> State:
        """Return the tensors that the server sends to every client in addition to weights and buffers."""
        return {}

    # ---------------------------------------------------------------- client
    def start_weights(self, weights: Tensor, state: State, local: Local) -> Tensor:
        """Return the weights ``[P]`` that the client has before local training.

        Tests of a client's model also start from these weights, with ``local.testing`` true.

        Args:
            weights: the global weights, with the client's values of private parameters.
            state: the method's state on the server, for methods whose server prepares weights per client.
            local: the client, with its payload and its state.
        """
        return weights

    def client_init(self, local: Local) -> State:
        """Return the step state: the tensors that the hooks of the local steps read and renew."""
        return {}

    def route(self, network: Network, local: Local, step_state: State) -> AbstractContextManager[None]:
        """Return the context of one forward and backward pass, which may reroute errors (FLFA)."""
        return nullcontext()

    def forward(self, network: Network, step: Step, local: Local, step_state: State) -> Outputs:
        """Return features and logits of the step's batch."""
        features = network.features(step.images)
        return Outputs(features, network.classifier(features))

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        """Return the training loss, a scalar.

        ``loss`` is the mean cross entropy of the logits, as changed by earlier methods. A plug-in builds on
        it; a base method can also replace it.
        """
        return loss

    def gradient(self, step: Step, weights: Tensor, local: Local, step_state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient ``[P]`` of the step and the loss that it belongs to."""
        return step.differentiate()

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        """Return the gradient ``[P]`` before the optimiser adds weight decay and momentum."""
        return gradient

    def post_step(self, weights: Tensor, local: Local, step_state: State) -> Tensor:
        """Return the weights ``[P]`` after the step, given the weights after the optimiser."""
        return weights

    def next_state(
        self, outputs: Outputs, step: Step, weights: Tensor, local: Local, step_state: State
    ) -> State:
        """Return the step state for the next step, given the ``weights`` ``[P]`` after this one.

        ``outputs`` belong to the pass that gave the gradient, ``step`` holds its batch.
        """
        return step_state

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        """Return the update to upload and the client's new state, ``local.state`` in later rounds."""
        return update, local.state

    # ---------------------------------------------------------------- server, after the round
    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Return the new global weights ``[P]``, the method's new state, and its row in the record.

        All parts are optional: by default the weights are the clients' mean by data size, and the state
        stays. ``before`` is the server at the beginning of the round, ``state`` this method's part of it.
        """
        return Aggregate()

    # ---------------------------------------------------------------- tests on clients' own images
    def test_weights(self, weights: Tensor, local: Local) -> Tensor:
        """Return the weights ``[P]`` that a client is tested with.

        ``weights`` come from ``start_weights``, or from the client's trained model if tests follow local
        training; ``local`` is the client at the beginning of the next round.
        """
        return weights

    def predict(self, network: Network, images: Tensor, local: Local) -> Tensor:
        """Return the logits ``[n, classes]`` of test images; the network has the client's weights."""
        logits: Tensor = network(images)
        return logits

    # ---------------------------------------------------------------- for plans
    def training_work(self, size: Workload) -> float:
        """Return the multiply-adds of a client in a round, in addition to the ordinary passes.

        Ordinary are a forward and a backward pass on the images of each step; ``needs`` declares their
        schedule. The result is a mean over rounds.
        """
        return 0.0

    def testing_work(self, size: Workload) -> float:
        """Return the multiply-adds of a test on a client's own images, in addition to a forward pass."""
        return 0.0

    # ---------------------------------------------------------------- for the methods themselves
    def random(self, task: Task, *, round: int = 0, client: int = 0, use: str = "") -> np.random.Generator:
        """Return the method's random stream for a round, a client and a purpose."""
        name = zlib.crc32((self.name + use).encode())
        return stream(task.seed, Purpose.METHOD, round=round, client=client, epoch=name)
