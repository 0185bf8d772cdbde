"""A run that goes on from a checkpoint is the run that was never interrupted, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fltrain.engine.checkpoint import Checkpoints, Interval, Progress
from fltrain.engine.client_store import ClientStore
from fltrain.engine.simulation import Simulation
from fltrain.methods.base import Method

from .helpers import REPRESENTATIVES, by_name, simulation, slow_unless_daily

ROUNDS = 4


def federation(methods: tuple[Method, ...]) -> Simulation:
    """With personal evaluation after local training, clients also keep their trained models."""
    point = "after_local" if methods[0].name in ("fedavg", "fedfcd") else "after_download"
    return simulation(*methods, rounds=ROUNDS, statistics=("drift",) if shares(methods) else (), point=point)


def shares(methods: tuple[Method, ...]) -> bool:
    return methods[0].needs.private is None


def state(run: Simulation) -> dict[str, Any]:
    """All that later rounds and the record depend on."""
    server = run.server
    return {
        "server": {"weights": server.weights, "buffers": server.buffers, "counters": server.counters},
        "methods": dict(server.states),
        "clients": {client: run.clients[client] for client in run.clients},
        "models": run.last_models,
        "traffic": (run.bytes_down, run.bytes_up),
        "finished": run.finished,
    }


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, part in one.items():
            assert_equal(part, other[name])
    else:
        assert one == other


@pytest.mark.parametrize("methods", slow_unless_daily(REPRESENTATIVES), ids=by_name)
def test_going_on_from_a_checkpoint_changes_nothing(tmp_path: Path, methods: tuple[Method, ...]) -> None:
    whole = federation(methods)
    expected = [row for rows in whole.run() for row in rows]

    rows: list[dict[str, Any]] = []
    seen = []
    for stop in (1, 3, ROUNDS):  # each part in a simulation of its own
        part = federation(methods)
        if stop == 3:  # clients' states come back into a file as well as into memory
            part.clients = ClientStore(tmp_path, 0)
        checkpoints = Checkpoints(tmp_path / "run", {"spec": 1}, Interval())
        progress = checkpoints.restore(part) or Progress([], 0.0, [])
        assert progress.rows == rows
        seen.append(part.finished)
        while part.finished < stop:
            progress.rows += part.round(part.finished)
        assert checkpoints.save(part, progress)
        rows = progress.rows
    assert seen == [0, 1, 3]
    assert json.dumps(rows) == json.dumps(expected)
    assert_equal(state(part), state(whole))
