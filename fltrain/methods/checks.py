"""Checks of what a hook returns and does, with errors that name method and hook."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fltrain import models
from fltrain.core.errors import FltrainError, own_place
from fltrain.core.lazy import Tensor, torch
from fltrain.methods.types import Aggregate, Local, Outputs, Server, Update

VECTORS = frozenset({"start_weights", "correct", "post_step", "test_weights"})
"""Hooks that return a vector like their first argument."""

STATES = frozenset({"server_init", "payload", "client_init", "next_state"})
"""Hooks that return a state."""


def tensors_in(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among a hook's arguments, and in their states, clients, updates and servers."""
    for item in arguments:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors_in(item)
        elif isinstance(item, dict):
            yield from tensors_in(item.values())
        elif isinstance(item, Local | Server | Update):
            yield from tensors_in(vars(item).values())


def _versions(tensors: Sequence[Tensor]) -> Any:
    """Return a number that every write into one of the tensors increases."""
    return sum([tensor._version for tensor in tensors])


def recorded(value: Any) -> Any:
    """Return a row with None for infinity and NaN, which JSON lacks and which a diverging run can have."""
    if isinstance(value, dict):
        return {key: recorded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [recorded(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def guarded(method: Any, hook: str, *arguments: Any, tensors: Sequence[Tensor] | None = None) -> Any:
    """Return the result of a hook; refuse a wrong kind of result, and hooks that write into an argument.

    ``tensors`` are the tensors in the arguments, if the caller has collected them.
    """
    tensors = list(tensors_in(arguments)) if tensors is None else tensors
    before = _versions(tensors)
    try:
        result = getattr(method, hook)(*arguments)
    except KeyError as error:
        of_payload = ".payload[" in (traceback.extract_tb(error.__traceback__)[-1].line or "")
        for local in (item for item in arguments if isinstance(item, Local)):
            if of_payload:
                names = ", ".join(local.payload) or "nothing"
                error.add_note(f"local.payload has what the hook 'payload' returns: {names}")
            elif not local.state:
                error.add_note(
                    "local.state is empty before a client's first participation: use "
                    "local.state.get(key, value)"
                )
        raise
    if _versions(tensors) != before:
        raise FltrainError(
            f"{hook!r} of method {method.name!r} writes into a tensor that it was handed, which others read, "
            "too; return a new tensor, or clone it first"
        )
    if expected := _expected(hook, result, arguments):
        raise FltrainError(
            f"{hook!r} of method {method.name!r} returned {_described(result)}; expected {expected} "
            "(docs/method-interface.md)"
        )
    return result


def _expected(hook: str, result: Any, arguments: Sequence[Any]) -> str:
    """Return a description of the expected result; empty if the result is of this kind."""
    if hook in VECTORS:
        return "" if _is_like(result, arguments[0]) else f"a tensor {_shape(arguments[0])}, as it was given"
    if hook in STATES:
        return "" if _is_state(result) else _STATE
    if hook == "loss":
        return "" if _is_scalar(result) else "a scalar tensor"
    if hook == "gradient":
        fits = isinstance(result, tuple) and len(result) == 2 and _is_like(result[0], arguments[1])
        text = f"the gradient, a tensor {_shape(arguments[1])}, and the loss, a scalar tensor"
        return "" if fits and _is_scalar(result[1]) else text
    if hook == "forward":
        return "" if isinstance(result, Outputs) else "Outputs(features, logits)"
    if hook == "client_final":
        fits = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Update)
        text = f"the update and the client's state, {_STATE}"
        uploading = "to upload further tensors, return update.sending(self.name, {...}) as the update"
        return "" if fits and _is_state(result[1]) else f"{text}; {uploading}"
    if hook == "aggregate":
        return _expected_aggregate(result, arguments[2].weights)
    if hook == "predict":
        fits = isinstance(result, torch.Tensor) and result.dim() == 2 and len(result) == len(arguments[1])
        return "" if fits else f"logits, a tensor [{len(arguments[1])}, classes]"
    if hook == "adapt":
        return "" if isinstance(result, models.network.Network) else "the network"
    return "" if hasattr(result, "__enter__") else "a context manager"  # route


_STATE = "a dictionary of tensors"


def _expected_aggregate(result: Any, weights: Any) -> str:
    if not isinstance(result, Aggregate):
        return "Aggregate(weights, state), or Aggregate(state=state) to keep the mean"
    if result.weights is not None and not _is_like(result.weights, weights):
        return f"weights {_shape(weights)}"
    if result.state is not None and not _is_state(result.state):
        return f"a state, {_STATE}"
    try:
        json.dumps(result.row)
    except (TypeError, ValueError) as error:
        return f"a row of numbers, texts, lists and dictionaries of them ({error})"
    return ""


def _is_like(result: Any, vector: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.shape == vector.shape and result.is_floating_point()


def _is_scalar(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.dim() == 0 and result.is_floating_point()


def _is_state(result: Any) -> bool:
    return isinstance(result, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in result.items()
    )


def _shape(tensor: Any) -> str:
    return str(list(tensor.shape))


def _described(value: Any) -> str:
    """Describe a value by its type, and by its shape or its entries."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {_shape(value)}"
    if isinstance(value, dict):
        entries = [f"{name!r}: {_described(item)}" for name, item in value.items()]
        return f"a dictionary {{{', '.join(entries)}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    if isinstance(value, Aggregate):
        parts = {name: part for name, part in vars(value).items() if part is not None}
        return f"Aggregate({', '.join(f'{name}={_described(part)}' for name, part in parts.items())})"
    return (
        "None" if value is None else f"{value!r}" if isinstance(value, int | float) else type(value).__name__
    )


@contextmanager
def watched(method: str, hook: str) -> Iterator[None]:
    """Refuse reads on the host and random numbers in a hook of a local step."""
    from fltrain.runtime.guard import Refused, no_host_sync  # it needs PyTorch

    try:
        with no_host_sync():
            yield
    except Refused as refusal:
        raise FltrainError(
            f"{hook!r} of method {method!r}: {refusal}; hooks of a local step take and return tensors, and "
            "draw random numbers with self.random in client_init (docs/method-interface.md)"
            f"{own_place(refusal)}"
        ) from refusal
