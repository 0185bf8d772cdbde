"""Faults during training: messages, exit codes, and remaining files."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fltrain.__main__ import main
from fltrain.core.errors import FltrainError, MethodError, Stopped
from fltrain.engine.train import Execution, train
from fltrain.methods.checks import watched
from fltrain.methods.scaffold import Scaffold
from fltrain.runs.record import Results, checkpoint_file, write_record
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import RunStatus
from fltrain.runtime.signals import Stopping

from .helpers import CPU, tiny

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """Train a run by the command line; returns the exit code and the output."""
    monkeypatch.chdir(tmp_path)

    def run(spec: RunSpec, **environment: str) -> tuple[int, str]:
        Path("run.json").write_text(spec.to_json())
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["fltrain", "train", "run.json"])
        code: object = None
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        output = capfd.readouterr().err
        assert "Traceback" not in output, "tracebacks are for the log"
        return int(str(code or 0)), (output.splitlines() or [""])[-1]

    return run


def failing_in(round: int, error: Exception) -> Callable[..., Any]:
    """SCAFFOLD's start of local training, with a fault in a round (counted from 1)."""
    client_init = Scaffold.client_init

    def hook(self: Scaffold, local: Any) -> Any:
        if local.round + 1 == round:
            raise error
        return client_init(self, local)

    return hook


SPEC = tiny(method="scaffold", model="mlp", rounds=4)


def test_a_fault_of_a_method_names_round_client_and_inputs(invoke: Invoke, tmp_path: Path) -> None:
    aside = tmp_path / "elsewhere"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scaffold, "client_init", failing_in(3, ValueError("shapes do\nnot fit")))
        code, output = invoke(SPEC, FLTRAIN_CHECKPOINT_SECONDS="0")
    assert code == 1
    log = Results(Path("results")).run(SPEC.run_id) / "train.log"
    assert re.fullmatch(
        rf"error: {re.escape(SPEC.run_id)}: ValueError: shapes do not fit "
        r"\(in round 3, training client \d+ with "
        rf"\d+ images of 1 x 8 x 8 in batches of 32\); {log} has the traceback",
        output,
    )
    assert log.read_text().count("Traceback") == 1 and "in hook" in log.read_text()
    record = Results(Path("results")).record(SPEC.run_id)
    assert not record.complete
    state = RunStatus.of(SPEC.run_id, SPEC, Results(Path("results")))
    assert state.name == "failed" and output == f"error: {SPEC.run_id}: {state.detail}"

    # With a working method, the run resumes from its checkpoint.
    code, _ = invoke(SPEC)
    assert code == 0 and "resumed after round 2 of 4" in log.read_text()
    resumed = record.folder.rename(aside)
    invoke(SPEC)
    for name in ("metrics.jsonl", "summary.json"):
        assert (resumed / name).read_bytes() == (record.folder / name).read_bytes()


@pytest.mark.parametrize(
    ("hook", "place"),
    [
        ("server_init", "before round 1"),
        ("aggregate", r"in round 1, aggregating the uploads of clients \[\d+, \d+\]"),
    ],
)
def test_a_fault_on_the_server_names_its_place(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, hook: str, place: str
) -> None:
    def broken(*_: Any) -> Any:
        raise IndexError("out of range")

    monkeypatch.setattr(Scaffold, hook, broken)
    code, output = invoke(SPEC)
    assert code == 1
    assert re.search(rf"IndexError: out of range \({place}\); .*train.log has the traceback", output)


def test_a_missing_client_state_names_the_remedy(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaffold, "client_final", lambda self, update, local, _: local.state["memory"])
    code, output = invoke(SPEC)
    assert code == 1
    remedy = r"\(in round 1, training client .*, local\.state is empty before .*: use local\.state\.get\("
    assert re.search(rf"KeyError: 'memory' {remedy}", output), output


def test_a_missing_payload_names_the_hook(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaffold, "client_init", lambda self, local: {"c": local.payload["memory"]})
    code, output = invoke(SPEC)
    assert code == 1 and "local.state" not in output
    assert "KeyError: 'memory' (in round 1, " in output
    assert "local.payload has what the hook 'payload' returns: " in output, output
    monkeypatch.setattr(Scaffold, "payload", lambda self, state: {})
    assert "local.payload has what the hook 'payload' returns: nothing" in invoke(SPEC)[1]


def test_a_fault_in_an_own_file_names_its_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"__name__": "own.methods.bad"}
    exec(compile("def fail(*_):\n    return 1 / 0", "/mine/methods/bad.py", "exec"), namespace)
    monkeypatch.setattr(Scaffold, "server_init", namespace["fail"])
    assert invoke(SPEC)[1].endswith("train.log has the traceback; see methods/bad.py:2")


def test_a_refused_operation_in_an_own_file_names_its_line() -> None:
    namespace: dict[str, Any] = {"__name__": "own.methods.bad"}
    exec(compile("def branch(value):\n    return value > 0 and 1", "/mine/methods/bad.py", "exec"), namespace)
    place = r"__bool__ is refused here: .*; see methods/bad\.py:2$"
    with pytest.raises(FltrainError, match=place), watched("bad", "correct"):
        namespace["branch"](torch.ones(1))


def test_missing_memory_names_the_remedy(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
    monkeypatch.setattr(Scaffold, "client_init", failing_in(2, error))
    code, output = invoke(SPEC)
    assert code == 2
    assert re.search(
        r"out of memory in round 2, training client \d+ .* let fewer runs share the device", output
    )
    assert not Results(Path("results")).record(SPEC.run_id).complete


def test_a_refused_result_of_a_hook_is_in_log_and_status(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scaffold, "correct", lambda *_: None)
    code, output = invoke(SPEC)
    assert code == 2 and output.startswith("error: 'correct' of method 'scaffold' returned None")
    state = RunStatus.of(SPEC.run_id, SPEC, Results(Path("results")))
    assert state[:2] == ("failed", output.removeprefix("error: "))


def test_any_other_error_is_in_log_and_status(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of fltrain still ends the program with its traceback."""
    results = Results(Path("results"))

    def failing(error: Exception) -> Callable[..., Any]:
        def raising(*_: object) -> None:
            raise error

        return raising

    full = OSError(28, "No space left on device", "results/runs/x")
    monkeypatch.setattr("fltrain.engine.train.write_record", failing(full))
    message = "results/runs/x: No space left on device"
    assert invoke(SPEC) == (2, f"error: {message}")
    assert RunStatus.of(SPEC.run_id, SPEC, results)[:2] == ("failed", message)
    monkeypatch.setattr("fltrain.engine.train.write_record", failing(KeyError("x")))
    with pytest.raises(KeyError):
        invoke(SPEC)
    assert RunStatus.of(SPEC.run_id, SPEC, results)[:2] == ("failed", "KeyError: 'x'")
    assert "Traceback" in (results.run(SPEC.run_id) / "train.log").read_text()


@pytest.mark.parametrize("split", [None, 9])
def test_a_network_that_fedimpro_cannot_split_is_refused(invoke: Invoke, split: int | None) -> None:
    model = "mobilenet_tiny" if split else "mlp"
    code, output = invoke(tiny(plugins=[{"name": "fedimpro", "split": split}], model=model))
    assert code == 2
    assert output.startswith("error: plugins.fedimpro.split: this network cannot be split")
    assert output.endswith(", or leave out fedimpro")


@pytest.mark.slow
def test_batches_of_one_image_are_refused_if_batchnorm_has_one_pixel(invoke: Invoke) -> None:
    """ResNet-18 leaves one pixel of the digits' eight. With two images it trains."""
    settings = {"model": "resnet18", "participation": {"fraction": 0.01}, "rounds": 1}
    partition = {"name": "iid", "clients": 200}
    code, output = invoke(tiny(**settings, partition=partition, training={"epochs": 1, "batch_size": 1}))
    assert code == 2
    refusal = r"client \d+ has a batch of one image, in which .*; set training.batch_size or"
    assert re.search(refusal, output) and "in round" not in output, output
    code, output = invoke(tiny(**settings, partition=partition, training={"epochs": 1, "batch_size": 2}))
    assert code == 0, output


def test_old_checkpoints_of_a_complete_run_are_removed(invoke: Invoke) -> None:
    results = Results(Path("results"))
    for again in (False, True):
        invoke(SPEC)
        checkpoint = checkpoint_file(results.checkpoints(SPEC.run_id), 2)
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text("earlier than the record")
        os.utime(checkpoint, (0, 0))
        if again:
            train(SPEC, results, Execution(CPU), again=True)
            assert "goes on" not in (results.run(SPEC.run_id) / "train.log").read_text()
        else:
            _, line = invoke(SPEC)
            assert line.endswith("has a record; its checkpoints are deleted")
            assert not list(results.runs.glob(".*"))
        assert not checkpoint.parent.exists()


def test_training_again_resumes_after_a_stop(invoke: Invoke, tmp_path: Path) -> None:
    results = Results(tmp_path)
    record = train(SPEC, results, Execution(CPU))
    before = (record.folder / "metrics.jsonl").read_bytes()
    checkpoints = Execution(CPU, checkpoint_seconds=0)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MethodError):
        patch.setattr(Scaffold, "client_init", failing_in(4, ValueError("x")))
        train(SPEC, results, checkpoints, again=True)
    assert record.complete, "the older record stays until the new one is complete"
    train(SPEC, results, Execution(CPU), again=True)
    assert "resumed after round 3 of 4" in (record.folder / "train.log").read_text()
    assert not list(results.runs.glob(".*"))
    assert (record.folder / "metrics.jsonl").read_bytes() == before


def test_no_further_run_starts_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the signal came after the last round of a run."""
    monkeypatch.chdir(tmp_path)
    runs = [tiny(model="mlp", seed=seed) for seed in (0, 1)]
    for number, run in enumerate(runs):
        Path(f"{number}.json").write_text(run.to_json())

    def late(*arguments: Any) -> None:
        write_record(*arguments)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("fltrain.engine.train.write_record", late)
    monkeypatch.setattr("sys.argv", ["fltrain", "train", "0.json", "1.json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 75
    first, second = (Results(Path("results")).record(run.run_id) for run in runs)
    assert first.complete and not second.folder.exists()


LATE_SIGNALS = """
import atexit, os, sys, fltrain.__main__
def kill(kill=os.kill, me=os.getpid()): [kill(me, number) for number in (10, 15, 2)]
late = type("Late", (), {"__del__": lambda self, kill=kill: kill()})()
atexit.register(kill)
sys.argv = ["fltrain", "train", "run.json", *sys.argv[1:]]
fltrain.__main__.main()
"""
"""Sends signals when the process has printed its last line; Python deletes ``late`` after its handlers."""


def test_another_process_writes_the_same_bytes_and_survives_late_signals(
    tmp_path: Path, device: torch.device
) -> None:
    spec = tiny(
        method="scaffold",
        plugins=["flfa", "ecgr"],
        training={"epochs": 1, "batch_size": 32, "lr": 0.1, "augmentation": {"crop_padding": 1}},
        rounds=2,
        evaluation={"statistics": ["drift", "similarity", "separability"], "keep": "model"},
    )
    (tmp_path / "run.json").write_text(spec.to_json())
    command = [sys.executable, "-c", LATE_SIGNALS, "--device", str(device)]
    other = {"cwd": tmp_path, "env": {**os.environ, "PYTHONHASHSEED": "1"}}
    done = subprocess.run(command, capture_output=True, text=True, **other)
    assert (done.returncode, "completed" in done.stdout) == (0, True), done.stderr
    train(spec, Results(tmp_path / "here"), Execution(device))
    first, second = (Results(tmp_path / folder).run(spec.run_id) for folder in ("here", "results"))
    for name in ("metrics.jsonl", "summary.json", "models.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    for folder in (first, second):
        assert json.loads((folder / "provenance.json").read_text())["determinism"] == "bitwise"


@pytest.mark.parametrize(
    ("finished", "start"),
    [(1, "resumes after round 1"), (0, "begins with round 1, because no round is saved")],
)
def test_a_signal_ends_the_round_between_clients(
    finished: int, start: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It does not interrupt the running code, which may be capturing, or hold a lock."""
    events: list[str] = []
    begin = Scaffold.client_init

    def met(self: Scaffold, local: Any) -> Any:
        if local.round == finished and not events:
            events.append("signal")
            signal.raise_signal(signal.SIGTERM)
            events.append("went on")
        return begin(self, local)

    monkeypatch.setattr(Scaffold, "client_init", met)
    stopping = Stopping()
    stopping.heed()
    message = f"{SPEC.run_id}: stopped by SIGTERM after round {finished} of 4; the next start {start}"
    with pytest.raises(Stopped, match=f"^{re.escape(message)}$"):
        train(SPEC, Results(tmp_path), Execution(CPU), stopping=stopping)
    assert events == ["signal", "went on"]


def test_training_leaves_the_logging_of_its_caller(tmp_path: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("fltrain")

    def setting() -> tuple[object, ...]:
        return [*root.handlers], root.level, [*ours.handlers], ours.level, logging.raiseExceptions

    before = setting()
    record = train(tiny(), Results(tmp_path), Execution(CPU))
    assert setting() == before
    root.warning("of the caller")
    log = (record.folder / "train.log").read_text()
    assert "final accuracy" in log and "of the caller" not in log
