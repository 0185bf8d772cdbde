"""Planning a workflow imports these modules often: they must not import heavy packages."""

import subprocess
import sys

HEAVY = ("torch", "mlflow", "sklearn", "requests", "h5py", "rocrate")
MODULES = (
    "fltrain.data.registry",
    "fltrain.data.datasets",
    "fltrain.runs.spec",
    "fltrain.experiments.plan",
    "fltrain.runs.record",
    "fltrain.reporting.tables.write",
    "fltrain.tracking.export",
    "fltrain.tracking.compare",
    "fltrain.reporting.verify",
    "fltrain.cli",
)
SCRIPT = """
import importlib, sys
modules, heavy = (argument.split() for argument in sys.argv[1:])
for module in modules:
    importlib.import_module(module)
    print(*[f"{module} loads {name}" for name in heavy if sys.modules.pop(name, None)])
"""


def test_no_heavy_package_is_loaded() -> None:
    command = [sys.executable, "-c", SCRIPT, " ".join(MODULES), " ".join(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "")


def test_importing_the_package_imports_almost_nothing() -> None:
    """Names for notebooks are imported on first use."""
    code = "import sys, fltrain; print(any(name in sys.modules for name in ('numpy', 'pandas', 'pydantic')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "False")
