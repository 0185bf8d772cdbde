"""Local steps as CUDA graphs: a step is captured once, and replayed for all steps, clients and rounds.

A captured step reads and writes tensors at fixed places. Clients whose methods hold tensors of the same names
and shapes share a ``Session``: the tensors of a client, and its learning rate, steps and other numbers, are
copied into the session's tensors when its turn comes. One step is captured for every phase and number of
images in a batch, when such a batch comes for the second time; the first one runs without capture, because
PyTorch prepares itself then.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import Clients
from fltrain.engine.local import LocalTraining, Sgd, TakeStep
from fltrain.engine.memory import out_of_memory
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, Place, State

NUMBERS = {name: torch.int64 for name in ("client", "round", "steps", "samples")} | {"lr": torch.float32}
"""Numbers of a client view that differ between clients or rounds."""

MOST_KEPT = 8
"""Maximum number of sessions; the one used least recently goes."""

Work = Callable[[], tuple[Tensor, Tensor]]
"""A step on fixed tensors; returns loss and gradient."""


class Session:
    """Fixed tensors that captured steps read and write in addition to the network.

    Attributes:
        hooks: the hooks, bound to the fixed tensors.
        batches: image indices and augmentation parameters, by optimiser and number of images.
        captured: the steps by the same keys; None if one has run but is not captured yet.
    """

    def __init__(self, hooks: LocalHooks) -> None:
        self.batches: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.captured: dict[tuple[int, int], Work | None] = {}
        self.places = {
            name: tree_map(torch.clone, _tensors_of(local)) for name, local in hooks.locals_.items()
        }
        self.states: dict[str, State] = tree_map(torch.clone, hooks.step_states)
        fixed = {name: replace(local, **self.places[name]) for name, local in hooks.locals_.items()}
        self.hooks = LocalHooks(hooks.composition, fixed, _copies(self.states))

    def load(self, hooks: LocalHooks) -> None:
        """Copy the tensors of a client to the fixed places."""
        for name, local in hooks.locals_.items():
            tree_map(Tensor.copy_, self.places[name], _tensors_of(local))
        tree_map(Tensor.copy_, self.states, dict(hooks.step_states))
        self.hooks.step_states = _copies(self.states)

    def settle(self) -> None:
        """Copy the step states after a step to their fixed places.

        Raises:
            FltrainError: if a method has other tensors than before.
        """
        for name, state in self.hooks.step_states.items():
            places = self.states[name]
            if _forms(state) != _forms(places):
                raise FltrainError(
                    f"--cuda-graph: the step state of {name!r} changes its names or shapes in a step; "
                    "leave out --cuda-graph"
                )
            moved = {key: tensor for key, tensor in state.items() if tensor is not places[key]}
            written = {_memory(places[key]) for key in moved}
            for key, tensor in moved.items():
                if _memory(tensor) in written:  # it would be overwritten before it is read
                    moved[key] = tensor.clone()
            for key, tensor in moved.items():
                places[key].copy_(tensor)
        self.hooks.step_states = _copies(self.states)


class CapturedTraining(LocalTraining):
    """Local training whose steps are captured once and replayed: the same operations."""

    name = "cuda_graph"

    def __init__(self, clients: Clients, recordings: Place = "device") -> None:
        """Prepare for the clients of a run.

        Raises:
            FltrainError: if their device is no GPU.
        """
        super().__init__(clients, recordings)
        self.check(self.model.weights.device)
        self.pool: Any = None
        self.sessions: dict[Any, Session] = {}

    @classmethod
    def check(cls, device: torch.device) -> None:
        """Refuse a device that is no GPU."""
        if device.type != "cuda":
            raise FltrainError(
                f"--cuda-graph: needs a CUDA device, not {str(device)!r}; leave out --cuda-graph"
            )

    @contextmanager
    def stepping(self, hooks: LocalHooks) -> Iterator[TakeStep]:
        forms = {name: _forms(_tensors_of(local)) for name, local in hooks.locals_.items()}
        kind = str((forms, {name: _forms(state) for name, state in hooks.step_states.items()}))
        session = self.sessions.pop(kind, None)
        if session is None:
            session = Session(hooks)
        self.sessions[kind] = session
        if len(self.sessions) > MOST_KEPT:
            del self.sessions[next(iter(self.sessions))]
        session.load(hooks)
        yield partial(self._replayed, session)
        hooks.step_states = tree_map(torch.clone, session.states)

    def _replayed(
        self, session: Session, optimiser: Sgd, indices: Tensor, changes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take a step: the first one of its kind as it is, the second one is captured, later ones replay."""
        kind = (id(optimiser), len(indices))
        if kind not in session.batches:
            session.batches[kind] = torch.empty_like(indices), torch.empty_like(changes)
        fixed = session.batches[kind]
        fixed[0].copy_(indices)
        fixed[1].copy_(changes)

        def work() -> tuple[Tensor, Tensor]:
            result = self.step(session.hooks, optimiser, *fixed)
            session.settle()
            return result

        if kind not in session.captured:
            session.captured[kind] = None
            return work()
        replay = session.captured[kind] = session.captured[kind] or self.capture(work)
        return replay()

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
                f"--cuda-graph: a local step cannot be captured ({' '.join(str(error).split())}); "
                "leave out --cuda-graph"
            ) from None

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return result

        return replay


def _tensors_of(local: Local) -> dict[str, Any]:
    """Return all tensors of a client view, and its numbers as tensors of no dimension, by field."""
    fields = ("start", "buffers", "class_counts", "payload", "state")
    return {name: getattr(local, name) for name in fields} | {
        name: torch.full((), getattr(local, name), dtype=dtype, device=local.start.device)
        for name, dtype in NUMBERS.items()
    }


def _forms(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shape and type of each tensor of a state, or of the states in it."""
    return {
        name: _forms(one) if isinstance(one, dict) else (tuple(one.shape), one.dtype)
        for name, one in tensors.items()
    }


def _memory(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor; tensors at the same address can overlap."""
    return tensor.untyped_storage().data_ptr()


def _copies(states: Mapping[str, State]) -> dict[str, State]:
    """Return the same tensors, in dictionaries that may change."""
    return {name: dict(state) for name, state in states.items()}
