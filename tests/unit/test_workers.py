"""Processes that divide the clients of a run: the same bits, clear messages, and no process left over."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fltrain.core.errors import FltrainError, Stopped
from fltrain.engine.train import Execution, train
from fltrain.engine.workers import divide, prepare
from fltrain.methods.scaffold import Scaffold
from fltrain.runs.record import Results

from .helpers import CPU, tiny
from .holding import until
from .killing import contents, finished

SPEC = tiny(method="scaffold", model="mlp", rounds=4)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make GPUs, which workers hide, visible again afterwards."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_results_come_in_the_order_of_the_items() -> None:
    items = list(range(20_000))
    results = divide(3, lambda item: (item, os.getpid()), items, size=lambda item: item % 7)
    assert [item for item, _ in results] == items
    assert divide(3, lambda item: os.getpid(), [0]) == [os.getpid()], "one item needs no other process"
    assert divide(3, lambda item: item, []) == []


def in_the_child(work: Callable[[], Any]) -> Callable[[int], int]:
    """Work for one of two processes: the child does it at its first item, and the parent waits for that."""
    parent, (started, child) = os.getpid(), os.pipe()

    def done(item: int) -> int:
        if os.getpid() == parent:
            os.read(started, 1)
            os.write(child, b"x")
        else:
            os.write(child, b"x")
            work()
        return item

    return done


def test_an_exception_of_a_child_is_raised_with_its_notes_and_traceback() -> None:
    def fail() -> None:
        error = KeyError("lost")
        error.add_note("in the child")
        raise error

    with pytest.raises(KeyError, match="lost") as raised:
        divide(2, in_the_child(fail), range(9))
    assert raised.value.__notes__ == ["in the child"] and "in fail" in str(raised.value.__cause__)
    assert not multiprocessing.active_children()


class NotPickled(Exception):
    """Pickle keeps only the text, so that the exception cannot be made again."""

    def __init__(self, problem: str, place: str) -> None:
        super().__init__(f"{problem} in {place}")


def test_an_exception_that_cannot_be_pickled_keeps_its_message() -> None:
    def fail() -> None:
        error = NotPickled("lost", "layer 3")
        error.add_note("in the child")
        raise error

    with pytest.raises(RuntimeError, match=r"^NotPickled: lost in layer 3") as raised:
        divide(2, in_the_child(fail), range(9))
    assert raised.value.__notes__ == ["in the child"] and "in fail" in str(raised.value.__cause__)


def test_a_stop_before_the_fork_ends_all_processes_silently(capfd: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        raise Stopped("stopped by SIGTERM")

    with pytest.raises(Stopped):
        divide(3, lambda item: item, range(9), poll=stop)
    assert not multiprocessing.active_children()
    assert capfd.readouterr().err == ""


def test_a_killed_worker_ends_the_run_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start resumes from the last checkpoint, with another number of workers."""
    expected, parent, begin = contents(finished(SPEC, tmp_path / "whole")), os.getpid(), Scaffold.client_init

    def dies(self: Scaffold, local: Any) -> Any:
        if local.round == 2 and os.getpid() != parent:
            (tmp_path / "begun").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        elif local.round == 2:
            until((tmp_path / "begun").exists)  # leave a client to the other process
        return begin(self, local)

    execution = Execution(CPU, checkpoint_seconds=0, workers=2)
    with monkeypatch.context() as patch:
        patch.setattr(Scaffold, "client_init", dies)
        with pytest.raises(FltrainError, match=r"a worker was killed \(exit code -9\); .*fewer --workers"):
            train(SPEC, Results(tmp_path), execution)
    assert not multiprocessing.active_children()
    assert Results(tmp_path).saved_rounds(SPEC.run_id) == 2
    record = finished(SPEC, tmp_path)
    assert contents(record) == expected
    assert record.provenance["workers"] == 1
    assert record.provenance["resumed"] == [{"workers": 2, "after_round": 2}]
    assert record.provenance["determinism"] == "bitwise"


def test_workers_end_with_their_parent() -> None:
    reading, writing = os.pipe()

    def wait(_: int) -> None:
        os.write(writing, f"{os.getpid():8}".encode())
        time.sleep(60)

    parent = multiprocessing.get_context("fork").Process(target=lambda: divide(3, wait, range(3)))
    parent.start()
    pids = [int(os.read(reading, 8)) for _ in range(3)]
    assert parent.pid in pids and len(set(pids)) == 3
    parent.kill()
    parent.join()
    until(lambda: not any(running(pid) for pid in pids))


def running(pid: int) -> bool:
    """True unless the process has ended; it may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("device", "threads", "problem"),
    [
        ("cuda:1", 1, "the CPU and one thread, not cuda:1 and 1 threads"),
        ("cpu", 2, "the CPU and one thread, not cpu and 2 threads"),
    ],
)
def test_runs_that_cannot_be_divided_are_refused(device: str, threads: int, problem: str) -> None:
    with pytest.raises(FltrainError, match=f"^--workers 2: .*{problem}; use --device cpu .*--workers$"):
        prepare(2, torch.device(device), threads)
    prepare(1, torch.device(device), threads)
