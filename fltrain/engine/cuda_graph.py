"""Local steps as CUDA graphs: a step is captured once, and replayed for all steps, clients and rounds.

A captured step reads and writes tensors at fixed addresses. Clients whose methods hold tensors of the same
names and shapes share a ``Session``: the tensors of a client, and its learning rate, steps and other numbers,
are copied into the session's tensors when its turn comes. One step is captured for every phase and number of
images in a batch, when such a batch comes for the second time; PyTorch prepares itself in the first one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import Clients
from fltrain.engine.local import LocalTraining, LossAndGradient, Sgd, TakeStep
from fltrain.methods.composition import LocalHooks

TENSORS = ("start", "buffers", "class_counts", "payload", "state")
NUMBERS = ("client", "round", "steps", "samples", "lr")
"""Numbers of a client view that differ between clients or rounds."""

Captured = tuple[torch.cuda.CUDAGraph, LossAndGradient]
"""A step on fixed tensors, and the tensors that a replay writes its loss and gradient to."""


class Session:
    """Fixed tensors that captured steps read and write in addition to the network.

    Attributes:
        hooks: the hooks, bound to the fixed tensors.
        batches: image indices and augmentation parameters, by optimiser and number of images.
        captured: the steps by the same keys.
    """

    def __init__(self, hooks: LocalHooks) -> None:
        self.batches: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.captured: dict[tuple[int, int], Captured] = {}
        self.tensors, self.states = tree_map(torch.clone, (_tensors(hooks), hooks.step_states))
        fixed = {name: replace(local, **self.tensors[name]) for name, local in hooks.locals_.items()}
        self.hooks = LocalHooks(hooks.composition, fixed, {})

    def load(self, hooks: LocalHooks) -> None:
        """Copy the tensors of a client to the fixed ones."""
        tree_map(Tensor.copy_, self.tensors, _tensors(hooks))
        self.hooks.step_states = tree_map(Tensor.copy_, self.states, hooks.step_states)

    def settle(self) -> None:
        """Copy the step states after a step to the fixed tensors; refuse changed names or shapes."""
        states = self.hooks.step_states
        if _forms(states) != _forms(self.states):
            raise FltrainError(
                "--cuda-graph: a step state changes its names or shapes in a step; leave out --cuda-graph"
            )
        # First all copies, because a tensor may share the memory of one that is written.
        moved = tree_map(lambda new, old: old if new is old else new.clone(), states, self.states)
        self.hooks.step_states = tree_map(Tensor.copy_, self.states, moved)


class CapturedTraining(LocalTraining):
    """Local training whose steps are captured once and replayed: the same operations."""

    name = "cuda_graph"

    def __init__(self, clients: Clients, **settings: Any) -> None:
        super().__init__(clients, **settings)
        self.check(self.model.weights.device)
        self.pool: Any = None
        self.sessions: dict[str, Session] = {}

    @classmethod
    def check(cls, device: torch.device) -> None:
        """Refuse a device that is no GPU."""
        if device.type != "cuda":
            raise FltrainError(f"--cuda-graph: needs a CUDA device, not '{device}'; leave out --cuda-graph")

    @contextmanager
    def stepping(self, hooks: LocalHooks) -> Iterator[TakeStep]:
        kind = str(_forms((_tensors(hooks), hooks.step_states)))
        if kind not in self.sessions:
            if len(self.sessions) == 8:  # methods whose states have many shapes must not fill the memory
                self.sessions.clear()
                self.pool = None  # PyTorch refuses memory whose graphs are all gone
            self.sessions[kind] = Session(hooks)
        session = self.sessions[kind]
        session.load(hooks)
        yield partial(self._take, session)
        hooks.step_states = tree_map(torch.clone, session.states)

    def _take(self, session: Session, optimiser: Sgd, indices: Tensor, changes: Tensor) -> LossAndGradient:
        """Take a step: the first one of its kind as it is, the second one is captured, later ones replay."""
        kind = (id(optimiser), len(indices))

        def work() -> LossAndGradient:
            result = self.step(session.hooks, optimiser, *session.batches[kind])
            session.settle()
            return result

        if kind not in session.batches:
            session.batches[kind] = indices.clone(), changes.clone()
            return work()
        tree_map(Tensor.copy_, session.batches[kind], (indices, changes))
        if kind not in session.captured:
            session.captured[kind] = self.capture(work)
        graph, result = session.captured[kind]
        graph.replay()
        return result

    def capture(self, work: Callable[[], LossAndGradient]) -> Captured:
        """Capture a step that has run before."""
        gc.collect()  # the graphs of an earlier run must not be freed during a capture
        try:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                return graph, work()
        except RuntimeError as error:
            raise FltrainError(
                f"--cuda-graph: a local step cannot be captured ({' '.join(str(error).split())}); "
                "leave out --cuda-graph"
            ) from None


def _tensors(hooks: LocalHooks) -> dict[str, dict[str, Any]]:
    """Return all tensors of the client as each method sees it, and its numbers as tensors."""
    return {
        method: {name: getattr(local, name) for name in TENSORS}
        | {name: torch.full((), getattr(local, name), device=local.start.device) for name in NUMBERS}
        for method, local in hooks.locals_.items()
    }


def _forms(tensors: Any) -> Any:
    """Return shape and type of each tensor, in the same dictionaries."""
    return tree_map(lambda tensor: (tensor.shape, tensor.dtype), tensors)
