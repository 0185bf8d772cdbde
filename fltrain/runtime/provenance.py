"""Where and with what a run was trained. Gathered on the machine that trains."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pydantic")
DECISIVE = ("commit", "dirty", "packages", "processor", "threads", "gpu", "cuda")
"""Facts that decide, or may decide, the last bits of a run's numbers."""


def gather(device: torch.device, threads: int) -> dict[str, Any]:
    """Return code version, packages, processor and device."""
    cuda = device.type == "cuda"
    return {
        "fltrain": version("fltrain"),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "fltrain")),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "host": platform.node(),
        "processor": _processor(),
        "threads": threads,
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


def merged(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Provenance of a run that several processes have trained, one after the other.

    The facts are those of the last one. ``resumed`` says for each earlier one in which facts it was another,
    and after which round it was followed. What was trained in different environments is not bitwise.
    """
    *earlier, last = processes
    resumed = [
        {
            **{key: value for key, value in one.items() if value != last.get(key)},
            "after_round": after["after_round"],
        }
        for one, after in pairwise(processes)
    ]
    facts = {key: value for key, value in last.items() if key != "after_round"}
    same = all(one[key] == last[key] for one in earlier for key in DECISIVE)
    bitwise = same and all(one["determinism"] == "bitwise" for one in processes)
    facts["determinism"] = "bitwise" if bitwise else "statistical"
    inexact = {operation for one in processes for operation in one["nondeterministic_operations"]}
    facts["nondeterministic_operations"] = sorted(inexact)
    return {**facts, "resumed": resumed}


def _git(*arguments: str) -> str | None:
    """Output of a git command on the source tree; None without git or outside a checkout."""
    source = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(
            ["git", "-C", str(source), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
