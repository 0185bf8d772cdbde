"""All measurements on a GPU, in one command.

* `bench` for LeNet-5 on MNIST's image size, ResNet-18 and MobileNetV2 on CIFAR-10's, ten clients in a
  round, with and without captured steps, in every precision.
* `scaling` with and without captured steps, and `startup`.

The output of each part goes into files of a folder, and a part that fails does not stop the others.
`--rehearse` does all of it with little work, also on a CPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json, write_text
from fltrain.runtime.devices import pick_device
from fltrain.runtime.provenance import gather

HERE = Path(__file__).parent
BENCHES = (("fp32", "exact"), ("tf32", "exact"), ("bf16", "exact"), ("fp32", "fast"), ("bf16", "fast"))
"""Precisions and profiles of determinism."""
FULL = {
    "models": {"lenet5": "mnist", "resnet18": "cifar10", "mobilenetv2": "cifar10"},
    "bench": "--wall --batch-size 64 --clients 10 --steps 20 --rounds 4",
    "scaling": "--repeats 9",
    "startup": "--repeats 9",
}
"""Networks and options of each part."""
REHEARSAL = {
    "models": {"mlp": "digits"},
    "bench": "--batch-size 8 --clients 10 --steps 2 --rounds 2",
    "scaling": "--repeats 2 --curves per_round",
    "startup": "--repeats 2",
}


def parts(device: str, out: Path, amount: dict) -> dict[str, list[object]]:
    """Return the commands of this Python by name, without the device."""
    commands: dict[str, list[object]] = {}
    on_gpu = device != "cpu"
    for precision, determinism in BENCHES:
        for model, dataset in amount["models"].items() if on_gpu or precision != "tf32" else ():
            name = f"bench-{model}-{precision}-{determinism}"
            ways = ("bare", "this", *["cuda_graph"] * on_gpu)
            kind = ("--model", model, "--dataset", dataset)
            kind += ("--precision", precision, "--determinism", determinism)
            commands[name] = [HERE / "bench.py", *ways, *kind, *amount["bench"].split()]
    for mode in (("sequential",), ("cuda_graph", "--cuda-graph"))[: 1 + on_gpu]:
        commands[f"scaling-{mode[0]}"] = [HERE / "scaling.py", *mode[1:], *amount["scaling"].split()]
    commands["startup"] = [HERE / "startup.py", *amount["startup"].split()]
    commands = {name: [*command, "--csv", out / f"{name}.csv"] for name, command in commands.items()}
    return commands


def run(name: str, command: Sequence[object], device: str, out: Path) -> bool:
    """Run a command; its output goes to the terminal and into ``<name>.txt``. Return True if it succeeds."""
    words = [sys.executable, *map(str, command), "--device", device]
    print(f"\n== {name}\n", flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="", flush=True)
    write_text(out / f"{name}.txt", f"{' '.join(words[1:])}\n\n{done.stdout}")
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; cpu to rehearse")
    parser.add_argument("--only", nargs="+", metavar="PART", help="first words of parts: bench scaling")
    parser.add_argument("--rehearse", action="store_true", help="do all of it with little work")
    parser.add_argument("--out", type=Path, default=Path("results/cuda"), help="folder of the output")
    options = parser.parse_args()
    try:
        device = pick_device(options.device)
    except FltrainError as error:
        sys.exit(f"error: {error}")
    commands = parts(str(device), options.out, REHEARSAL if options.rehearse else FULL)
    chosen = [name for name in commands if not options.only or name.startswith(tuple(options.only))]
    if not chosen:
        parser.error(f"--only: there is no such part; there are {', '.join(commands)}")
    write_json(options.out / "machine.json", gather(device, 1))
    failed = [name for name in chosen if not run(name, commands[name], str(device), options.out)]
    sys.exit(f"error: failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
