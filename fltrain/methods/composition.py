"""Several methods acting as one: a base method and the plug-ins on it, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fltrain.methods.base import Local, Method, Server, State, Task, Update

if TYPE_CHECKING:
    from torch import Tensor, nn

EXCLUSIVE_HOOKS = ("aggregate",)
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

    @property
    def name(self) -> str:
        """For example ``fedprox+flfa``."""
        return "+".join(method.name for method in self.methods)

    def _with(self, hook: str) -> tuple[Method, ...]:
        return tuple(method for method in self.methods if _overrides(method, hook))

    # ---------------------------------------------------------------- server
    def init_server(self, task: Task, start: Tensor) -> dict[str, State]:
        """State of every method, by name."""
        return {method.name: method.init_server(task, start) for method in self.methods}

    def payload(self, states: Mapping[str, State]) -> dict[str, State]:
        """What every sampled client receives beside weights and buffers, by method name."""
        return {method.name: method.payload(states[method.name]) for method in self.methods}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """New global weights by the rule of the method that owns it, else federated averaging."""
        (owner,) = self._with("aggregate") or self.methods[:1]
        return owner.aggregate(server, updates)

    def server_step(self, task: Task, before: Server, updates: Sequence[Update]) -> dict[str, State]:
        """State of every method after the round."""
        return {
            method.name: method.server_step(task, before.states[method.name], before, updates)
            for method in self.methods
        }

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
        """Return the hooks of one client's local training."""
        locals_ = {
            method.name: replace(local, payload=payloads[method.name], state=states[method.name])
            for method in self.methods
        }
        carries = {method.name: method.begin(locals_[method.name]) for method in self.methods}
        return LocalHooks(self, locals_, carries)


@dataclass
class LocalHooks:
    """The hooks of one client's local training, bound to its payload, state and carry."""

    composition: Composition
    locals_: Mapping[str, Local]
    carries: dict[str, State]

    def __post_init__(self) -> None:
        self._routing = self.composition._with("route")
        self._correcting = self.composition._with("correct")
        self._following = self.composition._with("after_step")

    def _of(self, method: Method) -> tuple[Local, State]:
        return self.locals_[method.name], self.carries[method.name]

    def route(self, network: nn.Module) -> AbstractContextManager[None]:
        """Context of a step's forward and backward pass."""
        return self._entered(network) if self._routing else nullcontext()

    @contextmanager
    def _entered(self, network: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for method in self._routing:
                stack.enter_context(method.route(network, *self._of(method)))
            yield

    def correct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient that the optimiser shall use."""
        for method in self._correcting:
            gradient = method.correct(gradient, weights, *self._of(method))
        return gradient

    def after_step(self, weights: Tensor) -> None:
        """Renew the carries after an optimiser step."""
        for method in self._following:
            self.carries[method.name] = method.after_step(weights, *self._of(method))

    def finish(self, update: Update) -> tuple[Update, dict[str, State]]:
        """Return the update to upload and the client's new state, by method name."""
        states: dict[str, State] = {}
        for method in self.composition.methods:
            update, states[method.name] = method.finish(update, *self._of(method))
        return update, states
