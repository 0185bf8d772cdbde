"""CPU time and memory of running processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import psutil

SAMPLE_SECONDS, MEMORY_SECONDS = 0.5, 1.0


class Watch:
    """Samples running processes and their children: CPU time over wall time, and peak memory.

    The CPU time of a process includes the time of its ended children, as the system counts it.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self.roots = [psutil.Process(root) for root in roots]
        self.times: list[tuple[float, float]] = []
        self.memory = 0
        self._seconds = dict.fromkeys(self.roots, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def cpu_seconds(self, start: float, end: float) -> float:
        """Return the CPU time between two times, in seconds since the epoch."""
        clock, processor = zip(*self.times, strict=True)
        earlier, later = np.interp([start, end], clock, processor)
        return float(later - earlier)

    def _sample(self) -> None:
        next_memory = 0.0
        while not self._over.wait(SAMPLE_SECONDS):
            alive = self._alive()
            for root in self.roots:
                self._seconds[root] = _cpu_seconds(root) or self._seconds[root]
            running = sum(map(_cpu_seconds, alive[len(self.roots) :]))
            now = time.time()
            self.times.append((now, sum(self._seconds.values()) + running))
            if now >= next_memory:
                next_memory = now + MEMORY_SECONDS
                usages = [_unless_gone(process.memory_full_info) for process in alive]
                # Shared pages count once: each process has its proportion of them.
                self.memory = max(self.memory, sum(usage.pss for usage in usages if usage))

    def _alive(self) -> list[psutil.Process]:
        families = [_unless_gone(partial(root.children, recursive=True)) or [] for root in self.roots]
        return [*self.roots, *(child for family in families for child in family)]


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its ended children; 0 if it has ended."""
    times = _unless_gone(process.cpu_times)
    return sum(times[:4]) if times else 0.0


def _unless_gone(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
