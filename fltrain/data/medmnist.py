"""Facts about the MedMNIST sets, from the table in the installed package ``medmnist``.

The table is parsed, not imported: importing the package imports torch, which planning must not need, and
importing its module ``info`` alone creates a folder in the user's home.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError

SINGLE_LABEL = ("multi-class", "binary-class", "ordinal-regression")
"""Tasks whose images have one label each."""


def medmnist_entry(name: str, where: str) -> dict[str, Any]:
    """Return the facts about a set, in the form of a registry entry."""
    datasets = {
        key: facts for key, facts in _table().items() if "3d" not in key and facts["task"] in SINGLE_LABEL
    }
    if name in _table() and name not in datasets:
        raise FltrainError(
            f"{where}: {name!r} is multi-label or 3D; fltrain supports sets with one label per image"
        )
    check_known(f"{where}: no set of MedMNIST with one label per image is", [name], datasets)
    facts = datasets[name]
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
def _table() -> Any:
    """The dictionary ``INFO`` in ``medmnist/info.py``."""
    path = Path(str(distribution("medmnist").locate_file("medmnist/info.py")))
    assignments = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.Assign)]
    table = next(node for node in assignments if ast.unparse(node.targets[0]) == "INFO")
    return ast.literal_eval(table.value)
