"""Tensors of client views, for steps that serve several clients."""

from __future__ import annotations

from typing import Any

import torch

from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local

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
