"""Methods, networks and datasets from other packages, found by entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def fltrain(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fltrain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


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
