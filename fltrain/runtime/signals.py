"""Signals that ask a run to stop: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1 (clusters send it before a limit)."""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fltrain.core.errors import Interrupted, Stopped

ENDINGS: dict[signal.Signals, type[Stopped]] = {
    signal.SIGINT: Interrupted,
    signal.SIGTERM: Stopped,
    signal.SIGUSR1: Stopped,
}

SAME_SECONDS = 1.0
"""Signals within this time after the first one in seconds count as sent with it."""


def _ignore() -> None:
    """Ignore the signals while the process ends: Python would restore their default, which kills it."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)


class Stopping:
    """Handles signals by setting a flag, which training polls between clients.

    A signal raises at once only while the process waits or prepares, in ``interruptible``. A second Ctrl-C
    always ends the process at once.
    """

    def __init__(self) -> None:
        self._asked: Stopped | None = None
        self._interruptible = False
        self._since = 0.0

    def heed(self) -> None:
        """Handle the signals until the process ends (in the main thread).

        A signal that comes after the work is done does not change the exit code.
        """
        atexit.register(_ignore)
        for number in ENDINGS:
            signal.signal(number, self._handle)

    def poll(self) -> None:
        """Raise ``Stopped``, of the kind that belongs to the first signal, if one has come."""
        if self._asked:
            raise self._asked

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Enclose waiting, or preparation that leaves nothing half done when it is cut short.

        Raises:
            Stopped: as soon as a signal comes, or at once if one has come.
        """
        self._interruptible = True
        try:
            self.poll()
            yield
        finally:
            self._interruptible = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # The first signal decides the exit code; a group of processes may get several.
        if self._asked is None:
            name = signal.Signals(number)
            self._asked, self._since = ENDINGS[name](f"stopped by {name.name}"), time.monotonic()
            if self._interruptible:
                raise self._asked
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_SECONDS:
            raise KeyboardInterrupt


@contextmanager
def saving_at_ctrl_c() -> Iterator[Stopping]:
    """Yield a handler of Ctrl-C for training in a Python session, which goes on afterwards.

    It handles none in other threads, or if the session has a handler of its own.

    Raises:
        KeyboardInterrupt: after Ctrl-C; the state is saved.
    """
    stopping, usual = Stopping(), signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    handled = in_main and signal.getsignal(signal.SIGINT) is usual
    if handled:
        signal.signal(signal.SIGINT, stopping._handle)
    try:
        yield stopping
        stopping.poll()
    except Interrupted as stopped:
        raise KeyboardInterrupt(str(stopped)) from None
    finally:
        if handled:
            signal.signal(signal.SIGINT, usual)
