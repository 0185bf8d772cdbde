"""All measurements on a GPU, in one command.

* `fltrain bench` for ResNet-18 and MobileNetV2 on images of CIFAR-10's size, ten clients in a round, with
  every executor in every precision.
* `scaling` with every executor that computes the same bits, and `startup`.
* Accuracy after some rounds, by `fltrain train`: every executor and precision compared with the reference in
  single precision, paired by seed; and a check that equal runs have equal bytes.

The output of each part goes into files of a folder, and a part that fails does not stop the others.
`--rehearse` does all of it with little work, also on a CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common import markdown

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json, write_text
from fltrain.core.statistics import Statistic
from fltrain.data.datasets import REGISTRY_VARIABLE, registry
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device
from fltrain.runtime.provenance import gather

HERE = Path(__file__).parent
BENCHES = (("fp32", "exact"), ("tf32", "exact"), ("bf16", "exact"), ("fp32", "fast"), ("bf16", "fast"))
"""Precisions and profiles of determinism."""
CASES = {
    "reference": ("sequential", "fp32", "exact"),
    "again": ("sequential", "fp32", "exact"),
    "cuda_graph": ("cuda_graph", "fp32", "exact"),
    "vectorized": ("vectorized", "fp32", "fast"),
    "fast": ("sequential", "fp32", "fast"),
    "tf32": ("sequential", "tf32", "exact"),
    "bf16": ("sequential", "bf16", "exact"),
}
"""Executor, precision and profile whose accuracy is compared with the first one's."""
SAME_BYTES = ("again", "cuda_graph")
GPU_ONLY = ("tf32", "cuda_graph")
"""Precisions and executors that the CPU does not have."""
BATCHES = {"digits": 10, "cifar10": 50}
"""Images in a batch of the runs whose accuracy is compared."""


@dataclass(frozen=True)
class Amount:
    """Options of the parts, and the runs whose accuracy is compared."""

    models: tuple[str, ...]
    bench: str
    scaling: str
    startup: str
    networks: Mapping[str, str]
    rounds: int
    seeds: int


FULL = Amount(
    models=("resnet18", "mobilenetv2"),
    bench="--dataset cifar10 --batch-size 64 --clients 10 --steps 20",
    scaling="--repeats 9",
    startup="--repeats 9",
    networks={"digits": "mobilenet_tiny", "cifar10": "ecgr_cnn"},
    rounds=10,
    seeds=3,
)
REHEARSAL = Amount(
    models=("mobilenet_tiny",),
    bench="--dataset digits --batch-size 8 --clients 10 --steps 2 --repeats 2",
    scaling="--repeats 2 --curves per_round",
    startup="--repeats 2 --runs 2",
    networks={"digits": "mobilenet_tiny", "cifar10": "mlp"},
    rounds=4,
    seeds=2,
)


@dataclass(frozen=True)
class Machine:
    """The device that is measured, and the folder of the output."""

    device: str
    out: Path

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def run(self, name: str, command: Sequence[object], **environment: str) -> None:
        """Run a program with this Python; its output goes to the terminal and into ``<name>.txt``.

        Raises:
            FltrainError: if it fails.
        """
        words = [sys.executable, *map(str, command), "--device", self.device]
        environment = {**os.environ, **environment}
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        print(done.stdout, end="", flush=True)
        write_text(self.out / f"{name}.txt", f"{' '.join(words[1:])}\n\n{done.stdout}")
        if done.returncode:
            raise FltrainError(f"{name}: {' '.join(words[1:])} ended with {done.returncode}")


def parts(machine: Machine, amount: Amount, cifar10: Path | None) -> dict[str, Callable[[], None]]:
    """Return the parts by name."""
    out, todo = machine.out, dict[str, Callable[[], None]]()
    for precision, determinism in BENCHES:
        for model in amount.models if machine.on_gpu or precision not in GPU_ONLY else ():
            name = f"bench-{model}-{precision}-{determinism}"
            options = ["--model", model, "--precision", precision, "--determinism", determinism]
            command = ["-m", "fltrain", "bench", *amount.bench.split(), *options]
            todo[name] = partial(machine.run, name, [*command, "--out", out / f"{name}.json"])
    for executor in ("sequential", "cuda_graph") if machine.on_gpu else ("sequential",):
        name = f"scaling-{executor}"
        options = ["--executor", executor, "--csv", out / f"{name}.csv", "--folder", out / "state"]
        command = [HERE / "scaling.py", *amount.scaling.split(), *options]
        todo[name] = partial(machine.run, name, command)
    startup = [HERE / "startup.py", *amount.startup.split(), "--csv", out / "startup.csv"]
    todo["startup"] = partial(machine.run, "startup", startup)
    todo["accuracy-digits"] = partial(compare_accuracy, machine, amount, "digits", None)
    if cifar10:
        todo["accuracy-cifar10"] = partial(compare_accuracy, machine, amount, "cifar10", cifar10)
    return todo


def spec_of(dataset: str, precision: str, amount: Amount, seed: int) -> RunSpec:
    """Return federated averaging with ten clients of uneven classes, tested after the last round."""
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
    """Train with every executor and precision; compare accuracies with the reference's.

    Raises:
        FltrainError: if a run fails, or runs that must have equal bytes do not.
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
        if not machine.on_gpu and {executor, precision} & set(GPU_ONLY):
            continue
        specs = [spec_of(dataset, precision, amount, seed) for seed in range(amount.seeds)]
        files = [machine.out / "specs" / f"{spec.run_id}.json" for spec in specs]
        for spec, path in zip(specs, files, strict=True):
            write_json(path, spec.model_dump(mode="json"))
        how = ["--executor", executor, "--determinism", determinism, "--again", "--results", results.root]
        machine.run(f"{name}-{case}", ["-m", "fltrain", "train", "--quiet", *files, *how], **environment)
        folders = [results.run(spec.run_id) for spec in specs]
        summaries = [read_json(folder / "summary.json") for folder in folders]
        accuracies[case] = [100 * summary["accuracy"]["final"] for summary in summaries]
        metrics[case] = [(folder / "metrics.jsonl").read_bytes() for folder in folders]
    table = "\n".join(accuracy_lines(accuracies, metrics))
    write_text(machine.out / f"{name}.txt", table + "\n")
    print(table, flush=True)
    expected = metrics["reference"]
    if different := [case for case in SAME_BYTES if metrics.get(case, expected) != expected]:
        raise FltrainError(f"{name}: metrics of {', '.join(different)} are not the bytes of the reference")


def accuracy_lines(accuracies: dict[str, list[float]], metrics: dict[str, list[bytes]]) -> Iterator[str]:
    """Yield a Markdown table: means and deviations over seeds, differences from the first case by seed."""
    first, rows = next(iter(accuracies)), []
    for case, values in accuracies.items():
        differences = [one - other for one, other in zip(values, accuracies[first], strict=True)]
        summary = Statistic.of(differences)
        low, high = (summary and summary.interval) or (float("nan"), float("nan"))
        accuracy = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
        difference = f"{statistics.mean(differences):+.2f} ({low:+.2f} to {high:+.2f})"
        rows.append([case, accuracy, difference, "yes" if metrics[case] == metrics[first] else "no"])
    yield from markdown(["", "accuracy, %", f"minus {first} (95 % interval)", "same bytes"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; cpu to rehearse")
    parser.add_argument("--cifar10", type=Path, help="npz file in MedMNIST's layout, for accuracies")
    parser.add_argument("--only", nargs="+", metavar="PART", help="first words of parts: bench accuracy")
    parser.add_argument("--rehearse", action="store_true", help="do all of it with little work")
    parser.add_argument("--out", type=Path, default=Path("results/cuda"), help="folder of the output")
    options = parser.parse_args()
    try:
        device = pick_device(options.device, runs=1)
        if options.cifar10 and not options.cifar10.is_file():
            raise FltrainError(f"--cifar10: {options.cifar10} is no file")
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    machine = Machine(str(device), options.out)
    todo = parts(machine, REHEARSAL if options.rehearse else FULL, options.cifar10)
    chosen = [name for name in todo if not options.only or name.startswith(tuple(options.only))]
    if not chosen:
        parser.error(f"--only: there is no such part; there are {', '.join(todo)}")
    write_json(options.out / "machine.json", gather(device, 1))
    ended = {}
    for name in chosen:
        print(f"\n== {name}\n", flush=True)
        started, failure = time.monotonic(), None
        try:
            todo[name]()
        except FltrainError as error:
            failure = str(error)
        ended[name] = {"seconds": round(time.monotonic() - started), "failure": failure}
        print(f"{name}: {ended[name]['seconds']} s, {failure or 'done'}", flush=True)
        write_json(options.out / "parts.json", ended)
    sys.exit(any(part["failure"] for part in ended.values()))


if __name__ == "__main__":
    main()
