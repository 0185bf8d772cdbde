"""Clients as methods see them in a step that is meant for several: other tensors in place of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, State

NUMBERS = frozenset({"client", "round", "lr", "steps", "samples"})
"""What a client tells of itself that is no tensor, and differs between clients or rounds."""


@dataclass(frozen=True)
class Watched(Local):
    """A client that notes which of its numbers are read: a step that holds for several must know."""

    reads: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> Any:
        if name in NUMBERS:
            object.__getattribute__(self, "reads").add(name)
        return object.__getattribute__(self, name)


def tensors(local: Local) -> Iterator[tuple[str, Tensor]]:
    """All tensors that a client holds, as a method sees it, beside its step state."""
    yield from {"start": local.start, "buffers": local.buffers, "class_counts": local.class_counts}.items()
    for part, state in (("payload", local.payload), ("state", local.state)):
        yield from ((f"{part}.{key}", tensor) for key, tensor in state.items())


def signature(hooks: LocalHooks) -> tuple[Any, ...]:
    """What clients must have in common to share a step: which tensors they hold, and which are one."""
    order: dict[int, int] = defaultdict(lambda: len(order))
    held = [
        (name, where, tensor.shape, tensor.dtype, order[id(tensor)])
        for name, local in hooks.locals_.items()
        for where, tensor in tensors(local)
    ]
    return *held, *(
        (name, key, *shape(one))
        for name, step_state in hooks.step_states.items()
        for key, one in step_state.items()
    )


def watched(local: Local, of: Callable[[Tensor], Tensor]) -> Watched:
    """The client with another tensor in place of each of its own."""

    def each(state: State) -> State:
        return {key: of(tensor) for key, tensor in state.items()}

    told = {one.name: getattr(local, one.name) for one in fields(Local)}
    told |= {name: of(told[name]) for name in ("start", "buffers", "class_counts")}
    return Watched(**{**told, "payload": each(local.payload), "state": each(local.state)})


def shape(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    """Shape and type of a tensor."""
    return tensor.shape, tensor.dtype
