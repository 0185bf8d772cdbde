"""How a process computes in which runs are trained: its threads, how it asks for memory, and what it took."""

from __future__ import annotations

import ctypes
import re
import resource
from contextlib import suppress
from pathlib import Path

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


def peak_memory() -> int:
    """Bytes of memory that this process has held at most, since ``forget_peaks``.

    Linux tells them of a process itself; in what ``getrusage`` says of one, its parent's peak counts, too.
    """
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peaks(device: torch.device) -> None:
    """Have the peaks of memory count from here on, for a run that is not the process's first.

    What an earlier run has left in memory still counts; the host's peak is forgotten on Linux only.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
