"""Checkpoints: times of writing, refused files, and recovery from damage."""

import logging
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_arrays, write_arrays
from fltrain.engine import checkpoint
from fltrain.engine.checkpoint import Checkpoints, Progress
from fltrain.engine.simulation import Simulation

from ..properties.helpers import digits
from .helpers import federation, flip, tiny

IDENTITY = {"settings": {"lr": 0.1}, "data": "0123"}


def new() -> Simulation:
    return federation(tiny(method="scaffold"), digits())


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoints:
    """Checkpoints after rounds 1 to 3, of which two remain."""
    made = Checkpoints(tmp_path / "run", IDENTITY)
    simulation, progress = new(), Progress([], 0.0, [])
    for number in range(3):
        progress.rows += simulation.round(number)
        assert made.save(simulation, progress)
    return made


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_the_last_two_checkpoints_remain_and_the_newest_is_used(saved: Checkpoints) -> None:
    assert names(saved) == ["round-000002.safetensors", "round-000003.safetensors"]
    simulation = new()
    progress = saved.restore(simulation)
    assert progress is not None and simulation.finished == 3
    assert [row["round"] for row in progress.rows if row["kind"] == "train"] == [1, 2, 3]
    _, about = read_arrays(saved.folder / "round-000003.safetensors", "checkpoint")
    costs = simulation.costs
    assert costs.samples == about["samples"] > 0
    assert len(costs.round_seconds) == 3 and costs.round_seconds == about["round_seconds"]
    assert all(costs.seconds[phase] >= seconds for phase, seconds in about["phases"].items())
    shutil.rmtree(saved.folder)
    assert saved.restore(new()) is None


def test_a_checkpoint_of_another_version_is_refused(saved: Checkpoints) -> None:
    path = saved.folder / "round-000003.safetensors"
    arrays, about = read_arrays(path, "checkpoint")
    write_arrays(path, arrays, {**about, "format": checkpoint.FORMAT - 1})
    with pytest.raises(FltrainError, match="another version of fltrain"):
        saved.restore(new())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_is_used(
    saved: Checkpoints, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(saved.folder / "round-000003.safetensors")
    simulation = new()
    assert saved.restore(simulation) is not None
    assert simulation.finished == 2
    assert names(saved) == ["round-000002.safetensors", "round-000003.damaged"]
    assert re.search(r"checkpoint set aside, .*round-000003\.safetensors: ", caplog.text)

    damage(saved.folder / "round-000002.safetensors")
    simulation = new()
    assert saved.restore(simulation) is None
    assert simulation.finished == 0, "the run begins again"


@pytest.mark.parametrize("key", IDENTITY)
def test_the_state_of_another_run_is_refused(saved: Checkpoints, key: str) -> None:
    other = Checkpoints(saved.folder, {**IDENTITY, key: "other"})
    before = names(saved)
    with pytest.raises(FltrainError, match=rf"another {key}; delete the folder .*{saved.folder.name}"):
        other.restore(new())
    assert names(saved) == before


def test_writing_takes_at_most_one_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def slow(*_: object) -> None:
        nonlocal now
        now += 2.0

    monkeypatch.setattr(checkpoint, "write_arrays", slow)
    made = Checkpoints(tmp_path, {}, seconds=1)
    simulation = new()
    simulation.round(0)
    now += 1
    assert made.due()
    made.save(simulation, Progress([], 0.0, []))
    now += 199
    assert not made.due()
    now += 1
    assert made.due()


def test_a_checkpoint_that_cannot_be_written_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    made = Checkpoints(tmp_path / "file" / "run", {})
    simulation = new()
    simulation.round(0)
    assert not made.save(simulation, Progress([], 0.0, []))
    assert "no checkpoint after round 1" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING
