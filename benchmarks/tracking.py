"""Costs of exporting thousands of runs to MLflow, and of detecting new ones.

The script writes records without training: federated averaging on the digits with different seeds; a test,
training loss and statistics in each round. It exports them to a SQLite database: all, again (nothing is new),
and again after one changed. Writing thousands of records takes long on a disk: set TMPDIR to a folder in
memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import write_csv

from fltrain.runs.record import Record, Results, summarise, write_record
from fltrain.runs.spec import RunSpec
from fltrain.tracking.export import Exported, Wanted, export

BASE: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "mobilenet_tiny",
    "method": "fedavg",
    "plugins": ["flfa"],
}


def write(results: Results, seed: int, rounds: int, seconds: float = 1.0) -> Record:
    """Write the record of a run that was never trained."""
    spec = RunSpec.parse({**BASE, "rounds": rounds, "seed": seed}, "benchmark")
    rows: list[dict[str, Any]] = []
    for round in range(1, rounds + 1):
        accuracy = 1 - 1 / (round + 1)
        test = {"split": "test", "view": "global", "accuracy": accuracy, "loss": 2 / round, "images": 359}
        rows.append({"round": round, "kind": "train", "clients": [0, 1], "loss": 1 / round})
        rows.append({"round": round, "kind": "updates", "drift": 1 / round, "skewness": seed / 1e4})
        rows.append({"round": round, "kind": "evaluation", **test})
    facts = {"bytes": {"up": 1, "down": 1}, "digests": {"data": "a" * 64, "partition": f"{seed:064x}"}}
    summary = summarise(spec, rows, None, facts)
    write_record(results.run(spec.run_id), spec, rows, summary, {"seconds": {"total": seconds}}, {})
    return results.record(spec.run_id)


def timed(name: str, work: Callable[[], Exported]) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    done = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:16}{wall:10.1f}{cpu:10.1f}   {done}", flush=True)
    return {"export": name, "wall": wall, "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--csv", type=Path, help="where to write the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Results(Path(folder))
        runs = [write(results, seed, options.rounds).run_id for seed in range(options.runs)]
        wanted = Wanted(results, "benchmark", {run: ["flfa/table1"] for run in runs}, runs)
        uri = f"sqlite:///{results.tracking}"
        print(f"{options.runs} runs of {options.rounds} rounds with 5 metrics in each")
        print(f"{'':16}{'wall, s':>10}{'CPU, s':>10}")
        timed("empty store", lambda: export(Wanted(results, "benchmark", {}, []), uri))
        rows = [timed("all", lambda: export(wanted, uri)), timed("nothing new", lambda: export(wanted, uri))]
        write(results, 0, options.rounds, seconds=2.0)
        rows.append(timed("one changed", lambda: export(wanted, uri)))
        print(f"database: {results.tracking.stat().st_size / 1e6:.0f} MB")
    write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
