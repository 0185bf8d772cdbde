"""System faults outside the rounds: one clear line, no incomplete files, and success on the next try."""

import json
import logging
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from fltrain.__main__ import main
from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing, write_text
from fltrain.core.job_log import LOG, job
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.process import out_of_memory

from .helpers import TINY, trained

RUN = {**TINY, "rounds": 1, "model": "mlp"}
UNLIMITED = resource.RLIM_INFINITY
REASON = "cannot be written (File too large); make room or choose another place"


@dataclass(frozen=True)
class Done:
    """Exit code and output of a process."""

    code: int | None
    output: str


def run(work: Callable[[], None], folder: Path, limit: int = UNLIMITED) -> Done:
    """Run a function in a separate process, whose files must not exceed ``limit`` bytes.

    As on a full disk, larger files cannot be written.
    """

    def child() -> None:
        os.chdir(folder)
        os.dup2(entrance, 1)
        os.dup2(entrance, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        logging.root.handlers.clear()  # the handlers of the tests
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, UNLIMITED))
        work()

    # Forked, as PyTorch takes seconds to be imported.
    outlet, entrance = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    os.close(entrance)
    with open(outlet) as stream:
        output = stream.read()
    process.join(60)
    return Done(process.exitcode, output)


def fltrain(folder: Path, *arguments: str | Path, limit: int = UNLIMITED) -> Done:
    """Run the command line."""

    def command() -> None:
        sys.argv = ["fltrain", *map(str, arguments)]
        main()

    return run(command, folder, limit)


def refused(done: Done) -> str:
    """Check that a process failed without a traceback, and return the last line of its output."""
    assert done.code == 2, done.output
    assert "Traceback" not in done.output and "Logging error" not in done.output
    *_, last = done.output.splitlines()
    assert last.startswith("error: ")
    return last.removeprefix("error: ")


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, except locks and logs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".lock", ".log")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one run; tests must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    trained(RunSpec.parse(RUN, "test"), folder / "results")
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy of that folder, with the spec of the run in a file."""
    folder = Path(shutil.copytree(finished, tmp_path / "place"))
    (folder / "run.json").write_text(json.dumps(RUN))
    return folder


def without_record(place: Path) -> None:
    shutil.rmtree(place / "results" / "runs")


def without_data(place: Path) -> None:
    shutil.rmtree(place / "results")


@pytest.mark.parametrize(
    ("prepare", "limit", "command", "made"),
    [
        (without_record, 300, ["train", "run.json"], "results/runs/*/*.json"),
        (without_data, 20_000, ["data", "fetch", "digits"], "results/data/digits.safetensors"),
        (lambda place: None, 500, ["records", "export", "records.tar.gz"], "records.tar.gz"),
    ],
)
def test_a_command_fails_on_a_full_disk_and_succeeds_with_space(
    place: Path, prepare: Callable[[Path], None], limit: int, command: list[str | Path], made: str
) -> None:
    prepare(place)
    before = files(place)
    message = refused(fltrain(place, *command, limit=limit))
    path, _, reason = message.partition(": ")
    assert Path(path).match(made) and reason.startswith(REASON)
    after = files(place)
    assert not (place / path).exists() and not [name for name in after if name.endswith(".part")]
    assert {name: after[name] for name in before} == before
    done = fltrain(place, *command)
    assert done.code == 0, done.output
    assert (place / path).exists()


LOGGED = Path("logs", "deep", "job.log")


def lines(folder: Path) -> list[str]:
    """Lines of the log; without date and time at the start."""
    dated = (folder / LOGGED).read_text().splitlines()
    return [re.sub(r"^\d{4}-\d\d-\d\d [\d:,]+ ", "@ ", line) for line in dated]


def a_job(fault: Exception | None) -> None:
    with job(str(LOGGED)):
        LOG.info("half way: %d", 7)
        if fault:
            raise fault
    print("after the job")


def test_a_job_is_reported_in_its_log(tmp_path: Path) -> None:
    assert run(partial(a_job, None), tmp_path) == Done(0, "after the job\n")
    assert lines(tmp_path) == ["@ half way: 7", "@ done"]
    done = run(partial(a_job, ZeroDivisionError("lost")), tmp_path)
    assert done.code == 1 and done.output.splitlines()[-1] == "ZeroDivisionError: lost"
    assert lines(tmp_path)[:3] == [
        "@ half way: 7",
        "@ the job failed",
        "Traceback (most recent call last):",
    ]
    assert lines(tmp_path)[-1] == "ZeroDivisionError: lost"


def make_table(rows: int) -> None:
    with job("logs/job.log"):
        LOG.info("a line that is too long for the log" * 10)
        write_text(Path("table.csv"), "row\n" * rows)


def test_a_job_on_a_full_disk_ends_with_one_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("old")
    done = run(partial(make_table, 1000), tmp_path, limit=100)
    assert refused(done).startswith(f"table.csv: {REASON}") and done.output.count("\n") == 1
    assert done.output.endswith("; the old file is unchanged\n")
    assert files(tmp_path) == {"table.csv": b"old"}
    assert run(partial(make_table, 1000), tmp_path) == Done(0, "")
    assert (tmp_path / "table.csv").read_text() == "row\n" * 1000


def test_paths_that_cannot_be_written_give_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    for path, reason in [
        (tmp_path / "file" / "new", f"{tmp_path / 'file'}: File exists"),
        (tmp_path / "file" / "deeper" / "new", f"{tmp_path / 'file' / 'deeper'}: Not a directory"),
    ]:
        with pytest.raises(FltrainError) as caught:
            write_text(path, "text")
        assert str(caught.value).startswith(f"{path}: cannot be written ({reason}); make room or choose")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "folder", tmp_path / "pipe"):
        with pytest.raises(FltrainError, match=f"^{path}: is not an ordinary file"):
            write_text(path, "text")
    (tmp_path / "pipe").unlink()
    assert files(tmp_path) == {"file": b"old"}


def test_a_failed_allocation_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(caught.value) and out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_damaged_file_is_named_and_deleting_it_repairs_everything(place: Path) -> None:
    (path,) = (place / "results" / "data").glob("*.safetensors")
    content, spec = path.read_bytes(), RunSpec.parse(RUN, "test")
    path.write_bytes(content[:-1])
    results = Results(place / "results")
    shutil.rmtree(results.root / "runs")
    with pytest.raises(FltrainError) as caught:
        trained(spec, results.root)
    assert str(caught.value).startswith(f"{path}: not a readable ")
    assert str(caught.value).endswith("; delete it to have it made again")
    assert not results.record(spec.run_id).complete
    path.unlink()
    assert trained(spec, results.root).complete
    assert path.read_bytes() == content


def killed(path: str) -> None:
    with replacing(Path(path)) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_export_deletes_files_of_a_killed_export(tmp_path: Path) -> None:
    """It deletes no other file, also none that another process is writing, or has just written anew."""
    target, others = tmp_path / "records[1].tar.gz", [".other.csv.abc.part", "records[1].tar.gz.part"]
    for name in others:
        (tmp_path / name).touch()
    assert run(partial(killed, str(target)), tmp_path).code == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))  # as if left long ago
    with replacing(target) as first:
        assert {path.name for path in tmp_path.iterdir()} == {*others, first.name}
        first.unlink()
        first.write_text("first")  # a new file, as libraries make that write atomically
        with replacing(target) as second:
            assert first.exists()
            second.write_text("second")
    assert {path.name for path in tmp_path.iterdir()} == {*others, target.name}
    assert target.read_text() == "first"


WITHOUT_MLFLOW = "import sys; sys.modules['mlflow'] = None; from fltrain.__main__ import main; main()"


@pytest.mark.slow
def test_training_works_without_mlflow(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    command = [sys.executable, "-c", WITHOUT_MLFLOW, "train", "run.json", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(Results(tmp_path / "results").records())) == 1
