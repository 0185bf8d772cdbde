"""How long a dry run of the whole workflow takes: `snakemake -n` at the scale of the papers, nothing trained.

Shown are the seconds on the clock and of the processor, of the plan alone (every run validated and named) and
of the dry run (the plan, then Snakemake's graph of jobs). Each is the best of the repeats, as other work on
the machine only ever adds to it.
"""

from __future__ import annotations

import argparse
import csv
import resource
import subprocess
import sys
import time
from pathlib import Path

from fltrain.experiments.plan import plan

CONFIG = Path("config")
COMMANDS = {
    "plan": [sys.executable, "-m", "fltrain", "plan", "--scale"],
    "dry run": [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "all", "--config"],
}


def seconds(command: list[str]) -> tuple[float, float]:
    """Seconds on the clock and of the processor that a command takes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    elapsed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="where to write the table")
    options = parser.parse_args()

    planned = plan(CONFIG, options.scale)
    print(f"{options.scale}: {len(planned.runs)} runs behind {len(planned.specs)} cells and seeds")
    scales = {"plan": options.scale, "dry run": f"scale={options.scale}"}
    print(f"{'':10}{'clock, s':>10}{'processor, s':>14}")
    rows = []
    for name, command in COMMANDS.items():
        taken = [seconds([*command, scales[name]]) for _ in range(options.repeats)]
        clock, processor = (min(values) for values in zip(*taken, strict=True))
        print(f"{name:10}{clock:10.1f}{processor:14.1f}")
        rows += [(name, *values) for values in taken]
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["command", "clock_seconds", "processor_seconds"])
            writer.writerows((name, f"{clock:.2f}", f"{processor:.2f}") for name, clock, processor in rows)


if __name__ == "__main__":
    main()
