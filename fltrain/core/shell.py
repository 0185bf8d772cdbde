"""Commands in messages, so that a shell runs them as printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(text: str, results: str | Path = "results", config: str | Path = "config") -> str:
    """Return a command with options for folders that are not the default ones.

    Unless the shell finds the program of this environment, its folder comes first, such as ``.venv/bin/``.
    """
    program, bin_folder = text.partition(" ")[0], Path(sys.executable).parent
    path = shutil.which(program)
    if (bin_folder / program).exists() and not (path and os.path.samefile(path, bin_folder / program)):
        text = f"{min(os.path.relpath(bin_folder), str(bin_folder), key=len)}/{text}"
    folders = {"results": results, "config": config}
    for name, folder in folders.items():
        text += f" --{name} {shlex.quote(str(folder))}" * (Path(folder) != Path(name))
    return text


def workflow(options: str, results: str | Path = "results") -> str:
    """Return a command of the workflow in backquotes, with a note if it fills another results folder."""
    note = " (it fills 'results')" * (Path(results) != Path("results"))
    return f"`{command(f'snakemake --config {options}')}`{note}"
