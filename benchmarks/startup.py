"""Start of a run: `fltrain train`, as a job of the workflow starts it, up to its first local step.

Dataset and partition are prepared. Shown are wall time and CPU time of new processes until they have imported
PyTorch, until they have imported the engine, and until the first local step has ended. The stages take turns,
and all skip Python's clean-up at the end, which takes half a second.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

from common import Costs, quartiles, write_csv

FIRST_STEP = """
import os, sys
import torch
from fltrain.__main__ import main
from fltrain.engine.local import LocalTraining

def first(*arguments, step=LocalTraining.step):
    step(*arguments)
    torch.cuda.is_initialized() and torch.cuda.synchronize()
    os._exit(0)

LocalTraining.step = first
sys.argv[0] = "fltrain"
main()
"""
STAGES = {
    "import torch": ("-c", "import os, torch; os._exit(0)"),
    "engine imported": ("-c", "import os, fltrain.cli, fltrain.engine.train; os._exit(0)"),
    "first local step": ("-c", FIRST_STEP, "train"),
}


def main() -> None:
    from fltrain.core.files import write_json
    from fltrain.experiments.plan import plan

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="processes of each stage")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--csv", type=Path, help="write the costs of each process to this file")
    options = parser.parse_args()
    spec = next(iter(plan(Path("config"), "demo").runs.values()))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        write_json(Path(scratch, "run.json"), spec.model_dump(mode="json"))
        arguments = [f"{scratch}/run.json", "--quiet", "--device", options.device, "--results", scratch]
        Costs.of([*STAGES["first local step"], *arguments])  # prepares data and partition
        for _ in range(options.repeats):
            for name, command in STAGES.items():
                extra = arguments if command[-1] == "train" else []
                rows.append({"stage": name, **asdict(Costs.of([*command, *extra]))})
    for name in STAGES:
        texts = (quartiles([row[kind] for row in rows if row["stage"] == name]) for kind in ("wall", "cpu"))
        print("{:20} wall {} s, CPU {} s".format(name, *texts))
    write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
