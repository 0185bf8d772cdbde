"""What it takes to start a run, and what is saved by training several in one process.

A run of the demonstration is started in new processes, as a job of the workflow starts it: `fltrain train`,
its data set and partition prepared. Shown are seconds on the clock and of the processor until it has passed
each stage; a process ends after its first local step. Then some runs of the demonstration are trained as they
are: each in a process of its own, and all by one `fltrain train`.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STAGES = ("interpreter", "command line imported", "engine imported", "prepared", "first step")
HEAVY = ("mlflow", "matplotlib", "pandas", "scipy", "sklearn", "snakemake")
"""Packages that training needs none of."""


@dataclass(frozen=True)
class Passed:
    """When a process has passed a stage: seconds on the clock since it was started, and of the processor."""

    stage: str
    clock: float
    processor: float


# ---------------------------------------------------------------- in the process that is measured
def begin(started: float, arguments: Sequence[str]) -> None:
    """Do what `fltrain` does with these arguments, up to the first local step; print when stages were passed.

    ``started``: when the process was started, by the clock that counts from the start of the machine.
    """
    passed: list[Passed] = []

    def note(stage: str) -> None:
        passed.append(Passed(stage, time.monotonic() - started, time.process_time()))

    note(STAGES[0])
    from fltrain import cli

    note(STAGES[1])
    importlib.import_module("fltrain.engine.train")  # as the command does next
    import torch

    from fltrain.engine.executors.loop import LoopExecutor

    note(STAGES[2])
    executor: Any = LoopExecutor
    step = executor._step

    def first_step(*arguments: Any) -> Any:
        note(STAGES[3])
        step(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        note(STAGES[4])
        told = {
            "stages": [asdict(one) for one in passed],
            "heavy": [name for name in HEAVY if name in sys.modules],
        }
        print(json.dumps(told), flush=True)
        os._exit(0)

    executor._step = first_step
    sys.argv = ["fltrain", *arguments]
    cli.main()


# ---------------------------------------------------------------- in the one that measures
def start_once(arguments: Sequence[str]) -> tuple[list[Passed], list[str]]:
    """Start a run; return when it has passed the stages, and which heavy packages it has imported."""
    command = [sys.executable, __file__, "--begin", str(time.monotonic()), *arguments]
    told = json.loads(_output(command).splitlines()[-1])
    return [Passed(**one) for one in told["stages"]], told["heavy"]


def import_seconds() -> dict[str, float]:
    """Processor time of what training imports, by package; Python's own measurement, which adds to it."""
    command = [sys.executable, "-X", "importtime", "-c", "import fltrain.cli, fltrain.engine.train"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds: defaultdict[str, float] = defaultdict(float)
    for own, module in re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", done.stderr):
        seconds[module.partition(".")[0]] += int(own) / 1e6
    return seconds


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} has failed")
    return done.stdout


def train(specs: Sequence[Path], results: Path, device: str) -> tuple[float, float]:
    """Seconds on the clock and of the processor of a process that trains runs."""
    command = [sys.executable, "-m", "fltrain", "train", *map(str, specs), "--quiet"]
    before, started = os.times(), time.monotonic()
    _output([*command, "--results", str(results), "--device", device])
    after = os.times()
    processor = after.children_user - before.children_user + after.children_system - before.children_system
    return time.monotonic() - started, processor


def compare_group(specs: Sequence[Path], folder: Path, device: str) -> dict[str, tuple[float, float]]:
    """Seconds of all runs, each in a process of its own and all in one."""
    apart = [train([spec], folder / "apart", device) for spec in specs]
    return {
        "a process each": (sum(clock for clock, _ in apart), sum(processor for _, processor in apart)),
        "one process": train(specs, folder / "together", device),
    }


def demo_specs(folder: Path, count: int) -> list[Path]:
    """So many runs of the demonstration, evenly from all over its plan, as files."""
    from fltrain.core.files import write_json
    from fltrain.experiments.plan import plan

    runs = plan(Path("config"), "demo").runs
    chosen = list(runs)[:: max(1, len(runs) // count)][:count]
    for run in chosen:
        write_json(folder / f"{run}.json", runs[run].model_dump(mode="json"))
    return [folder / f"{run}.json" for run in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="processes that start a run")
    parser.add_argument("--runs", type=int, default=8, help="runs that are trained apart and together; or 0")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--csv", type=Path, help="keep when each process passed each stage in this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        specs = demo_specs(folder, max(1, options.runs))
        arguments = ["train", str(specs[0]), "--quiet", "--device", options.device]
        arguments += ["--results", str(folder / "started")]
        start_once(arguments)  # prepares data and partition
        found = [start_once(arguments) for _ in range(options.repeats)]
        starts = [passed for passed, _ in found]
        print(f"medians of {options.repeats} processes, seconds since the start of each")
        print(f"{'':24}{'clock':>8}{'least':>8}{'processor':>11}")
        for same in zip(*starts, strict=True):
            clocks = [one.clock for one in same]
            clock, processor = statistics.median(clocks), statistics.median(one.processor for one in same)
            print(f"{same[0].stage:24}{clock:8.2f}{min(clocks):8.2f}{processor:11.2f}")
        heavy = sorted({name for _, names in found for name in names})
        print(f"imported of {', '.join(HEAVY)}: {', '.join(heavy) or 'nothing'}")

        imports = import_seconds()
        largest = dict(sorted(imports.items(), key=lambda one: -one[1])[:8])
        largest["others"] = sum(imports.values()) - sum(largest.values())
        print("imports, s: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in largest.items()))

        if options.runs:
            print(f"\n{len(specs)} runs of the demonstration, seconds in all")
            print(f"{'':24}{'clock':>8}{'processor':>11}")
            for how, (clock, processor) in compare_group(specs, folder, options.device).items():
                print(f"{how:24}{clock:8.1f}{processor:11.1f}", flush=True)
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["process", "stage", "clock", "processor"])
            writer.writeheader()
            for number, passed in enumerate(starts):
                writer.writerows({"process": number, **asdict(one)} for one in passed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--begin"]:
        begin(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
