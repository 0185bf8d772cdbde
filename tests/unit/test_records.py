"""Files of a record, their digests, and the summary computed from the rows."""

import fcntl
import getpass
import json
import math
import os
import platform
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from fltrain.core.errors import FltrainError
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.engine.statistics import Row
from fltrain.experiments.layers import merge
from fltrain.runs.record import (
    MODELS_FILE,
    RECORD_FILES,
    Record,
    Results,
    held,
    leased,
    sealed,
    summarise,
    write_record,
)
from fltrain.runs.today import RunStatus
from fltrain.runtime.process import peak_memory

from .helpers import as_another_user, seal, tiny, trained

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


def test_records_have_the_documented_files_with_finite_numbers(measured: Record, diverged: Record) -> None:
    for record in (measured, diverged):
        assert {path.name for path in record.folder.iterdir()} == {*RECORD_FILES, "train.log"}
        record.check()
        for name in RECORD_FILES:
            text = (record.folder / name).read_text()
            for document in text.splitlines() if name.endswith("l") else [text]:
                json.loads(document, parse_constant=lambda constant: pytest.fail(f"{constant} in a record"))


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
    assert measured.provenance.keys() >= {
        "commit",
        "dirty",
        "packages",
        "processor",
        "limits",
        "gpu",
        "determinism",
    }
    assert measured.provenance["determinism"] == "bitwise"
    assert MEASURED.run_id in (measured.folder / "train.log").read_text()


def test_the_peak_of_a_record_is_that_of_its_run(tmp_path: Path) -> None:
    """Memory that the process used earlier does not count."""
    block = bytearray(2**30)
    del block
    before = peak_memory()
    record = trained(tiny(rounds=1), tmp_path)
    assert 0 < record.costs["peak_memory_bytes"] < before - 2**29


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
    write_record(tmp_path, tiny(), [], {}, {}, {}, {"weights": np.ones(1)})
    assert written[-1] == "summary.json" and Record(tmp_path).complete
    assert {path.name for path in tmp_path.iterdir()} == {*RECORD_FILES, MODELS_FILE}


def test_an_older_record_stays_until_the_new_one_is_on_the_disk(tmp_path: Path) -> None:
    run = tiny().run_id

    def write(by: str) -> None:
        models = {"weights": np.array([len(by)])}
        write_record(tmp_path / run, tiny(), [], {"run_id": run}, {}, {"by": by}, models)

    def full(path: Path) -> None:
        if "spec.json" in path.name:
            raise OSError(28, "No space")

    write("the first")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(FltrainError, match="No space"):
        patch.setattr("fltrain.runs.record.flush", full)
        write("the second")
    older = Record(tmp_path / run)
    assert older.provenance["by"] == "the first" and older.models()["weights"] == [9] and older.usable
    write("the second")
    assert Record(tmp_path / run).provenance["by"] == "the second"


def test_missing_models_name_the_command_that_trains_them(tmp_path: Path) -> None:
    folder = Results(tmp_path / "a folder").run("run")
    message = f"run `fltrain train --again '{folder}/spec.json' --results '{tmp_path}/a folder'`"
    with pytest.raises(FltrainError, match=f"file of models; archives have none; {re.escape(message)}$"):
        Record(folder).models()


def test_a_look_at_a_lock_stops_no_import(tmp_path: Path) -> None:
    """``held`` shares the lock for a moment, which this test prolongs."""
    lease = tmp_path / "run.lock"
    lease.touch()
    look = os.open(lease, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [look]).start()
    with leased(lease):
        assert held(lease)


def test_another_run_with_the_same_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run IDs have 40 bits of a hash: two seeds with the same ID are found in seconds."""
    monkeypatch.setattr("fltrain.runs.spec.short_hash", lambda data: "0123456789")
    monkeypatch.setattr("fltrain.runs.record.short_hash", lambda data: "0123456789")
    first, other, results = tiny(rounds=1), tiny(rounds=1, seed=1), Results(tmp_path)
    record = trained(first, results.root)
    message = f"{first.run_id}: {record.folder} is the record of other settings with the same ID"
    with pytest.raises(FltrainError, match=re.escape(message)):
        trained(other, results.root)
    state = RunStatus.of(other.run_id, other, results)
    assert (state.name, state.detail.startswith(message)) == ("damaged", True)
    assert RunStatus.of(first.run_id, first, results).name == "completed"


def test_incomplete_records_are_not_listed(measured: Record, diverged: Record, root: Path) -> None:
    (root / "runs" / "started").mkdir(exist_ok=True)
    (root / "runs" / "started" / "train.log").touch()
    names = [record.run_id for record in Results(root).records()]
    assert names == sorted([measured.run_id, diverged.run_id])
    assert not Results(root).record("started").complete
    assert list(Results(root / "nowhere").records()) == []


@pytest.fixture
def copied(measured: Record, tmp_path: Path) -> Record:
    """A copy of the record that a test may damage."""
    return Record(Path(shutil.copytree(measured.folder, tmp_path / measured.run_id)))


BROKEN = [b'{"half": ', b"\x00\xff", b"[]", b"null", b'{"round": NaN}', b'"\\ud800"']


@pytest.mark.parametrize("name", RECORD_FILES)
def test_an_unreadable_file_is_named(name: str, copied: Record) -> None:
    path = copied.folder / name
    for content in (*BROKEN, b"[" * 200_000, b"1" * 10_000, b"", None):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        record = Record(copied.folder)
        assert record.damage.startswith(f"{path}: ") and not record.usable
        with pytest.raises(FltrainError, match=re.escape(f"{path}: ")):
            getattr(record, name.partition(".")[0])
        with pytest.raises(FltrainError, match=f"^{re.escape(record.run_id)}: "):
            Record(record.folder).check()


def put(**changes: Any) -> Callable[[Any], Any]:
    """Return an edit of a JSON file that merges these values into it."""
    return lambda data: merge(data, changes)


def without(key: str) -> Callable[[Any], Any]:
    return lambda data: {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("summary.json", put(accuracy={"final": 0.9999})),
        ("summary.json", put(digests={"summary": None})),
        ("summary.json", put(run_id="digits-fedavg-0123456789")),
        ("metrics.jsonl", lambda rows: rows.replace('"round": 2', '"round": 1')),
        ("metrics.jsonl", lambda rows: ""),
        ("spec.json", put(rounds=4)),
        ("costs.json", lambda costs: {}),
        ("costs.json", put(round_seconds=[0.001])),
        ("costs.json", put(digest="0" * 64)),
        ("costs.json", without("digest")),
        ("provenance.json", put(device="cuda:0")),
        ("provenance.json", without("digest")),
    ],
)
def test_an_edited_record_gives_no_results(file: str, edit: Callable[[Any], Any], copied: Record) -> None:
    path = copied.folder / file
    text = path.read_text()
    assert copied.usable and copied.damage == ""
    path.write_text(edit(text) if file == "metrics.jsonl" else json.dumps(edit(json.loads(text))))
    edited = Record(copied.folder)
    assert edited.damage.startswith(f"{path}: ") and edited.complete and not edited.usable
    for part in ("summary", "metrics", "costs", "provenance"):
        with pytest.raises(FltrainError, match=re.escape(str(path))):
            getattr(edited, part)
    path.write_text(text)
    assert Record(copied.folder).usable, "a restored file is accepted"


@pytest.mark.parametrize(
    ("file", "edit", "reason"),
    [
        *(
            ("spec.json", put(**change), "spec.json belongs to digits-scaffold+flfa-")
            for change in ({"rounds": 4}, {"evil": 1}, {"revisions": {"model": 99}})
        ),
        ("summary.json", put(format=2), "newer version of fltrain"),
        ("summary.json", put(format=None), "not a record of format 1"),
        ("summary.json", put(digests={"spec": None}), "spec.json: changed after training"),
        ("summary.json", put(digests={"metrics": "0" * 64}), "metrics.jsonl: changed after training"),
        ("summary.json", put(accuracy={"final": 0.99}), "'accuracy' does not follow"),
        ("summary.json", put(rounds_to_target={"0.05": 3}), "'rounds_to_target' does not follow"),
        ("summary.json", put(run_id="x"), "summary.json: belongs to x"),
        ("summary.json", put(status="diverged"), "'status' does not follow"),
    ],
)
def test_a_record_whose_files_do_not_fit_together_is_refused(
    file: str, edit: Callable[[Any], Any], reason: str, copied: Record
) -> None:
    """Even if its digests are valid."""
    data = edit(json.loads((copied.folder / file).read_text()))
    (copied.folder / file).write_text(json.dumps(data if file == "spec.json" else sealed(data)))
    if file == "spec.json":
        seal(copied.folder)
    with pytest.raises(FltrainError, match=rf"^{re.escape(copied.run_id)}: .*{re.escape(reason)}"):
        Record(copied.folder).check()


def test_a_record_of_a_newer_version_keeps_its_remedy_when_it_is_refused(copied: Record) -> None:
    """To retrain the run would replace a record that is not damaged."""
    file = copied.folder / "summary.json"
    file.write_text(json.dumps(sealed(put(format=2)(json.loads(file.read_text())))))
    message = Record(copied.folder).refusal("retrain it with --again")
    assert message.startswith(f"{copied.run_id}: summary.json: made by a newer version of fltrain")
    assert message.endswith("; update fltrain or train into another results folder")


BETTER = '{"round": 3, "kind": "evaluation", "split": "test", "view": "global", "accuracy": 1.0, "loss": 0.1}'


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (BETTER, "'accuracy' does not follow"),
        (BETTER.replace("accuracy", "x"), "its files do not fit together"),
        ('{"round": 1}', "its files do not fit together"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row: str, reason: str, copied: Record) -> None:
    rows = (copied.folder / "metrics.jsonl").read_text()
    (copied.folder / "metrics.jsonl").write_text(f"{rows}{row}\n")
    seal(copied.folder)
    with pytest.raises(FltrainError, match=re.escape(reason)):
        Record(copied.folder).check()


def test_a_folder_and_a_lock_of_another_user_are_read(measured: Record, tmp_path: Path) -> None:
    """A record without access does not end the command."""
    results = Results(tmp_path)
    folder = Path(shutil.copytree(measured.folder, results.run(measured.run_id)))
    (results.root / "checkpoints").mkdir()
    lease = results.lease(MEASURED.run_id)

    def status() -> str:
        return RunStatus.of(MEASURED.run_id, MEASURED, results).name

    def looks() -> None:
        folder.chmod(0)
        assert status() == "not trained" and not list(results.records())
        folder.chmod(0o755)
        shutil.rmtree(folder)
        with FileLock(lease):
            lease.chmod(0o444)
            assert status() == "training"
        assert status() == "not trained"

    as_another_user(looks, tmp_path)


def summary_of(accuracies: dict[int, float], split: str = "test", **changes: Any) -> dict[str, Any]:
    """Summary of a run with these accuracies by round, and rows of other kinds and splits."""
    spec = tiny(**{"rounds": max(accuracies), **changes})
    rows: list[Row] = []
    for round, accuracy in accuracies.items():
        test = {"round": round, "kind": "evaluation", "split": split, "images": 100}
        elsewhere = {"split": "mnist", "view": "global", "accuracy": accuracy / 2, "loss": 5.0}
        rows += [
            {"round": round, "kind": "train", "clients": [0], "loss": 9.0},
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
    local = summary_of({1: 0.25}, local_test={}, evaluation={"extra": ["mnist"]}, split="local_test")
    test = summary_of({1: 0.25}, evaluation={"extra": ["mnist"]})
    for summary in (local, test):
        assert summary["accuracy"]["final"] == summary["accuracy"]["best"] == 0.25
        assert summary["loss"] == {"last": 0.75}
        assert summary["extra"] == {"mnist": 0.125}


def test_a_diverged_run_is_a_result(diverged: Record) -> None:
    summary = diverged.summary
    assert (summary["status"], summary["diverged"]) == ("diverged", {"round": 1, "what": "the training loss"})
    assert summary["accuracy"] == {"last": None, "best": None, "best_round": None, "final": None}
    assert diverged.metrics == []


def test_rounds_before_the_divergence_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_round = Simulation.round

    def diverging(simulation: Simulation, number: int) -> list[Row]:
        if number == 2:
            raise Diverged("test loss")
        return run_round(simulation, number)

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
