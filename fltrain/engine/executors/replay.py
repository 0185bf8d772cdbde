"""Recording a computation once, to repeat it without the Python and the autograd that led to its operations.

On CUDA that is a graph, which the device runs by itself. On the CPU it is a list of PyTorch's operations on
tensors, forward and backward alike, as they reached the kernels: called again in the same order on the same
memory, they give the same bits.

What is recorded must stay on the device (``tests/guard.py`` has tests see to it), read its inputs from
tensors that are written to in place, and write all results but one to such tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

Replay = Callable[[], Tensor]

_SAME = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
"""Operations that return the tensor that they are given, as far as its values go."""


def record(work: Callable[[], Tensor], pool: Any = None) -> tuple[Tensor, Replay]:
    """Do some work, and return its result and what does it again.

    Args:
        work: what to do; it must have been done before, as PyTorch prepares itself when something is new.
        pool: of memory, for CUDA: graphs that never run at the same time may share one.

    Returns:
        the result, and a function that returns it anew; on CUDA always in the same memory.
    """
    if pool is None:
        return _record_operations(work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay(), replay


def _record_operations(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
    tape = _Tape()
    with tape:
        result = work()
    operations = tape.finished(result)

    def replay() -> Tensor:
        with torch.no_grad():
            again: Tensor = operations()
        return again

    return result, replay


class _Tape(TorchDispatchMode):
    """Writes down the operations that reach the kernels as a graph of torch.fx.

    A tensor that no operation on the tape has made is one that stays where it is, or a view of one. Autograd
    hands tensors on without any operation, as objects of their own: what tells that a tensor was made on the
    tape is its memory, which is kept until the end.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._fixed = nn.Module()
        self._nodes: dict[tuple[Any, ...], fx.Node] = {}
        self._made: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: PyTorch would load its compiler, which takes a second, for the sake of not compiling this."""
        return False

    def finished(self, result: Tensor) -> Callable[[], Tensor]:
        """Return what runs the operations, and returns ``result`` as they make it."""
        self._graph.output(self._node(result))
        self._alive.clear()
        return fx.GraphModule(self._fixed, self._graph).forward

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func.is_view and not any(_memory(tensor) in self._made for tensor in tensors):
            return output  # of what stays where it is
        if func in _SAME:
            self._keep(output, self._node(args[0]))
            return output
        inputs, settings = tree_map_only(Tensor, self._node, (args, kwargs))
        node = self._graph.call_function(func, inputs, settings)
        if isinstance(output, Tensor):
            if not any(output is tensor for tensor in tensors):  # an operation in place returns what it got
                self._keep(output, node)
        else:
            for place, one in enumerate(output):
                if isinstance(one, Tensor):
                    self._keep(one, self._graph.call_function(operator.getitem, (node, place)))
        return output

    def _keep(self, tensor: Tensor, node: fx.Node) -> None:
        """Remember which node has made a tensor."""
        self._alive.append(tensor)
        self._nodes[_place(tensor)] = node
        self._made.setdefault(_memory(tensor), node)

    def _node(self, tensor: Tensor) -> fx.Node:
        """The node whose value a tensor is."""
        place = _place(tensor)
        if place not in self._nodes:
            self._alive.append(tensor)
            self._nodes[place] = self._view_or_fixed(tensor)
        return self._nodes[place]

    def _view_or_fixed(self, tensor: Tensor) -> fx.Node:
        whole = self._made.get(_memory(tensor))
        if whole is not None:
            geometry = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
            return self._graph.call_function(torch.ops.aten.as_strided.default, (whole, *geometry))
        name = f"fixed{len(self._nodes)}"
        setattr(self._fixed, name, tensor.detach())
        return self._graph.get_attr(name)


def _memory(tensor: Tensor) -> int:
    """What tells memory apart from other memory, as long as it is in use."""
    known: int = tensor.untyped_storage()._cdata
    return known


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return _memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
