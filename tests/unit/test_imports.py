"""Planning a workflow imports these modules often: they must not import heavy packages. Names of classes."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fltrain
from fltrain.methods import METHODS

PACKAGE = Path(fltrain.__file__).parent
HEAVY = ("torch", "scipy", "mlflow", "sklearn", "requests", "h5py")
MODULES = (
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


def test_templates_need_no_module_of_another_page() -> None:
    """A job that makes a table imports nothing of the overview."""
    code = "from fltrain.reporting.tables.write import TEMPLATES as all; "
    code += "[all.get_template(name) for name in all.list_templates()]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_imports_almost_nothing() -> None:
    """Names for notebooks are imported on first use."""
    code = "import sys, fltrain; print(any(name in sys.modules for name in ('numpy', 'pandas', 'pydantic')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "False")


def test_no_two_classes_share_a_name() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    classes = [
        node.name
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 50
    assert [name for name, number in Counter(classes).items() if number > 1] == []


def test_methods_import_the_contract_from_one_module() -> None:
    """Authors copy our methods, and the documentation names ``fltrain.methods.base`` alone."""
    texts = [Path(inspect.getfile(method)).read_text() for method in METHODS.values()]
    texts += [path.read_text() for path in (PACKAGE / "methods/ops").glob("*.py")]
    assert len(texts) > 30
    assert [text for text in texts if re.search(r"fltrain\.methods\.(types|workload)", text)] == []


def test_numpy_unpickles_nothing() -> None:
    """External files run no code; `make lint` refuses most unsafe calls."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
