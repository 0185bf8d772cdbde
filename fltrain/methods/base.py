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

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from fltrain.component import Component, suggest
from fltrain.errors import FltrainError
from fltrain.randomness import Purpose, stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fltrain.engine.flat import Layout
    from fltrain.models.network import Network
    from fltrain.spec import Training

State = dict[str, "Tensor"]
"""Named tensors that a method keeps, sends or carries."""


@dataclass(frozen=True)
class Task:
    """What is fixed for the whole run: the shape of the problem that the methods work on.

    Attributes:
        network: what is trained, for its structure only: its weights are anybody's.
        map_shape: shape of an image's maps at a cut of the network (a key of ``network.splits``).
        clients: number of clients N, sampled or not.
        samples: training images of all clients together.
        training: settings of local training.
        initialise: weights ``[P]`` and buffers ``[B]`` of a newly drawn network: those the run started from
            (without an argument), or a client's own.
    """

    layout: Layout
    network: Network
    map_shape: Callable[[int], tuple[int, ...]]
    classes: int
    clients: int
    samples: int
    training: Training
    rounds: int
    seed: int
    initialise: Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Server:
    """The server between two rounds: global weights ``[P]``, float buffers ``[B]``, method states by name."""

    weights: Tensor
    buffers: Tensor
    counters: Tensor
    states: Mapping[str, State]


class Examples(Protocol):
    """All training images of a client, for what is done outside the local steps: no augmentation.

    Attributes:
        labels: int64 ``[n]``.
    """

    @property
    def labels(self) -> Tensor: ...

    def mean_gradient(self, weights: Tensor, chosen: NDArray[np.int64] | None = None) -> Tensor:
        """Return the gradient ``[P]`` of the mean cross entropy over the images, or the ``chosen`` ones.

        It is taken at ``weights`` ``[P]`` with batch statistics, and nothing is tracked.
        """

    def features(self) -> Tensor:
        """Return what the client's model says of the images, ``[n, d]``: evaluation mode, no gradient."""


@dataclass(frozen=True)
class Local:
    """A client at the start of its local training, as one method sees it.

    Attributes:
        start: weights r^t ``[P]`` that local training starts from; never written to.
        buffers: received buffers ``[B]``; never written to.
        lr: learning rate of this round, constant during the round.
        steps: number of local steps K.
        samples: number of the client's training images.
        class_counts: how many of them each class has, float32 ``[classes]``.
        examples: these images as a whole, outside the local steps.
        payload: what the server sent for this method.
        state: what this client kept for this method since its last participation.
    """

    task: Task
    client: int
    round: int
    start: Tensor
    buffers: Tensor
    lr: float
    steps: int
    samples: int
    class_counts: Tensor
    examples: Examples
    payload: State
    state: State

    @property
    def relative_size(self) -> float:
        """The client's number of images relative to the mean over all clients, omega_k = n_k N / n."""
        return self.samples * self.task.clients / self.task.samples


@dataclass(frozen=True)
class Outputs:
    """What a network says of a batch: representation ``[n, d]`` and logits ``[n, classes]``.

    ``own`` is what the method that defines ``forward`` keeps of the pass for its other hooks.
    """

    features: Tensor
    logits: Tensor
    own: State = field(default_factory=dict)


Part = Literal["all", "head", "body"]
"""Which parameters: all, those of the classifier, or those before it."""

AnyBatch = TypeVar("AnyBatch")


@dataclass(frozen=True)
class Phase:
    """A pass of local training: the parameters that it trains, and their initial rate (None: the run's)."""

    part: Part = "all"
    lr: float | None = None


@dataclass(frozen=True)
class Schedule:
    """How local training goes over the images of a client.

    Attributes:
        phases: which parameters train, in turn; all others stay as they are, and where the classifier trains
            alone, so do the BatchNorm statistics.
        alternate: phases take turns after every ``epoch``, that is pass over the images, or every ``batch``.
        batches: mini-batches that a step takes.
        passes: over the images for each of the epochs that are set.
    """

    phases: tuple[Phase, ...] = (Phase(),)
    alternate: Literal["epoch", "batch"] = "epoch"
    batches: int = 1
    passes: int = 1

    def visits(self, batches: Sequence[AnyBatch]) -> Iterator[tuple[int, AnyBatch]]:
        """Number of the phase and batch of every step of an epoch."""
        phases = range(len(self.phases))
        if self.alternate == "epoch":
            return itertools.product(phases, batches)
        return ((phase, batch) for batch in batches for phase in phases)


class Step(Protocol):
    """One local step: a batch, and what the engine can compute on it.

    Attributes:
        images: normalised and augmented ``[n, channels, height, width]``.
        labels: int64 ``[n]``.
        part: the parameters that the step trains.
    """

    @property
    def images(self) -> Tensor: ...

    @property
    def labels(self) -> Tensor: ...

    @property
    def part(self) -> Part: ...

    def split(self, count: int) -> Sequence[Step]:
        """Return steps on so many parts of the batch in turn; each on all of it if that is too small."""

    def differentiate(
        self,
        loss: Callable[[Outputs], Tensor] | None = None,
        *,
        at: Tensor | None = None,
        part: Part | None = None,
        track: bool = True,
        route: bool = True,
        observe: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient ``[P]`` of a loss on the batch, and its value.

        The gradient is valid until the next call: copy what must live longer.

        Args:
            loss: of the network's outputs; the client's own training loss if None.
            at: weights ``[P]`` to take the gradient at; the current ones if None, which are in place again
                when the call returns.
            part: parameters to take the gradient in, those that the step trains if None; it is zero in all
                others.
            track: whether the forward pass updates BatchNorm's running statistics.
            route: whether plug-ins that change how the network computes do so in this pass.
            observe: whether this is the pass that ``observe`` is to see; of the client's own loss only, the
                last one counts.
        """

    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        """Return what the network with other weights and buffers says of the batch, without gradient.

        It runs in evaluation mode, or with ``training`` on batch statistics; its buffers never change.
        """


@dataclass(frozen=True)
class Update:
    """What a client sends back.

    Attributes:
        start: weights r^t ``[P]`` that the client started from.
        trained: its weights ``[P]`` after local training.
        weights: the weights ``[P]`` that go up: those trained, unless a method replaced them.
        buffers, counters: BatchNorm statistics and counters after local training.
        loss: mean training loss over the local steps, a scalar.
        trajectory: what the engine recorded of every step, if a method asked for it; not sent.
        extras: further uploads by method name; they count as traffic.
        statistics: measurements for the record by method name; they do not.
    """

    client: int
    samples: int
    steps: int
    start: Tensor
    trained: Tensor
    weights: Tensor
    buffers: Tensor
    counters: Tensor
    loss: Tensor
    trajectory: Tensor | None = None
    extras: Mapping[str, State] = field(default_factory=dict)
    statistics: Mapping[str, State] = field(default_factory=dict)

    @property
    def displacement(self) -> Tensor:
        """What goes up relative to what was received, ``[P]``."""
        return self.weights - self.start


@dataclass(frozen=True)
class Recording:
    """What the engine shall record of every local step, as a matrix ``[steps, P]``.

    Attributes:
        what: ``displacement``, weights before minus weights after the step, or ``gradient``, as the methods
            hand it to the optimiser.
        storage: type of the matrix.
    """

    what: Literal["displacement", "gradient"]
    storage: Literal["float32", "bfloat16"]


Place = Literal["auto", "device", "host"]
"""Where recordings lie; ``auto``: on the device if it has ample memory left, else on the host."""


@dataclass(frozen=True)
class Footprint:
    """What a method costs at its default settings.

    Attributes:
        down, up: traffic per client and round beside weights and buffers, in vectors of the model's size.
        client, server: state kept between rounds, likewise.
        step: work of local training on a batch, in an epoch, where a forward pass is 1 and a backward pass 2,
            so that FedAvg's is 3.

    None where it depends on the network; the method's page in ``docs/methods`` says how.
    """

    down: int | None = 0
    up: int | None = 0
    client: int | None = 0
    server: int | None = 0
    step: float | None = 3.0


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
        from fltrain.vectors import data_weighted_mean

        return data_weighted_mean(updates, [update.weights for update in updates]), state

    def aggregate_buffers(self, before: Server, updates: Sequence[Update]) -> Tensor:
        """Return the new BatchNorm statistics ``[B]``: the mean by data size."""
        from fltrain.vectors import data_weighted_mean

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
