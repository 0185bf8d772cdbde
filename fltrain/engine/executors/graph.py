"""The ``graph`` executor: local steps recorded once, and replayed for all steps and clients alike.

A recorded step reads and writes tensors at fixed places. So clients whose methods hold tensors of the same
names and shapes share a ``Session``, and what a client holds is copied into the session's tensors when its
turn comes. A step is recorded for every number of images that batches have, partial ones included, when such
a batch comes for the second time; the first one runs as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, Kept, Round
from fltrain.engine.executors.loop import FrozenModels, LoopExecutor, Sgd
from fltrain.engine.executors.replay import Replay, record
from fltrain.engine.executors.stand_ins import shape, signature, tensors, watched
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, Place, State

SESSIONS = 16
"""Sessions that are kept; if there are more, the one that was not used for longest is given up."""

STEPS = 32
"""Recorded steps that a session keeps for batches of the same size; of more, the last ones.

Where a method reads a number that changes with the round, every round records steps of its own.
"""

StepStates = Mapping[str, State]
Numbers = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class _Recorded:
    """A recorded step: where to write its images and how they change, and what it read that is no tensor."""

    chosen: Tensor
    how: Tensor
    loss: Tensor
    replay: Replay
    numbers: Numbers

    def again(self, chosen: Tensor, how: Tensor) -> tuple[Tensor, Tensor]:
        """Take the step on other images; return loss and gradient."""
        self.chosen.copy_(chosen)
        self.how.copy_(how)
        gradient = self.replay()
        return self.loss, gradient


class Session:
    """What recorded steps read and write beside the network: stand-ins for the tensors of clients.

    Attributes:
        clients: the client whose turn it is as each method sees it, with stand-ins for its tensors.
        step_states: stand-ins for the step states of the methods.
        hooks: the hooks on these.
        own: the client's hooks on its own tensors, which no step changes.
        frozen: what holds models that methods compare with.
        optimisers: of each phase, for the learning rate of the round.
        recorded: the steps, by optimiser and number of images.
    """

    def __init__(self, own: LocalHooks, frozen: FrozenModels) -> None:
        """Stand in for the tensors of clients that hold such as this one does."""
        twins: dict[int, Tensor] = {}  # what is one tensor in the client is one here, too

        def twin(tensor: Tensor) -> Tensor:
            return twins.setdefault(id(tensor), tensor.detach().clone())

        self.clients = {name: watched(local, twin) for name, local in own.locals_.items()}
        # Written to in every step, so that none is another one's as well.
        self.step_states = _copied(own.step_states)
        self.hooks = LocalHooks(own.composition, self.clients, _held(self.step_states))
        self.own = own
        self.frozen = frozen
        self.lr_factor: float | None = None
        self.optimisers: list[Sgd] = []
        self.recorded: dict[tuple[int, int], list[_Recorded]] = {}

    def welcome(self, own: LocalHooks) -> None:
        """Copy what a client holds into the stand-ins."""
        twins = {}
        for name, client in self.clients.items():
            for (_, place), (_, tensor) in zip(tensors(client), tensors(own.locals_[name]), strict=True):
                if id(tensor) not in twins:
                    twins[id(tensor)] = place.copy_(tensor)
        for name, step_state in self.step_states.items():
            for key, place in step_state.items():
                place.copy_(own.step_states[name][key])
        self.clients = {
            name: watched(local, lambda tensor: twins[id(tensor)]) for name, local in own.locals_.items()
        }
        self.hooks.locals_, self.hooks.step_states = self.clients, _held(self.step_states)
        self.own = own
        self.frozen.renew()

    def settle(self) -> None:
        """Write the step states after a step to the places where they stood.

        Raises:
            FltrainError: if the names or shapes of a step state change.
        """
        for name, step_state in self.hooks.step_states.items():
            places = self.step_states[name]
            if _shapes(step_state) != _shapes(places):
                raise FltrainError(
                    f"executor 'graph': the step state of {name!r} changes its names or shapes in a step; "
                    "use --executor loop"
                )
            moved = {key: tensor for key, tensor in step_state.items() if tensor is not places[key]}
            written = {_memory(places[key]) for key in moved}
            for key, tensor in moved.items():
                if _memory(tensor) in written:  # or it would be overwritten before it is read
                    moved[key] = tensor.clone()
            for key, tensor in moved.items():
                places[key].copy_(tensor)
        self.hooks.step_states = _held(self.step_states)

    def finished(self) -> LocalHooks:
        """The client's own hooks with the step states after its last step."""
        self.own.step_states = _copied(self.step_states)
        return self.own

    def numbers(self, names: Iterable[tuple[str, str]]) -> Numbers:
        """Numbers of the client whose turn it is, each by the name of a method and its own."""
        return {(name, number): getattr(self.own.locals_[name], number) for name, number in names}

    def fitting(self, key: tuple[int, int]) -> _Recorded | None:
        """A recorded step that is true of this client."""
        steps = self.recorded.get(key, [])
        return next((step for step in steps if step.numbers == self.numbers(step.numbers)), None)


class GraphExecutor(LoopExecutor):
    """One client after the other, in steps that are recorded once and replayed."""

    name = "graph"

    def __init__(self, clients: Clients, recordings: Place = "auto") -> None:
        super().__init__(clients, recordings)
        self.sessions: OrderedDict[tuple[Any, ...], Session] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if self.model.weights.is_cuda else None

    def _begin(self, local: Local, payloads: Mapping[str, State], kept: Kept) -> LocalHooks:
        own = super()._begin(local, payloads, kept)
        shared = signature(own)
        session = self.sessions.pop(shared, None)
        if session is None:
            session = Session(own, FrozenModels(self.model, self.composition.frozen_models))
        self.sessions[shared] = self.session = session
        if len(self.sessions) > SESSIONS:
            self.sessions.popitem(last=False)
        session.welcome(own)
        self.frozen = session.frozen
        return session.hooks

    def _optimisers(self, round: Round) -> list[Sgd]:
        session = self.session
        if session.lr_factor != round.lr_factor:  # a recorded step has the rate that it was recorded with
            session.lr_factor, session.optimisers = round.lr_factor, super()._optimisers(round)
            session.recorded.clear()
        for optimiser in session.optimisers:
            optimiser.reset()
        return session.optimisers

    def _finished(self, hooks: LocalHooks) -> LocalHooks:
        return self.session.finished()

    def _step(
        self, images: Augmented, chosen: Tensor, how: Tensor, hooks: LocalHooks, optimiser: Sgd
    ) -> tuple[Tensor, Tensor]:
        session, key = self.session, (id(optimiser), len(chosen))
        recorded = session.fitting(key)
        if recorded:
            return recorded.again(chosen, how)
        if key in session.recorded:
            return self._record(key, images, chosen, how, optimiser)
        session.recorded[key] = []
        result = super()._step(images, chosen, how, hooks, optimiser)
        session.settle()
        return result

    def _record(
        self, key: tuple[int, int], images: Augmented, chosen: Tensor, how: Tensor, optimiser: Sgd
    ) -> tuple[Tensor, Tensor]:
        """Take a step, and keep it for those to come."""
        session, step = self.session, super()._step
        chosen, how, loss = chosen.clone(), how.clone(), self.model.weights.new_zeros(())
        for client in session.clients.values():
            client.reads.clear()

        def work() -> Tensor:
            found, gradient = step(images, chosen, how, session.hooks, optimiser)
            session.settle()
            loss.copy_(found)
            return gradient

        gradient, replay = record(work, self.pool)
        read = [(name, number) for name, client in session.clients.items() for number in client.reads]
        steps = session.recorded[key]
        steps.append(_Recorded(chosen, how, loss, replay, session.numbers(read)))
        del steps[:-STEPS]
        return loss, gradient


def _held(step_states: StepStates) -> dict[str, State]:
    """The same tensors, in dictionaries that may change."""
    return {name: dict(step_state) for name, step_state in step_states.items()}


def _copied(step_states: StepStates) -> dict[str, State]:
    """Tensors of their own."""
    return {
        name: {key: one.clone() for key, one in step_state.items()}
        for name, step_state in step_states.items()
    }


def _shapes(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {key: shape(tensor) for key, tensor in state.items()}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
