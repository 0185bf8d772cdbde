"""Provenance: the code, packages and machine that trained a run. Gathered on the machine that trains."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pydantic")
LIMITS = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
)
"""Environment variables that limit the instruction set of PyTorch, oneDNN and MKL."""

DECISIVE = ("sources", "packages", "processor", "cpu_capability", "limits", "blas", "threads", "gpu", "cuda")
"""Facts that decide the last bits of a run's numbers: ``bitwise`` promises nothing if one of them differs."""


def gather(device: torch.device, threads: int, plugins: Iterable[Path] = ()) -> dict[str, Any]:
    """Return the versions of code and packages, processor and device.

    Args:
        device: the device that trains.
        threads: CPU threads.
        plugins: source files of components that are not part of fltrain; ``dirty`` covers them.

    Returns:
        plain data. Without git, or outside a repository, ``commit`` and ``dirty`` are None.
    """
    cuda = device.type == "cuda"
    package = Path(__file__).resolve().parents[1]
    changed = _changed(package)
    return {
        "fltrain": version("fltrain"),
        "commit": None if changed is None else _git(package, "rev-parse", "HEAD"),
        "dirty": None if changed is None else changed or any(map(_changed_plugin, plugins)),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "host": platform.node(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "blas": _blas(),
        "threads": threads,
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


def merged(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the provenance of a run from the facts of the processes that trained it, one after the other.

    The last process states the facts. ``resumed`` has an entry for each earlier one: the facts that
    differ, and the round after which the next process resumed. A run is ``bitwise`` only if all decisive
    facts are equal.
    """
    *earlier, last = processes
    resumed = [
        {
            **{key: value for key, value in process.items() if value != last.get(key)},
            "after_round": successor["after_round"],
        }
        for process, successor in pairwise(processes)
    ]
    facts = {key: value for key, value in last.items() if key != "after_round"}
    unchanged = not any(changes(process, last) for process in earlier)
    bitwise = unchanged and all(process["determinism"] == "bitwise" for process in processes)
    facts["determinism"] = "bitwise" if bitwise else "statistical"
    inexact = {operation for process in processes for operation in process["nondeterministic_operations"]}
    facts["nondeterministic_operations"] = sorted(inexact)
    return {**facts, "resumed": resumed}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the decisive facts that differ between two processes, for example ``threads 1 -> 2``.

    For sources and packages it names the entries that differ: ``code of methods.fedprox``.
    """
    differences = []
    for fact in DECISIVE:
        old, new = before.get(fact), now.get(fact)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            differences.append(f"{'code' if fact == 'sources' else fact} of {', '.join(keys)}")
        else:
            differences.append("code" if fact == "sources" else f"{fact} {old} -> {new}")
    return differences


def _changed(path: Path) -> bool | None:
    """Return True if git reports changes or untracked files below a path; None if git does not track it."""
    folder = path if path.is_dir() else path.parent
    if _git(folder, "ls-files", "--error-unmatch", "--", str(path)) is None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=all", "--", str(path))
    return None if status is None else bool(status)


def _changed_plugin(file: Path) -> bool:
    """Return True if a file differs from its commit, or has none and belongs to no installed package."""
    changed = _changed(file)
    return Path(sysconfig.get_paths()["purelib"]) not in file.parents if changed is None else changed


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in a folder; None without git or outside a repository."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _blas() -> str:
    """Return PyTorch's BLAS library, for example ``mkl 2024.2``."""
    built = torch.__config__.show()
    matches = re.search(r"BLAS_INFO=(\w+)", built), re.search(r"Math Kernel Library Version ([\d.]+)", built)
    return " ".join(match[1] for match in matches if match)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
