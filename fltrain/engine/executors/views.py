"""Client views with other tensors in place of their own, for steps that serve several clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Local

PER_CLIENT = {"client": torch.int64, "steps": torch.int64, "samples": torch.int64}
"""Numbers of a client view that differ between the clients of a round."""

PER_ROUND = {"lr": torch.float32, "round": torch.int64}
"""Numbers of a client view that differ between rounds."""

Numbers = dict[str, torch.dtype]


def tensors_of(local: Local, numbers: Numbers) -> list[Tensor]:
    """Return all tensors of a client view, and some of its numbers as tensors of no dimension."""
    device = local.start.device
    return [
        *(local.start, local.buffers, local.class_counts, *local.payload.values(), *local.state.values()),
        *(torch.tensor(getattr(local, name), dtype=dtype, device=device) for name, dtype in numbers.items()),
    ]


def with_tensors(local: Local, tensors: Iterable[Tensor], numbers: Numbers) -> Local:
    """Return the client view with other tensors, in the order of ``tensors_of``."""
    left = iter(tensors)
    fields: dict[str, Any] = {name: next(left) for name in ("start", "buffers", "class_counts")}
    fields |= {name: {key: next(left) for key in getattr(local, name)} for name in ("payload", "state")}
    fields |= {name: next(left) for name in numbers}
    return replace(local, **fields)


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
