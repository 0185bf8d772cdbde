"""Where the time of some work on the CPU goes: to kernels, by kind, and to everything else.

Kernels are the operations of PyTorch that compute, move or fill numbers. Everything else is Python, autograd,
the dispatch of operations, views, and taking and giving back memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

OUTSIDE = "not in kernels"
OPTIMISER, GATHER, COPIES, ELEMENTWISE = "optimiser", "gather, augment", "copies", "elementwise"

_NAMED = {
    "convolution": r"(mkldnn_|cudnn_)?convolution(_backward|_transpose)?|_slow_conv.*|conv_depthwise.*",
    "linear": r"(add)?(mm|mv|bmm)|baddbmm|dot|mkldnn_linear.*|linear_backward",
    "pooling": r".*pool[123]d.*",
    "normalisation": r"native_(batch|group|layer)_norm.*|_?batch_norm_(with|no)_update|batch_norm_backward",
    GATHER: r"index_select|gather|index",
    COPIES: r"copy_|cat",
}
"""Operations of PyTorch by kind. All others that compute are told apart by what they compute on."""

GROUPS = ("convolution", "linear", "pooling", "normalisation", ELEMENTWISE, OPTIMISER, GATHER, COPIES)

MOST_PER_EVENT = 1e-5
"""Seconds that the profiler takes at most to note an operation: what is beyond is noise."""

_MEMORY = re.compile(r"(new_)?empty.*|resize.*|as_strided_|set_")
_WRAPPERS = frozenset({"convolution"})
"""Operations that match a name above, but hand the work to another one."""


@dataclass(frozen=True)
class Shapes:
    """What operations compute on, where their names do not tell.

    Attributes:
        image: shape of an image ``[c, h, w]``.
        vectors: lengths of the flat vectors that optimiser and methods work on.
    """

    image: tuple[int, ...]
    vectors: frozenset[int]


def profiled(work: Callable[[], object], shapes: Shapes, plain: float) -> dict[str, float]:
    """Do some work; return the share of its time that each group of kernels took, and ``OUTSIDE`` the rest.

    ``plain`` is the processor time in seconds that such work takes without the profiler.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would report that there is no GPU
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorded:
        started, busy = time.perf_counter(), time.thread_time()
        work()
        seconds, busy = time.perf_counter() - started, max(time.thread_time() - busy, 1e-9)
    shares, events = dict.fromkeys(GROUPS, 0.0), recorded.events()
    for event in events:
        group = _group(event, shapes)
        if group:
            shares[group] += event.self_cpu_time_total / 1e6 / seconds
    return without_profiler(shares, min(max(1 - plain / busy, 0.0), len(events) * MOST_PER_EVENT / busy))


def without_profiler(inside: Mapping[str, float], profiler: float) -> dict[str, float]:
    """Shares by group, and ``OUTSIDE``, of the time that is left when the profiler's own share is taken off.

    What the profiler adds lies around the kernels, whose own time it hardly changes.
    """
    shares = {group: share / (1 - profiler) for group, share in inside.items()}
    return {**shares, OUTSIDE: 1 - sum(shares.values())}


def tensor_bytes(work: Callable[[], object]) -> int:
    """Do some work, and return how many bytes PyTorch took at most for what it made meanwhile."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        work()
    results = recorded.profiler.kineto_results
    taken = most = 0
    for event in results.events():
        if event.name() == "[memory]":
            taken += event.nbytes()
            most = max(most, taken)
    return most


def _group(event: Any, shapes: Shapes) -> str | None:
    """The group of kernels that an event belongs to; None if it is no kernel."""
    name = event.name.removeprefix("aten::")
    if name == event.name:
        return None
    named = _named(name)
    if named is None and not _computes(name):
        return None
    sizes = [tuple(shape) for shape in event.input_shapes]
    if named in (None, COPIES) and any(size[-3:] == shapes.image for size in sizes):
        return GATHER
    if named:
        return named
    vector = any(size and size[-1] in shapes.vectors for size in sizes)
    return OPTIMISER if vector or _in_optimiser(event) else ELEMENTWISE


def _in_optimiser(event: Any) -> bool:
    """Whether one of ``torch.optim`` has asked for it."""
    parent = event.cpu_parent
    return parent is not None and (parent.name.startswith("Optimizer.") or _in_optimiser(parent))


@cache
def _named(name: str) -> str | None:
    """The group of an operation whose name tells it."""
    if name in _WRAPPERS:
        return None
    return next((group for group, names in _NAMED.items() if re.fullmatch(names, name)), None)


@cache
def _computes(name: str) -> bool:
    """Whether an operation has a kernel of its own on the CPU, and is neither a view nor about memory."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or _MEMORY.fullmatch(name):
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return any(
        not one.is_view and one.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU)
        for one in overloads
        if torch._C._dispatch_has_kernel(one.name())
    )
