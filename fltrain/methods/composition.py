"""Several methods acting as one: a base method and the plug-ins on it, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fltrain.core.errors import FltrainError
from fltrain.core.lazy import Tensor, functional
from fltrain.methods.base import Method, Needs
from fltrain.methods.checks import guarded, recorded, tensors_in, watched
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

EXCLUSIVE_HOOKS = ("forward", "gradient", "predict")
"""Hooks that only one method of a combination may define; all others are chained in order."""

EXCLUSIVE_NEEDS = ("private", "recording", "schedule", "second")
"""Needs that only one method of a combination may set."""

WATCHED_STEPS, WATCHED_ROUNDS = 2, 2
"""First steps of each client, in the first rounds of a run, whose hooks are watched: see ``watched``."""

STEP_HOOKS = ("route", "forward", "loss", "gradient", "correct", "post_step", "next_state")


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
        for name in sorted((*EXCLUSIVE_HOOKS, *EXCLUSIVE_NEEDS)):
            owners = [method.name for method in self.defining(name)]
            if len(owners) > 1:
                first, second, *_ = owners
                raise ValueError(f"{first!r} and {second!r} cannot be combined: both define '{name}'")
        for method in self.methods if self.needs.private == "all" else ():
            if method.needs.uploads:
                raise ValueError(
                    f"{method.name!r} needs the weights that clients send; "
                    f"with {self.defining('private')[0].name!r} they send none"
                )

    @property
    def name(self) -> str:
        """Names of the methods, for example ``fedprox+flfa``."""
        return "+".join(method.name for method in self.methods)

    def defining(self, name: str) -> list[Method]:
        """Return the methods that define a hook or set an exclusive need."""
        if name in EXCLUSIVE_NEEDS:
            return [method for method in self.methods if getattr(method.needs, name) is not None]
        default = getattr(Method, name)
        return [method for method in self.methods if getattr(type(method), name) is not default]

    # ---------------------------------------------------------------- needs
    @cached_property
    def needs(self) -> Needs:
        """Requirements of all methods together."""
        needs = [method.needs for method in self.methods]
        exclusive = {
            name: getattr(owners[0].needs, name) if (owners := self.defining(name)) else None
            for name in EXCLUSIVE_NEEDS
        }
        return Needs(
            **exclusive,
            uploads=any(need.uploads for need in needs),
            global_model=exclusive["private"] is None and all(need.global_model for need in needs),
        )

    @property
    def schedule(self) -> Schedule:
        """Passes of local training over a client's images."""
        return self.needs.schedule or Schedule()

    @property
    def introducing(self) -> Composition | None:
        """The methods for which clients upload before the first round, if there are any."""
        methods = [method for method in self.methods if (method.needs.schedule or Schedule()).initial_upload]
        return Composition(tuple(methods)) if methods else None

    @property
    def personal(self) -> bool:
        """True if clients have custom models or predictions, to be tested on their own images."""
        has_custom_model = self.needs.private is not None or self.needs.second is not None
        return has_custom_model or bool(self.defining("test_weights") or self.defining("predict"))

    # ---------------------------------------------------------------- server
    def adapt(self, network: Network, classes: int) -> Network:
        """Return the network to train."""
        for method in self.defining("adapt"):
            network = guarded(method, "adapt", network, classes)
        return network

    def server_init(self, task: Task, start: Tensor) -> dict[str, State]:
        """Return the server state of every method, by name."""
        return {method.name: guarded(method, "server_init", task, start) for method in self.methods}

    def payload(self, states: Mapping[str, State]) -> dict[str, State]:
        """Return the payload of every method, by name."""
        return {method.name: guarded(method, "payload", states[method.name]) for method in self.methods}

    def aggregate(
        self, task: Task, before: Server, updates: Sequence[Update]
    ) -> tuple[Tensor, Tensor, dict[str, State], dict[str, dict[str, Any]]]:
        """Return new weights ``[P]``, BatchNorm statistics ``[B]``, states and rows of the methods.

        Raises:
            FltrainError: if two methods return weights, or statistics.
        """
        states, rows, results = dict(before.states), dict[str, dict[str, Any]](), dict[str, Aggregate]()
        for method in self.defining("aggregate"):
            name = method.name
            result: Aggregate = guarded(method, "aggregate", task, states[name], before, updates)
            results[name] = result
            states[name] = states[name] if result.state is None else result.state
            if result.row is not None:
                rows[name] = recorded(result.row)

        def merged(part: str) -> Tensor:
            """Return the weights or buffers of the method that returns some, or the clients' mean."""
            values = {name: getattr(result, part) for name, result in results.items()}
            parts: dict[str, Tensor] = {name: value for name, value in values.items() if value is not None}
            if len(parts) > 1:
                raise FltrainError(
                    f"'aggregate' of the methods {' and '.join(map(repr, parts))} return {part}; only one may"
                )
            for tensor in parts.values():
                return tensor
            return data_weighted_mean(updates, [getattr(update, part) for update in updates])

        return merged("weights"), merged("buffers"), states, rows

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
        for method in self.defining("start_weights"):
            view, state = self.views(local, payloads, states)[method.name], server.states[method.name]
            local = replace(local, start=guarded(method, "start_weights", local.start, state, view))
        return local

    def client_init(
        self, local: Local, payloads: Mapping[str, State], states: Mapping[str, State]
    ) -> LocalHooks:
        """Return the hooks of one client's local training, which starts from ``local.start``."""
        locals_ = self.views(local, payloads, states)
        step_states = {
            method.name: guarded(method, "client_init", locals_[method.name]) for method in self.methods
        }
        return LocalHooks(self, locals_, step_states)

    # ---------------------------------------------------------------- tests
    def test_weights(self, views: Mapping[str, Local], weights: Tensor) -> Tensor:
        """Return the weights ``[P]`` that a client is tested with, given its model's weights."""
        for method in self.defining("test_weights"):
            weights = guarded(method, "test_weights", weights, views[method.name])
        return weights

    def predict(self, network: Network, images: Tensor, views: Mapping[str, Local]) -> Tensor:
        """Return the logits of a client's test images."""
        logits: Tensor | None = None
        for method in self.defining("predict"):
            logits = guarded(method, "predict", network, images, views[method.name])
        return network(images) if logits is None else logits


@dataclass
class LocalHooks:
    """The hooks of one client's local training, bound to its payload, client state and step state.

    Attributes:
        watch: number of steps in which the hooks are still watched for host reads and random numbers.
    """

    composition: Composition
    locals_: Mapping[str, Local]
    step_states: dict[str, State]
    watch: int = 0

    def __post_init__(self) -> None:
        # Steps look up hooks and the client's tensors: both are collected once.
        self._methods = {hook: self.composition.defining(hook) for hook in STEP_HOOKS}
        self._tensors = {name: list(tensors_in([local])) for name, local in self.locals_.items()}

    def defines(self, hook: str) -> bool:
        """Return True if a method defines a hook of the local step."""
        return bool(self._methods[hook])

    def _call(self, method: Method, hook: str, *arguments: Any) -> Any:
        """Return the result of a hook, with the client and the step state as last arguments."""
        local, state = self.locals_[method.name], self.step_states[method.name]
        tensors = [*self._tensors[method.name], *tensors_in(arguments), *state.values()]
        with watched(method.name, hook) if self.watch and hook in STEP_HOOKS else nullcontext():
            return guarded(method, hook, *arguments, local, state, tensors=tensors)

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
        for method in self._methods["forward"]:
            outputs: Outputs = self._call(method, "forward", network, step)
            return outputs
        features = network.features(step.images)
        return Outputs(features, network.classifier(features))

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Return the client's training loss on a batch."""
        return self._chained("loss", functional.cross_entropy(outputs.logits, step.labels), outputs, step)

    def gradient(self, step: Step, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the step and its loss, of the method that defines them."""
        (method,) = self._methods["gradient"]
        result: tuple[Tensor, Tensor] = self._call(method, "gradient", step, weights)
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
        self.watch -= self.watch > 0

    def client_final(self, update: Update) -> tuple[Update, dict[str, State]]:
        """Return the update to upload and the client's new state, by method name."""
        base, *plugins = self.composition.methods
        states: dict[str, State] = {}
        for method in (*plugins, base):
            update, states[method.name] = self._call(method, "client_final", update)
        return replace(update, trajectory=None), states
