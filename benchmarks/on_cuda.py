"""All measurements on a GPU, in one command.

* `bench` for LeNet-5 on MNIST's image size, ResNet-18 and MobileNetV2 on CIFAR-10's, ten clients in a
  round, with and without captured steps, in every precision.
* `scaling` with and without captured steps, and `startup`.
* Accuracy after some rounds, by `fltrain train`: captured steps and every precision compared with the
  reference in single precision, paired by seed.

The output of each part goes into files of a folder, and a part that fails does not stop the others.
`--rehearse` does all of it with little work, also on a CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json, write_text
from fltrain.core.statistics import Sample, contrast
from fltrain.data.datasets import REGISTRY_VARIABLE, registry
from fltrain.reporting.tables.render import markdown_table
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import pick_device
from fltrain.runtime.provenance import gather

HERE = Path(__file__).parent
BENCHES = (("fp32", "exact"), ("tf32", "exact"), ("bf16", "exact"), ("fp32", "fast"), ("bf16", "fast"))
"""Precisions and profiles of determinism."""
CASES: dict[str, tuple[str, ...]] = {
    "reference": ("fp32", "exact"),
    "cuda_graph": ("fp32", "exact", "--cuda-graph"),
    "fast": ("fp32", "fast"),
    "tf32": ("tf32", "exact"),
    "bf16": ("bf16", "exact"),
}
"""Precision, profile and further options whose accuracy is compared with the first one's."""
GPU_ONLY = ("tf32", "cuda_graph")
"""Cases that the CPU does not have."""
BATCHES = {"digits": 10, "cifar10": 50}
"""Images in a batch of the runs whose accuracy is compared."""


@dataclass(frozen=True)
class Amount:
    """Networks with their datasets and options of the parts, and the runs whose accuracy is compared."""

    models: Mapping[str, str]
    bench: str
    scaling: str
    startup: str
    networks: Mapping[str, str]
    rounds: int
    seeds: int


FULL = Amount(
    models={"lenet5": "mnist", "resnet18": "cifar10", "mobilenetv2": "cifar10"},
    bench="--batch-size 64 --clients 10 --steps 20",
    scaling="--repeats 9",
    startup="--repeats 9",
    networks={"digits": "mobilenet_tiny", "cifar10": "ecgr_cnn"},
    rounds=10,
    seeds=3,
)
REHEARSAL = Amount(
    models={"mlp": "digits"},
    bench="--batch-size 8 --clients 10 --steps 2 --repeats 2",
    scaling="--repeats 2 --curves per_round",
    startup="--repeats 2 --runs 2",
    networks={"digits": "mlp", "cifar10": "mlp"},
    rounds=1,
    seeds=2,
)


@dataclass(frozen=True)
class Machine:
    """The device that is measured, and the folder of the output."""

    device: str
    out: Path

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
        if machine.device == "cpu" and precision in GPU_ONLY:
            continue
        for model, dataset in amount.models.items():
            name = f"bench-{model}-{precision}-{determinism}"
            command = [HERE / "bench.py", "--model", model, "--dataset", dataset]
            command += ["--precision", precision, "--determinism", determinism, *amount.bench.split()]
            todo[name] = partial(machine.run, name, [*command, "--out", out / f"{name}.json"])
    for how in ([], ["--cuda-graph"]) if machine.device != "cpu" else ([],):
        name = f"scaling-{'cuda_graph' if how else 'sequential'}"
        options = [*how, "--csv", out / f"{name}.csv", "--folder", out / "state"]
        todo[name] = partial(machine.run, name, [HERE / "scaling.py", *amount.scaling.split(), *options])
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
    """Train in every case; compare accuracies with the reference's.

    Raises:
        FltrainError: if a run fails.
    """
    name, results = f"accuracy-{dataset}", Results(machine.out / "runs")
    environment = {}
    if file:
        entry = registry()[dataset].model_dump(mode="json", exclude={"files"})
        register = machine.out / "datasets.json"
        write_json(register, {dataset: {**entry, "reader": "npz", "path": str(file.resolve())}})
        environment[REGISTRY_VARIABLE] = str(register)
    accuracies: dict[str, list[float]] = {}
    for case, (precision, determinism, *more) in CASES.items():
        if machine.device == "cpu" and case in GPU_ONLY:
            continue
        specs = [spec_of(dataset, precision, amount, seed) for seed in range(amount.seeds)]
        files = [machine.out / "specs" / f"{spec.run_id}.json" for spec in specs]
        for spec, path in zip(specs, files, strict=True):
            write_json(path, spec.model_dump(mode="json"))
        how = [*more, "--determinism", determinism, "--again", "--results", results.root]
        machine.run(f"{name}-{case}", ["-m", "fltrain", "train", "--quiet", *files, *how], **environment)
        summaries = [read_json(results.run(spec.run_id) / "summary.json") for spec in specs]
        accuracies[case] = [100 * summary["accuracy"]["final"] for summary in summaries]
    table = accuracy_table(accuracies)
    write_text(machine.out / f"{name}.txt", table + "\n")
    print(table, flush=True)


def accuracy_table(accuracies: dict[str, list[float]]) -> str:
    """Return a Markdown table: means and deviations over seeds, differences from the first case by seed."""
    first = next(iter(accuracies))
    lines = [["", "accuracy, %", f"minus {first} (90 % interval)"]]
    for case, values in accuracies.items():
        differences = [one - other for one, other in zip(values, accuracies[first], strict=True)]
        found = contrast(Sample(tuple(differences)))
        low, high = found.interval if found else (float("nan"), float("nan"))
        accuracy = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
        difference = f"{statistics.mean(differences):+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append([case, accuracy, difference])
    return markdown_table(lines)


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
            raise FltrainError(f"--cifar10: {options.cifar10} is not a file")
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    machine = Machine(str(device), options.out)
    todo = parts(machine, REHEARSAL if options.rehearse else FULL, options.cifar10)
    chosen = [name for name in todo if not options.only or name.startswith(tuple(options.only))]
    if not chosen:
        parser.error(f"--only: there is no such part; there are {', '.join(todo)}")
    write_json(options.out / "machine.json", gather(device, 1))
    failures = []
    for name in chosen:
        print(f"\n== {name}\n", flush=True)
        try:
            todo[name]()
        except FltrainError as error:
            failures.append(f"error: {error}")
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
