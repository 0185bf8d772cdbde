"""CUDA graphs on other devices: a tape records the operations of a step and replays them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

ATEN = torch.ops.aten
READING = (ATEN._local_scalar_dense, ATEN.nonzero, ATEN.equal)
"""Operations that read values on the host; CUDA refuses to capture them."""


class Tape(TorchDispatchMode):
    """Stands in for ``torch.cuda.CUDAGraph``, and for the context ``torch.cuda.graph`` that captures it.

    As in a CUDA graph, a replay runs no Python: numbers and branches stay as they were at capture, and
    results appear in the tensors of the capture. Unlike CUDA, the capture computes, and the first replay not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.computed = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in READING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        if torch.Tag.inplace_view in func.tags:  # no kernel runs; earlier calls keep the shape that they saw
            tensor, alias = args[0], ATEN.detach.default(args[0])
            self.calls = tree_map_only(Tensor, lambda value: alias if value is tensor else value, self.calls)
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        if self.computed:
            self.computed = False
            return
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                new_result = func(*args, **kwargs)
                for target, value in zip(tree_leaves(result), tree_leaves(new_result), strict=True):
                    if isinstance(target, Tensor) and _memory(target) != _memory(value):
                        target.detach().copy_(value)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Pool:
    """Stands in for the memory that graphs share."""

    def __init__(self) -> None:
        self.used, self.tapes = False, WeakSet[Tape]()


@contextmanager
def taped() -> Iterator[None]:
    """Capture tapes instead of CUDA graphs within the context.

    As CUDA does if something else uses the memory, a capture refuses a pool whose graphs are all gone.
    """

    def graph(tape: Tape, pool: Pool) -> Tape:
        if pool.used and not pool.tapes:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        pool.used = True
        pool.tapes.add(tape)
        return tape

    with (
        patch("torch.cuda.CUDAGraph", Tape),
        patch("torch.cuda.graph", graph),
        patch("torch.cuda.graph_pool_handle", Pool),
        patch("gc.collect"),  # tapes hold no memory of a device
    ):
        yield
