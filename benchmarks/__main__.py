"""Measurements of the whole project: ``python benchmarks NAME``, with ``--help`` for the options of each."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

SUITE = {
    "bench": "the engine, a bare PyTorch loop, versions, workers and precisions, in turns",
    "startup": "start of a run, stage by stage",
    "plan": "plan and dry run of ten thousand runs",
    "soak": "the demonstration while its processes are killed",
    "scaling": "time and memory of a round by clients, steps and network",
    "on_cuda": "everything that is to be measured on a GPU",
    "peers": "the same work in this engine, a bare loop, Flower and pfl",
    "rounds": "rounds to a target with FedAvg's 2NN in the same four",
}


def main() -> None:
    names = "\n".join(f"  {name:10}{text}" for name, text in SUITE.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=f"{__doc__}\n\n{names}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=SUITE, metavar="NAME", help="see above")
    options, rest = parser.parse_known_args(sys.argv[1:2])
    folder = Path(__file__).resolve().parent
    sys.path[:0] = [str(folder), str(folder / "peers")]
    sys.argv = [f"benchmarks {options.name}", *sys.argv[2:], *rest]
    import_module("compare" if options.name == "peers" else options.name).main()


if __name__ == "__main__":
    main()
