"""Facts about the MedMNIST sets, from the table in the installed package ``medmnist``.

The table is parsed, not imported: importing the package imports torch, which planning must not need, and
importing its module ``info`` alone creates a folder in the user's home.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError

SINGLE_LABEL = ("multi-class", "binary-class", "ordinal-regression")
"""Tasks whose images have one label each."""


def medmnist_entry(name: str) -> dict[str, Any]:
    """Return what the package states about a set, in the form of a registry entry.

    Raises:
        FltrainError: if the package is missing or has no two-dimensional set with one label per image of this
            name.
    """
    known = {
        key: facts for key, facts in _table().items() if "3d" not in key and facts["task"] in SINGLE_LABEL
    }
    if name not in known:
        raise FltrainError(
            f"no set of MedMNIST with one label per image{suggest(name, known)} (known: {', '.join(known)}); "
            "correct the name, or state 'path' for a file of your own"
        )
    facts = known[name]
    return {
        "title": facts["python_class"],
        "files": [{"name": f"{name}.npz", "urls": [facts["url"]], "checksum": f"md5:{facts['MD5']}"}],
        "classes": len(facts["label"]),
        "channels": facts["n_channels"],
        "side": 28,
        "train_images": facts["n_samples"]["train"],
        "test_images": facts["n_samples"]["test"],
        "licence": facts["license"],
    }


@cache
def _table() -> Mapping[str, Any]:
    """The dictionary ``INFO`` in ``medmnist/info.py``."""
    package = find_spec("medmnist")
    if package is None or package.origin is None:
        raise FltrainError("the package medmnist is not installed; run `make env`")
    path = Path(package.origin).with_name("info.py")
    try:
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "INFO":
                table: Mapping[str, Any] = ast.literal_eval(statement.value)
                return table
    except (OSError, SyntaxError, ValueError):
        pass
    raise FltrainError(f"{path}: found no table INFO; install another version of medmnist")
