"""Everything that is to be measured on a GPU, in one command.

* `fltrain bench`: ResNet-18 and MobileNetV2 on images of CIFAR-10's size, ten clients in a round, with every
  executor in every precision.
* `scaling.py` with the loop and with recorded steps, `startup.py`, `step_cost.py`.
* Accuracy after some rounds, by `fltrain train`: with every executor and precision beside the loop in single
  precision, paired by seed; and whether what is to be the same bytes is.

What each part says and measures goes into files of a folder, and a part that fails does not keep the others
from being done. `--rehearse` does all of it with little work, on a CPU, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json, write_text
from fltrain.core.statistics import against_point
from fltrain.data.datasets import REGISTRY_VARIABLE, registry
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device
from fltrain.runtime.provenance import gather

HERE = Path(__file__).parent
BENCHES = (("fp32", "exact"), ("tf32", "exact"), ("bf16", "exact"), ("fp32", "fast"), ("bf16", "fast"))
"""Precisions and profiles of determinism."""
CASES = {
    "loop": ("loop", "fp32", "exact"),
    "loop, again": ("loop", "fp32", "exact"),
    "graph": ("graph", "fp32", "exact"),
    "stack": ("stack", "fp32", "fast"),
    "loop, fast": ("loop", "fp32", "fast"),
    "loop, tf32": ("loop", "tf32", "exact"),
    "loop, bf16": ("loop", "bf16", "exact"),
}
"""Executor, precision and profile whose accuracy is compared with the first one's."""
SAME_BYTES = ("loop, again", "graph")


@dataclass(frozen=True)
class Amount:
    """How much is done.

    Attributes:
        bench, scaling, startup, step_cost: options of ``fltrain bench`` and of the scripts.
        networks: of the runs whose accuracy is compared, by data set.
        rounds, seeds: of these runs.
    """

    bench: str
    scaling: str
    startup: str
    step_cost: str
    networks: Mapping[str, str]
    rounds: int
    seeds: int


FULL = Amount(
    bench="--models resnet18,mobilenetv2 --datasets cifar10 --batch-size 64 --clients 10 --steps 20",
    scaling="--repeats 9",
    startup="--repeats 9",
    step_cost="--repeats 20",
    networks={"digits": "mobilenet_tiny", "cifar10": "ecgr_cnn"},
    rounds=10,
    seeds=3,
)
REHEARSAL = Amount(
    bench="--models mobilenet_tiny --datasets digits --batch-size 8 --clients 10 --steps 2 --repeats 2",
    scaling="--repeats 2 --curves per_round",
    startup="--repeats 2 --runs 2",
    step_cost="--repeats 2 --steps 1 --model lenet5",
    networks={"digits": "mobilenet_tiny", "cifar10": "mlp"},
    rounds=4,
    seeds=2,
)


@dataclass(frozen=True)
class Machine:
    """The device that is measured, and the folder of what is found."""

    device: torch.device
    out: Path

    def run(self, name: str, command: Sequence[object], **environment: str) -> None:
        """Run a program with this Python; what it says goes to the terminal and into ``<name>.txt``.

        Raises:
            FltrainError: if it fails.
        """
        words = [sys.executable, *map(str, command), "--device", str(self.device)]
        said: list[str] = []
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                said.append(line)
        write_text(self.out / f"{name}.txt", f"{' '.join(words[1:])}\n\n{''.join(said)}")
        if process.returncode:
            raise FltrainError(f"{name}: {' '.join(words[1:])} ended with {process.returncode}")


def parts(machine: Machine, amount: Amount, cifar10: Path | None) -> dict[str, Callable[[], None]]:
    """What is to be done, by name."""
    out, todo = machine.out, dict[str, Callable[[], None]]()
    for precision, determinism in BENCHES:
        if precision == "tf32" and machine.device.type == "cpu":
            continue  # which has no such products
        name = f"bench-{precision}-{determinism}"
        options = ["--precision", precision, "--determinism", determinism, "--out", out / f"{name}.csv"]
        todo[name] = partial(machine.run, name, ["-m", "fltrain", "bench", *amount.bench.split(), *options])
    for executor in ("loop", "graph"):
        name = f"scaling-{executor}"
        files = ["--csv", out / f"{name}.csv", "--figure", out / f"{name}.png", "--folder", out / "kept"]
        script = [HERE / "scaling.py", *amount.scaling.split(), "--executor", executor]
        todo[name] = partial(machine.run, name, [*script, *files])
    for name in ("startup", "step_cost"):
        script = [HERE / f"{name}.py", *getattr(amount, name).split(), "--csv", out / f"{name}.csv"]
        todo[name] = partial(machine.run, name, script)
    todo["accuracy-digits"] = partial(compare_accuracy, machine, amount, "digits", None)
    if cifar10:
        todo["accuracy-cifar10"] = partial(compare_accuracy, machine, amount, "cifar10", cifar10)
    return todo


# ---------------------------------------------------------------- accuracy
BATCHES = {"digits": 10, "cifar10": 50}
"""Images in a batch of the runs whose accuracy is compared."""


def spec_of(dataset: str, precision: str, amount: Amount, seed: int) -> RunSpec:
    """Federated averaging with ten clients of uneven classes, tested in the last rounds."""
    settings = {
        "dataset": dataset,
        "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 10},
        "model": amount.networks[dataset],
        "method": "fedavg",
        "training": {"epochs": 1, "batch_size": BATCHES[dataset], "lr": 0.02},
        "participation": {"fraction": 1.0},
        "rounds": amount.rounds,
        "evaluation": {"every": amount.rounds},
        "precision": precision,
        "seed": seed,
    }
    return RunSpec.parse(settings, "benchmark")


def compare_accuracy(machine: Machine, amount: Amount, dataset: str, file: Path | None) -> None:
    """Train with every executor and precision; say how far accuracies are from the loop's.

    Raises:
        FltrainError: if a run fails, or what is to be the same bytes is not.
    """
    name, results = f"accuracy-{dataset}", Results(machine.out / "runs")
    environment = {}
    if file:
        entry = registry()[dataset].model_dump(mode="json", exclude={"files"})
        register = machine.out / "datasets.json"
        write_json(register, {dataset: {**entry, "reader": "npz", "path": str(file.resolve())}})
        environment[REGISTRY_VARIABLE] = str(register)
    accuracies: dict[str, list[float]] = {}
    metrics: dict[str, list[bytes]] = {}
    for case, (executor, precision, determinism) in CASES.items():
        if precision == "tf32" and machine.device.type == "cpu":
            continue
        specs = [spec_of(dataset, precision, amount, seed) for seed in range(amount.seeds)]
        files = [machine.out / "specs" / f"{spec.run_id}.json" for spec in specs]
        for spec, path in zip(specs, files, strict=True):
            write_json(path, spec.model_dump(mode="json"))
        how = ["--executor", executor, "--determinism", determinism, "--again", "--results", results.root]
        told = f"{name}-{case.replace(', ', '-')}"
        machine.run(told, ["-m", "fltrain", "train", "--quiet", *files, *how], **environment)
        folders = [results.run(spec.run_id) for spec in specs]
        accuracies[case] = [100 * read_json(one / "summary.json")["accuracy"]["final"] for one in folders]
        metrics[case] = [(one / "metrics.jsonl").read_bytes() for one in folders]
    lines = list(accuracy_lines(accuracies, metrics))
    write_text(machine.out / f"{name}.txt", "\n".join([*lines, ""]))
    print("\n".join(lines), flush=True)
    different = [case for case in SAME_BYTES if metrics[case] != metrics["loop"]]
    if different:
        raise FltrainError(f"{name}: metrics of {', '.join(different)} are not the bytes of the loop's")


def accuracy_lines(accuracies: dict[str, list[float]], metrics: dict[str, list[bytes]]) -> list[str]:
    """A Markdown table: means and deviations over seeds, differences from the first case paired by seed."""
    first = next(iter(accuracies))
    lines = [f"| | accuracy, % | minus {first} (95 % interval) | within noise | same bytes |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for case, values in accuracies.items():
        differences = [one - other for one, other in zip(values, accuracies[first], strict=True)]
        interval = against_point(differences, 0.0).interval
        low, high = interval or (float("nan"), float("nan"))
        cells = [
            case,
            f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}",
            f"{statistics.mean(differences):+.2f} ({low:+.2f} to {high:+.2f})",
            "yes" if low <= 0 <= high else "no",
            "yes" if metrics[case] == metrics[first] else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; cpu to rehearse")
    parser.add_argument(
        "--cifar10", type=Path, help="npz file in MedMNIST's layout, to compare accuracies on"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="parts whose names begin so, as bench or accuracy"
    )
    parser.add_argument("--rehearse", action="store_true", help="do all of it with little work")
    parser.add_argument("--out", type=Path, default=Path("results/cuda"), help="folder of what is found")
    options = parser.parse_args()
    try:
        device = pick_device(options.device, runs=1)
        if options.cifar10 and not options.cifar10.is_file():
            raise FltrainError(f"--cifar10: {options.cifar10} is no file")
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

    machine = Machine(device, options.out)
    write_json(options.out / "machine.json", gather(device, 1))
    amount = REHEARSAL if options.rehearse else FULL
    todo = parts(machine, amount, options.cifar10)
    chosen = [name for name in todo if not options.only or name.startswith(tuple(options.only))]
    if not chosen:
        parser.error(f"--only: no part is called so; there are {', '.join(todo)}")
    ended: list[dict[str, Any]] = []
    for name in chosen:
        print(f"\n== {name}\n", flush=True)
        started, failure = time.monotonic(), None
        try:
            todo[name]()
        except FltrainError as error:
            failure = str(error)
            print(f"error: {failure}", flush=True)
        ended.append({"part": name, "seconds": round(time.monotonic() - started), "failure": failure})
        write_json(options.out / "parts.json", ended)
    print()
    for one in ended:
        print(f"{one['part']:24}{one['seconds']:8} s  {one['failure'] or 'done'}")
    print(f"written: {options.out}")
    sys.exit(any(one["failure"] for one in ended))


if __name__ == "__main__":
    main()
