"""Progress of jobs in words."""

from __future__ import annotations

import re


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
