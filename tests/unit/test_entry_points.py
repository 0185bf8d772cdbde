"""Methods, networks and datasets from other packages, found by entry points."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
METHOD = """
from typing import ClassVar, Literal
from fltrain.methods.base import Method

class Halved(Method):
    name: Literal["halved"] = "halved"
    citation: ClassVar[str] = "an example"

    def correct(self, gradient, weights, local, step_state):
        return gradient / 2
"""
MODEL = """
from typing import ClassVar, Literal
from fltrain.core.lazy import nn
from fltrain.models.base import Model

class Linear(Model):
    name: Literal["linear"] = "linear"
    min_side: ClassVar[int] = 1

    def blocks(self, channels, side, classes):
        return {"flatten": nn.Flatten(), "classifier": nn.Linear(channels * side**2, classes)}
"""
DATASETS = """
DATASETS = {"more-digits": {"title": "Digits again", "reader": "digits"}}
"""
ENTRY_POINTS = """
[fltrain.methods]
halved = extra.method:Halved

[fltrain.models]
linear = extra.model

[fltrain.datasets]
extra = extra.datasets:DATASETS
"""
RUN = {
    "dataset": "more-digits",
    "partition": {"name": "iid", "clients": 4},
    "model": "linear",
    "method": "halved",
    "rounds": 1,
    "training": {"epochs": 1},
}

TRAIN_ITEM = """
import json, sys
import fltrain

(item,) = (item for item in fltrain.plan("fair_digits").items if item.id == sys.argv[1])
for entry in item.entries:
    fltrain.train(json.loads(entry.spec.to_json()))
"""


def install(folder: Path, **changes: str) -> dict[str, str]:
    """Write a package with its metadata, and return the environment that contains it."""
    files = {"method": METHOD, "model": MODEL, "datasets": DATASETS, **changes}
    for name, text in {"__init__": "", **files}.items():
        file = folder / "extra" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    metadata = folder / "extra-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(
    environment: dict[str, str], *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=folder)


def fltrain(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(environment, "-m", "fltrain", *arguments)


@pytest.mark.slow
def test_a_run_can_use_components_from_another_package(tmp_path: Path) -> None:
    environment = install(tmp_path)
    spec_file = tmp_path / "run.json"
    spec_file.write_text(json.dumps(RUN))
    done = fltrain(environment, "train", str(spec_file), "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "results" / "runs").iterdir()
    assert record.name.startswith("more-digits-halved-")
    spec = json.loads((record / "spec.json").read_text())
    assert (spec["model"]["name"], spec["method"]["name"]) == ("linear", "halved")


@pytest.mark.slow
def test_a_method_from_another_package_enters_the_fair_table(tmp_path: Path) -> None:
    """Its trials, selection, final runs, verification and export: the steps of docs/fair-table.md."""
    environment, config = install(tmp_path), tmp_path / "config"
    shutil.copytree(ROOT / "config", config)
    scale = config / "scales" / "fair_digits.yaml"
    declared = yaml.safe_load(scale.read_text())
    declared["seeds"] = declared["settings"]["rounds"] = 1
    methods = {"FedAvg": {"set": {"method": "fedavg"}}, "Halved": {"set": {"method": "halved"}}}
    declared["axes"] |= {"method": methods, "trial": [0, 1]}
    scale.write_text(yaml.safe_dump(declared))
    with (config / "search.yaml").open("a") as spaces:
        spaces.write("  halved: {}\n")

    def step(*arguments: str) -> str:
        done = run(environment, *arguments, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    step("-c", TRAIN_ITEM, "fair/trials")
    step("-m", "fltrain", "select", "fair/trials", "--scale", "fair_digits")
    selected = yaml.safe_load((config / "selected" / "fair_digits" / "fair_trials.yaml").read_text())
    assert [cell["labels"]["method"] for cell in selected["cells"]] == ["FedAvg", "Halved"]
    step("-c", TRAIN_ITEM, "fair/accuracy")
    assert "all consistent" in step("-m", "fltrain", "verify")
    ours = [record.name for record in (tmp_path / "results" / "runs").glob("digits-halved-*")]
    exported = step("-m", "fltrain", "records", "export", "halved.tar.gz", *ours)
    assert len(ours) in (3, 4) and f"{len(ours)} records" in exported


POINT = "entry point 'halved' of fltrain.methods (extra.method:Halved)"


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (
            "raise OSError('no disk')",
            f"{POINT}: cannot be loaded (OSError: no disk)",
        ),
        (
            "import sys; sys.exit(0)",
            f"{POINT}: cannot be loaded (SystemExit: 0)",
        ),
        (
            METHOD.replace('"halved"', '"../halved"'),
            "the name in extra.method '../halved' becomes part of a path: ",
        ),
    ],
    ids=["error", "exit", "path"],
)
def test_a_broken_package_gives_one_line(tmp_path: Path, method: str, problem: str) -> None:
    done = fltrain(install(tmp_path, method=method), "plan")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error: {problem}")
