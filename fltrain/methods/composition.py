"""Several methods acting as one: a base method and the plug-ins on it, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fltrain.core.errors import FltrainError
from fltrain.core.lazy import Tensor
from fltrain.methods.base import Method
from fltrain.methods.ops.vectors import data_weighted_mean
from fltrain.methods.types import (
    Aggregate,
    Local,
    Needs,
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


def _versions(tensors: Sequence[Tensor]) -> int:
    """Sum of the tensors' versions; every write into one of them increases it."""
    return sum([tensor._version for tensor in tensors])


def _tensors(*shared: Tensor | State | Local) -> list[Tensor]:
    """Tensors that methods share, with those of states and of a client."""
    tensors: list[Tensor] = []
    for item in shared:
        if isinstance(item, Local):
            tensors += _tensors(item.start, item.buffers, item.class_counts, item.payload, item.state)
        else:
            tensors += item.values() if isinstance(item, dict) else [item]
    return tensors


def _guarded(method: Method, hook: str, *arguments: Any, shared: Sequence[Tensor]) -> Any:
    """Return the result of a hook that must not write into the shared tensors.

    Raises:
        FltrainError: if it does.
    """
    before = _versions(shared)
    result = getattr(method, hook)(*arguments)
    if _versions(shared) != before:
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
            owners = self._claiming(claim) if claim in EXCLUSIVE_NEEDS else self._with(claim)
            if len(owners) > 1:
                first, second = owners[0].name, owners[1].name
                raise ValueError(f"{first!r} and {second!r} cannot be combined: both define '{claim}'")
        for method in self.methods if self.needs.private == "all" else ():
            if method.needs.uploads:
                raise ValueError(
                    f"{method.name!r} needs the weights that clients send; "
                    f"with {self._claiming('private')[0].name!r} they send none"
                )

    @property
    def name(self) -> str:
        """Names of the methods, for example ``fedprox+flfa``."""
        return "+".join(method.name for method in self.methods)

    def _with(self, hook: str) -> tuple[Method, ...]:
        """Return the methods that define a hook."""
        default = getattr(Method, hook)
        return tuple(method for method in self.methods if getattr(type(method), hook) is not default)

    def _owner(self, hook: str) -> Method:
        """Return the method that defines an exclusive hook; else the base method with its default."""
        return next(iter(self._with(hook)), self.methods[0])

    def _claiming(self, need: str) -> tuple[Method, ...]:
        """Return the methods that set an exclusive need."""
        return tuple(method for method in self.methods if getattr(method.needs, need) is not None)

    # ---------------------------------------------------------------- needs
    @cached_property
    def needs(self) -> Needs:
        """Requirements of all methods together."""
        needs = [method.needs for method in self.methods]
        exclusive = {
            name: next((claim for one in needs if (claim := getattr(one, name)) is not None), None)
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
        shared = _tensors(before.weights, before.buffers, *before.states.values())
        for update in updates:
            shared += _tensors(update.start, update.trained, update.weights, update.buffers)
            shared += _tensors(*update.extras.values())
        states, owner = dict(before.states), self._owner("aggregate")
        arguments = (task, states[owner.name], before, updates)
        result: Aggregate = _guarded(owner, "aggregate", *arguments, shared=shared)
        states[owner.name], buffers = result.state, result.buffers
        if buffers is None:
            buffers = data_weighted_mean(updates, [update.buffers for update in updates])
        for method in self._with("server_step"):
            state = states[method.name]
            arguments = (task, state, before, updates)
            shared = [*shared, *state.values()]
            states[method.name] = _guarded(method, "server_step", *arguments, shared=shared)
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
            shared = _tensors(server.weights, state, view)
            start = _guarded(method, "start_weights", local.start, state, view, shared=shared)
            local = replace(local, start=start)
        return local

    def client_init(
        self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]
    ) -> LocalHooks:
        """Return the hooks of one client's local training, which starts from ``local.start``."""
        locals_ = self.views(local, payloads, states)
        step_states = {
            method.name: _guarded(method, "client_init", view, shared=_tensors(view))
            for method, view in zip(self.methods, locals_.values(), strict=True)
        }
        return LocalHooks(self, locals_, step_states)

    # ---------------------------------------------------------------- tests
    def test_weights(self, views: Mapping[str, Local], weights: Tensor) -> Tensor:
        """Return the weights that a client is tested with, given those of its model."""
        for method in self._with("test_weights"):
            view = views[method.name]
            weights = _guarded(method, "test_weights", weights, view, shared=_tensors(view))
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
        hooks = ("route", "forward", "criterion", "loss", "gradient", "correct", "post_step", "next_state")
        self._methods = {hook: self.composition._with(hook) for hook in hooks}
        self._shared = {name: _tensors(local) for name, local in self.locals_.items()}

    def _of(self, method: Method) -> tuple[Local, State]:
        return self.locals_[method.name], self.step_states[method.name]

    def _call(self, method: Method, hook: str, *arguments: Any, shared: Sequence[Tensor] = ()) -> Any:
        """Return the result of a hook, which must not write into the client's tensors or the shared ones."""
        shared = [*self._shared[method.name], *shared]
        return _guarded(method, hook, *arguments, *self._of(method), shared=shared)

    def _exclusive(self, hook: str, *arguments: Any, shared: Sequence[Tensor] = ()) -> Any:
        """Return the result of an exclusive hook; the default, which writes nothing, is not guarded."""
        if owners := self._methods[hook]:
            return self._call(owners[0], hook, *arguments, shared=shared)
        base = self.composition.methods[0]
        return getattr(base, hook)(*arguments, *self._of(base))

    def route(self, network: Network) -> AbstractContextManager[Any]:
        """Return the context of a forward and backward pass."""
        if not self._methods["route"]:
            return nullcontext()
        with ExitStack() as stack:
            for method in self._methods["route"]:
                stack.enter_context(method.route(network, *self._of(method)))
            return stack.pop_all()

    def forward(self, network: Network, step: Step) -> Outputs:
        """Return features and logits of a batch."""
        outputs: Outputs = self._exclusive("forward", network, step)
        return outputs

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Return the client's training loss on a batch."""
        loss: Tensor = self._exclusive("criterion", outputs.logits, step.labels)
        for method in self._methods["loss"]:
            loss = self._call(method, "loss", loss, outputs, step)
        return loss

    def gradient(self, step: Step, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the step and its loss."""
        if not self._methods["gradient"]:
            return step.gradient()
        result: tuple[Tensor, Tensor] = self._exclusive("gradient", step, weights, shared=[weights])
        return result

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient that the optimiser uses."""
        for method in self._methods["correct"]:
            gradient = self._call(method, "correct", gradient, weights, shared=[weights])
        return gradient

    def post_step(self, weights: Tensor) -> None:
        """Move the weights, in place, after an optimiser step."""
        for method in self._methods["post_step"]:
            moved = self._call(method, "post_step", weights, shared=[weights])
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
            arguments = (*observed[-1], weights)
            renewed[method.name] = self._call(method, "next_state", *arguments, shared=[weights])
        self.step_states.update(renewed)  # together: a method may have taken another pass on the batch

    def client_final(self, update: Update) -> tuple[Update, dict[str, State]]:
        """Return the update to upload and the client's new state, by method name."""
        base, *plugins = self.composition.methods
        states: dict[str, State] = {}
        for method in (*plugins, base):
            shared = [update.trained, update.buffers]
            update, states[method.name] = self._call(method, "client_final", update, shared=shared)
        return replace(update, trajectory=None), states
