"""Processes that are killed while they train or import: at any time, or at a given file operation."""

import multiprocessing
import os
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from fltrain.engine.checkpoint import Interval
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec

FILES = ("spec.json", "metrics.jsonl", "summary.json", "models.safetensors")
"""Files of a record that must not depend on interruptions."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _changes_files(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return True if an operation changes files.

    The time of a kill between two such operations does not matter.
    """
    match event:
        case "open":
            return bool(arguments[2] & _WRITING)
        case "os.mkdir":
            return not os.path.lexists(arguments[0])
        case "os.remove" | "os.rmdir":
            return os.path.lexists(arguments[0])
        case _:
            return event in {"os.rename", "os.chmod", "os.truncate"}


# Children are forked from a process that has imported torch already, so that they start quickly.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["fltrain.engine.train"])


def started(spec: RunSpec, root: Path, kill_at: int | None = None) -> ForkServerProcess:
    """A process that trains a run, with a checkpoint after every round.

    With ``kill_at`` it kills itself before its operation of that number (from 1) that changes a file
    in ``root``.
    """
    process = _context.Process(target=_train, args=(spec.to_json(), root, kill_at))
    process.start()
    return process


def importing(archive: Path, root: Path, kill_at: int | None = None) -> ForkServerProcess:
    """A process that imports an archive with ``--replace``; see ``started`` for ``kill_at``."""
    process = _context.Process(target=_import, args=(archive, root, kill_at))
    process.start()
    return process


def finished(spec: RunSpec, root: Path) -> Record:
    """The record of a run, after an uninterrupted training of the missing rounds."""
    _train(spec.to_json(), root, None)
    return Results(root).record(spec.run_id)


def contents(record: Record) -> dict[str, bytes | None]:
    """The files of a record that must not depend on interruptions."""
    paths = {name: record.folder / name for name in FILES}
    return {name: path.read_bytes() if path.exists() else None for name, path in paths.items()}


def _train(spec: str, root: Path, kill_at: int | None) -> None:
    import json

    import torch

    from fltrain.engine.train import Execution, train

    if kill_at is not None:
        _kill_at(kill_at, root)
    torch.set_num_threads(1)
    interval = Interval(rounds=1)
    train(
        RunSpec.parse(json.loads(spec), "test"),
        Results(root),
        Execution(torch.device("cpu"), checkpoints=interval),
        quiet=True,
    )


def _import(archive: Path, root: Path, kill_at: int | None) -> None:
    from fltrain.runs.archive import import_records

    if kill_at is not None:
        _kill_at(kill_at, root)
    import_records(archive, Results(root), replace=True)


def _kill_at(number: int, root: Path) -> None:
    left = number

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if any(str(one).startswith(str(root)) for one in arguments) and _changes_files(event, arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
