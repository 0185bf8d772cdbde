"""Methods of the project. Pages, search spaces and golden numbers are required of these alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fltrain.methods import METHODS

ROOT = Path(__file__).parents[1]


def untracked(root: Path) -> set[str]:
    """Modules of fltrain that Git does not track, such as a method that a user tries; none without Git."""
    listing = ["git", "ls-files", "--others", "fltrain"]
    try:
        paths = subprocess.run(listing, cwd=root, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return set()
    return {line.removesuffix(".py").replace("/", ".") for line in paths.splitlines() if line.endswith(".py")}


UNTRACKED = untracked(ROOT)
RELEASED = {
    name: method
    for name, method in METHODS.items()
    if method.__module__.startswith("fltrain.") and method.__module__ not in UNTRACKED
}
