"""Progress of a workflow in words: one line per finished run. Imports no torch."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fltrain.core.errors import FltrainError, count
from fltrain.runs.record import Results


def duration(seconds: float) -> str:
    """Format a duration, for example ``45 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def last_words(log: str) -> str:
    """Return what a job's log says after its last line of progress, or else this line; at most 20 lines."""
    lines = log.strip().splitlines()
    told = max((n for n, line in enumerate(lines, 1) if re.match(r"\d\d:\d\d:\d\d ", line)), default=0)
    return "\n".join((lines[told:] or lines[-1:])[-20:])


@dataclass
class WorkflowProgress:
    """Counts of the runs of a workflow.

    Attributes:
        results: the results folder.
        total: runs to train.
        done: finished runs.
        start: when the first run started, in seconds.
    """

    results: Results
    total: int = 0
    done: int = 0
    start: float | None = None

    def planned(self, jobs: Mapping[str, int]) -> str:
        """Return the size of the workflow in words, from the number of jobs of each rule."""
        self.total = jobs.get("train", 0)
        others = sum(jobs[rule] for rule in jobs.keys() - {"train", "all", "default", "total"})
        return f"{count(self.total, 'run')} to train, {others} other jobs"

    def started(self) -> None:
        """Note that a run starts."""
        if self.start is None:
            self.start = time.monotonic()

    def finished(self, run: str) -> str:
        """Return a line for a finished run: number, run ID, final accuracy, seconds, and the time left."""
        self.done += 1
        self.started()
        width = len(str(self.total))
        return f"[{self.done:{width}}/{self.total}] {run}: {self._outcome(run)}{self._left()}"

    def _outcome(self, run: str) -> str:
        try:
            record = self.results.record(run)
            seconds, accuracy = record.costs["seconds"]["total"], record.summary["accuracy"]["final"]
            text = "diverged" if accuracy is None else f"{100 * accuracy:.2f} %"
            return f"{text}, {seconds:,.1f} s"
        except (FltrainError, KeyError):
            return "finished"

    def _left(self) -> str:
        missing = self.total - self.done
        if missing <= 0:
            return "; all runs are trained"
        seconds = (time.monotonic() - (self.start or 0.0)) / self.done * missing
        return f"; about {duration(seconds)} left"
