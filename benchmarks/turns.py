"""Ways to train the same rounds, in processes that take turns round by round.

    python benchmarks turns --model lenet5 --dataset mnist this other=../older-checkout
    python benchmarks turns --wall this workers=2
    python benchmarks turns --model ecgr_cnn --dataset cifar10 this precision=bf16 watched=1000000

The first way is the reference. ``other`` names a checkout of another version, ``workers`` divide the clients,
``precision`` is that of the layers, ``watched`` is the number of first rounds whose hooks are watched.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from common import ROOT, quartiles, write_csv

CHILD = """
import sys, time
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
import torch
from fltrain.engine.synthetic import synthetic_run
from fltrain.runtime.process import compute_as_runs

model, dataset, method, clients, images, batch, workers, precision, watched = sys.argv[1:]
more = []
if workers != "1":
    from functools import partial
    from fltrain.engine.local import LocalTraining
    try:
        from fltrain.engine.workers import Workers  # of an older version
    except ImportError:
        Workers = int
    more = [partial(LocalTraining, workers=Workers(int(workers)))]
if watched:
    from fltrain.engine import local
    local.WATCHED_ROUNDS = int(watched)
def spent():
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)

compute_as_runs()
base, *plugins = method.split("+")
settings = {
    "dataset": dataset, "model": model, "method": base, "plugins": plugins, "precision": precision,
    "partition": {"name": "iid", "clients": int(clients)}, "participation": 1.0,
    "training": {"epochs": 1, "batch_size": int(batch)},
}
run = synthetic_run(settings, int(images), 1, torch.device("cpu"), *more)
for number, _ in enumerate(sys.stdin):
    wall, cpu = time.perf_counter(), spent()
    run.round(number)
    print(time.perf_counter() - wall, spent() - cpu, flush=True)
"""


class Way:
    """A process that trains rounds when told to.

    Attributes:
        times: wall and CPU seconds of its rounds.
    """

    def __init__(self, text: str, options: argparse.Namespace) -> None:
        key, _, value = text.partition("=")
        self.text = text
        folder = Path(value).resolve() if key == "other" else ROOT
        changed = {"workers": "1", "precision": "fp32", "watched": "", key: value}
        sizes = (options.clients, options.images, options.batch_size)
        words = [options.model, options.dataset, options.method, *map(str, sizes)]
        words += [changed["workers"], changed["precision"], changed["watched"]]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.times: list[tuple[float, float]] = []

    def round(self) -> None:
        """Train a round."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        times = self.process.stdout.readline().split()
        if not times:
            raise SystemExit(f"{self.text}: the process ended")
        self.times.append((float(times[0]), float(times[1])))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="+", metavar="WAY", help="see above")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--dataset", default="mnist", help="dataset whose image size is used")
    parser.add_argument("--method", default="fedavg", help="method, with plug-ins or not: fedprox+flfa")
    for name, text, default in (
        ("batch-size", "images in a batch", 64),
        ("images", "images of a client", 256),
        ("clients", "clients in a round", 4),
        ("rounds", "timed rounds", 9),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--wall", action="store_true", help="compare wall time instead of CPU time")
    parser.add_argument("--csv", type=Path, help="write every timed round to this file")
    options = parser.parse_args()
    ways = [Way(text, options) for text in options.ways]
    for number in range(2 + options.rounds):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            way.round()
    column = 0 if options.wall else 1
    print(f"{'':32}{'least':>8}{'of the first':>14}  of the first in the same turn (quartiles)")
    reference = [times[column] for times in ways[0].times[2:]]
    for way in ways:
        seconds = [times[column] for times in way.times[2:]]
        ratios = [one / other for one, other in zip(seconds, reference, strict=True)]
        print(
            f"{way.text:32}{min(seconds):8.3f}{min(seconds) / min(reference):14.3f}  {quartiles(ratios)}"
            f"; first two rounds: {way.times[0][column]:.3f}, {way.times[1][column]:.3f}"
        )
    write_csv(
        options.csv,
        [
            {"way": way.text, "round": number, "wall": wall, "cpu": cpu}
            for way in ways
            for number, (wall, cpu) in enumerate(way.times)
        ],
    )


if __name__ == "__main__":
    main()
