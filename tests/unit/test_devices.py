"""GPU slots shared by processes: limits hold, killed processes free their slots, waiting can be stopped.

The GPUs are just names here; the processes and locks that take, hold and release slots are real.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fltrain.core.errors import FltrainError, Stopped
from fltrain.runtime import devices
from fltrain.runtime.devices import LOCKS, RUNS, DeviceShare, Slots, pick_device

from .holding import give_up, hold, keep, started, until

GPUS = ("first", "second")


def taken(slots: Slots) -> DeviceShare:
    """A free slot."""
    slot = slots.take()
    assert slot is not None
    return slot


def most_at_a_time(marks: Path) -> Counter[str]:
    """Maximum number of processes that held each device at once, from the event files."""
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for path in sorted(marks.iterdir()):
        _, device, what, _ = path.name.split()
        held[device] += 1 if what == "takes" else -1
        most[device] = max(most[device], held[device])
    return most


def test_processes_never_share_a_slot_of_two_devices(tmp_path: Path) -> None:
    runs = 2
    marks = tmp_path / "marks"
    marks.mkdir()
    slots = Slots(tmp_path / "locks", GPUS, runs)
    processes = [started(hold, slots, marks, number, 2 * runs) for number in range(6)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(list(marks.glob("*gives*"))) == 6, "all processes got a slot"
    assert most_at_a_time(marks) == {"0": runs, "1": runs}, "each device was fully used, and never more"


def test_processes_that_are_killed_give_their_slots_back(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "locks", GPUS)
    holders = []
    for number in range(2):  # one after the other, so that the owner of each slot is known
        holders.append(started(keep, slots, tmp_path / str(number)))
        until((tmp_path / str(number)).exists)
    assert slots.take() is None
    holders[1].kill()
    holders[1].join()
    got = taken(slots)
    assert got.device == 1
    assert slots.take() is None
    waiting = started(keep, slots, tmp_path / "waited")
    holders[0].kill()
    until((tmp_path / "waited").exists)
    assert slots.take() is None
    waiting.kill()
    waiting.join()
    assert taken(slots).device == 0


def test_waiting_for_a_slot_can_be_stopped(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "locks", GPUS[:1])
    first = taken(slots)
    waiting = started(give_up, slots, tmp_path / "ready")
    until((tmp_path / "ready").exists)
    assert waiting.pid
    os.kill(waiting.pid, signal.SIGUSR1)
    waiting.join(60)
    assert waiting.exitcode == Stopped.exit_code
    first.lock.release()
    assert taken(slots).device == 0


def test_the_device_with_the_fewest_processes_is_taken(tmp_path: Path) -> None:
    slots = Slots(tmp_path, GPUS, 3)
    held = [taken(slots) for _ in range(6)]
    assert [slot.device for slot in held] == [0, 1, 0, 1, 0, 1]
    assert slots.take() is None
    for number in (1, 3, 4):  # two of the second device, one of the first
        held[number].lock.release()
    assert [taken(slots).device] == [1]


def open_to_others(folder: Path) -> Path:
    folder.mkdir(mode=0o755)
    return folder


def linked(folder: Path) -> Path:
    """A link in the folder for temporary files, by which another user could redirect the locks."""
    (folder.parent / "private").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "private")
    return folder


@pytest.mark.parametrize("make", [open_to_others, linked])
def test_unsafe_lock_folders_are_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "locks")
    with pytest.raises(FltrainError, match=f"{folder}: .*not a folder of this user alone.*{LOCKS}"):
        Slots(folder, GPUS).take()
    assert not list(tmp_path.rglob("*.*"))


def test_without_a_gpu_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    assert pick_device("auto") == torch.device("cpu")
    assert not (tmp_path / "locks").exists()


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Pretend that PyTorch has two GPUs; yield the devices that were set. No test waits for one."""
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=GPUS[n]))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(Slots, "wait", taken)
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    for variable in (RUNS, "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    yield used
    devices._held.cache_clear()


def locks(folder: Path) -> list[str]:
    """The devices of all slots."""
    return sorted(path.name.partition(".")[0] for path in folder.glob("locks/*.slot"))


def test_a_process_keeps_the_device_that_it_has_taken(tmp_path: Path, two_gpus: list[torch.device]) -> None:
    other = taken(Slots(tmp_path / "locks", GPUS))
    assert [pick_device(name) for name in ("auto", "cuda")] == two_gpus == [torch.device("cuda:1")] * 2
    assert locks(tmp_path) == ["first", "second"]
    assert Slots(tmp_path / "locks", GPUS).take() is None
    assert other.lock.is_locked


def test_a_named_device_is_used_even_if_it_is_taken(tmp_path: Path, two_gpus: list[torch.device]) -> None:
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert two_gpus == [torch.device("cuda:1")]
    assert pick_device("cpu") == torch.device("cpu")
    assert not (tmp_path / "locks").exists()


def test_gpus_assigned_by_slurm_are_shared_within_the_job_only(
    tmp_path: Path, two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1")
    other = [taken(Slots(tmp_path / "locks", GPUS)) for _ in GPUS]
    assert pick_device("auto") == torch.device("cuda:0")
    assert "job17-first" in locks(tmp_path)
    assert len(other) == 2


def test_the_number_of_processes_per_device_can_be_set(
    tmp_path: Path, two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [taken(Slots(tmp_path / "locks", GPUS)) for _ in GPUS]
    monkeypatch.setenv(RUNS, "2")
    assert pick_device("auto") == torch.device("cuda:0")
    assert locks(tmp_path) == ["first", "first", "second"]
    monkeypatch.setenv(RUNS, "of no matter")
    assert pick_device("auto", 3) == torch.device("cuda:1")
    assert len(held) == 2
