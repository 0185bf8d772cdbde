"""Rounds to target accuracies on MNIST with FedAvg's 2NN, in this engine and in other people's code.

The C = 0.1, B = 10 cells of table 1 of FedAvg's paper, with the settings of the published runs with seed 4.
This engine, a bare PyTorch loop, pfl and Flower get the same images, initial weights and batches. Networks,
training, averaging and tests of the other three contain no code of this project. Curves differ by rounding,
which training magnifies.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from compare import HERE, LIMIT_SECONDS, PEERS, python_of, start
from describe import write_task
from numpy.typing import NDArray
from task import Task

from fltrain.experiments.plan import plan
from fltrain.reporting.text import markdown_table
from fltrain.runs.spec import RunSpec

ITEM, SEED = "fedavg/table1_2nn", 4
SETTINGS = {"IID, B = 10": 60, "non-IID, B = 10": 180}
"""Setting of the item -> rounds; the published runs with this seed reach 97 % after 40 and 150."""
TARGETS = (0.95, 0.97)
CODES = ("ours", "bare", *PEERS)
ARGUMENTS = {"bare": ["channels_first"]}


def spec_of(setting: str) -> RunSpec:
    """Return the published run of a setting."""
    (item,) = (item for item in plan(Path("config"), "published").items if item.id == ITEM)
    labels = {"clients": "C = 0.1", "setting": setting}
    (spec,) = (entry.spec for entry in item.entries if entry.labels == labels and entry.seed == SEED)
    return spec


def curve(who: str, task: Task, scratch: Path) -> NDArray[np.float64]:
    """Return the test accuracy after each round."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    script = HERE / f"run_{who}.py"
    process = start([python_of(who), script, task.folder, 1, *ARGUMENTS.get(who, [])], folder)
    try:
        if process.wait(LIMIT_SECONDS):
            sys.exit(
                f"error: {who} failed; the end of its output:\n{(folder / 'stderr').read_text()[-4000:]}"
            )
    finally:
        process.kill()
    return np.load(folder / "accuracies.npy")


def rounds_to(target: float, accuracies: NDArray[np.float64]) -> float:
    """Return where the curve of the best accuracy so far crosses the target, linear between rounds."""
    best = np.maximum.accumulate(accuracies)
    after = int(np.argmax(best >= target))
    if best[after] < target:
        return np.inf
    return after + 1 - (best[after] - target) / (best[after] - best[after - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, required=True, help="npz file in MedMNIST's layout")
    parser.add_argument("--codes", nargs="*", choices=CODES, default=CODES, help="in this order")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS), help="of the item")
    parser.add_argument("--csv", type=Path, help="where to write all curves")
    options = parser.parse_args()
    curves: list[pd.DataFrame] = []
    for setting in options.settings:
        spec, rounds = spec_of(setting), SETTINGS[setting]
        with tempfile.TemporaryDirectory() as scratch:
            clients = spec.partition.clients
            task = write_task(Path(scratch), spec, options.mnist, rounds, clients, clients, tested=True)
            for who in options.codes:
                accuracies = curve(who, task, Path(scratch))
                print(f"{setting}, {who}: {accuracies[-1]:.2%} after {rounds} rounds", file=sys.stderr)
                numbered = {"round": np.arange(1, rounds + 1), "accuracy": accuracies}
                curves.append(pd.DataFrame({"setting": setting, "who": who, **numbered}))
                rows = pd.concat(curves)
                if options.csv:
                    rows.to_csv(options.csv, index=False)
    reached = [f"rounds to {target:.0%}" for target in TARGETS]
    lines = [["setting", "code", *reached, "accuracy at the end", "largest difference to ours", "median"]]
    for (setting, who), group in rows.groupby(["setting", "who"], sort=False):
        ours = rows[(rows["setting"] == setting) & (rows["who"] == "ours")]["accuracy"].to_numpy()
        accuracies = group["accuracy"].to_numpy()
        difference = np.abs(accuracies - ours) if len(ours) else np.array([np.nan])  # ours need not be chosen
        numbers = [f"{rounds_to(target, accuracies):.1f}" for target in TARGETS]
        shares = [f"{share:.2%}" for share in (accuracies[-1], difference.max(), np.median(difference))]
        lines.append([setting, who, *numbers, *shares])
    print(markdown_table(lines))


if __name__ == "__main__":
    main()
