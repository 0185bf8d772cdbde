"""Several methods acting as one: a base method and the plug-ins on it, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fltrain.core.errors import FltrainError
from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Method, Needs
from fltrain.methods.ops.vectors import data_weighted_mean
from fltrain.methods.types import (
    Aggregate,
    Local,
    Network,
    Outputs,
    Schedule,
    Server,
    State,
    Step,
    Task,
    Update,
)

EXCLUSIVE_HOOKS = ("aggregate", "criterion", "forward", "gradient", "predict")
"""Hooks that only one method of a combination may define; all others are chained in order."""

EXCLUSIVE_NEEDS = ("private", "recording", "schedule", "second")
"""Needs that only one method of a combination may set."""


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among a hook's arguments, also those in states, clients, updates and servers."""
    for item in arguments:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)
        elif isinstance(item, dict):
            yield from _tensors(item.values())
        elif isinstance(item, Local | Server | Update):
            yield from _tensors(vars(item).values())


def _guarded(method: Method, hook: str, *arguments: Any, tensors: Sequence[Tensor] | None = None) -> Any:
    """Return the result of a hook, which must not write into its arguments.

    ``tensors`` are those of the arguments, if the caller has them.

    Raises:
        FltrainError: if it does.
    """
    tensors = list(_tensors(arguments)) if tensors is None else tensors
    versions = sum([tensor._version for tensor in tensors])  # every write increases it
    result = getattr(method, hook)(*arguments)
    if sum([tensor._version for tensor in tensors]) != versions:
        raise FltrainError(
            f"{hook!r} of method {method.name!r} writes into a tensor that it was handed, which others read, "
            "too; return a new tensor, or clone it first"
        )
    return result


@dataclass(frozen=True)
class Composition:
    """The hooks of a base method and its plug-ins, each with its own states and payload.

    Hooks that no method defines cost nothing in the local step.
    """

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        """Refuse combinations that contradict each other.

        Raises:
            ValueError: if a method is named twice, or two methods define the same exclusive hook or need.
        """
        names = [method.name for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is named twice")
        for claim in sorted((*EXCLUSIVE_HOOKS, *EXCLUSIVE_NEEDS)):
            owners = [method.name for method in self._with(claim)]
            if len(owners) > 1:
                first, second, *_ = owners
                raise ValueError(f"{first!r} and {second!r} cannot be combined: both define '{claim}'")
        for method in self.methods if self.needs.private == "all" else ():
            if method.needs.uploads:
                raise ValueError(
                    f"{method.name!r} needs the weights that clients send; "
                    f"with {self._with('private')[0].name!r} they send none"
                )

    @property
    def name(self) -> str:
        """Names of the methods, for example ``fedprox+flfa``."""
        return "+".join(method.name for method in self.methods)

    def _with(self, claim: str) -> list[Method]:
        """Return the methods that define a hook or set an exclusive need."""
        if claim in EXCLUSIVE_NEEDS:
            return [method for method in self.methods if getattr(method.needs, claim) is not None]
        default = getattr(Method, claim)
        return [method for method in self.methods if getattr(type(method), claim) is not default]

    def _owner(self, hook: str) -> Method:
        """Return the method that defines an exclusive hook; else the base method with its default."""
        return next(iter(self._with(hook)), self.methods[0])

    # ---------------------------------------------------------------- needs
    @cached_property
    def needs(self) -> Needs:
        """Requirements of all methods together."""
        needs = [method.needs for method in self.methods]
        exclusive = {
            name: getattr(owners[0].needs, name) if (owners := self._with(name)) else None
            for name in EXCLUSIVE_NEEDS
        }
        return Needs(
            **exclusive,
            all_clients=any(one.all_clients for one in needs),
            initial_upload=any(one.initial_upload for one in needs),
            uploads=any(one.uploads for one in needs),
            global_model=exclusive["private"] is None and all(one.global_model for one in needs),
            frozen_models=sum(one.frozen_models for one in needs),
        )

    @property
    def schedule(self) -> Schedule:
        """Passes of local training over a client's images."""
        return self.needs.schedule or Schedule()

    @property
    def personal(self) -> bool:
        """True if clients have custom models or predictions, to be tested on their own images."""
        own = self.needs.private is not None or self.needs.second is not None
        return own or bool(self._with("test_weights") or self._with("predict"))

    # ---------------------------------------------------------------- server
    def adapt(self, network: Network, classes: int) -> Network:
        """Return the network to train."""
        for method in self._with("adapt"):
            network = method.adapt(network, classes)
        return network

    def server_init(self, task: Task, start: Tensor) -> dict[str, State]:
        """Return the server state of every method, by name."""
        return {method.name: method.server_init(task, start) for method in self.methods}

    def payload(self, states: Mapping[str, State]) -> dict[str, State]:
        """Return the payload of every method, by name."""
        return {method.name: method.payload(states[method.name]) for method in self.methods}

    def aggregate(
        self, task: Task, before: Server, updates: Sequence[Update]
    ) -> tuple[Tensor, Tensor, dict[str, State]]:
        """Return new global weights ``[P]``, BatchNorm statistics ``[B]``, and the state of every method."""
        states, owner = dict(before.states), self._owner("aggregate")
        result: Aggregate = _guarded(owner, "aggregate", task, states[owner.name], before, updates)
        states[owner.name], buffers = result.state, result.buffers
        if buffers is None:
            buffers = data_weighted_mean(updates, [update.buffers for update in updates])
        for method in self._with("server_step"):
            states[method.name] = _guarded(method, "server_step", task, states[method.name], before, updates)
        return result.weights, buffers, states

    def report(
        self, task: Task, before: Server, updates: Sequence[Update]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and row of every method that reports on the round."""
        for method in self._with("report"):
            row = method.report(task, before.states[method.name], updates)
            if row is not None:
                yield method.name, row

    # ---------------------------------------------------------------- initial uploads
    def initial_client(self, update: Update, views: Mapping[str, Local]) -> Update:
        """Return a client's upload before the first round."""
        for method in self.methods:
            if method.needs.initial_upload:
                view = views[method.name]
                update, _ = method.client_final(update, view, method.client_init(view))
        return update

    def initial_server(self, task: Task, server: Server, updates: Sequence[Update]) -> dict[str, State]:
        """Return the state of every method after the initial uploads."""
        return {
            method.name: method.server_step(task, server.states[method.name], server, updates)
            if method.needs.initial_upload
            else server.states[method.name]
            for method in self.methods
        }

    # ---------------------------------------------------------------- client
    def views(
        self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]
    ) -> dict[str, Local]:
        """Return the client as each method sees it, by name."""
        return {
            method.name: replace(local, payload=payloads[method.name], state=states.get(method.name, {}))
            for method in self.methods
        }

    def start_weights(
        self, local: Local, server: Server, payloads: Mapping[str, State], states: Mapping[str, State]
    ) -> Local:
        """Return the client with the weights that its local training or its test starts from."""
        for method in self._with("start_weights"):
            view, state = self.views(local, payloads, states)[method.name], server.states[method.name]
            local = replace(local, start=_guarded(method, "start_weights", local.start, state, view))
        return local

    def client_init(
        self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]
    ) -> LocalHooks:
        """Return the hooks of one client's local training, which starts from ``local.start``."""
        locals_ = self.views(local, payloads, states)
        step_states = {
            method.name: _guarded(method, "client_init", locals_[method.name]) for method in self.methods
        }
        return LocalHooks(self, locals_, step_states)

    # ---------------------------------------------------------------- tests
    def test_weights(self, views: Mapping[str, Local], weights: Tensor) -> Tensor:
        """Return the weights that a client is tested with, given those of its model."""
        for method in self._with("test_weights"):
            weights = _guarded(method, "test_weights", weights, views[method.name])
        return weights

    def predict(self, network: Network, images: Tensor, views: Mapping[str, Local]) -> Tensor:
        """Return the logits of a client's test images."""
        owner = self._owner("predict")
        return owner.predict(network, images, views[owner.name])


@dataclass
class LocalHooks:
    """The hooks of one client's local training, bound to its payload, client state and step state."""

    composition: Composition
    locals_: Mapping[str, Local]
    step_states: dict[str, State]

    def __post_init__(self) -> None:
        # Steps look up hooks and the client's tensors: both are collected once.
        hooks = ("route", "forward", "criterion", "loss", "gradient", "correct", "post_step", "next_state")
        self._methods = {hook: self.composition._with(hook) for hook in hooks}
        self._tensors = {name: list(_tensors([local])) for name, local in self.locals_.items()}

    def defines(self, hook: str) -> bool:
        """Return True if a method defines a hook of the local step."""
        return bool(self._methods[hook])

    def _call(self, method: Method, hook: str, *arguments: Any) -> Any:
        """Return the result of a hook, with the client and the step state as last arguments."""
        local, state = self.locals_[method.name], self.step_states[method.name]
        tensors = [*self._tensors[method.name], *_tensors(arguments), *state.values()]
        return _guarded(method, hook, *arguments, local, state, tensors=tensors)

    def _exclusive(self, hook: str, *arguments: Any) -> Any:
        """Return the result of an exclusive hook; the default, which writes nothing, is not guarded."""
        if owners := self._methods[hook]:
            return self._call(owners[0], hook, *arguments)
        base = self.composition.methods[0]
        return getattr(base, hook)(*arguments, self.locals_[base.name], self.step_states[base.name])

    def _chained(self, hook: str, value: Tensor, *arguments: Any) -> Tensor:
        """Return a value after it has passed through the hook of all methods."""
        for method in self._methods[hook]:
            value = self._call(method, hook, value, *arguments)
        return value

    def route(self, network: Network) -> AbstractContextManager[Any]:
        """Return the context of a forward and backward pass."""
        if not self._methods["route"]:
            return nullcontext()
        with ExitStack() as stack:
            for method in self._methods["route"]:
                stack.enter_context(self._call(method, "route", network))
            return stack.pop_all()

    def forward(self, network: Network, step: Step) -> Outputs:
        """Return features and logits of a batch."""
        outputs: Outputs = self._exclusive("forward", network, step)
        return outputs

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Return the client's training loss on a batch."""
        loss = self._exclusive("criterion", outputs.logits, step.labels)
        return self._chained("loss", loss, outputs, step)

    def gradient(self, step: Step, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the step and its loss, of a method that defines them."""
        result: tuple[Tensor, Tensor] = self._exclusive("gradient", step, weights)
        return result

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient that the optimiser uses."""
        return self._chained("correct", gradient, weights)

    def post_step(self, weights: Tensor) -> None:
        """Move the weights, in place, after an optimiser step."""
        moved = self._chained("post_step", weights)
        if moved is not weights:
            weights.copy_(moved)

    def next_state(self, observed: Sequence[tuple[Outputs, Step]], weights: Tensor) -> None:
        """Renew the step states after a step, given the passes that its gradient came from.

        Raises:
            FltrainError: if a method renews a step state, but no pass was observed.
        """
        renewed: dict[str, State] = {}
        for method in self._methods["next_state"]:
            if not observed:
                owner = self._methods["gradient"][0].name
                raise FltrainError(
                    f"'gradient' of method {owner!r} takes no gradient of the client's own loss, which "
                    f"'next_state' of {method.name!r} needs; call step.differentiate() without a loss once"
                )
            renewed[method.name] = self._call(method, "next_state", *observed[-1], weights)
        self.step_states.update(renewed)  # together: a method may have taken another pass on the batch

    def client_final(self, update: Update) -> tuple[Update, dict[str, State]]:
        """Return the update to upload and the client's new state, by method name."""
        base, *plugins = self.composition.methods
        states: dict[str, State] = {}
        for method in (*plugins, base):
            update, states[method.name] = self._call(method, "client_final", update)
        return replace(update, trajectory=None), states
