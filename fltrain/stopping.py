"""Signals that ask a run to stop: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1 (clusters send it before a limit)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fltrain.errors import Interrupted, Stopped

ENDINGS: dict[signal.Signals, type[Stopped]] = {
    signal.SIGINT: Interrupted,
    signal.SIGTERM: Stopped,
    signal.SIGUSR1: Stopped,
}


class Stopping:
    """Turns a signal into an exception, but only where nothing is left half done by it.

    Work is interruptible if it is said to be. A signal that comes at another time waits until such work
    begins; if none does any more, the run has ended anyway.
    """

    def __init__(self) -> None:
        self._asked: Stopped | None = None
        self._interruptible = False

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
            self._asked = ENDINGS[name](f"stopped by {name.name}")
            if self._interruptible:
                raise self._asked
