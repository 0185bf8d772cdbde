"""Signals that ask a run to stop: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1 (clusters send it before a limit)."""

from __future__ import annotations

import signal
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
"""Signals that come within so many seconds of the first one were sent with it."""


class Stopping:
    """Turns a signal into an exception, but only where nothing is left half done by it.

    Work is interruptible if it is said to be. A signal that comes at another time waits until such work
    begins; if none does any more, all has been done anyway. Who presses Ctrl-C again does not want to wait.
    """

    def __init__(self) -> None:
        self._asked: Stopped | None = None
        self._interruptible = False
        self._since = 0.0

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Handle the signals as long as the enclosed work runs (in the main thread)."""
        before = {number: signal.signal(number, self._handle) for number in ENDINGS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Enclose work whose results do not count before it is done.

        Raises:
            Stopped: as soon as a signal comes, or at once if one has come.
        """
        self._interruptible = True
        try:
            if self._asked:
                raise self._asked
            yield
        finally:
            self._interruptible = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # The first signal decides how the program ends; whoever stops a group of processes may send several.
        if self._asked is None:
            name = signal.Signals(number)
            self._asked, self._since = ENDINGS[name](f"stopped by {name.name}"), time.monotonic()
            if self._interruptible:
                raise self._asked
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_SECONDS:
            raise KeyboardInterrupt
