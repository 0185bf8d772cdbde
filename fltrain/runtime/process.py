"""CPU threads, memory allocation and peak memory of a process that trains runs."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

LARGEST = 32 * 2**20
"""Larger blocks are returned to the system at once; glibc accepts no larger threshold."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as malloc.h has them
_NEVER = 2**31 - 1
_PR_SET_PDEATHSIG = 1  # as prctl.h has it

_OUT_OF_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""PyTorch's texts in plain RuntimeErrors: of the CPU, and of NVIDIA's libraries."""


@contextmanager
def compute_as_runs(threads: int = 1) -> Iterator[None]:
    """Set this process up to train: number of CPU threads, for the enclosed code, and freed memory.

    glibc keeps freed memory for the next local step. Otherwise it returns the memory at the end of its heap
    to the system in every step, and the system clears each page again. That takes up to a tenth of the time
    of LeNet-5's steps. Other C libraries stay as they are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that a device, or the machine, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends, however that ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def peak_memory() -> int:
    """Return the maximum number of bytes that this process has held since ``forget_peaks``.

    On Linux the number covers this process only; ``getrusage`` would include the parent's peak.
    """
    with suppress(OSError):
        match = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peaks(device: torch.device) -> None:
    """Restart the peaks of memory, for a run that is not the first of its process.

    Memory that an earlier run still holds counts. The host's peak restarts on Linux only.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
