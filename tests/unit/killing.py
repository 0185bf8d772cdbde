"""Processes that are killed while they train or import: at any time, or at a given file operation."""

import errno
import multiprocessing
import os
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from fltrain.core.errors import FltrainError, as_mistake
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


def started(
    spec: RunSpec, root: Path, kill_at: int | None = None, again: bool = False, full_at: int | None = None
) -> ForkServerProcess:
    """A process that trains a run, with a checkpoint after every round.

    With ``kill_at`` it kills itself before its operation of that number (from 1) that changes a file
    in ``root``. With ``full_at`` the disk is full from that flush (from 1) on.
    """
    process = _context.Process(target=_train, args=(spec.to_json(), root, kill_at, again, full_at))
    process.start()
    return process


def finished(spec: RunSpec, root: Path) -> Record:
    """The record of a run, after an uninterrupted training of the missing rounds."""
    _train(spec.to_json(), root)
    return Results(root).record(spec.run_id)


def contents(record: Record) -> dict[str, bytes | None]:
    """The files of a record that must not depend on interruptions."""
    paths = {name: record.folder / name for name in FILES}
    return {name: path.read_bytes() if path.exists() else None for name, path in paths.items()}


def _train(
    spec: str, root: Path, kill_at: int | None = None, again: bool = False, full_at: int | None = None
) -> None:
    import json

    import torch

    from fltrain.engine.train import Execution, train

    if kill_at is not None:
        _kill_at(kill_at, root)
    if full_at is not None:
        _fill(full_at, root)
    torch.set_num_threads(1)
    execution = Execution(torch.device("cpu"), checkpoint_seconds=0)
    try:
        train(RunSpec.parse(json.loads(spec), "test"), Results(root), execution, again=again, quiet=True)
    except (FltrainError, OSError) as error:
        if full_at is None:
            raise
        sys.exit(as_mistake(error).exit_code)


def _fill(number: int, root: Path) -> None:
    """Let flushes of files in ``root`` fail, as on file systems that allocate late."""
    flush, remaining = os.fsync, number

    def full(file: int) -> None:
        nonlocal remaining
        if os.readlink(f"/proc/self/fd/{file}").startswith(str(root)):
            remaining -= 1
            if remaining <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    os.fsync = full


def _kill_at(number: int, root: Path) -> None:
    remaining = number

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal remaining
        if any(str(arg).startswith(str(root)) for arg in arguments) and _changes_files(event, arguments):
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
