"""Checkpoints: the state of a run between two rounds in a file, from which the run goes on bit for bit.

A checkpoint holds the weights, what server, methods and all clients keep, and the rows of the record so far.
It appears under its name only when it is complete, and two are kept: should the later one turn out to be
damaged, the run goes on from the other. They lie outside of the record, in a folder that is called like the
run, and are removed when the record is there.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.core.files import clear_leftovers
from fltrain.engine import tensorfile
from fltrain.engine.clients import Kept
from fltrain.engine.simulation import Simulation
from fltrain.engine.statistics import Row
from fltrain.engine.tensorfile import NotWhole, Tree
from fltrain.methods.types import Server, State
from fltrain.runs.record import checkpoint_file, checkpoint_files

LOG = logging.getLogger("fltrain")

FORMAT = 1
"""Raised whenever checkpoints are written otherwise; those of another format are refused."""

KEPT = 2
"""Checkpoints that are kept."""

SHARE = 0.01
"""Of the time, what writing checkpoints may take: after one that took a second, the next is due in 100."""


@dataclass(frozen=True)
class Interval:
    """When a checkpoint is due: after so many seconds, and, if it is set, after every so many rounds."""

    seconds: float = 120.0
    rounds: int | None = None


@dataclass
class Progress:
    """How far a run has come, beside the state of its simulation.

    Attributes:
        rows: of its record.
        seconds: that all processes have spent on it.
        processes: facts about each process that has trained it, the current one last.
    """

    rows: list[Row]
    seconds: float
    processes: list[dict[str, Any]]


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
        folder: where they lie; one process at a time may write there.
        identity: what the state depends on beside the code, by name.
        interval: when they are due.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], interval: Interval) -> None:
        self.folder = folder
        self.identity = identity
        self.interval = interval
        self._due = time.monotonic() + interval.seconds

    def due(self, finished: int) -> bool:
        """Whether it is time for another one, after so many rounds."""
        rounds = self.interval.rounds
        return time.monotonic() >= self._due or (rounds is not None and finished % rounds == 0)

    def save(self, simulation: Simulation, progress: Progress) -> bool:
        """Write a checkpoint and forget all but the last ones; return whether it could be written.

        If it could not, a warning says so: a full disk is no reason to lose a run that is in memory.
        """
        started = time.monotonic()
        path = checkpoint_file(self.folder, simulation.finished)
        try:
            state = _state(simulation, progress.rows)
            tensorfile.write(path, state, self._about(simulation, progress), simulation.device)
            for old in checkpoint_files(self.folder)[KEPT:]:
                old.unlink()
            written = True
        except (OSError, FltrainError) as error:
            LOG.warning("no checkpoint after round %d: %s", simulation.finished, error)
            written = False
        now = time.monotonic()
        self._due = now + max(self.interval.seconds, (now - started) / SHARE)
        return written

    def restore(self, simulation: Simulation) -> Progress | None:
        """Bring a new simulation to where the latest checkpoint that is whole left it; None without one.

        Raises:
            FltrainError: if a checkpoint belongs to another run or another version of fltrain.
        """
        clear_leftovers(self.folder)
        for path in checkpoint_files(self.folder):
            try:
                about, state = tensorfile.read(path, simulation.device)
            except NotWhole as error:
                LOG.warning("%s is damaged (%s): set aside, the one before it is used", path, error)
                path.replace(path.with_suffix(".damaged"))
                continue
            self._check(path, about)
            _restore(simulation, about, state)
            rows = bytes(_tensor(state, "rows").numpy()).decode()
            return Progress(
                [json.loads(line) for line in rows.splitlines()], about["seconds"], about["processes"]
            )
        return None

    def remove(self) -> None:
        """Forget all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _about(self, simulation: Simulation, progress: Progress) -> dict[str, Any]:
        costs = simulation.costs
        return {
            "format": FORMAT,
            "identity": self.identity,
            "finished": simulation.finished,
            "bytes": {"down": simulation.bytes_down, "up": simulation.bytes_up},
            "phases": costs.seconds,
            "round_seconds": costs.round_seconds,
            "samples": costs.samples,
            "seconds": progress.seconds,
            "processes": progress.processes,
        }

    def _check(self, path: Path, about: Mapping[str, Any]) -> None:
        what_to_do = f"delete the folder {path.parent} to train the run from its beginning"
        if about["format"] != FORMAT:
            version = "a newer" if about["format"] > FORMAT else "an older"
            raise FltrainError(f"{path}: written by {version} version of fltrain; use that, or {what_to_do}")
        for name, value in self.identity.items():
            if about["identity"].get(name) != value:
                raise FltrainError(f"{path}: the state of a run with another {name}; {what_to_do}")


class _ByName(Mapping[str, Kept]):
    """What clients keep, under the names that it has in a file; read from the store when it is asked for."""

    def __init__(self, clients: Mapping[int, Kept]) -> None:
        self._clients = clients

    def __getitem__(self, name: str) -> Kept:
        return self._clients[int(name)]

    def __iter__(self) -> Iterator[str]:
        return map(str, self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def _state(simulation: Simulation, rows: list[Row]) -> Tree:
    server = simulation.server
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    simulation.clients.expect(simulation.clients)
    return {
        "server": {"weights": server.weights, "buffers": server.buffers, "counters": server.counters},
        "methods": server.states,
        "last": simulation.last_models,
        "clients": _ByName(simulation.clients),
        "rows": torch.from_numpy(np.frombuffer(lines.encode(), np.uint8).copy()),
    }


def _restore(simulation: Simulation, about: Mapping[str, Any], state: Tree) -> None:
    simulation.finished = about["finished"]
    simulation.bytes_down, simulation.bytes_up = about["bytes"]["down"], about["bytes"]["up"]
    costs = simulation.costs
    for phase, seconds in about["phases"].items():
        costs.seconds[phase] += seconds
    costs.round_seconds[:] = about["round_seconds"]
    costs.samples = about["samples"]
    simulation.server = Server(**_tensors(state["server"]), states=_states(state["methods"]))
    simulation.last_models = _tensors(state["last"])
    for client, kept in cast("Tree", state["clients"]).items():
        simulation.clients[int(client)] = _states(kept)


def _tensor(tree: Tree, name: str) -> Tensor:
    return cast("Tensor", tree[name])


def _tensors(tree: Tensor | Tree) -> State:
    return dict(cast("Mapping[str, Tensor]", tree))


def _states(tree: Tensor | Tree) -> dict[str, State]:
    return {method: _tensors(state) for method, state in cast("Tree", tree).items()}
