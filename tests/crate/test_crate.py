"""A crate of the finished demonstration satisfies its profiles.

These tests need roc-validator: `.ci/run` runs them, `make test` does not. Set FLTRAIN_VALIDATOR to the Python
that has it, and FLTRAIN_RESULTS to the results folder of the demonstration (default: results).
"""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import rocrate
from typer.testing import CliRunner

from fltrain.cli import app
from fltrain.experiments.plan import plan
from fltrain.runs.archive import Imported, import_records
from fltrain.runs.record import Results

ROOT = Path(__file__).parents[2]
RESULTS = Path(os.environ.get("FLTRAIN_RESULTS", ROOT / "results"))
METADATA = "ro-crate-metadata.json"


def export(path: Path, results: Path = RESULTS, scale: str = "demo") -> str:
    options = ["--crate", "--scale", scale, "--results", str(results), "--config", str(ROOT / "config")]
    done = CliRunner().invoke(app, ["records", "export", str(path), *options])
    return str(done.exception or done.stdout)


def validate(crate: Path) -> subprocess.CompletedProcess[str]:
    context = Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld"
    command = [os.environ["FLTRAIN_VALIDATOR"], str(Path(__file__).with_name("validate.py")), crate, context]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=clean)


@pytest.fixture(scope="module")
def crate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crate") / "demo.zip"
    runs = len(plan(ROOT / "config", "demo").runs)
    assert export(path).splitlines()[-1] == f"{path}: {runs} records"
    return path


def test_it_is_a_valid_workflow_run(crate: Path) -> None:
    done = validate(crate)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0 violations of 4 profiles"]), done.stderr


def test_it_contains_all_that_is_needed_to_make_the_tables_again(crate: Path, tmp_path: Path) -> None:
    """Records, tables, specs, workflow, environment and citation; the records can be imported."""
    with zipfile.ZipFile(crate) as packed:
        packed.extractall(tmp_path)
    runs = len(plan(tmp_path / "config", "demo").runs)
    assert import_records(tmp_path / "records.tar.gz", Results(tmp_path / "new")) == Imported(runs, 0, 0)
    for form in ("csv", "md"):
        table = f"demo/flfa/table1.{form}"
        assert (tmp_path / "results" / table).read_bytes() == (RESULTS / table).read_bytes()
    names = ["Snakefile", "workflow/Snakefile", "requirements.lock", "CITATION.cff", "fltrain/__init__.py"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert not list(tmp_path.rglob("__pycache__"))
    graph = json.loads((tmp_path / METADATA).read_text())["@graph"]
    (run,) = (one for one in graph if one["@type"] == "CreateAction")
    assert run["name"] == "snakemake --config scale=demo" and {"@id": "records.tar.gz"} in run["result"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "demo.tar.gz: a crate is a zip file; write demo.zip" in export(tmp_path / "demo.tar.gz")
    assert "has no tables yet; run `make tables SCALE=demo`" in export(tmp_path / "demo.zip", tmp_path)
    assert not list(tmp_path.iterdir())
