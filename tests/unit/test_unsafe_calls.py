"""External files run no code. `make lint` refuses most unsafe calls; these tests check the others."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_numpy_unpickles_nothing() -> None:
    for path in ROOT.glob("fltrain/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path


def test_the_only_unpickler_has_a_list_of_allowed_classes() -> None:
    """The readers of CIFAR need pickle, but accept containers, numbers, texts and bytes only."""
    users = [path for path in ROOT.glob("fltrain/**/*.py") if "\nimport pickle" in path.read_text()]
    assert [path.name for path in users] == ["cifar.py"]
    source = users[0].read_text()
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    (unpickler,) = (one for one in classes if "pickle.Unpickler" in map(ast.unparse, one.bases))
    assert "find_class" in {node.name for node in unpickler.body if isinstance(node, ast.FunctionDef)}
    assert source.count("pickle.Unpickler") == 1
