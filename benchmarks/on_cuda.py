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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json, write_text
from fltrain.core.statistics import Sample, contrast
from fltrain.data.datasets import REGISTRY_VARIABLE, registry
from fltrain.reporting.tables.render import markdown_table
from fltrain.runs.record import Results
from fltrain.runtime.devices import pick_device
from fltrain.runtime.provenance import gather

HERE = Path(__file__).parent
BENCHES = (("fp32", "exact"), ("tf32", "exact"), ("bf16", "exact"), ("fp32", "fast"), ("bf16", "fast"))
"""Precisions and profiles of determinism."""
CASES: dict[str, tuple[str, ...]] = {
    "reference": (),
    "cuda_graph": ("--cuda-graph",),
    "fast": ("--determinism", "fast"),
    "tf32": ("--set", "precision=tf32"),
    "bf16": ("--set", "precision=bf16"),
}
"""Options of `fltrain train` whose accuracy is compared with the first one's."""
GPU_ONLY = ("tf32", "cuda_graph")
"""Cases that the CPU does not have."""
FULL = {
    "models": {"lenet5": "mnist", "resnet18": "cifar10", "mobilenetv2": "cifar10"},
    "bench": "--batch-size 64 --clients 10 --steps 20",
    "scaling": "--repeats 9",
    "startup": "--repeats 9",
    "networks": {"digits": ("mobilenet_tiny", 10), "cifar10": ("ecgr_cnn", 50)},
    "rounds": 10,
    "seeds": 3,
}
"""Networks and options of each part; network and batch size of the runs whose accuracy is compared."""
REHEARSAL = {
    "models": {"mlp": "digits"},
    "bench": "--batch-size 8 --clients 10 --steps 2 --repeats 2",
    "scaling": "--repeats 2 --curves per_round",
    "startup": "--repeats 2",
    "networks": {"digits": ("mlp", 10), "cifar10": ("mlp", 50)},
    "rounds": 1,
    "seeds": 2,
}


class Machine:
    """The device that is measured, the folder of the output, and the amount of work."""

    def __init__(self, device: str, out: Path, amount: dict) -> None:
        self.device, self.out, self.amount = device, out, amount

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

    def parts(self, cifar10: Path | None) -> dict[str, Callable[[], None]]:
        """Return the parts by name."""
        out, amount, commands = self.out, self.amount, {}
        for precision, determinism in BENCHES:
            if self.device == "cpu" and precision in GPU_ONLY:
                continue
            for model, dataset in amount["models"].items():
                name = f"bench-{model}-{precision}-{determinism}"
                command = [HERE / "bench.py", "--model", model, "--dataset", dataset]
                command += ["--precision", precision, "--determinism", determinism]
                commands[name] = [*command, *amount["bench"].split(), "--out", out / f"{name}.json"]
        for how in ([], ["--cuda-graph"]) if self.device != "cpu" else ([],):
            name = f"scaling-{'cuda_graph' if how else 'sequential'}"
            options = [*how, "--csv", out / f"{name}.csv"]
            commands[name] = [HERE / "scaling.py", *amount["scaling"].split(), *options]
        commands["startup"] = [HERE / "startup.py", *amount["startup"].split(), "--csv", out / "startup.csv"]
        todo = {name: partial(self.run, name, command) for name, command in commands.items()}
        for dataset, file in {"digits": None, **({"cifar10": cifar10} if cifar10 else {})}.items():
            todo[f"accuracy-{dataset}"] = partial(self.compare_accuracy, dataset, file)
        return todo

    def compare_accuracy(self, dataset: str, file: Path | None) -> None:
        """Train FedAvg in every case; compare accuracies after the last round with the reference's."""
        name, environment, rounds = f"accuracy-{dataset}", {}, self.amount["rounds"]
        if file:
            entry = registry()[dataset].model_dump(mode="json", exclude={"files"})
            environment[REGISTRY_VARIABLE] = str(self.out / "datasets.json")
            changed = {**entry, "reader": "npz", "path": str(file.resolve())}
            write_json(self.out / "datasets.json", {dataset: changed})
        model, batch = self.amount["networks"][dataset]
        spec = {
            "dataset": dataset,
            "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 10},
            "model": model,
            "method": "fedavg",
            "training": {"epochs": 1, "batch_size": batch, "lr": 0.02},
            "participation": 1.0,
            "rounds": rounds,
            "evaluation": {"every": rounds},
        }
        write_json(self.out / f"{name}.json", spec)
        command = ["-m", "fltrain", "train", "--quiet", self.out / f"{name}.json", "--again"]
        accuracies: dict[str, list[float]] = {}
        for case, how in CASES.items():
            if self.device == "cpu" and case in GPU_ONLY:
                continue
            results = Results(self.out / f"{name}-{case}")
            options = ["--seeds", self.amount["seeds"], *how, "--results", results.root]
            self.run(f"{name}-{case}", [*command, *options], **environment)
            records = sorted(results.records(), key=lambda record: record.settings["seed"])
            accuracies[case] = [100 * record.summary["accuracy"]["final"] for record in records]
        table = accuracy_table(accuracies)
        write_text(self.out / f"{name}.txt", table + "\n")
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
    todo = Machine(str(device), options.out, REHEARSAL if options.rehearse else FULL).parts(options.cifar10)
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
