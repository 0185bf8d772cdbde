"""External files run no code. `make lint` refuses most unsafe calls; this test checks another."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_numpy_unpickles_nothing() -> None:
    for path in ROOT.glob("fltrain/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
