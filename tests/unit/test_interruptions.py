"""Killed or stopped runs end as uninterrupted ones; two processes never train the same run."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fltrain.reporting.verify import Verification
from fltrain.runs.record import RECORD_FILES, Results
from fltrain.runs.spec import RunSpec

from .helpers import tiny
from .killing import contents, finished, started

CONFIG = Path(__file__).resolve().parents[2] / "config"


def prepared(root: Path, other: Path) -> Path:
    """A results folder with the data of another one."""
    shutil.copytree(other / "data", root / "data")
    return root


@dataclass(frozen=True)
class Long:
    """A run that is long enough to be stopped in the middle, and its uninterrupted record."""

    spec: RunSpec
    root: Path
    expected: dict[str, bytes | None]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Long:
    spec, root = tiny(model="mlp", rounds=60), tmp_path_factory.mktemp("whole")
    return Long(spec, root, contents(finished(spec, root)))


def assert_clean(root: Path, spec: RunSpec) -> None:
    """Check that only the record remains: no checkpoint, no lock, no temporary file."""
    results = Results(root)
    names = {path.name for path in results.run(spec.run_id).iterdir()} - {"models.safetensors"}
    assert names == {*RECORD_FILES, "train.log"}
    assert list((root / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_a_run_killed_before_any_file_operation_resumes(tmp_path: Path) -> None:
    spec = tiny(method="scaffold", model="mlp", rounds=2, evaluation={"keep": "clients"})
    expected = contents(finished(spec, tmp_path / "whole"))
    operation, ended = 0, False
    while not ended:
        operation += 1
        root = prepared(tmp_path / str(operation), tmp_path / "whole")
        process = started(spec, root, kill_at=operation)
        process.join()
        ended = process.exitcode == 0
        assert ended or process.exitcode == -signal.SIGKILL
        assert contents(finished(spec, root)) == expected, f"killed before operation {operation}"
        assert_clean(root, spec)
    assert operation > 25, "operations on files were counted"


def assert_whole(root: Path, spec: RunSpec, expected: dict[str, bytes | None]) -> None:
    """Check that the record is whole after an interruption."""
    results = Results(root)
    record = results.record(spec.run_id)
    assert record.usable and contents(record) == expected
    findings = [problem.text for problem in Verification(results, CONFIG).findings() if not problem.harmless]
    assert findings == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "full disk"])
def test_training_again_never_loses_the_record(fault: str, tmp_path: Path) -> None:
    """After a fault in the moment of the exchange, the next start trains the run again."""
    spec = tiny(method="scaffold", model="mlp", rounds=2, evaluation={"keep": "model"})
    old = finished(spec, tmp_path / "whole")
    expected = contents(old)
    number, code = 0, None
    while code != 0:
        number += 1
        root = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(number)))
        options = {"kill_at" if fault == "kill" else "full_at": number}
        process = started(spec, root, again=True, **options)
        process.join()
        code = process.exitcode
        assert code in (0, -signal.SIGKILL if fault == "kill" else 2)
        if not Results(root).record(spec.run_id).complete:  # in the moment of the exchange
            finished(spec, root)
        assert_whole(root, spec, expected)
    process = started(spec, root.with_name(str(number - 2)), again=True)
    process.join()
    assert process.exitcode == 0
    assert_clean(root.with_name(str(number - 2)), spec)
    assert number > (25 if fault == "kill" else 12)


def fltrain(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fltrain", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not any(path.parent.glob(path.name)):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)]
)
def test_a_signal_writes_a_checkpoint_and_ends_the_program(
    tmp_path: Path, long: Long, number: signal.Signals, code: int
) -> None:
    spec, root = long.spec, prepared(tmp_path / "results", long.root)
    (tmp_path / "run.json").write_text(spec.to_json())
    command = ("train", "run.json", "--results", str(root), "--workers", "2")
    process = fltrain(*command, cwd=tmp_path, FLTRAIN_CHECKPOINT_SECONDS="0")
    wait_for(Results(root).checkpoints(spec.run_id) / "round-*2.safetensors", process)
    os.killpg(process.pid, number)  # as a terminal and SLURM do
    output, _ = process.communicate()
    assert process.returncode == code
    last = output.splitlines()[-1]
    assert re.fullmatch(
        rf"{re.escape(spec.run_id)}: stopped by {number.name} after round (\d+) of 60; "
        r"the next start resumes after round \1",
        last,
    )
    assert "Traceback" not in output
    assert contents(finished(spec, root)) == long.expected
    assert "resumed after round" in (Results(root).run(spec.run_id) / "train.log").read_text()
    assert_clean(root, spec)


@pytest.mark.slow
def test_two_processes_do_not_train_the_same_run(tmp_path: Path, long: Long) -> None:
    """Two wait for a third one. It is killed: one of them resumes the run, and the other finds its record."""
    spec, root = long.spec, prepared(tmp_path / "results", long.root)
    first = started(spec, root)
    while not list(Results(root).checkpoints(spec.run_id).glob("*.safetensors")):
        time.sleep(0.01)
        assert first.exitcode is None, "the run is long enough"
    os.kill(first.pid, signal.SIGSTOP)  # it keeps the lock, however long the others take to start
    waiting = [started(spec, root) for _ in range(2)]
    log = Results(root).run(spec.run_id) / "train.log"
    while log.read_text().count("waiting") < 2:
        time.sleep(0.01)
        assert first.exitcode is None, "the run is long enough"
    first.kill()
    for process in waiting:
        process.join()
        assert process.exitcode == 0
    for message in ("resumed after round", "another process has trained it"):
        assert log.read_text().count(message) == 1
    assert contents(Results(root).record(spec.run_id)) == long.expected
    assert_clean(root, spec)
