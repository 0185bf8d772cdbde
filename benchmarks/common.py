"""Shared by the benchmarks: costs of commands, quartiles, CSV files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fltrain.core.files import write_text

ROOT = Path(__file__).resolve().parents[1]

# A process inherits the peak memory of its parent: a small one starts the command.
_MEASURE = (
    "import json, resource, subprocess, sys; code = subprocess.call(sys.argv[2:], stdout=2); "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "json.dump([code, used.ru_utime + used.ru_stime, used.ru_maxrss], open(sys.argv[1], 'w'))"
)


@dataclass(frozen=True)
class Costs:
    """Costs of a command: wall time and CPU time in seconds, peak memory in MiB."""

    wall: float
    cpu: float
    memory: float

    @classmethod
    def of(cls, command: Sequence[str], folder: Path = ROOT) -> Costs:
        """Run a command of Python in a folder to its end.

        Raises:
            SystemExit: if it fails, with its output.
        """
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with tempfile.NamedTemporaryFile("r") as used:
            starter = (sys.executable, "-S", "-c", _MEASURE, used.name, sys.executable)
            started = time.perf_counter()
            done = subprocess.run(
                [*starter, *command], cwd=folder, env=environment, capture_output=True, text=True
            )
            wall = time.perf_counter() - started
            code, cpu, kibibytes = json.load(used)
        if code:
            raise SystemExit(f"{' '.join(command)}: exit code {code}\n{done.stderr}")
        return cls(wall, cpu, kibibytes / 1024)


def quartiles(values: Sequence[float]) -> str:
    """Return median and quartiles as text."""
    import numpy as np  # slow: `startup` measures a process that imports this module

    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def write_csv(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a file, if one is named."""
    import pandas as pd

    if path is not None:
        write_text(path, pd.DataFrame(rows).to_csv(index=False))
