"""How a process computes in which runs are trained: its threads, and how it asks the system for memory."""

from __future__ import annotations

import ctypes

import torch

LARGEST = 32 * 2**20
"""Larger blocks go back to the system at once; glibc accepts no more."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as malloc.h has them
_NEVER = 2**31 - 1


def compute_as_runs(threads: int = 1) -> None:
    """Have this process compute as runs are trained: on so many threads, keeping the memory that it frees."""
    torch.set_num_threads(threads)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, as the next local step needs it again; elsewhere nothing is done.

    It would give memory back that it holds free at the end of its own, in every step, and the system would
    clear each page anew: up to a tenth of the time of LeNet-5's steps, or nothing, depending on what else
    lies there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
