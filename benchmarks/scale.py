"""What ten thousand runs cost those who plan them, look at them and make tables of them; nothing is trained.

The runs are those of the papers, with so many seeds each that there are enough of them. Two small runs on the
digits are trained for real, one with a global test and one with tests of the clients' own images; the records
of all others have rows, summaries and costs in the shape of these, for all their rounds, and are written like
those of training. Shown are seconds on the clock and of the processor, and the most memory that each command
took; then the number and size of the files.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml

from fltrain.core.strict_yaml import read_plain
from fltrain.engine.train import Execution, train
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.schema import Paper, read_yaml
from fltrain.reporting.tables import write as tables
from fltrain.runs.record import Record, Results, Row, summarise, write_record
from fltrain.runs.spec import RunSpec

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("Snakefile", "workflow", "profiles")
SCALE = "paper"
FLTRAIN = (sys.executable, "-m", "fltrain")
DRY_RUN = (sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "all", "--config", f"scale={SCALE}")
TABLES = (sys.executable, __file__, "--tables")

# A process begins with the memory of the one that it came from: a small one starts the command.
MEASURE = (
    "import json, resource, subprocess, sys; code = subprocess.call(sys.argv[2:], stdout=2); "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "json.dump([code, used.ru_utime + used.ru_stime, used.ru_maxrss], open(sys.argv[1], 'w'))"
)

KINDS = {"drift": "updates", "similarity": "updates"}
"""Of rows of a statistic, where they are called otherwise."""


@dataclass(frozen=True)
class Taken:
    """What a command took: seconds, and bytes of memory at the most."""

    clock: float
    processor: float
    memory: int

    @classmethod
    def by(cls, command: tuple[str, ...], folder: Path) -> Taken:
        """Run a command in a folder to its end.

        Raises:
            SystemExit: if it fails, with what it said.
        """
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with tempfile.NamedTemporaryFile("r") as used:
            starting = (sys.executable, "-S", "-c", MEASURE, used.name)
            started = time.perf_counter()
            done = subprocess.run(
                [*starting, *command], cwd=folder, env=environment, capture_output=True, text=True
            )
            clock = time.perf_counter() - started
            code, processor, kibibytes = json.load(used)
        if code:
            raise SystemExit(f"{' '.join(command)}: exit code {code}\n{done.stderr}")
        return cls(clock, processor, kibibytes * 1024)


# ---------------------------------------------------------------- a configuration with enough runs


def configure(folder: Path, wanted: int) -> Plan:
    """Make a folder in which the workflow can be started, with at least so many runs; return its plan."""
    if (folder / "config").exists():
        return plan(folder / "config", SCALE)
    for part in LINKED:
        (folder / part).symlink_to(ROOT / part)
    shutil.copytree(ROOT / "config", folder / "config")
    for seeds in range(1, wanted):
        _set_seeds(folder / "config" / "papers", seeds)
        planned = plan(folder / "config", SCALE)
        if len(planned.runs) >= wanted:
            return planned
    raise SystemExit(f"{wanted}: too few")


def _set_seeds(papers: Path, seeds: int) -> None:
    """Have all items of all papers run with so many seeds."""
    for path in papers.glob("*.yaml"):
        declared = read_plain(path)
        for part in (declared, *declared["items"].values()):
            part["seeds"] = seeds
        path.write_text(yaml.safe_dump(declared, sort_keys=False))
        read_yaml(path, Paper, "paper")


# ---------------------------------------------------------------- records in the shape of real ones


class Shapes:
    """Rows and facts of records, taken from runs that are trained in a folder."""

    SETTINGS: Mapping[str, Any] = {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "clients": 10},
        "model": "mobilenet_tiny",
        "method": "fedavg",
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.1},
        "rounds": 2,
    }
    STATISTICS = ("drift", "similarity", "divergence", "dissimilarity", "separability")

    def __init__(self, folder: Path) -> None:
        self.results = Results(folder)

    def _trained(self, **settings: Any) -> Record:
        spec = RunSpec.parse({**self.SETTINGS, **settings}, "shape")
        return train(spec, self.results, Execution(torch.device("cpu")), quiet=True)

    @cached_property
    def tested_globally(self) -> Record:
        """A run with all statistics."""
        return self._trained(plugins=["flfa"], evaluation={"statistics": list(self.STATISTICS)})

    @cached_property
    def tested_locally(self) -> Record:
        """A run whose clients have models and tests of their own."""
        return self._trained(method="local", local_test={})

    def of(self, spec: RunSpec) -> Record:
        """The trained run in whose shape the record of another one is."""
        return self.tested_locally if spec.local_test else self.tested_globally

    def rows(self, spec: RunSpec) -> Iterator[Row]:
        """Rows of all rounds, with an accuracy that rises and falls otherwise in every run."""
        draw = random.Random(spec.run_id)
        best, slowness = draw.uniform(0.3, 0.9), draw.uniform(0.02, 0.2) * spec.rounds
        kinds = {KINDS.get(name, name) for name in (*spec.evaluation.statistics, "train", "evaluation")}
        kinds |= {method.name for method in spec.composition.methods}
        shape = [row for row in self.of(spec).metrics if row["round"] == 2 and row["kind"] in kinds]
        for number in range(1, spec.rounds + 1):
            accuracy = best * (1 - math.exp(-number / slowness)) * draw.uniform(0.97, 1.0)
            for row in shape:
                if row["kind"] != "evaluation":
                    yield {**row, "round": number}
                elif spec.evaluates(number):
                    yield {**row, "round": number, "view": spec.view, "accuracy": accuracy}
                    for data in spec.evaluation.extra:
                        yield {**row, "round": number, "split": data.name, "accuracy": 0.9 * accuracy}

    def write(self, spec: RunSpec, results: Results) -> None:
        """Write the record of a run as training does."""
        shape, rows = self.of(spec), list(self.rows(spec))
        facts = {name: shape.summary[name] for name in ("parameters", "layers", "bytes", "digests")}
        seconds = [random.Random(spec.run_id).uniform(0.5, 1.5)] * spec.rounds
        costs = {
            **shape.costs,
            "round_seconds": seconds,
            "seconds": {**shape.costs["seconds"], "total": sum(seconds)},
        }
        folder = results.run(spec.run_id)
        write_record(folder, spec, rows, summarise(spec, rows, None, facts), costs, shape.provenance)
        shutil.copy(shape.folder / "train.log", folder)


# ---------------------------------------------------------------- what is measured


def make_tables(folder: Path) -> None:
    """Make every table of the scale in one process, in all its forms."""
    results, reported = Results(folder / "results"), folder / "config" / "reported"
    planned = plan(folder / "config", SCALE)
    gc.freeze()  # a process that makes one table has no plan to look for garbage in
    for item in planned.items:
        if item.item.table:
            published = reported / item.item.reported.file if item.item.reported else None
            out = results.root / SCALE / item.paper.paper
            forms = ("csv", "md", "tex", "html", "published.html")
            outputs = {form.partition(".")[0]: out / f"{item.name}.{form}" for form in forms}
            tables.write(item.sheet, results.record, published, outputs, reported / "anomalies.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="how many there are at least")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to work, or go on with what is there; a temporary folder if not given",
    )
    parser.add_argument("--csv", type=Path, help="where to write the table")
    parser.add_argument(
        "--tables", action="store_true", help="only make the tables of the folder that this is in"
    )
    options = parser.parse_args()
    if options.tables:
        make_tables(Path())
        return

    folder = (options.folder or Path(tempfile.mkdtemp(prefix="scale-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    planned = configure(folder, options.runs)
    results, shapes = Results(folder / "results"), Shapes(folder / "shapes")
    seeds = len({spec.seed for spec in planned.specs})
    print(f"{len(planned.runs):,} runs with {seeds} seeds, {len(planned.specs):,} cells and seeds")
    print(f"{'':28}{'clock, s':>10}{'processor, s':>14}{'memory, MiB':>13}", flush=True)
    rows: list[tuple[str, Taken]] = []

    def measured(what: str, *command: str) -> None:
        taken = Taken.by(command, folder)
        rows.append((what, taken))
        print(f"{what:28}{taken.clock:10.1f}{taken.processor:14.1f}{taken.memory / 2**20:13.0f}", flush=True)

    if not any(results.records()):
        measured("plan, nothing trained", *FLTRAIN, "plan", "--scale", SCALE)
        measured("dry run, nothing trained", *DRY_RUN)
    started = time.perf_counter()
    missing = [spec for run, spec in planned.runs.items() if not results.record(run).complete]
    for spec in missing:
        shapes.write(spec, results)
    print(f"({len(missing):,} records written in {time.perf_counter() - started:.0f} s)")
    measured("plan", *FLTRAIN, "plan", "--scale", SCALE)
    measured("dry run", *DRY_RUN)
    measured("dry run, train=false", *DRY_RUN, "train=false")
    measured("status", *FLTRAIN, "status", "--scale", SCALE)
    measured("all tables", *TABLES)
    measured("verify", *FLTRAIN, "verify", "--scale", SCALE)

    files = [list(results.run(run).iterdir()) for run in planned.runs]
    sizes = [sum(file.stat().st_size for file in of_run) for of_run in files]
    print(f"files of a run: at most {max(map(len, files))}")
    print(f"kilobytes of a run: median {statistics.median(sizes) / 1e3:.0f}, most {max(sizes) / 1e3:.0f}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["what", "clock_seconds", "processor_seconds", "memory_bytes"])
            writer.writerows(
                (what, f"{one.clock:.2f}", f"{one.processor:.2f}", one.memory) for what, one in rows
            )


if __name__ == "__main__":
    main()
