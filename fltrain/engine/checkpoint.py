"""Checkpoints: the state of a run between two rounds in a file, from which the run resumes bit for bit.

A checkpoint is a safetensors file with a digest. It holds the weights, the states of server, methods and
clients, and the rows of the record so far. It appears under its name only when it is complete. Two are kept:
if the later one is damaged, the run resumes from the other. They are outside the record, in a folder with the
run's ID, and are removed when the record is complete.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from fltrain.core.errors import FltrainError
from fltrain.core.files import clear_leftovers, read_arrays, write_arrays
from fltrain.engine.simulation import Simulation
from fltrain.engine.statistics import Row
from fltrain.methods.types import Server
from fltrain.runs.record import checkpoint_file, checkpoint_files

LOG = logging.getLogger("fltrain")

FORMAT = 2
"""Version of the file format; increase it when the format changes. Other versions are refused."""

KEPT = 2
"""Number of checkpoints that are kept."""

SHARE = 0.01
"""Maximum share of the time spent on writing (1 s, then 100 s without), unless every round is saved."""


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
        seconds: time between two of them; 0 saves one after every round.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], seconds: float = 120.0) -> None:
        self.folder, self.identity, self.seconds = folder, identity, seconds
        self._due = time.monotonic() + seconds

    def due(self) -> bool:
        """True if a checkpoint is due."""
        return time.monotonic() >= self._due

    def save(self, simulation: Simulation, progress: Progress) -> bool:
        """Write a checkpoint and delete all but the last ones; return True if it could be written.

        A failure is a warning only: a full disk is no reason to lose a run that is in memory.
        """
        started = time.monotonic()
        path = checkpoint_file(self.folder, simulation.finished)
        try:
            arrays, about = _state(simulation, progress)
            write_arrays(path, arrays, {"format": FORMAT, "identity": self.identity, **about})
            for old in checkpoint_files(self.folder)[KEPT:]:
                old.unlink()
            written = True
        except (OSError, FltrainError) as error:
            LOG.warning("no checkpoint after round %d: %s", simulation.finished, error)
            written = False
        now = time.monotonic()
        self._due = now + (max(self.seconds, (now - started) / SHARE) if self.seconds else 0.0)
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
            remedy = f"delete the folder {self.folder} to train the run from its beginning"
            if about["format"] != FORMAT:
                raise FltrainError(f"{path}: written by another version of fltrain; use that, or {remedy}")
            for name, value in self.identity.items():
                if about["identity"].get(name) != value:
                    raise FltrainError(f"{path}: the state of a run with another {name}; {remedy}")
            return _restored(simulation, arrays, about)
        return None


def _state(simulation: Simulation, progress: Progress) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the tensors that the next round depends on, by path, and all other facts."""
    server, clients, costs = simulation.server, simulation.clients, simulation.costs
    tree = {
        **{"weights": server.weights, "buffers": server.buffers, "counters": server.counters},
        **{"last": simulation.last_models, "server": server.states},
        **{str(client): clients[client] for client in clients},
    }
    leaves: list[tuple[Any, Tensor]] = tree_flatten_with_path(tree)[0]
    tensors = {"/".join(quote(step.key, safe="") for step in path): tensor for path, tensor in leaves}
    halves = [name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16]
    about = {
        "host": [name for name, tensor in tensors.items() if tensor.device.type != simulation.device.type],
        "bfloat16": halves,
        "finished": simulation.finished,
        "clients": list(clients),
        "bytes": {"down": simulation.bytes_down, "up": simulation.bytes_up},
        "phases": costs.seconds,
        "round_seconds": costs.round_seconds,
        "samples": costs.samples,
        "seconds": progress.seconds,
        "processes": progress.processes,
    }
    arrays = {  # NumPy lacks bfloat16
        name: (tensor.view(torch.int16) if name in halves else tensor).detach().cpu().numpy()
        for name, tensor in tensors.items()
    }
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in progress.rows)
    arrays["rows"] = np.frombuffer(lines.encode(), np.uint8)
    return arrays, about


def _restored(simulation: Simulation, arrays: dict[str, NDArray[Any]], about: Mapping[str, Any]) -> Progress:
    """Load a checkpoint into a new simulation, and return the progress beyond it."""
    rows = [json.loads(line) for line in bytes(arrays.pop("rows")).splitlines()]
    simulation.finished = about["finished"]
    simulation.bytes_down, simulation.bytes_up = about["bytes"]["down"], about["bytes"]["up"]
    costs = simulation.costs
    for phase, seconds in about["phases"].items():
        costs.seconds[phase] += seconds
    costs.round_seconds[:] = about["round_seconds"]
    costs.samples = about["samples"]
    # Methods without a state, too.
    methods, owners = simulation.composition.methods, ("server", *map(str, about["clients"]))
    tree: dict[str, Any] = {owner: {method.name: {} for method in methods} for owner in owners}
    tree["last"] = {}
    for path, array in arrays.items():
        level, (*folders, name), tensor = tree, map(unquote, path.split("/")), torch.from_numpy(array)
        for folder in folders:
            level = level.setdefault(folder, {})
        tensor = tensor.view(torch.bfloat16) if path in about.get("bfloat16", ()) else tensor
        level[name] = tensor.to("cpu" if path in about["host"] else simulation.device, copy=True)
    parts = {name: tree[name] for name in ("weights", "buffers", "counters")}
    simulation.server = Server(**parts, states=tree["server"])
    simulation.last_models = tree["last"]
    simulation.clients = {client: tree[str(client)] for client in about["clients"]}
    return Progress(rows, about["seconds"], about["processes"])
