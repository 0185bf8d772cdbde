"""Checkpoints: the state of a run between two rounds in a file, from which the run resumes bit for bit.

A checkpoint is a safetensors file with a digest. It holds the weights, the states of server, methods and
clients, and the rows of the record so far. It appears under its name only when it is complete. Two are kept:
if the later one is damaged, the run resumes from the other. They are outside the record, in a folder with the
run's ID, and are removed when the record is complete.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_map

from fltrain.core.errors import FltrainError
from fltrain.core.files import clear_leftovers, read_arrays, write_arrays
from fltrain.engine.client_store import Spilled
from fltrain.engine.simulation import Simulation
from fltrain.engine.statistics import Row
from fltrain.methods.types import Server, State
from fltrain.runs.record import checkpoint_file, checkpoint_files

LOG = logging.getLogger("fltrain")

FORMAT = 2
"""Version of the file format; increase it when the format changes. Other versions are refused."""

KEPT = 2
"""Number of checkpoints that are kept."""

SHARE = 0.01
"""Maximum share of the time spent on writing: after a checkpoint that took 1 s, the next is due in 100 s."""


@dataclass(frozen=True)
class Interval:
    """Time between two checkpoints in seconds, and (if given) in rounds."""

    seconds: float = 120.0
    rounds: int | None = None


@dataclass
class Progress:
    """Progress of a run beyond the state of its simulation.

    Attributes:
        rows: rows of its record.
        seconds: wall time of all processes that trained it.
        processes: facts about each of these processes, the current one last.
    """

    rows: list[Row]
    seconds: float
    processes: list[dict[str, Any]]


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
        folder: their folder; one process at a time may write there.
        identity: settings and digests of the data that the state depends on, by name.
        interval: time between two of them.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], interval: Interval) -> None:
        self.folder = folder
        self.identity = identity
        self.interval = interval
        self._due = time.monotonic() + interval.seconds

    def due(self, finished: int) -> bool:
        """True if a checkpoint is due after ``finished`` rounds."""
        rounds = self.interval.rounds
        return time.monotonic() >= self._due or (rounds is not None and finished % rounds == 0)

    def save(self, simulation: Simulation, progress: Progress) -> bool:
        """Write a checkpoint and delete all but the last ones; return True if it could be written.

        A failure is a warning only: a full disk is no reason to lose a run that is in memory.
        """
        started = time.monotonic()
        path = checkpoint_file(self.folder, simulation.finished)
        try:
            leaves: list[tuple[Any, Tensor | Spilled]] = tree_flatten_with_path(_state(simulation))[0]
            state = {"/".join(quote(step.key, safe="") for step in path): stored for path, stored in leaves}
            about = {
                "host": [name for name, one in state.items() if one.device.type != simulation.device.type],
                "bfloat16": [name for name, one in state.items() if one.dtype == torch.bfloat16],
            }
            arrays = {name: _array(stored) for name, stored in state.items()}
            lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in progress.rows)
            arrays["rows"] = np.frombuffer(lines.encode(), np.uint8)
            write_arrays(path, arrays, {**self._about(simulation, progress), **about})
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
        """Load the latest undamaged checkpoint into a new simulation; None if there is none.

        Raises:
            FltrainError: if a checkpoint belongs to another run or another version of fltrain.
        """
        clear_leftovers(self.folder)
        for path in checkpoint_files(self.folder):
            try:
                arrays, about = read_arrays(path, "checkpoint")
            except FltrainError as error:
                LOG.warning("damaged checkpoint set aside, using the one before it: %s", error)
                path.replace(path.with_suffix(".damaged"))
                continue
            self._check(path, about)
            rows = [json.loads(line) for line in bytes(arrays.pop("rows")).splitlines()]
            _restore(simulation, about, arrays)
            return Progress(rows, about["seconds"], about["processes"])
        return None

    def remove(self) -> None:
        """Delete all checkpoints of the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _about(self, simulation: Simulation, progress: Progress) -> dict[str, Any]:
        costs = simulation.costs
        return {
            "format": FORMAT,
            "identity": self.identity,
            "finished": simulation.finished,
            "clients": list(simulation.clients),
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
            raise FltrainError(f"{path}: written by another version of fltrain; use that, or {what_to_do}")
        for name, value in self.identity.items():
            if about["identity"].get(name) != value:
                raise FltrainError(f"{path}: the state of a run with another {name}; {what_to_do}")


def _state(simulation: Simulation) -> dict[str, Any]:
    """Return all tensors that the next round depends on, in nested dictionaries; some are in a file."""
    server, clients = simulation.server, simulation.clients
    return {
        **{"weights": server.weights, "buffers": server.buffers, "counters": server.counters},
        **{"last": simulation.last_models, "server": server.states},
        **{str(client): clients.stored(client) for client in clients},
    }


def _array(stored: Tensor | Spilled) -> NDArray[Any]:
    tensor = stored.view() if isinstance(stored, Spilled) else stored.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        tensor = tensor.view(torch.int16)
    array: NDArray[Any] = tensor.numpy()
    return array


def _restore(simulation: Simulation, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    simulation.finished = about["finished"]
    simulation.bytes_down, simulation.bytes_up = about["bytes"]["down"], about["bytes"]["up"]
    costs = simulation.costs
    for phase, seconds in about["phases"].items():
        costs.seconds[phase] += seconds
    costs.round_seconds[:] = about["round_seconds"]
    costs.samples = about["samples"]
    host, halves, tree = set(about["host"]), set(about.get("bfloat16", ())), _tree(arrays)

    def tensor(path: str) -> Tensor:
        device, stored = "cpu" if path in host else simulation.device, torch.from_numpy(arrays[path])
        return (stored.view(torch.bfloat16) if path in halves else stored).to(device, copy=True)

    # A method without tensors has an empty state.
    empty: dict[str, State] = {method.name: {} for method in simulation.composition.methods}
    parts = {name: tensor(name) for name in ("weights", "buffers", "counters")}
    simulation.server = Server(**parts, states={**empty, **tree_map(tensor, tree.get("server", {}))})
    simulation.last_models = tree_map(tensor, tree.get("last", {}))
    for client in about["clients"]:
        simulation.clients[client] = {**empty, **tree_map(tensor, tree.get(str(client), {}))}


def _tree(paths: Iterable[str]) -> dict[str, Any]:
    """Return paths in nested dictionaries; the parts of a path are quoted."""
    tree: dict[str, Any] = {}
    for path in paths:
        level, (*folders, name) = tree, map(unquote, path.split("/"))
        for folder in folders:
            level = level.setdefault(folder, {})
        level[name] = path
    return tree
