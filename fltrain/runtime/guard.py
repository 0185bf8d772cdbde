"""A guard around code that must stay on the device: no reads of values on the host, no random numbers.

Local steps take tensors and return tensors (see ``fltrain.methods.base``). On the CPU a violation goes
unnoticed, because reading a value is free. Under this guard it is an error on every device. So a run on the
CPU finds code that would stall a GPU, or could not be captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = "it reads values on the host"
_COPIES = "it copies data from the host"

# These calls cause no traceable operation on the CPU, or their own name is clearer than the operation's.
_REFUSED: dict[tuple[Any, str], str] = {
    **dict.fromkeys([(Tensor, name) for name in ("item", "tolist", "numpy", "cpu", "__array__")], _READS),
    **dict.fromkeys([(Tensor, f"__{name}__") for name in ("bool", "int", "float", "complex")], _READS),
    **dict.fromkeys([(Tensor, f"__{name}__") for name in ("index", "repr", "format", "dlpack")], _READS),
    **dict.fromkeys([(torch, name) for name in ("tensor", "as_tensor", "asarray", "from_numpy")], _COPIES),
    (Tensor, "new_tensor"): _COPIES,
}

_REFUSED_BY_TAG = {
    torch.Tag.nondeterministic_seeded: "it draws random numbers",
    torch.Tag.data_dependent_output: _READS,
    torch.Tag.dynamic_output_shape: "the size of its result depends on values",
}

_COPYING = {torch.ops.aten.copy_, torch.ops.aten._to_copy}

# PyTorch tags these because masks as arguments give results of variable size.
_INDEXING = {
    getattr(torch.ops.aten, name)
    for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
}


class Refused(RuntimeError):
    """An operation that a local step must not use."""


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise an error at host synchronisation and random numbers within this context.

    Refused are: reading values (``item``, ``tolist``, ``if tensor`` ...), results whose size depends on
    values (``nonzero``, a mask as index ...), copies between devices or from Python data, and random numbers
    from PyTorch (for NumPy's and Python's, see ``fltrain.core.rng.own_streams``). This holds for forward and
    backward passes alike. Modules of a network may draw random numbers (dropout): the engine has seeded them.
    """
    with ExitStack() as stack:
        for (owner, name), reason in _REFUSED.items():
            stack.enter_context(patch.object(owner, name, _refusing(f"{owner.__name__}.{name}", reason)))
        stack.enter_context(patch.object(Tensor, "to", _to))
        stack.enter_context(_Watch())  # type: ignore[no-untyped-call]
        yield


def _refuse(operation: str, reason: str) -> NoReturn:
    raise Refused(f"{operation} is refused here: {reason}")


def _refusing(operation: str, reason: str) -> Callable[..., NoReturn]:
    return lambda *_args, **_kwargs: _refuse(operation, reason)


def _to(tensor: Tensor, *args: Any, _original: Any = Tensor.to, **kwargs: Any) -> Tensor:
    # On the CPU nothing would be copied: an explicit destination reveals the copy.
    if any(isinstance(value, str) and value.startswith("cpu") for value in (*args, *kwargs.values())):
        _refuse("Tensor.to('cpu')", _READS)
    moved: Tensor = _original(tensor, *args, **kwargs)
    return moved


class _Watch(TorchDispatchMode):
    """Checks every operation before it runs, also in backward passes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, or else PyTorch loads its compiler here, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        reason = _reason_to_refuse(func, args, kwargs)
        if reason is not None:
            _refuse(str(func), reason)
        return func(*args, **kwargs)


def _reason_to_refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    # A single number on the host may take part in any operation on the device, except a copy.
    copies = func.overloadpacket in _COPYING
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    devices = {tensor.device.type for tensor in tensors if tensor.dim() or copies}
    if copies and kwargs.get("device") is not None:
        devices.add(torch.device(kwargs["device"]).type)
    if len(devices) > 1:
        return f"it mixes devices ({', '.join(sorted(devices))})"
    if func.overloadpacket in _INDEXING:
        masked = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return "the mask decides the size of its result" if masked else None
    refused = next((tag for tag in _REFUSED_BY_TAG if tag in func.tags), None)
    if refused is None or (refused is torch.Tag.nondeterministic_seeded and _in_module()):
        return None
    return _REFUSED_BY_TAG[refused]


def _in_module() -> bool:
    """Return True if a module of a network runs."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "_call_impl" and isinstance(frame.f_locals.get("self"), torch.nn.Module):
            return True
    return False
