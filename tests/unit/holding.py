"""Processes that hold slots of devices. No torch here, so that they start quickly."""

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from fltrain.core.errors import Stopped
from fltrain.runtime.devices import wait
from fltrain.runtime.signals import Stopping

Slots = tuple[Path, Sequence[str], int]
"""Folder of the locks, names of the devices, and number of slots of each."""

_context = multiprocessing.get_context("forkserver")


def started(work: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process that runs one of the functions below."""
    process = _context.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def until(happened: Callable[[], Any]) -> None:
    """Wait until something happens, with a time limit."""
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def keep(slots: Slots, ready: Path) -> None:
    """Hold a slot until killed."""
    _, lock = wait(*slots)
    ready.touch()
    signal.pause()
    assert lock.is_locked


def give_up(slots: Slots, ready: Path) -> None:
    """Wait for a slot until a signal stops the wait, as on the command line."""
    stopping = Stopping()
    try:
        stopping.heed()
        with stopping.interruptible():
            ready.touch()
            wait(*slots)
    except Stopped as stopped:
        sys.exit(stopped.exit_code)
