"""Start of a run, and the gain of training several in one process.

A run of the demonstration is started in new processes, as a job of the workflow starts it: `fltrain train`,
with its dataset and partition prepared. Shown are wall time and CPU time until it has passed each stage; a
process ends after its first local step. Then some runs of the demonstration are trained, each in a process of
its own, and all by one `fltrain train`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Costs, write_csv

STAGES = ("interpreter", "command line imported", "engine imported", "prepared", "first step")
HEAVY = ("mlflow", "matplotlib", "pandas", "scipy", "sklearn", "snakemake")
"""Packages that training does not need."""

Passed = dict[str, Any]
"""A stage with wall time since the start of the process, and CPU time."""


# ---------------------------------------------------------------- in the process that is measured
def begin(started: float, arguments: Sequence[str]) -> None:
    """Run `fltrain` with these arguments up to the first local step; print when stages were passed.

    ``started``: when the process was started, by the monotonic clock.
    """
    passed: list[Passed] = []

    def note(stage: str) -> None:
        passed.append({"stage": stage, "wall": time.monotonic() - started, "cpu": time.process_time()})

    note(STAGES[0])
    from fltrain import cli

    note(STAGES[1])
    importlib.import_module("fltrain.engine.train")  # as the command does next
    import torch

    from fltrain.engine.local import LocalTraining

    note(STAGES[2])
    trainer: Any = LocalTraining
    step = trainer.step

    def first_step(*arguments: Any) -> Any:
        note(STAGES[3])
        step(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        note(STAGES[4])
        print(json.dumps([passed, [name for name in HEAVY if name in sys.modules]]), flush=True)
        os._exit(0)

    trainer.step = first_step
    sys.argv = ["fltrain", *arguments]
    cli.main()


# ---------------------------------------------------------------- in the one that measures
def start_once(arguments: Sequence[str]) -> tuple[list[Passed], list[str]]:
    """Start a run; return its stages, and the heavy packages that it has imported.

    Python stores compiled modules, as it does by default.
    """
    command = [sys.executable, __file__, "--begin", str(time.monotonic()), *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    passed, heavy = json.loads(done.stdout.splitlines()[-1])
    return passed, heavy


def demo_spec(folder: Path) -> Path:
    """Write the first run of the demonstration to a file."""
    from fltrain.core.files import write_json
    from fltrain.experiments.plan import plan

    name, spec = next(iter(plan(Path("config"), "demo").runs.items()))
    write_json(folder / f"{name}.json", spec.model_dump(mode="json"))
    return folder / f"{name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="processes that start a run")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--csv", type=Path, help="write when each process passed each stage to this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shared = ["--quiet", "--device", options.device, "--results", str(folder / "started")]
        arguments = ["train", str(demo_spec(folder)), *shared]
        start_once(arguments)  # prepares data and partition
        found = [start_once(arguments) for _ in range(options.repeats)]
        print(f"{'medians, seconds':24}{'wall':>8}{'least':>8}{'CPU':>8}")
        for same in zip(*(passed for passed, _ in found), strict=True):
            walls = [one["wall"] for one in same]
            medians = statistics.median(walls), min(walls), statistics.median(one["cpu"] for one in same)
            print(f"{same[0]['stage']:24}" + "".join(f"{value:8.2f}" for value in medians))
        heavy = sorted({name for _, names in found for name in names})
        print(f"imported of {', '.join(HEAVY)}: {', '.join(heavy) or 'nothing'}")
        torch = min((Costs.of(["-c", "import torch"]) for _ in range(3)), key=lambda costs: costs.cpu)
        print(f"import torch alone: {torch.wall:.2f} s, CPU {torch.cpu:.2f} s (least of 3)")
    write_csv(options.csv, [{"process": n, **one} for n, (passed, _) in enumerate(found) for one in passed])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--begin"]:
        begin(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
