"""Data that the engine hands to methods and takes from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fltrain.core.lazy import Tensor
from fltrain.methods.training import Training
from fltrain.models.part import Part

if TYPE_CHECKING:
    from fltrain.models.flat import Layout as Layout
    from fltrain.models.network import Network as Network
else:
    Layout = Network = Any  # for annotations; both need PyTorch

State = dict[str, Tensor]
"""Named tensors: a payload, an upload, or a state of the server, of a client, or of a step."""


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
class Aggregate:
    """Result of an aggregation: global weights ``[P]``, the method's new state, BatchNorm statistics ``[B]``.

    With ``buffers`` None, the engine takes the mean of the clients' statistics by data size.
    """

    weights: Tensor
    state: State
    buffers: Tensor | None = None


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
        state: the method's state of this client, from its last ``client_final``; empty before the first.
        testing: true if the client is tested, false if it trains.
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
    testing: bool = False

    @property
    def relative_size(self) -> float:
        """The client's number of images relative to the mean over all clients, omega_k = n_k N / n."""
        return self.samples * self.task.clients / self.task.samples


@dataclass(frozen=True)
class Outputs:
    """Representation ``[n, d]`` and logits ``[n, classes]`` of a batch.

    ``extras`` are tensors that a method's ``forward`` leaves to its other hooks.
    """

    features: Tensor
    logits: Tensor
    extras: State = field(default_factory=dict)


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
        """Return the gradient ``[P]`` of a loss on the batch, a copy, and the value of the loss.

        Args:
            loss: of the network's outputs; the client's own training loss if None.
            at: weights ``[P]`` to take the gradient at; the current ones if None, which are in place again
                when the call returns.
            part: parameters to take the gradient in, those that the step trains if None; it is zero in all
                others.
            track: whether the forward pass updates BatchNorm's running statistics.
            route: whether plug-ins that change how the network computes do so in this pass.
            observe: whether ``next_state`` may see this pass: it gets the outputs of the last such pass of
                the client's own loss.
        """

    def gradient(self) -> tuple[Tensor, Tensor]:
        """Return gradient and value of the client's own loss, for the engine.

        The next pass may overwrite the gradient; methods call ``differentiate``.
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
    """What the engine records of every local step for ``client_final``, as a matrix ``[steps, P]``.

    Attributes:
        what: ``displacement``, weights before minus weights after the step, or ``gradient``, as the methods
            hand it to the optimiser.
        storage: type of the matrix.
    """

    what: Literal["displacement", "gradient"]
    storage: Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Needs:
    """What a method asks of the engine beside its hooks.

    ``private``, ``schedule`` and ``recording`` are exclusive: two methods that both set one are refused.

    Attributes:
        private: parameters that never leave their client: they start from the values that the client kept,
            and are not averaged.
        schedule: the passes of local training over a client's images; one ordinary pass per epoch if None.
        recording: a record of the local steps, for ``update.trajectory`` in ``client_final``.
        all_clients: all clients must take part in every round.
        initial_upload: before the first round, all clients run ``client_final`` without a local step, and
            ``server_step`` takes in their uploads.
        uploads: the method changes the weights that clients upload, so its base method must upload some.
        global_model: the server's weights are a model that can be tested.
        frozen_models: number of different weights that a step passes to ``step.frozen``.
    """

    private: Part | None = None
    schedule: Schedule | None = None
    recording: Recording | None = None
    all_clients: bool = False
    initial_upload: bool = False
    uploads: bool = False
    global_model: bool = True
    frozen_models: int = 0


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
