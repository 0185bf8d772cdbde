"""Costs of planning ten thousand runs: the plan, Snakemake's dry run and the status, with nothing trained.

The plan has the runs of the papers, with enough seeds each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from common import ROOT, Costs

from fltrain.core.strict_yaml import read_plain
from fltrain.experiments.plan import Plan, plan

LINKED = ("Snakefile", "workflow", "profiles")
SCALE = "paper"
COMMANDS = {
    "plan": ("-m", "fltrain", "plan", "--scale", SCALE),
    "dry run": ("-m", "snakemake", "--dry-run", "--quiet", "--config", f"scale={SCALE}"),
    "status": ("-m", "fltrain", "status", "--scale", SCALE),
}


def configure(folder: Path, wanted: int) -> Plan:
    """Make a folder in which the workflow can be started, with at least ``wanted`` runs; return its plan."""
    for part in LINKED:
        (folder / part).symlink_to(ROOT / part)
    shutil.copytree(ROOT / "config", folder / "config")
    for seeds in range(1, wanted):
        for path in (folder / "config" / "papers").rglob("*.yaml"):
            if path.stem == "claims":
                continue
            declared = read_plain(path)
            for part in (declared, *declared.get("items", {}).values()):
                part["seeds"] = seeds
            path.write_text(json.dumps(declared))
        planned = plan(folder / "config", SCALE)
        if len(planned.runs) >= wanted:
            return planned
    raise SystemExit(f"--runs {wanted}: give 2 or more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="minimum number of runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        planned = configure(Path(scratch), options.runs)
        print(f"{len(planned.runs):,} runs behind {len(planned.specs):,} cells and seeds")
        print(f"{'':10}{'wall, s':>10}{'CPU, s':>10}{'MiB':>8}")
        for name, command in COMMANDS.items():
            costs = Costs.of(command, Path(scratch))
            print(f"{name:10}{costs.wall:10.1f}{costs.cpu:10.1f}{costs.memory:8.0f}", flush=True)


if __name__ == "__main__":
    main()
