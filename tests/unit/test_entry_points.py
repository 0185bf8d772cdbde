"""Methods, networks and datasets from other packages, found by entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from fltrain.core.errors import FltrainError
from fltrain.core.registry import Component, catalogue, external

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


@pytest.mark.slow
def test_a_run_can_use_components_from_another_package(tmp_path: Path) -> None:
    environment = install(tmp_path)
    spec_file = tmp_path / "run.json"
    spec_file.write_text(json.dumps(RUN))
    command = ["fltrain", "train", str(spec_file), "--results", str(tmp_path / "results")]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "results" / "runs").iterdir()
    assert record.name.startswith("more-digits-halved-")
    spec = json.loads((record / "spec.json").read_text())
    assert (spec["model"]["name"], spec["method"]["name"]) == ("linear", "halved")


@pytest.mark.parametrize(
    ("method", "problem"),
    [("raise OSError('no disk')", "OSError: no disk"), ("import sys; sys.exit(0)", "SystemExit: 0")],
)
def test_a_broken_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, problem: str
) -> None:
    install(tmp_path, method=method)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("extra", "extra.method"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(FltrainError) as raised:
        list(external("fltrain.methods"))
    point = "entry point 'halved' of fltrain.methods (extra.method:Halved)"
    assert str(raised.value) == f"{point}: cannot be loaded ({problem})"


def test_a_name_that_is_no_file_name_is_refused() -> None:
    class Shape(Component):
        """A kind of component."""

    class Outside(Shape):
        name: Literal["../halved"] = "../halved"

    with pytest.raises(FltrainError, match=r"the name in .* '\.\./halved' becomes part of a path: "):
        catalogue(Shape)
