"""Nothing from elsewhere is run: no pickles, no code from texts, no shell; and one place reads YAML."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("fltrain/**/*.py"), *ROOT.glob("workflow/scripts/*.py")])

UNSAFE = re.compile(
    r"(c?[pP]ickle|_pickle|dill|cloudpickle|joblib|shelve|marshal|jsonpickle)(\..*)?"
    r"|torch\.(load|jit\.load|hub\..*|package\..*)"
    r"|pandas\.(read_pickle|read_hdf)"
    r"|yaml(\..*)?"
    r"|os\.(system|popen|exec.*|spawn.*)|pty\..*|subprocess\.(getoutput|getstatusoutput)"
    r"|(builtins\.)?(eval|exec|compile|__import__)"
)
ALLOWED = {
    "fltrain/data/readers/cifar.py": r"pickle(\.Unpickler|\.UnpicklingError)?",
    "fltrain/core/strict_yaml.py": r"yaml(\.SafeLoader|\.load|\.parse|\.compose|.*(Event|Error|Node))?",
}
"""By file: an unpickler of containers, numbers, texts and bytes; a YAML loader of plain data."""


def references(tree: ast.Module) -> Iterator[str]:
    """What a module names of other modules, by whole names whatever it calls them, and of built-ins."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or whole] = whole
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        attributes: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            attributes.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and (inner.id in names or not attributes):
            yield ".".join([names.get(inner.id, inner.id), *attributes])


def unsafe(source: str) -> set[str]:
    """What a module uses that could run what it reads."""
    tree = ast.parse(source)
    found = {name for name in references(tree) if UNSAFE.fullmatch(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.add(f"{node.arg}={ast.unparse(node.value)}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "importlib.import_module"):
            found |= {
                f"{ast.unparse(node.func)} {argument.value}"
                for argument in node.args
                if isinstance(argument, ast.Constant) and UNSAFE.fullmatch(str(argument.value))
            }
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_unsafe_is_used(path: Path) -> None:
    allowed = re.compile(ALLOWED.get(path.relative_to(ROOT).as_posix(), ""))
    assert [name for name in unsafe(path.read_text()) if not allowed.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch\ntorch.load(path)", "torch.load"),
        ("import torch as t\nread = t.load", "torch.load"),
        ("from torch import load as read", "torch.load"),
        ("import pickle", "pickle"),
        ("def read():\n    from pickle import loads", "pickle.loads"),
        ("import joblib.numpy_pickle", "joblib.numpy_pickle"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "allow_pickle=True"),
        ("import numpy as np\nnp.load(path, allow_pickle=trusted)", "allow_pickle=trusted"),
        ("import yaml\nyaml.load(text, Loader=yaml.Loader)", "yaml.load"),
        ("from yaml import unsafe_load", "yaml.unsafe_load"),
        ("import pandas as pd\npd.read_pickle(path)", "pandas.read_pickle"),
        ("value = eval(text)", "eval"),
        ("list(map(exec, texts))", "exec"),
        ("import subprocess\nsubprocess.run(line, shell=True)", "shell=True"),
        ("import os\nos.system(line)", "os.system"),
        ("import importlib\nimportlib.import_module('pickle')", "importlib.import_module pickle"),
        ("getattr(builtins, 'eval')(text)", "getattr eval"),
    ],
)
def test_what_is_unsafe_is_found(source: str, name: str) -> None:
    assert name in unsafe(source)


def test_what_only_looks_unsafe_is_not_found() -> None:
    source = (
        "import re, numpy as np, torch\nnetwork.eval()\nre.compile('x')\ntorch.compile(f)\n"
        "np.load(path, allow_pickle=False)\nself.load(path)\nsubprocess.run(['ls'], shell=False)"
    )
    assert unsafe(source) == set()


def test_the_unpickler_says_what_it_makes() -> None:
    source = (ROOT / "fltrain/data/readers/cifar.py").read_text()
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    (unpickler,) = (one for one in classes if "pickle.Unpickler" in map(ast.unparse, one.bases))
    assert "find_class" in {node.name for node in unpickler.body if isinstance(node, ast.FunctionDef)}
    assert source.count("pickle.Unpickler") == 1
