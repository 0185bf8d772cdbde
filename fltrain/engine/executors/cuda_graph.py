"""The ``cuda_graph`` executor: the local step captured once, and replayed for all steps and clients.

A captured step reads and writes tensors at fixed places. Clients whose methods hold tensors of the same names
and shapes share a ``Session``: the tensors of a client, and its learning rate, steps and other numbers, are
copied into the session's tensors when its turn comes. One step is captured for every phase and number of
images in a batch, when such a batch comes for the second time; the first one runs without capture, because
PyTorch prepares itself then. The executor keeps captured steps, because they share one pool of memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, ClientState, Round
from fltrain.engine.executors.sequential import FrozenModels, SequentialExecutor, Sgd
from fltrain.engine.executors.views import (
    PER_CLIENT,
    PER_ROUND,
    check_step_states,
    memory_of,
    signature,
    tensors_of,
)
from fltrain.engine.memory import out_of_memory
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, Place, State

NUMBERS = {**PER_CLIENT, **PER_ROUND}

MOST_KEPT = 8
"""Most sessions, or sets of lanes, that an executor keeps; the one used least recently goes."""

Work = Callable[[], Any]
"""A step on fixed tensors; returns tensors."""


class Capturing(SequentialExecutor):
    """Captures steps, and replays them."""

    def __init__(self, clients: Clients, recordings: Place = "device", **settings: Any) -> None:
        super().__init__(clients, recordings, **settings)
        self.check(self.model.weights.device)
        self.pool: Any = None

    @classmethod
    def check(cls, device: torch.device) -> None:
        """Refuse a device that is no GPU.

        Raises:
            FltrainError: for such a device.
        """
        if device.type != "cuda":
            raise FltrainError(
                f"executor {cls.name!r} needs a CUDA device, not {str(device)!r}; use --executor sequential"
            )

    def capture(self, work: Work) -> Work:
        """Capture a step that has run before; return the function that replays it.

        Raises:
            FltrainError: if CUDA refuses an operation of the step.
        """
        if self.pool is None:
            gc.collect()  # the graphs of an earlier run must not be freed during a capture
        try:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                result = work()
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise FltrainError(
                f"executor {self.name!r}: a local step cannot be captured ({' '.join(str(error).split())}); "
                "use --executor sequential"
            ) from None

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def replayed(self, captured: dict[Any, Work | None], key: Any, work: Work) -> Any:
        """Take a step: the first one with a key as it is, the second one captures, all later ones replay."""
        if key not in captured:
            result = work()
            captured[key] = None
            return result
        replay = captured[key] = captured[key] or self.capture(work)
        return replay()


class Session:
    """Fixed tensors that captured steps read and write in addition to the network.

    Attributes:
        hooks: the hooks, bound to the fixed tensors.
        client_hooks: the hooks of the current client, bound to its own tensors.
        frozen: models that methods compare with.
        batches: image indices and augmentation parameters, by optimiser and number of images.
        captured: the steps by the same keys; None if one has run but is not captured yet.
    """

    def __init__(self, client_hooks: LocalHooks, frozen: FrozenModels) -> None:
        self.client_hooks = client_hooks
        self.frozen = frozen
        self.batches: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.captured: dict[Any, Work | None] = {}
        self.places = {
            name: tree_map(torch.clone, tensors_of(local, NUMBERS))
            for name, local in client_hooks.locals_.items()
        }
        self.states: dict[str, State] = tree_map(torch.clone, client_hooks.step_states)
        fixed = {name: replace(local, **self.places[name]) for name, local in client_hooks.locals_.items()}
        self.hooks = LocalHooks(client_hooks.composition, fixed, _shared(self.states))

    def load(self, client_hooks: LocalHooks) -> None:
        """Copy the tensors of a client to the fixed places."""
        self.client_hooks = client_hooks
        for name, local in client_hooks.locals_.items():
            tree_map(Tensor.copy_, self.places[name], tensors_of(local, NUMBERS))
        tree_map(Tensor.copy_, self.states, dict(client_hooks.step_states))
        self.hooks.step_states = _shared(self.states)
        self.frozen.renew()

    def settle(self) -> None:
        """Copy the step states after a step to their fixed places.

        Raises:
            FltrainError: if a method has other tensors than before.
        """
        check_step_states(CudaGraphExecutor.name, self.hooks.step_states, self.states)
        for name, state in self.hooks.step_states.items():
            places = self.states[name]
            moved = {key: tensor for key, tensor in state.items() if tensor is not places[key]}
            written = {memory_of(places[key]) for key in moved}
            for key, tensor in moved.items():
                if memory_of(tensor) in written:  # it would be overwritten before it is read
                    moved[key] = tensor.clone()
            for key, tensor in moved.items():
                places[key].copy_(tensor)
        self.hooks.step_states = _shared(self.states)


class CudaGraphExecutor(Capturing):
    """One client after the other, in steps that are captured once and replayed."""

    name = "cuda_graph"

    def __init__(self, clients: Clients, recordings: Place = "device") -> None:
        super().__init__(clients, recordings)
        self.sessions: dict[tuple[Any, ...], Session] = {}

    def _arrive(
        self, round: Round, client: int, client_state: ClientState | None
    ) -> tuple[Local, LocalHooks]:
        local, client_hooks = super()._arrive(round, client, client_state)
        shared = signature(client_hooks)
        if shared in self.sessions:
            self.session = self.sessions.pop(shared)
        else:
            frozen = FrozenModels(self.model, self.composition.needs.frozen_models)
            self.session = Session(client_hooks, frozen)
        self.sessions[shared] = self.session
        if len(self.sessions) > MOST_KEPT:
            del self.sessions[next(iter(self.sessions))]
        self.session.load(client_hooks)
        self.frozen = self.session.frozen
        return local, self.session.hooks

    def _finished(self, hooks: LocalHooks) -> LocalHooks:
        client_hooks = self.session.client_hooks
        client_hooks.step_states = tree_map(torch.clone, self.session.states)
        return client_hooks

    def _step(
        self, images: Augmented, chosen: Tensor, changes: Tensor, hooks: LocalHooks, optimiser: Sgd
    ) -> tuple[Tensor, Tensor]:
        session, step, key = self.session, super()._step, (id(optimiser), len(chosen))
        if key not in session.batches:
            session.batches[key] = torch.empty_like(chosen), torch.empty_like(changes)
        fixed = session.batches[key]
        fixed[0].copy_(chosen)
        fixed[1].copy_(changes)

        def work() -> tuple[Tensor, Tensor]:
            loss, gradient = step(images, *fixed, session.hooks, optimiser)
            session.settle()
            return loss, gradient

        result: tuple[Tensor, Tensor] = self.replayed(session.captured, key, work)
        return result


def _shared(states: Mapping[str, State]) -> dict[str, State]:
    """Return the same tensors, in dictionaries that may change."""
    return {name: dict(state) for name, state in states.items()}
