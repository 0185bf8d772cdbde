"""Several methods acting as one: a base method and the plug-ins on it, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fltrain.methods.base import Method
from fltrain.methods.types import Local, Outputs, Recording, Schedule, Server, State, Step, Task, Update
from fltrain.models.part import Part

if TYPE_CHECKING:
    from torch import Tensor

    from fltrain.models.network import Network

EXCLUSIVE_HOOKS = (
    *("aggregate", "aggregate_buffers", "criterion", "forward", "gradient", "predict", "private"),
    *("recording", "schedule"),
)
"""Hooks that one method only may define; all others are chained in order."""


def _overrides(method: Method, hook: str) -> bool:
    return getattr(type(method), hook) is not getattr(Method, hook)


@dataclass(frozen=True)
class Composition:
    """The hooks of a base method and its plug-ins, each seeing its own part of states and payloads.

    Hooks that a method does not define cost nothing in the local step.
    """

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        """Refuse combinations that contradict each other.

        Raises:
            ValueError: if a method is named twice or two methods claim the same exclusive hook.
        """
        names = [method.name for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is named twice")
        for hook in EXCLUSIVE_HOOKS:
            owners = self._with(hook)
            if len(owners) > 1:
                first, second = owners[0].name, owners[1].name
                raise ValueError(f"{first!r} and {second!r} cannot be combined: both define '{hook}'")
        for method in self.methods if self.private == "all" else ():
            if method.needs_uploads:
                raise ValueError(
                    f"{method.name!r} needs the weights that clients send; "
                    f"with {self._owner('private').name!r} they send none"
                )

    @property
    def name(self) -> str:
        """For example ``fedprox+flfa``."""
        return "+".join(method.name for method in self.methods)

    def _with(self, hook: str) -> tuple[Method, ...]:
        return tuple(method for method in self.methods if _overrides(method, hook))

    def _owner(self, hook: str) -> Method:
        """The method that defines an exclusive hook, else the base method, which inherits the default."""
        return next(iter(self._with(hook)), self.methods[0])

    # ---------------------------------------------------------------- before the first round
    def adapt(self, network: Network, classes: int) -> Network:
        """The network that is trained."""
        for method in self._with("adapt"):
            network = method.adapt(network, classes)
        return network

    @property
    def frozen_models(self) -> int:
        """Number of frozen models that local steps ask for."""
        return sum(method.frozen_models for method in self.methods)

    @property
    def recording(self) -> Recording | None:
        """What the engine shall record of every local step."""
        return self._owner("recording").recording

    @property
    def private(self) -> Part | None:
        """The parameters that clients keep for themselves."""
        return self._owner("private").private

    @property
    def global_model(self) -> bool:
        """Whether the server has a model that can be tested."""
        return self.private is None and all(method.global_model for method in self.methods)

    @property
    def schedule(self) -> Schedule:
        """How local training goes over the images of a client."""
        return self._owner("schedule").schedule

    @property
    def personal(self) -> bool:
        """Whether clients have models or decisions of their own, to be tested on images of their own."""
        own = bool(self._with("personalise") or self._with("predict"))
        return own or self.private is not None

    # ---------------------------------------------------------------- server
    def init_server(self, task: Task, start: Tensor) -> dict[str, State]:
        """State of every method, by name."""
        return {method.name: method.init_server(task, start) for method in self.methods}

    def payload(self, states: Mapping[str, State]) -> dict[str, State]:
        """What every sampled client receives beside weights and buffers, by method name."""
        return {method.name: method.payload(states[method.name]) for method in self.methods}

    def broadcast(self, server: Server, client: int) -> Tensor:
        """Weights that a client starts from."""
        weights = server.weights
        for method in self._with("broadcast"):
            weights = method.broadcast(weights, server.states[method.name], client)
        return weights

    def aggregate(
        self, task: Task, before: Server, updates: Sequence[Update]
    ) -> tuple[Tensor, Tensor, dict[str, State]]:
        """New global weights, BatchNorm statistics, and the state of every method."""
        owner = self._owner("aggregate")
        weights, state = owner.aggregate(task, before.states[owner.name], before, updates)
        buffers = self._owner("aggregate_buffers").aggregate_buffers(before, updates)
        states = {**before.states, owner.name: state}
        for method in self._with("server_step"):
            states[method.name] = method.server_step(task, states[method.name], before, updates)
        return weights, buffers, states

    @property
    def introduces(self) -> bool:
        """Whether clients are heard before the first round."""
        return bool(self._with("introduce"))

    def introduced(self, task: Task, server: Server, updates: Sequence[Update]) -> dict[str, State]:
        """State of every method after all clients have introduced themselves."""
        states = dict(server.states)
        for method in self._with("introduce"):
            states[method.name] = method.server_step(task, states[method.name], server, updates)
        return states

    def report(
        self, task: Task, before: Server, updates: Sequence[Update]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what each method has to say about the round, with its name."""
        for method in self._with("report"):
            row = method.report(task, before.states[method.name], updates)
            if row is not None:
                yield method.name, row

    # ---------------------------------------------------------------- client
    def init_client(self, task: Task, start: Tensor) -> dict[str, State]:
        """State of a client that takes part for the first time, by method name."""
        return {method.name: method.init_client(task, start) for method in self.methods}

    def begin(self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]) -> LocalHooks:
        """Return the hooks of one client's local training, which starts from ``local.start``."""
        locals_ = self.views(local, payloads, states)
        carries = {method.name: method.begin(locals_[method.name]) for method in self.methods}
        return LocalHooks(self, locals_, carries)

    def introduce(self, views: Mapping[str, Local]) -> dict[str, State]:
        """What a client uploads before the first round, by method name."""
        return {method.name: method.introduce(views[method.name]) for method in self._with("introduce")}

    def personalise(self, views: Mapping[str, Local], weights: Tensor) -> Tensor:
        """Weights that a client is tested with, given those of its model; ``views``: as methods see it."""
        for method in self._with("personalise"):
            weights = method.personalise(weights, views[method.name])
        return weights

    def predict(self, network: Network, images: Tensor, views: Mapping[str, Local]) -> Tensor:
        """Logits by which a client decides."""
        owner = self._owner("predict")
        return owner.predict(network, images, views[owner.name])

    def receive(self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]) -> Local:
        """Return the client with the weights that it starts from, given those that came down."""
        for method in self._with("receive"):
            view = self.views(local, payloads, states)[method.name]
            local = replace(local, start=method.receive(local.start, view))
        return local

    def views(
        self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]
    ) -> dict[str, Local]:
        """The client as each method sees it."""
        return {
            method.name: replace(local, payload=payloads[method.name], state=states[method.name])
            for method in self.methods
        }


@dataclass
class LocalHooks:
    """The hooks of one client's local training, bound to its payload, state and carry."""

    composition: Composition
    locals_: Mapping[str, Local]
    carries: dict[str, State]

    def __post_init__(self) -> None:
        chained = ("route", "logits", "loss", "observe", "correct", "settle", "after_step")
        self._chain = {hook: self.composition._with(hook) for hook in chained}
        self._criterion = self.composition._owner("criterion")
        self._gradient = self.composition._owner("gradient")
        self._forward = self.composition._owner("forward")

    def _of(self, method: Method) -> tuple[Local, State]:
        return self.locals_[method.name], self.carries[method.name]

    def route(self, network: Network) -> AbstractContextManager[None]:
        """Context of a forward and backward pass."""
        return self._entered(network) if self._chain["route"] else nullcontext()

    @contextmanager
    def _entered(self, network: Network) -> Iterator[None]:
        with ExitStack() as stack:
            for method in self._chain["route"]:
                stack.enter_context(method.route(network, *self._of(method)))
            yield

    def forward(self, network: Network, step: Step) -> Outputs:
        """Return what the network in training says of a batch."""
        return self._forward.forward(network, step, *self._of(self._forward))

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Return the client's training loss on a batch."""
        logits = outputs.logits
        for method in self._chain["logits"]:
            logits = method.logits(logits, *self._of(method))
        loss = self._criterion.criterion(logits, step.labels, *self._of(self._criterion))
        for method in self._chain["loss"]:
            loss = method.loss(loss, outputs, step, *self._of(method))
        return loss

    def gradient(self, step: Step, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the step and its loss."""
        return self._gradient.gradient(step, weights, *self._of(self._gradient))

    def observe(self, outputs: Outputs, step: Step) -> None:
        """Renew the carries by what the network said."""
        for method in self._chain["observe"]:
            self.carries[method.name] = method.observe(outputs, step, *self._of(method))

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient that the optimiser shall use."""
        for method in self._chain["correct"]:
            gradient = method.correct(gradient, weights, *self._of(method))
        return gradient

    def settle(self, weights: Tensor) -> None:
        """Move the weights, in place, after an optimiser step."""
        for method in self._chain["settle"]:
            settled = method.settle(weights, *self._of(method))
            if settled is not weights:
                weights.copy_(settled)

    def after_step(self, weights: Tensor) -> None:
        """Renew the carries after a step."""
        for method in self._chain["after_step"]:
            self.carries[method.name] = method.after_step(weights, *self._of(method))

    def finish(self, update: Update) -> tuple[Update, dict[str, State]]:
        """Return the update to upload and the client's new state, by method name."""
        base, *plugins = self.composition.methods
        states: dict[str, State] = {}
        for method in (*plugins, base):
            update, states[method.name] = method.finish(update, *self._of(method))
        return replace(update, trajectory=None), states
