"""Data types that the engine and the methods exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.training import Training
from fltrain.models.base import Part

if TYPE_CHECKING:
    from fltrain.models.flat import Layout as Layout
    from fltrain.models.network import Network as Network
else:
    Layout = Network = Any  # for annotations; both need PyTorch

State = dict[str, Tensor]
"""Named tensors: a payload, an upload, or a state of the server, a client or a step."""


@dataclass(frozen=True)
class Task:
    """Constants of a run: the shape of the problem.

    Attributes:
        network: structure of the trained network; its weights have no meaning.
        map_shape: shape of an image's maps at a cut of the network (a key of ``network.splits``).
        clients: number of clients N, in the cohort or not.
        samples: training images of all clients together.
        training: settings of local training.
        initialise: returns weights ``[P]`` and buffers ``[B]`` of a newly drawn network: the run's initial
            network, or, given a client, a network from this client's own stream.
        class_counts: training images per client and class, float32 ``[clients, classes]``.
        constants: tensors that methods have drawn for the whole run; use ``constant``.
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
    class_counts: Tensor
    constants: dict[Hashable, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def constant(self, key: Hashable, draw: Callable[[], Tensor]) -> Tensor:
        """Return a tensor that all clients and rounds share; draw it at its first use.

        ``draw`` must depend on the key and the run only, so that a resumed run draws the same numbers.
        """
        if key not in self.constants:
            self.constants[key] = draw()
        return self.constants[key]


@dataclass(frozen=True)
class Aggregate:
    """Result of a method's aggregation.

    Attributes:
        weights: new global weights ``[P]``; None for the clients' mean by data size, or for the weights that
            another method returns.
        state: the method's new state on the server; None keeps it.
        buffers: new BatchNorm statistics ``[B]``; None for the clients' mean by data size.
        row: the method's row in the record of the round: numbers, texts, lists and dictionaries of them.
    """

    weights: Tensor | None = None
    state: State | None = None
    buffers: Tensor | None = None
    row: dict[str, Any] | None = None


@dataclass(frozen=True)
class Server:
    """The server between two rounds: weights ``[P]``, buffers and counters, and method states by name."""

    weights: Tensor
    buffers: Tensor
    counters: Tensor
    states: Mapping[str, State]


class Examples(Protocol):
    """All training images of a client without augmentation, for use outside the local steps.

    Attributes:
        labels: int64 ``[n]``.
    """

    @property
    def labels(self) -> Tensor: ...

    def mean_gradient(self, weights: Tensor, chosen: NDArray[np.int64] | None = None) -> Tensor:
        """Return the gradient ``[P]`` of the mean cross entropy over the images, or the ``chosen`` ones.

        The gradient is taken at ``weights`` ``[P]`` with batch statistics; running statistics do not change.
        """

    def features(self) -> Tensor:
        """Return the representation ``[n, d]`` from the client's model: evaluation mode, no gradient."""


@dataclass(frozen=True)
class Local:
    """View of a client for one method, at the start of local training.

    Attributes:
        start: weights r^t ``[P]`` at the start of local training; read-only.
        buffers: received buffers ``[B]``; read-only.
        lr: learning rate of this round, constant during the round.
        steps: number of local steps K.
        samples: number of the client's training images.
        class_counts: number of training images per class, float32 ``[classes]``.
        examples: these images as a whole, outside the local steps.
        payload: tensors from the server for this method.
        state: the method's state of this client, from its last ``client_final``; empty before the first.
        testing: True if the client is tested, False if it trains.
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
        """Return the number of images relative to the mean over all clients, omega_k = n_k N / n."""
        return self.samples * self.task.clients / self.task.samples


@dataclass(frozen=True)
class Outputs:
    """Representation ``[n, d]`` and logits ``[n, classes]`` of a batch.

    ``extras`` are tensors for other hooks, set by a method's ``forward``.
    """

    features: Tensor
    logits: Tensor
    extras: State = field(default_factory=dict)


Loss = Callable[[Outputs], Tensor]
"""A loss as a function of the network's outputs."""


@dataclass(frozen=True)
class Phase:
    """A phase of local training: the trained parameters and their initial rate (None: the run's)."""

    part: Part = "all"
    lr: float | None = None


@dataclass(frozen=True)
class Schedule:
    """Participation in training, and the order of phases and batches in local training.

    Attributes:
        phases: parameters that train, in turn; all others are fixed. BatchNorm statistics are also fixed
            while only the classifier trains.
        alternate: phases change after every ``epoch`` (pass over the images), or after every ``batch``.
        batches: mini-batches per step.
        passes: passes over the images per configured epoch.
        all_clients: all clients must take part in every round.
        initial_upload: before the first round, all clients run ``client_final`` without a local step, and
            the method's ``aggregate`` returns a state from their uploads.
    """

    phases: tuple[Phase, ...] = (Phase(),)
    alternate: Literal["epoch", "batch"] = "epoch"
    batches: int = 1
    passes: int = 1
    all_clients: bool = False
    initial_upload: bool = False


@dataclass(frozen=True)
class Step(ABC):
    """One local step: a batch, and the engine's computations on it.

    Attributes:
        images: normalised and augmented ``[n, channels, height, width]``.
        labels: int64 ``[n]``.
        part: parameters that the step trains.
    """

    images: Tensor
    labels: Tensor
    part: Part

    @abstractmethod
    def differentiate(
        self,
        loss: Loss | None = None,
        *,
        at: Tensor | None = None,
        part: Part | None = None,
        track: bool = True,
        route: bool = True,
        observe: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return a copy of the gradient ``[P]`` of a loss on the batch, and the value of the loss.

        Args:
            loss: function of the network's outputs; the client's own training loss if None.
            at: weights ``[P]`` at which to take the gradient; the current ones if None. The call restores
                the current weights.
            part: parameters in which to take the gradient, the trained ones if None; the gradient is zero in
                all others.
            track: update BatchNorm's running statistics in the forward pass.
            route: apply plug-ins that change the computation of the network in this pass.
            observe: let ``next_state`` see this pass; it gets the outputs of the last such pass of the
                client's own loss.
        """

    @abstractmethod
    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        """Return the outputs of the network with other weights and buffers on the batch, without gradient.

        It runs in evaluation mode, or with ``training`` on batch statistics; it never changes buffers.
        """


@dataclass(frozen=True)
class Update:
    """Result of a client's local training.

    Attributes:
        start: weights r^t ``[P]`` at the start of local training.
        trained: weights ``[P]`` after local training.
        weights: uploaded weights ``[P]``: the trained ones, unless a method replaced them.
        buffers, counters: BatchNorm statistics and counters after local training.
        loss: mean training loss over the local steps, a scalar.
        trajectory: the recording of every step, if a method needs it; not uploaded.
        extras: further uploads by method name; they count as traffic.
        statistics: measurements for the record by method name; they do not count as traffic.
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
        """Return the uploaded minus the received weights, ``[P]``."""
        return self.weights - self.start

    def sending(self, name: str, extras: State) -> Update:
        """Return the update with further uploads of the method ``name``."""
        return replace(self, extras={**self.extras, name: extras})


@dataclass(frozen=True)
class Recording:
    """A recording of every local step for ``client_final``, as a matrix ``[steps, P]``.

    Attributes:
        what: ``displacement``, weights before minus weights after the step, or ``gradient``, the input of the
            optimiser.
        storage: type of the matrix.
        buffers: record the displacement of the BatchNorm statistics, too, in further columns.
    """

    what: Literal["displacement", "gradient"]
    storage: Literal["float32", "bfloat16"]
    buffers: bool = False

    def recorded(self, weights: Tensor, buffers: Tensor) -> Tensor:
        """Return the vector whose displacement is recorded: weights ``[P]``, and the statistics if needed."""
        return torch.cat([weights, buffers]) if self.buffers else weights


@dataclass(frozen=True)
class Footprint:
    """Cost of a method at its default settings.

    Attributes:
        down, up: traffic per client and round in addition to weights and buffers, in vectors of the model's
            size.
        client, server: state kept between rounds, in the same unit.
        upload: transmitted part of the uploaded weights; less than 1 if the method compresses them.

    None if the value depends on the network; see the method's page in ``docs/methods``.
    """

    down: int | None = 0
    up: int | None = 0
    client: int | None = 0
    server: int | None = 0
    upload: float = 1
