"""Planning a workflow imports these modules, many times: the heavy packages must stay out."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "mlflow", "sklearn")


@pytest.mark.parametrize(
    "module",
    [
        "fltrain.spec",
        "fltrain.experiments",
        "fltrain.records",
        "fltrain.reporting.tables",
        "fltrain.tracking",
        "fltrain.cli",
    ],
)
def test_no_heavy_package_is_loaded(module: str) -> None:
    script = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", [])
