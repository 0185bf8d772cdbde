"""The ``cuda_graph`` executor: the local step captured once, and replayed for all steps and clients.

A captured step reads and writes tensors at fixed places. Clients whose methods hold tensors of the same names
and shapes share a ``Session``: the tensors of a client, and its learning rate, steps and other numbers, are
copied into the session's tensors when its turn comes. One step is captured for every phase and number of
images in a batch, when such a batch comes for the second time; the first one runs without capture, because
PyTorch prepares itself then. The executor keeps captured steps, because they share one pool of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.augment import Augmented
from fltrain.engine.clients import Clients, ClientState, Round
from fltrain.engine.executors.sequential import FrozenModels, SequentialExecutor, Sgd
from fltrain.engine.executors.views import PER_CLIENT, PER_ROUND, signature, tensors_of
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, Place, State

NUMBERS = {**PER_CLIENT, **PER_ROUND}

Work = Callable[[], tuple[Tensor, Tensor]]
"""A step on fixed tensors; returns loss and gradient."""


@dataclass(frozen=True)
class Captured:
    """A captured step, and the tensors that hold its image indices and augmentation parameters."""

    chosen: Tensor
    changes: Tensor
    replay: Work


class Session:
    """Fixed tensors that captured steps read and write in addition to the network.

    Attributes:
        hooks: the hooks, bound to the fixed tensors.
        client_hooks: the hooks of the current client, bound to its own tensors.
        frozen: models that methods compare with.
        captured: the steps by optimiser and number of images; None if one has run but is not captured yet.
    """

    def __init__(self, client_hooks: LocalHooks, frozen: FrozenModels) -> None:
        self.client_hooks = client_hooks
        self.frozen = frozen
        self.captured: dict[tuple[int, int], Captured | None] = {}
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
        for name, state in self.hooks.step_states.items():
            places = self.states[name]
            if _shapes(state) != _shapes(places):
                raise FltrainError(
                    f"executor 'cuda_graph': the step state of {name!r} changes its names or shapes in a "
                    "step; use --executor sequential"
                )
            moved = {key: tensor for key, tensor in state.items() if tensor is not places[key]}
            written = {_memory(places[key]) for key in moved}
            for key, tensor in moved.items():
                if _memory(tensor) in written:  # it would be overwritten before it is read
                    moved[key] = tensor.clone()
            for key, tensor in moved.items():
                places[key].copy_(tensor)
        self.hooks.step_states = _shared(self.states)


class CudaGraphExecutor(SequentialExecutor):
    """One client after the other, in steps that are captured once and replayed."""

    name = "cuda_graph"

    def __init__(self, clients: Clients, recordings: Place = "auto") -> None:
        super().__init__(clients, recordings)
        self.check(self.model.weights.device)
        self.sessions: dict[tuple[Any, ...], Session] = {}
        self.pool: Any = None

    @classmethod
    def check(cls, device: torch.device) -> None:
        """Refuse a device that is no GPU.

        Raises:
            FltrainError: for such a device.
        """
        if device.type != "cuda":
            raise FltrainError(
                f"executor 'cuda_graph' needs a CUDA device, not {str(device)!r}; use --executor sequential"
            )

    def capture(self, work: Work) -> Work:
        """Capture a step that has run before; return the function that replays it.

        Raises:
            FltrainError: if CUDA refuses an operation of the step.
        """
        try:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                result = work()
        except RuntimeError as error:
            raise FltrainError(
                f"executor 'cuda_graph': a local step cannot be captured ({' '.join(str(error).split())}); "
                "use --executor sequential"
            ) from None

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return result

        return replay

    def _arrive(
        self, round: Round, client: int, client_state: ClientState | None
    ) -> tuple[Local, LocalHooks]:
        local, client_hooks = super()._arrive(round, client, client_state)
        shared = signature(client_hooks)
        if shared not in self.sessions:
            self.sessions[shared] = Session(
                client_hooks, FrozenModels(self.model, self.composition.needs.frozen_models)
            )
        self.session = self.sessions[shared]
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
        session, key = self.session, (id(optimiser), len(chosen))
        if key not in session.captured:
            session.captured[key] = None
            result = super()._step(images, chosen, changes, hooks, optimiser)
            session.settle()
            return result
        captured = session.captured[key]
        if captured is None:
            captured = self._captured(images, optimiser, chosen, changes)
            session.captured[key] = captured
        captured.chosen.copy_(chosen)
        captured.changes.copy_(changes)
        return captured.replay()

    def _captured(self, images: Augmented, optimiser: Sgd, chosen: Tensor, changes: Tensor) -> Captured:
        session, step = self.session, super()._step
        chosen, changes = chosen.clone(), changes.clone()

        def work() -> tuple[Tensor, Tensor]:
            loss, gradient = step(images, chosen, changes, session.hooks, optimiser)
            session.settle()
            return loss, gradient

        return Captured(chosen, changes, self.capture(work))


def _shared(states: Mapping[str, State]) -> dict[str, State]:
    """Return the same tensors, in dictionaries that may change."""
    return {name: dict(state) for name, state in states.items()}


def _shapes(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {key: (tensor.shape, tensor.dtype) for key, tensor in state.items()}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
