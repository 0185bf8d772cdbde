"""Tensors of client views, for steps that serve several clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local, State

PER_CLIENT = {"client": torch.int64, "steps": torch.int64, "samples": torch.int64}
"""Numbers of a client view that differ between the clients of a round."""

PER_ROUND = {"lr": torch.float32, "round": torch.int64}
"""Numbers of a client view that differ between rounds."""

Numbers = dict[str, torch.dtype]


def tensors_of(local: Local, numbers: Numbers) -> dict[str, Any]:
    """Return all tensors of a client view, and some of its numbers as tensors of no dimension, by field.

    ``replace(local, **tensors)`` is the view with other tensors.
    """
    fields = ("start", "buffers", "class_counts", "payload", "state")
    return {name: getattr(local, name) for name in fields} | {
        name: torch.full((), getattr(local, name), dtype=dtype, device=local.start.device)
        for name, dtype in numbers.items()
    }


def signature(hooks: LocalHooks) -> tuple[Any, ...]:
    """Return names, shapes and types of all tensors that clients must have in common to share a step."""
    return tuple(
        (method, part, key, tensor.shape, tensor.dtype)
        for method, local in hooks.locals_.items()
        for part, state in (
            ("payload", local.payload),
            ("state", local.state),
            ("step", hooks.step_states[method]),
        )
        for key, tensor in state.items()
    )


def check_step_states(
    executor: str, moved: Mapping[str, State], places: Mapping[str, State], *, rows: bool = False
) -> None:
    """Check that step states after a step fit into their places; ``rows`` are those of several clients.

    Raises:
        FltrainError: if a method has other tensors than before.
    """

    def forms(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {key: (tensor.shape[rows:], tensor.dtype) for key, tensor in state.items()}

    for name, state in moved.items():
        if forms(state) != forms(places[name]):
            raise FltrainError(
                f"executor {executor!r}: the step state of {name!r} changes its names or shapes in a step; "
                "use --executor sequential"
            )


def memory_of(tensor: Tensor) -> int:
    """Return the address of the memory that a tensor is in; tensors at the same one can overlap."""
    return tensor.untyped_storage().data_ptr()
