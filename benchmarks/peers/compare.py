"""The same federated work in this engine, in a bare PyTorch loop and in other simulators.

FedAvg with ten clients, all of which train in every round: LeNet-5 on MNIST, and the CNN of the ECGR paper on
CIFAR-10. All simulators get the same images for each client, the same initial weights and the same batches,
so that they end at the same weights up to rounding. They take turns, each in separate processes. Every peer
has its own environment, created below ``.venvs`` from ``requirements-<peer>.txt`` at first use.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import quartiles
from describe import CASES, spec_of, write_task
from numpy.typing import NDArray
from task import Task, accuracy
from watch import Watch

from fltrain.reporting.text import markdown_table

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".venvs"
PEERS = ("flower", "pfl")
DIVIDED = "two workers"
"""Use of the cores by one divided run of this engine; ratios are to its other entries."""
WARM_UP = 2
"""Rounds at the start that do not count."""
COLUMNS = {
    "s/round": ("seconds", ".3f"),
    "CPU s": ("cpu_seconds", ".3f"),
    "images/s": ("images_per_second", ",.0f"),
    "start, s": ("startup", ".1f"),
    "MiB": ("memory", ",.0f"),
    "accuracy": ("accuracy", ".2%"),
    "weights differ": ("difference", ".0e"),
}
"""Columns of the table: measurements and their format."""
LIMIT_SECONDS = 1800
"""Time limit of a turn: without it, Flower waits forever if Ray does not start."""


class Failed(Exception):
    """A simulator did not complete its work."""


@dataclass(frozen=True)
class Entry:
    """A simulator and its use of the cores.

    Attributes:
        who: name of the simulator, of its script ``run_<who>.py`` and of its environment.
        usage: use of the cores, in words.
        cores: number of cores for its processes.
        runs: number of parallel runs, each of the whole task.
        workers: processes among which each run divides the clients.
        launcher: arguments of the interpreter before the script.
        arguments: further arguments of the script.
    """

    who: str
    usage: str
    cores: int
    runs: int = 1
    workers: int = 1
    launcher: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def run(self, task: Task, scratch: Path) -> tuple[dict[str, float], NDArray[np.float32]]:
        """Do the task once, in a new folder of ``scratch``; return costs and final weights."""
        script = HERE / f"run_{self.who}.py"
        command = [python_of(self.who), *self.launcher, script, task.folder, self.workers]
        folders = [Path(tempfile.mkdtemp(dir=scratch)) for _ in range(self.runs)]
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(cores)[: self.cores])  # child processes inherit it
        try:
            started = time.time()
            running = [start([*command, *self.arguments], folder) for folder in folders]
        finally:
            os.sched_setaffinity(0, cores)
        watch = Watch(process.pid for process in running)
        try:
            codes = [process.wait(LIMIT_SECONDS) for process in running]
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.who} ({self.usage}) has not ended after {LIMIT_SECONDS} seconds") from None
        finally:
            watch.stop()
            for process in running:
                process.kill()
        if any(codes):
            tail = (folders[0] / "stderr").read_text()[-4000:]
            raise Failed(f"{self.who} ({self.usage}) failed; the end of its output:\n{tail}")
        ends = [np.load(folder / "ends.npy").tolist() for folder in folders]
        return costs_of(task, started, ends, watch), np.load(folders[0] / "weights.npy")


def entries() -> list[Entry]:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return [
        Entry("ours", "one thread", 1),
        Entry("bare", "one thread", 1, arguments=("channels_first",)),
        Entry("bare", "one thread, channels-last", 1, arguments=("channels_last",)),
        Entry("flower", "one actor", 1),
        Entry("pfl", "one process", 1),
        Entry("ours", "two runs at once", 2, runs=2),
        Entry("bare", "two runs at once", 2, runs=2, arguments=("channels_first",)),
        Entry("ours", DIVIDED, 2, workers=2),
        Entry("flower", "two actors", 2, workers=2),
        Entry("pfl", "two processes", 2, workers=2, launcher=torchrun),
    ]


def python_of(who: str) -> Path:
    """Return the interpreter of a simulator's script; create its environment if necessary."""
    requirements = HERE / f"requirements-{who}.txt"
    if not requirements.exists():
        return Path(sys.executable)
    environment = ENVIRONMENTS / who
    python, stamp = environment / "bin" / "python", environment / requirements.name
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if uv is None:
            sys.exit("error: uv is not there; 'make env' installs it")
        print(f"making the environment of {who}", file=sys.stderr)
        make = [uv, "venv", "--quiet", "--clear", "--python", sys.executable, environment]
        install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
        for command in (make, [*install, "-r", requirements]):
            subprocess.run(command, check=True)
        shutil.copy(requirements, stamp)
    return python


def start(command: Sequence[object], folder: Path) -> subprocess.Popen[bytes]:
    words = [str(part) for part in command]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=stdout, stderr=stderr)


def costs_of(task: Task, started: float, ends: Sequence[Sequence[float]], watch: Watch) -> dict[str, float]:
    """Return the costs of one turn; those per round leave out the first rounds, which warm up.

    Returns:
        ``images``: training images per run and round, epochs counted; ``seconds``: wall time of a round;
        ``cpu_seconds`` of all processes, per run and round; ``images_per_second`` of all runs together;
        ``startup``: seconds from the start of the process until it is warm, without its rounds;
        ``memory``: peak of all processes in MiB.
    """
    counted, images = task.rounds - WARM_UP, task.arrays["orders"][0].size
    warm = [run_ends[WARM_UP - 1] for run_ends in ends]
    rounds = [(run_ends[-1] - begin) / counted for run_ends, begin in zip(ends, warm, strict=True)]
    span = min(warm), max(run_ends[-1] for run_ends in ends)
    return {
        "images": images,
        "seconds": statistics.mean(rounds),
        "cpu_seconds": watch.cpu_seconds(*span) / counted / len(ends),
        "images_per_second": sum(images / seconds for seconds in rounds),
        "startup": statistics.mean(warm) - started - WARM_UP * statistics.mean(rounds),
        "memory": watch.memory / 2**20,
    }


def compare(dataset: str, path: Path, chosen: Sequence[Entry], rounds: int, turns: int) -> pd.DataFrame:
    """Run all entries on a dataset in turns, then test their final weights; return a row per entry and turn.

    Columns are the keys of ``costs_of``, the entry, the accuracy on all test images, and the maximum
    ``difference`` of the weights from the bare loop's.
    """
    case = CASES[dataset]
    rows: list[dict[str, Any]] = []
    weights: list[NDArray[np.float32]] = []
    with tempfile.TemporaryDirectory() as scratch:
        task = write_task(Path(scratch), spec_of(dataset, case), path, rounds, case.shards)
        for turn in range(turns):
            first = turn % len(chosen)
            for entry in [*chosen[first:], *chosen[:first]]:
                print(f"{dataset}, turn {turn + 1} of {turns}: {entry.who}, {entry.usage}", file=sys.stderr)
                try:
                    costs, final = entry.run(task, Path(scratch))
                except Failed as error:
                    if entry.who not in PEERS:
                        sys.exit(f"error: {error}")
                    print(f"left out: {error}", file=sys.stderr)
                    continue
                names = {"dataset": dataset, "who": entry.who, "how": entry.usage, "cores": entry.cores}
                rows.append({**names, "turn": turn, **costs})
                weights.append(final)
        tested = {final.tobytes(): accuracy(torch.from_numpy(final), task) for final in weights}
    bare = next(final for row, final in zip(rows, weights, strict=True) if row["who"] == "bare")
    for row, final in zip(rows, weights, strict=True):
        row |= {"accuracy": tested[final.tobytes()], "difference": float(np.abs(final - bare).max())}
    return pd.DataFrame(rows)


def table(rows: pd.DataFrame) -> str:
    """Return a table of medians over all turns, and ratios to our time in the same turn, with quartiles."""
    ours = rows[(rows["who"] == "ours") & (rows["how"] != DIVIDED)].set_index(["cores", "turn"])
    lines = [["", "cores", *COLUMNS, "time / ours", "CPU time / ours"]]
    for (who, usage), group in rows.sort_values("cores", kind="stable").groupby(["who", "how"], sort=False):
        group = group.set_index(["cores", "turn"])
        reference, medians = ours.loc[group.index], group.median(numeric_only=True)
        values = [f"{medians[name]:{form}}" for name, form in COLUMNS.values()]
        wall = list(reference["images_per_second"] / group["images_per_second"])
        cpu = list(group["cpu_seconds"] / reference["cpu_seconds"])
        lines.append([f"{who}, {usage}", str(group.index[0][0]), *values, quartiles(wall), quartiles(cpu)])
    return markdown_table(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for dataset in CASES:
        parser.add_argument(f"--{dataset}", type=Path, help="npz file in MedMNIST's layout")
    parser.add_argument("--rounds", type=int, help=f"of each turn; {WARM_UP} of them warm up")
    parser.add_argument("--turns", type=int, default=3, help="of everybody")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="other simulators")
    parser.add_argument("--cores", type=int, nargs="+", choices=(1, 2), default=(1, 2), help="1, 2 or both")
    parser.add_argument("--csv", type=Path, help="where to write every measurement")
    options = parser.parse_args()
    files: dict[str, Any] = {name: getattr(options, name) for name in CASES if getattr(options, name)}
    if not files:
        parser.error("name a file: " + " or ".join(f"--{dataset}" for dataset in CASES))
    if options.rounds is not None and options.rounds <= WARM_UP:
        parser.error(f"--rounds: more than {WARM_UP}, as so many warm up")
    if max(options.cores) > len(os.sched_getaffinity(0)):
        parser.error("--cores: this machine has one core; say --cores 1")
    chosen = [
        entry
        for entry in entries()
        if entry.who in {"ours", "bare", *options.peers} and entry.cores in options.cores
    ]
    done: list[pd.DataFrame] = []
    for dataset, path in files.items():
        rounds = options.rounds or CASES[dataset].rounds
        rows = compare(dataset, path, chosen, rounds, options.turns)
        images = rows["images"].iloc[0]
        print(f"{dataset}: {rounds} rounds of {images:,} images; medians of {options.turns} turns\n")
        print(table(rows), flush=True)
        done.append(rows)
        if options.csv:
            pd.concat(done).to_csv(options.csv, index=False)


if __name__ == "__main__":
    main()
