"""GPU slots shared by processes: limits hold, killed processes free their slots, waiting can be stopped.

The GPUs are just names here; the processes and locks that take, hold and release slots are real.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import BaseFileLock

from fltrain.core.errors import FltrainError, Stopped
from fltrain.runtime import devices
from fltrain.runtime.devices import LOCKS, all_slots, pick_device, take

from .holding import give_up, keep, started, until

GPUS = ("first", "second")


def free(folder: Path, devices: Sequence[str] = GPUS, runs: int = 1) -> tuple[int, BaseFileLock] | None:
    """A free slot, if there is one."""
    return take(folder, all_slots(folder, devices, runs))


def taken(folder: Path, devices: Sequence[str] = GPUS, runs: int = 1) -> tuple[int, BaseFileLock]:
    """A free slot."""
    slot = free(folder, devices, runs)
    assert slot is not None
    return slot


def test_processes_that_are_killed_give_their_slots_back(tmp_path: Path) -> None:
    slots = (tmp_path / "locks", GPUS, 1)
    holders = []
    for number in range(2):  # one after the other, so that the owner of each slot is known
        holders.append(started(keep, slots, tmp_path / str(number)))
        until((tmp_path / str(number)).exists)
    assert free(*slots) is None
    holders[1].kill()
    holders[1].join()
    device, lock = taken(*slots)
    assert device == 1 and lock.is_locked
    assert free(*slots) is None
    waiting = started(keep, slots, tmp_path / "waited")
    holders[0].kill()
    until((tmp_path / "waited").exists)
    assert free(*slots) is None
    waiting.kill()
    waiting.join()
    assert taken(*slots)[0] == 0


def test_waiting_for_a_slot_can_be_stopped(tmp_path: Path) -> None:
    slots = (tmp_path / "locks", GPUS[:1], 1)
    _, lock = taken(*slots)
    waiting = started(give_up, slots, tmp_path / "ready")
    until((tmp_path / "ready").exists)
    assert waiting.pid
    os.kill(waiting.pid, signal.SIGUSR1)
    waiting.join(60)
    assert waiting.exitcode == Stopped.exit_code
    lock.release()
    assert taken(*slots)[0] == 0


def test_the_device_with_the_fewest_processes_is_taken(tmp_path: Path) -> None:
    slots = (tmp_path, GPUS, 3)
    held = [taken(*slots) for _ in range(6)]
    assert [device for device, _ in held] == [0, 1, 0, 1, 0, 1]
    assert free(*slots) is None
    for number in (1, 3, 4):  # two of the second device, one of the first
        held[number][1].release()
    assert [taken(*slots)[0]] == [1]


@pytest.mark.parametrize("kind", ["of another user", "open to others", "link"])
def test_unsafe_lock_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """By a link, another user could redirect the locks."""
    folder = tmp_path / "locks"
    if kind == "link":
        (tmp_path / "private").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "private")
    else:
        folder.mkdir(mode=0o755 if kind == "open to others" else 0o700)
    if kind == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(FltrainError, match=f"{folder}: .*not a folder of this user alone.*{LOCKS}"):
        free(folder, GPUS)
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize("name", ["gpu", "cuda:7", "cuda:x"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(FltrainError, match=f"device '{name}': use auto, cpu, .* this machine has "):
        pick_device(name)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Pretend that PyTorch has two GPUs; yield the devices that were set. No test waits for one."""
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=GPUS[n]))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(devices, "wait", taken)
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    for variable in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    yield used
    devices._held.cache_clear()


def locks(folder: Path) -> list[str]:
    """The devices of all slots."""
    return sorted(path.name.partition(".")[0] for path in folder.glob("locks/*.slot"))


def test_a_process_keeps_the_device_that_it_has_taken(tmp_path: Path, two_gpus: list[torch.device]) -> None:
    _, other = taken(tmp_path / "locks")
    assert [pick_device(name) for name in ("auto", "cuda")] == two_gpus == [torch.device("cuda:1")] * 2
    assert locks(tmp_path) == ["first", "second"]
    assert free(tmp_path / "locks", GPUS) is None
    assert other.is_locked


def test_a_named_device_is_used_even_if_it_is_taken(
    tmp_path: Path, two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert two_gpus == [torch.device("cuda:1")]
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pick_device("auto") == torch.device("cpu")
    assert not (tmp_path / "locks").exists(), "nothing is held"


def test_gpus_assigned_by_slurm_are_shared_within_the_job_only(
    tmp_path: Path, two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1")
    others = [taken(tmp_path / "locks") for _ in GPUS]
    assert pick_device("auto") == torch.device("cuda:0")
    assert "job17-first" in locks(tmp_path) and len(others) == 2


def test_the_number_of_processes_per_device_can_be_set(tmp_path: Path, two_gpus: list[torch.device]) -> None:
    held = [taken(tmp_path / "locks") for _ in GPUS]
    assert pick_device("auto", 2) == torch.device("cuda:0")
    assert locks(tmp_path) == ["first", "first", "second"]
    assert pick_device("auto", 3) == torch.device("cuda:1")
    assert len(held) == 2
