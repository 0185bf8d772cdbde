"""Progress of the workflow's jobs in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.runs.record import Results


def duration(seconds: float) -> str:
    """Format a duration, for example ``45 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def finished(job: str, done: int, total: int, seconds: float) -> str:
    """Return the line of a finished job ``training <run>``: number, run, accuracy, its time, the time left.

    Args:
        job: the job.
        done: number of finished runs.
        total: number of runs to train.
        seconds: time since the first of them began.
    """
    run = job.removeprefix("training ")
    try:
        record = Results(Path("results")).record(run)
        taken, accuracy = record.costs["seconds"]["total"], record.summary["accuracy"]["final"]
        outcome = f"{'diverged' if accuracy is None else f'{100 * accuracy:.2f} %'}, {taken:,.1f} s"
    except (FltrainError, KeyError):
        outcome = "finished"
    left = (
        f"about {duration(seconds / done * (total - done))} left" if done < total else "all runs are trained"
    )
    return f"[{done:{len(str(total))}}/{total}] {run}: {outcome}; {left}"


def failure(job: str, logs: Iterable[str]) -> str:
    """Return that a job failed, the end of its logs, and their places."""
    written = [Path(log) for log in logs if Path(log).is_file()]
    ends = [f"\n{last_words(log.read_text(errors='replace'))}\n(log: {log})" for log in written]
    return f"{job} did not finish{':' if ends else ', and left no log'}{''.join(ends)}"


def last_words(log: str) -> str:
    """Return what a job's log says after its last line of progress, or else this line; at most 20 lines."""
    lines = log.strip().splitlines()
    told = max((n for n, line in enumerate(lines, 1) if re.match(r"\d\d:\d\d:\d\d ", line)), default=0)
    return "\n".join((lines[told:] or lines[-1:])[-20:])


def difference(text: str) -> str:
    """Shorten what Snakemake prints about changed parameters to the part that differs."""

    def shown(found: re.Match[str]) -> str:
        pairs = enumerate(zip(*found.groups(), strict=False))
        start = max(0, next((place for place, (old, new) in pairs if old != new), 0) - 40)
        return "before: ...{}... now: ...{}...".format(*(part[start:][:200] for part in found.groups()))

    return re.sub(r"before: (.{400,}) now: (.{400,})", shown, text)
