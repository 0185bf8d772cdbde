"""Choice of the device; on a machine with several GPUs, each process gets a free one.

A process takes a slot of a GPU: it locks a file in a folder that all processes of the user on this machine
share. It holds the slot until it ends, because it uses memory of the GPU until then. The system releases the
locks of a process that was killed. This module imports torch only when needed.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import BaseFileLock, FileLock, Timeout

from fltrain.core.errors import FltrainError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

LOG = logging.getLogger("fltrain")
LOCKS = "FLTRAIN_GPU_LOCKS"
RUNS = "FLTRAIN_RUNS_PER_DEVICE"
POLL_SECONDS = 0.5


def pick_device(name: str, runs: int | None = None) -> torch.device:
    """Return the device called ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; PyTorch then uses this GPU only.

    ``auto`` and ``cuda`` choose a GPU that fewer than ``runs`` processes hold (default:
    ``FLTRAIN_RUNS_PER_DEVICE``, or 1). The call waits for such a GPU; this process then holds it until it
    ends. ``cuda:N`` is that GPU, even if other processes use it.

    Raises:
        FltrainError: if this machine has no such device, or the locks cannot be written.
    """
    import torch

    kind = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(kind)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise FltrainError(f"--device: unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise FltrainError(f"--device: {name!r}, but this machine has {count} CUDA devices; use cpu or auto")
    if kind == "cuda":
        device = torch.device("cuda", _held(_runs() if runs is None else runs).device)
    torch.cuda.set_device(device)
    return device


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; return at once for a CPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class DeviceShare:
    """A share of a device, held as long as its lock."""

    device: int
    lock: BaseFileLock


@dataclass(frozen=True)
class Slots:
    """Slots of devices, held by processes of one user on one machine.

    Attributes:
        folder: folder of the lock files, created when needed. A file without a lock means nothing.
        devices: names of the devices, usable in file names; the same in all processes.
        runs: number of slots of a device.
    """

    folder: Path
    devices: Sequence[str]
    runs: int = 1

    def wait(self) -> DeviceShare:
        """Take a slot as soon as a device is free."""
        slot = self.take()
        if slot is None:
            # A warning, so that it is shown even before logging is configured.
            LOG.warning(
                "waiting for a GPU: %d GPUs, for %d processes each, none free (locks: %s)",
                *(len(self.devices), self.runs, self.folder),
            )
        while slot is None:
            time.sleep(POLL_SECONDS)
            slot = self.take()
        return slot

    def take(self) -> DeviceShare | None:
        """Take a slot: the first one of all devices, then the second ones; None if all are taken.

        Raises:
            FltrainError: if the folder cannot be used, or if other users can use it.
        """
        folder = self.folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise FltrainError(
                    f"{folder}: cannot keep the locks of GPUs: not a folder of this user alone; `chmod 700` "
                    f"it if it is yours, or name another folder in {LOCKS}"
                )
            for number in range(self.runs):
                for device, name in enumerate(self.devices):
                    # A lock of the system, which ends with its process; never another kind.
                    lock = FileLock(folder / f"{name}.{number}.slot", fallback_to_soft=False)
                    with suppress(Timeout):
                        lock.acquire(timeout=0)
                        return DeviceShare(device, lock)
        except OSError as error:
            raise FltrainError(
                f"{folder}: cannot keep the locks of GPUs ({error.strerror or error}); "
                f"name a folder on this machine in {LOCKS}"
            ) from None
        return None


@cache
def _held(runs: int) -> DeviceShare:
    """Return the slot that this process holds until it ends.

    Names of GPUs do not depend on the numbering of a process. If SLURM gave them to a job, the names include
    the job: SLURM decides if jobs share a GPU.
    """
    import torch

    given = os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS")
    job = f"job{os.environ.get('SLURM_JOB_ID', '')}-" if given else ""
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    # Not the temporary folder that the environment names: it can differ between processes.
    folder = os.environ.get(LOCKS) or f"/tmp/fltrain-gpus-{os.getuid()}"
    return Slots(Path(folder), [f"{job}{card.uuid}" for card in cards], runs).wait()


def _runs() -> int:
    text = os.environ.get(RUNS) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise FltrainError(f"{RUNS}: {text!r} is not a number of processes; set it to 1 or more")
    return int(text)


def to_device(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Return an array on the device; a GPU need not finish its work before the copy."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
