"""Files of a record, their digests, and the summary computed from the rows."""

import getpass
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fltrain.cli import app
from fltrain.core.errors import FltrainError
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.engine.statistics import Row
from fltrain.runs.record import (
    RECORD_FILES,
    Record,
    Results,
    check_record,
    exchange,
    summarise,
    summary_digest,
    write_record,
)
from fltrain.runs.today import RunStatus
from fltrain.runtime.process import peak_memory

from .helpers import as_another_user, tiny, trained

SAME_IN_EVERY_EXECUTION = ("spec.json", "metrics.jsonl", "summary.json")
MEASURED = tiny(
    method="scaffold",
    plugins=["flfa"],
    evaluation={"statistics": ["drift", "similarity", "separability"], "targets": [0.05, 1.0]},
)
DIVERGING = tiny(training={"epochs": 1, "lr": 1e30})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def measured(root: Path) -> Record:
    return trained(MEASURED, root)


@pytest.fixture(scope="module")
def diverged(root: Path) -> Record:
    return trained(DIVERGING, root)


def test_records_have_the_documented_files(measured: Record, diverged: Record) -> None:
    for record in (measured, diverged):
        assert {path.name for path in record.folder.iterdir()} == {*RECORD_FILES, "train.log"}


def test_rows_are_complete_and_in_order(measured: Record) -> None:
    assert [row["round"] for row in measured.metrics] == sorted(row["round"] for row in measured.metrics)
    kinds = ("train", "updates", "flfa", "evaluation", "separability")
    assert {row["kind"] for row in measured.metrics} == {*kinds}
    for kind in kinds:
        assert [row["round"] for row in measured.rows(kind)] == [1, 2, 3], kind
    (first, *_) = measured.rows("evaluation")
    assert first.keys() == {"round", "kind", "split", "view", "accuracy", "loss", "images"}
    assert (first["split"], first["view"]) == ("test", "global")
    correct = first["accuracy"] * first["images"]
    assert correct == pytest.approx(round(correct), abs=1e-9)


def test_traffic_equals_a_count_by_hand(measured: Record, tmp_path: Path) -> None:
    plain = trained(tiny(), tmp_path).summary
    # 3 rounds of 2 clients; 4 bytes per weight, and per running mean and variance of 248 channels.
    model = 3 * 2 * 4 * (plain["parameters"] + 2 * 248)
    assert plain["bytes"] == {"down": model, "up": model}
    # SCAFFOLD sends a control variate each way, FLFA the index of the selected layer (from round 2 on) down.
    controls = 3 * 2 * 4 * plain["parameters"]
    assert measured.summary["bytes"] == {"down": model + controls + 2 * 2 * 4, "up": model + controls}


def test_costs_and_provenance_are_recorded(measured: Record) -> None:
    seconds = measured.costs["seconds"]
    assert {"setup", "train", "aggregate", "statistics", "evaluate", "total"} == seconds.keys()
    assert 0 < sum(seconds.values()) - seconds["total"] <= seconds["total"]
    assert len(measured.costs["round_seconds"]) == 3
    assert measured.costs["samples_per_second"] == pytest.approx(measured.costs["samples"] / seconds["train"])
    assert measured.costs["peak_memory_bytes"] > 1e7
    assert measured.provenance.keys() >= {"commit", "dirty", "packages", "processor", "gpu", "determinism"}
    assert measured.provenance["determinism"] == "bitwise"
    assert MEASURED.run_id in (measured.folder / "train.log").read_text()


def test_the_peak_of_a_record_is_that_of_its_run(tmp_path: Path) -> None:
    """Memory that the process used earlier does not count."""
    block = bytearray(2**30)
    del block
    before = peak_memory()
    record = trained(tiny(rounds=1), tmp_path)
    assert 0 < record.costs["peak_memory_bytes"] < before - 2**29


@pytest.mark.parametrize("name", RECORD_FILES)
def test_json_files_have_finite_numbers_only(measured: Record, diverged: Record, name: str) -> None:
    for record in (measured, diverged):
        text = (record.folder / name).read_text()
        for document in text.splitlines() if name.endswith("l") else [text]:
            json.loads(document, parse_constant=lambda constant: pytest.fail(f"{constant} in a record"))


def test_compared_files_contain_nothing_of_this_machine(measured: Record) -> None:
    text = "".join((measured.folder / name).read_text() for name in SAME_IN_EVERY_EXECUTION)
    telling = {platform.node(), str(Path.home()), str(Path.cwd()), str(measured.folder), "seconds", "memory"}
    user = getpass.getuser()
    assert [word for word in telling | ({user} if len(user) > 3 else set()) if word and word in text] == []
    for key in ("threads", "device", "host", "commit"):
        assert f'"{key}"' not in text


def test_the_summary_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = Path.replace

    def watched(temporary: Path, path: Path) -> Path:
        assert not Record(tmp_path).complete
        written.append(path.name)
        return replace(temporary, path)

    monkeypatch.setattr(Path, "replace", watched)
    write_record(tmp_path, tiny(), [], {}, {}, {})
    assert written[-1] == "summary.json" and Record(tmp_path).complete
    assert {path.name for path in tmp_path.iterdir()} == set(RECORD_FILES)


def test_an_older_record_is_replaced_by_a_rename(tmp_path: Path) -> None:
    """An exchange that is interrupted keeps the old record."""
    results = Results(tmp_path)
    run = tiny().run_id
    assert results.place(run) == results.run(run)
    write_record(results.place(run), tiny(), [], {"run_id": run}, {}, {"by": "the first"})
    place = results.place(run)
    assert place == results.runs / f".again-{run}"
    write_record(place, tiny(), [], {"run_id": run}, {}, {"by": "the second"})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(
            "fltrain.runs.record.flush", lambda path: (_ for _ in ()).throw(OSError(28, "No space"))
        )
        exchange(place, results.run(run))
    assert results.record(run).provenance["by"] == "the first" and Record(place).complete
    exchange(place, results.run(run))
    assert results.record(run).provenance["by"] == "the second" and results.exchanged() == []
    results.run(run).rename(results.runs / f".replaced-{run}")
    assert list(results.records()) == []
    results.recover()
    assert results.record(run).provenance["by"] == "the second"


def test_another_run_with_the_same_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run IDs have 40 bits of a hash: two seeds with the same ID are found in seconds."""
    monkeypatch.setattr("fltrain.runs.spec.short_hash", lambda data: "0123456789")
    monkeypatch.setattr("fltrain.runs.record.short_hash", lambda data: "0123456789")
    monkeypatch.chdir(tmp_path)
    one, other = tiny(rounds=1), tiny(rounds=1, seed=1)
    assert one.run_id == other.run_id
    results = Results(Path("results"))
    record = trained(one, results.root)
    message = f"{one.run_id}: {record.folder} is the record of other settings with the same ID"
    Path("run.json").write_text(other.to_json())
    with pytest.raises(FltrainError, match=re.escape(message)):
        CliRunner().invoke(app, ["train", "run.json"], catch_exceptions=False)
    with pytest.raises(FltrainError, match=re.escape(message)):
        trained(other, results.root)
    state = RunStatus.of(other.run_id, results, None, other)
    assert (state.name, state.detail.startswith(message)) == ("damaged", True)
    assert RunStatus.of(one.run_id, results, None, one).name == "completed"


def test_incomplete_records_are_not_listed(measured: Record, diverged: Record, root: Path) -> None:
    (root / "runs" / "started").mkdir(exist_ok=True)
    (root / "runs" / "started" / "train.log").touch()
    names = [record.run_id for record in Results(root).records()]
    assert names == sorted([measured.run_id, diverged.run_id])
    assert not Results(root).record("started").complete
    assert list(Results(root / "nowhere").records()) == []


@pytest.mark.parametrize("content", ['{"half": ', "\x00", None])
@pytest.mark.parametrize("name", RECORD_FILES)
def test_damaged_records_are_named(tmp_path: Path, name: str, content: str | None) -> None:
    write_record(tmp_path, tiny(), [], {"run_id": tmp_path.name}, {}, {})
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(FltrainError, match=rf"^{tmp_path / name}: "):
        getattr(Record(tmp_path), name.partition(".")[0])


EDITS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "accuracy": (
        "summary.json",
        lambda summary: {**summary, "accuracy": {**summary["accuracy"], "final": 0.9999}},
    ),
    "status": ("summary.json", lambda summary: {**summary, "status": "completed", "diverged": None}),
    "rounds to target": ("summary.json", lambda summary: {**summary, "rounds_to_target": {"0.05": 1}}),
    "another run": ("summary.json", lambda summary: {**summary, "run_id": "digits-fedavg-0123456789"}),
    "metrics": ("metrics.jsonl", lambda rows: rows.replace('"round": 2', '"round": 1')),
    "no metrics": ("metrics.jsonl", lambda rows: ""),
    "spec": ("spec.json", lambda spec: {**spec, "rounds": 4}),
    "no costs": ("costs.json", lambda costs: {}),
    "no seconds": ("costs.json", lambda costs: {**costs, "seconds": {}}),
    "no provenance": ("provenance.json", lambda facts: {}),
    "a list": ("provenance.json", lambda facts: [facts]),
    "seconds": ("costs.json", lambda costs: {**costs, "round_seconds": [0.001]}),
    "digest": ("costs.json", lambda costs: {**costs, "digest": "0" * 64}),
    "device": ("provenance.json", lambda facts: {**facts, "device": "cuda:0"}),
    **{
        f"no digest in {name}": (
            f"{name}.json",
            lambda data: {key: data[key] for key in data if key != "digest"},
        )
        for name in ("costs", "provenance")
    },
    **{
        f"no digest of {name}": ("summary.json", lambda summary, name=name: without_digest_of(summary, name))
        for name in ("spec", "summary")
    },
}


def without_digest_of(summary: Any, name: str) -> Any:
    """A summary without a digest; its own digest agrees, as a forger can compute it."""
    del summary["digests"][name]
    if name != "summary":
        summary["digests"]["summary"] = summary_digest(summary)
    return summary


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_record_gives_no_results(
    name: str, measured: Record, diverged: Record, tmp_path: Path
) -> None:
    original = diverged if name == "status" else measured
    record = Record(Path(shutil.copytree(original.folder, tmp_path / original.run_id)))
    assert record.usable and record.damage == ""
    file, edit = EDITS[name]
    path = record.folder / file
    text = path.read_text()
    path.write_text(edit(text) if file == "metrics.jsonl" else json.dumps(edit(json.loads(text))))
    if name == "no digest of spec":
        path = record.folder / "spec.json"
    edited = Record(record.folder)
    assert edited.damage.startswith(f"{path}: ") and edited.complete and not edited.usable
    for part in ("summary", "metrics", "costs", "provenance"):
        with pytest.raises(FltrainError, match=re.escape(str(path))):
            getattr(edited, part)
    (record.folder / file).write_text(text)
    assert Record(record.folder).usable, "a restored file is accepted"


@pytest.mark.parametrize("name", RECORD_FILES)
def test_a_named_pipe_does_not_block(name: str, measured: Record, tmp_path: Path) -> None:
    record = Record(Path(shutil.copytree(measured.folder, tmp_path / measured.run_id)))
    (record.folder / name).unlink()
    os.mkfifo(record.folder / name)
    assert f"{name}: is not an ordinary file" in record.damage
    with pytest.raises(FltrainError, match="is not an ordinary file"):
        check_record(record.folder)
    with pytest.raises(FltrainError, match="is not an ordinary file"):
        getattr(Record(record.folder), name.partition(".")[0])


def test_a_record_without_access_is_damaged(measured: Record, tmp_path: Path) -> None:
    """It belongs to another user: it is neither missing, nor does it end the command."""
    results = Results(tmp_path)
    folder = Path(shutil.copytree(measured.folder, results.run(measured.run_id)))
    (results.root / "checkpoints").mkdir()
    lease = results.lease(MEASURED.run_id)

    def look(name: str, detail: str) -> None:
        state = RunStatus.of(MEASURED.run_id, results, None, MEASURED)
        assert (state.name, detail in state.detail) == (name, True), state

    def looks() -> None:
        folder.chmod(0)
        look("damaged", "Permission denied")
        assert list(results.records()) and not results.record(MEASURED.run_id).usable
        folder.chmod(0o755)
        shutil.rmtree(folder)
        with FileLock(lease):
            lease.chmod(0o444)
            look("training", "")
        look("not trained", "")

    as_another_user(looks, tmp_path)


def summary_of(accuracies: dict[int, float], split: str = "test", **changes: Any) -> dict[str, Any]:
    """Summary of a run with these accuracies by round, and rows of other kinds, views and splits."""
    spec = tiny(**{"rounds": max(accuracies), **changes})
    rows: list[Row] = []
    for round, accuracy in accuracies.items():
        test = {"round": round, "kind": "evaluation", "split": split, "images": 100}
        elsewhere = {"split": "mnist", "view": "global", "accuracy": accuracy / 2, "loss": 5.0}
        rows += [
            {"round": round, "kind": "train", "clients": [0], "loss": 9.0},
            {**test, "view": "client", "accuracy": 1.0, "loss": 0.0},
            {**test, "view": "global", "accuracy": accuracy, "loss": 1 - accuracy},
            {**test, **elsewhere},
        ]
    return summarise(spec, rows, None, {"parameters": 1})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_final_accuracy_follows_its_definition(accuracies: list[float]) -> None:
    summary = summary_of(dict(enumerate(accuracies, start=1)))
    last = accuracies[-math.ceil(len(accuracies) / 10) :]
    assert summary["accuracy"]["final"] == pytest.approx(sum(last) / len(last))
    assert summary["accuracy"]["last"] == accuracies[-1]
    assert summary["accuracy"]["best"] == max(accuracies)
    assert summary["accuracy"]["best_round"] == accuracies.index(max(accuracies)) + 1


def test_rounds_to_target_is_the_first_round_that_reaches_it() -> None:
    curve = {1: 0.50, 2: 0.61, 3: 0.59, 4: 0.63}
    reached = summary_of(curve, evaluation={"targets": [0.60, 0.64, 0.63, 0.5]})["rounds_to_target"]
    assert reached == {"0.6": 2, "0.64": None, "0.63": 4, "0.5": 1}


def test_rounds_without_a_test_are_left_out() -> None:
    summary = summary_of({10: 0.4, 20: 0.6, 23: 0.1, 24: 0.2, 25: 0.3}, evaluation={"every": 10})
    assert summary["accuracy"] == {"last": 0.3, "best": 0.6, "best_round": 20, "final": pytest.approx(0.2)}


def test_only_the_configured_split_is_summarised() -> None:
    own = summary_of({1: 0.25}, local_test={}, evaluation={"extra": ["mnist"]}, split="local_test")
    test = summary_of({1: 0.25}, evaluation={"extra": ["mnist"]})
    for summary in (own, test):
        assert summary["accuracy"]["final"] == summary["accuracy"]["best"] == 0.25
        assert summary["loss"] == {"last": 0.75}
        assert summary["extra"] == {"mnist": 0.125}


def test_a_diverged_run_is_a_result(diverged: Record) -> None:
    summary = diverged.summary
    assert (summary["status"], summary["diverged"]) == ("diverged", {"round": 1, "what": "the training loss"})
    assert summary["accuracy"] == {"last": None, "best": None, "best_round": None, "final": None}
    assert diverged.metrics == []


def test_rounds_before_the_divergence_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Simulation.round

    def diverging(simulation: Simulation, number: int) -> list[Row]:
        if number == 2:
            raise Diverged("test loss")
        return whole(simulation, number)

    monkeypatch.setattr(Simulation, "round", diverging)
    record = trained(tiny(rounds=5), tmp_path)
    assert record.summary["diverged"] == {"round": 3, "what": "test loss"}
    assert [row["round"] for row in record.rows("evaluation")] == [1, 2]
    assert record.summary["accuracy"]["last"] == record.rows("evaluation")[-1]["accuracy"]
    assert record.summary["accuracy"]["final"] is None


def test_weights_that_overflow_in_the_last_step_are_a_divergence(tmp_path: Path) -> None:
    # One step per round: the loss before it is finite, the weights after it are not. They are not tested
    # for several rounds, and none of their statistics may reach the record.
    one_step = {"epochs": 1, "batch_size": 10_000, "lr": 3e38, "weight_decay": 100.0}
    evaluation = {"every": 9, "statistics": ["drift", "similarity"]}
    record = trained(tiny(rounds=9, training=one_step, evaluation=evaluation), tmp_path)
    assert record.summary["diverged"] == {"round": 1, "what": "a global weight"}
    assert record.metrics == []
