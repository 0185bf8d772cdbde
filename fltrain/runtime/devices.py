"""Choice of the device; on a machine with several GPUs, each process gets a free one.

A process takes a slot of a GPU: it locks a file in a folder that all processes of the user on this machine
share. It holds the slot until it ends, because it uses memory of the GPU until then. The system releases the
locks of a process that was killed. This module imports torch only when needed.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from filelock import BaseFileLock, FileLock, Timeout
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError
from fltrain.core.lazy import torch

LOG = logging.getLogger("fltrain")
LOCKS = "FLTRAIN_GPU_LOCKS"
POLL_SECONDS = 0.5


DEVICES = "auto, cpu, cuda or cuda:N"
"""Names of devices, for messages."""


def check_device(name: str) -> str:
    """Return the name of a device, which a machine may have or not; refuse other names."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(name)):
        raise FltrainError(f"device {name!r}: use {DEVICES}")
    return name


def pick_device(name: str, runs: int = 1) -> torch.device:
    """Return the device called ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; PyTorch then uses this GPU only.

    ``auto`` and ``cuda`` choose a GPU that fewer than ``runs`` processes hold. The call waits for such a GPU;
    this process then holds it until it ends. ``cuda:N`` is that GPU, even if other processes use it.

    Raises:
        FltrainError: if this machine has no such device, or the locks cannot be written.
    """
    count = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if name not in ("auto", *["cuda"] * count, *(f"cuda:{number}" for number in range(count))):
        raise FltrainError(f"device {name!r}: use {DEVICES}; this machine has {count} CUDA devices")
    number = int(name[5:]) if ":" in name else _held(runs)[0]
    torch.cuda.set_device(device := torch.device("cuda", number))
    return device


def wait(folder: Path, devices: Sequence[str], runs: int = 1) -> tuple[int, BaseFileLock]:
    """Take a slot as soon as a device is free; a warning (shown without logging, too) notes the wait."""
    # The same locks all the time: Python ignores a signal's exception that is raised while it deletes one.
    slots = all_slots(folder, devices, runs)
    if (slot := take(folder, slots)) is None:
        LOG.warning("waiting for one of %d GPUs; none is free (locks: %s)", len(devices), folder)
    while slot is None:
        time.sleep(POLL_SECONDS)
        slot = take(folder, slots)
    return slot


def all_slots(folder: Path, devices: Sequence[str], runs: int = 1) -> list[tuple[int, BaseFileLock]]:
    """Return the number of the device and the lock of each slot; the first ones of all devices come first.

    Each of the ``devices``, whose names are parts of file names and the same in all processes, has ``runs``
    slots. A file that no process has locked means nothing.
    """
    return [
        # A lock of the system.
        (device, FileLock(folder / f"{name}.{number}.slot", fallback_to_soft=False))
        for number, (device, name) in itertools.product(range(runs), enumerate(devices))
    ]


def take(folder: Path, slots: Sequence[tuple[int, BaseFileLock]]) -> tuple[int, BaseFileLock] | None:
    """Take the first free slot, and return the number of its device and its lock; None if all are taken."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()  # links are open to all
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(0, "not a folder of this user alone; chmod 700 it if it is yours")
        for device, lock in slots:
            with suppress(Timeout):
                lock.acquire(timeout=0)
                return device, lock
    except OSError as error:
        raise FltrainError(
            f"{folder}: cannot keep the locks of GPUs ({error.strerror or error}); "
            f"name a folder on this machine in {LOCKS}"
        ) from None
    return None


@cache
def _held(runs: int) -> tuple[int, BaseFileLock]:
    """Return the slot that this process holds until it ends.

    Names of GPUs do not depend on the numbering of a process. If SLURM gave them to a job, the names include
    the job: SLURM decides if jobs share a GPU.
    """
    gpus = os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS")
    job = f"job{os.environ.get('SLURM_JOB_ID', '')}-" if gpus else ""
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    # Not the temporary folder that the environment names: it can differ between processes.
    folder = os.environ.get(LOCKS) or f"/tmp/fltrain-gpus-{os.getuid()}"
    return wait(Path(folder), [f"{job}{card.uuid}" for card in cards], runs)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; return at once for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Return an array on the device; a GPU need not finish its work before the copy."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
