"""Start of a run, stage by stage.

A run of the demonstration is started in new processes, as a job of the workflow starts it: `fltrain train`,
with its dataset and partition prepared. Shown are wall time and CPU time until it has passed each stage; a
process ends after its first local step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Costs, write_csv

Passed = dict[str, Any]
"""A stage with wall time since the start of the process, and CPU time."""


def begin(started: float, arguments: Sequence[str]) -> None:
    """In the process that is measured: run `fltrain` up to the first local step; print the passed stages.

    ``started``: when the process was started, by the monotonic clock.
    """
    passed: list[Passed] = []

    def note(stage: str) -> None:
        passed.append({"stage": stage, "wall": time.monotonic() - started, "cpu": time.process_time()})

    note("interpreter")
    from fltrain import cli

    note("command line imported")
    importlib.import_module("fltrain.engine.train")  # as the command does next
    import torch

    from fltrain.engine.local import LocalTraining

    note("engine imported")
    trainer: Any = LocalTraining
    step = trainer.step

    def first_step(*arguments: Any) -> Any:
        note("prepared")
        step(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        note("first step")
        print(json.dumps(passed), flush=True)
        os._exit(0)

    trainer.step = first_step
    sys.argv = ["fltrain", *arguments]
    cli.main()


def start_once(arguments: Sequence[str]) -> list[Passed]:
    """Start a run; return its stages. Python stores compiled modules, as it does by default."""
    command = [sys.executable, __file__, "--begin", str(time.monotonic()), *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    passed: list[Passed] = json.loads(done.stdout.splitlines()[-1])
    return passed


def main() -> None:
    import pandas as pd

    from fltrain.core.files import write_json
    from fltrain.experiments.plan import plan

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="processes that start a run")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--csv", type=Path, help="write when each process passed each stage to this file")
    options = parser.parse_args()
    spec = next(iter(plan(Path("config"), "demo").runs.values()))
    with tempfile.TemporaryDirectory() as scratch:
        write_json(Path(scratch, "run.json"), spec.model_dump(mode="json"))
        shared = ["--quiet", "--device", options.device, "--results", f"{scratch}/started"]
        arguments = ["train", f"{scratch}/run.json", *shared]
        start_once(arguments)  # prepares data and partition
        found = [start_once(arguments) for _ in range(options.repeats)]
    rows = [{"process": number, **one} for number, passed in enumerate(found) for one in passed]
    table = pd.DataFrame(rows).groupby("stage", sort=False)[["wall", "cpu"]].agg(["median", "min"])
    print(f"seconds\n{table.round(2)}")
    torch = min((Costs.of(["-c", "import torch"]) for _ in range(3)), key=lambda costs: costs.cpu)
    print(f"import torch alone: {torch.wall:.2f} s, CPU {torch.cpu:.2f} s (least of 3)")
    write_csv(options.csv, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--begin"]:
        begin(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
