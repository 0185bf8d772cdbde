"""Faults while a run is being trained: what is said, with which exit code, and what is left."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fltrain.cli import main
from fltrain.methods.scaffold import Scaffold
from fltrain.records import Results
from fltrain.spec import RunSpec

from .helpers import tiny

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """Train a run by the command line; returns the exit code and what was said to the user."""
    monkeypatch.chdir(tmp_path)

    def run(spec: RunSpec, **environment: str) -> tuple[int, str]:
        Path("run.json").write_text(spec.to_json())
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["fltrain", "train", "run.json"])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        return int(code or 0), capfd.readouterr().err.splitlines()[-1]

    return run


def failing_in(round: int, error: Exception) -> Callable[..., Any]:
    """SCAFFOLD's start of local training, with a fault in a round (counted from 1)."""
    begin = Scaffold.begin

    def hook(self: Scaffold, local: Any) -> Any:
        if local.round + 1 == round:
            raise error
        return begin(self, local)

    return hook


SPEC = tiny(method="scaffold", rounds=4)


def test_a_fault_of_a_method_names_round_client_and_inputs(invoke: Invoke, tmp_path: Path) -> None:
    whole = tmp_path / "elsewhere"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scaffold, "begin", failing_in(3, ValueError("shapes do\nnot fit")))
        code, said = invoke(SPEC, FLTRAIN_CHECKPOINT_ROUNDS="1")
    assert code == 1
    log = Results(Path("results")).run(SPEC.run_id) / "train.log"
    assert re.fullmatch(
        rf"error: {re.escape(SPEC.run_id)}: ValueError: shapes do not fit "
        r"\(in round 3, training client \d+ with "
        rf"\d+ images of 1 x 8 x 8 in batches of 32\); {log} has the traceback",
        said,
    )
    assert "Traceback" in log.read_text() and "in hook" in log.read_text()
    record = Results(Path("results")).record(SPEC.run_id)
    assert not record.complete

    # Once the method is mended, the run goes on from its checkpoint.
    code, _ = invoke(SPEC)
    assert code == 0 and "goes on after round 2 of 4" in log.read_text()
    resumed = record.folder.rename(whole)
    invoke(SPEC)
    for name in ("metrics.jsonl", "summary.json"):
        assert (resumed / name).read_bytes() == (record.folder / name).read_bytes()


def test_a_fault_on_the_server_names_the_clients(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise IndexError("out of range")

    monkeypatch.setattr(Scaffold, "server_step", broken)
    code, said = invoke(SPEC)
    assert code == 1
    assert re.search(
        r"IndexError: out of range \(in round 1, aggregating what clients \[\d+, \d+\] sent\)", said
    )


def test_no_memory_left_says_what_to_set(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
    monkeypatch.setattr(Scaffold, "begin", failing_in(2, error))
    code, said = invoke(SPEC)
    assert code == 2
    assert re.search(r"out of memory in round 2, training client \d+ .* --recordings host", said)
    assert not Results(Path("results")).record(SPEC.run_id).complete


def test_processes_are_named_in_the_provenance(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scaffold, "begin", failing_in(3, ValueError("x")))
        patch.setattr("fltrain.provenance._processor", lambda: "another processor")
        invoke(SPEC, FLTRAIN_CHECKPOINT_ROUNDS="1")
    invoke(SPEC)
    record = Results(Path("results")).record(SPEC.run_id)
    assert record.provenance["resumed"] == [{"processor": "another processor", "after_round": 2}]
    assert record.provenance["determinism"] == "statistical", "in different environments"
    assert len(record.costs["round_seconds"]) == 4
    assert json.dumps(record.summary).count("processor") == 0
