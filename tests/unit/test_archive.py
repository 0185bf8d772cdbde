"""Archives of records: exact round trips, equal archives of equal records, refusal of other archives."""

import gzip
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from filelock import FileLock

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json
from fltrain.methods.fedavg import FedAvg
from fltrain.runs.archive import export_records, import_records
from fltrain.runs.record import RECORD_FILES, Results, sealed

from .helpers import cli, error_line, seal, tiny, trained, write_config, write_tar

Files = dict[str, bytes]


@pytest.fixture(scope="session")
def trained_records(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two freshly trained runs that differ in their seed."""
    root = tmp_path_factory.mktemp("trained")
    for seed in (0, 1):
        trained(tiny(rounds=2, seed=seed), root)
    return Results(root)


@pytest.fixture
def source(trained_records: Results, tmp_path: Path) -> Results:
    """A copy of their records that a test may damage."""
    shutil.copytree(trained_records.root / "runs", tmp_path / "source" / "runs")
    return Results(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Results:
    """Another results folder, empty."""
    return Results(tmp_path / "target")


@pytest.fixture
def packed(source: Results, tmp_path: Path) -> Path:
    """An archive of both."""
    path = tmp_path / "records.tar.gz"
    assert export_records(source.records(), path) == 2
    return path


def files(results: Results) -> Files:
    """All files of the runs by path, including hidden ones."""
    runs = results.root / "runs"
    return {str(path.relative_to(runs)): path.read_bytes() for path in runs.rglob("*") if path.is_file()}


def refused(path: Path, target: Results, *expected: str) -> None:
    """Check that the import fails with these words in one line, and leaves no files behind."""
    before = files(target)
    message = error_line(lambda: import_records(path, target))
    assert "nothing was imported" in message
    assert all(words in message for words in expected), message
    assert files(target) == before
    assert not list((target.root / "runs").glob(".*"))


def test_imported_records_equal_the_exported_ones(source: Results, target: Results, packed: Path) -> None:
    assert import_records(packed, target) == Counter(added=2)
    logs = {name for name in files(source) if name.endswith("train.log")}
    assert files(target) == {name: text for name, text in files(source).items() if name not in logs}
    assert [record.complete for record in target.records()] == [True, True]
    assert not list((target.root / "runs").glob(".*")), "only the records remain"


def test_equal_records_give_equal_archives(source: Results, packed: Path, tmp_path: Path) -> None:
    for path in (source.root / "runs").rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    archive = tmp_path / "of-another-name.tar.gz"
    export_records(reversed(list(source.records())), archive)
    assert archive.read_bytes() == packed.read_bytes()


def test_a_record_with_other_numbers_is_kept(source: Results, target: Results, packed: Path) -> None:
    import_records(packed, target)
    mine, other = target.records()
    path = mine.folder / "provenance.json"
    write_json(path, sealed({**read_json(path), "device": "cuda:0"}))
    assert import_records(packed, target) == Counter(unchanged=2), "trained elsewhere, with equal numbers"
    rows = mine.metrics
    rows[0]["loss"] *= 1 + 2e-7
    (mine.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    seal(mine.folder)
    assert import_records(packed, target) == Counter(unchanged=2), "equal up to rounding"
    (mine.folder / "metrics.jsonl").write_bytes((other.folder / "metrics.jsonl").read_bytes())
    seal(mine.folder)
    before = files(target)
    assert import_records(packed, target) == Counter(unchanged=1, kept=1)
    printed = cli("records", "import", packed, "--results", target.root).output
    assert "0 added, 1 unchanged; 1 of your own runs kept, because their numbers differ" in printed
    assert files(target) == before


def test_records_that_would_not_be_imported_are_not_exported(
    source: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged one is an error; with all records, those with other revisions are left out, else an error."""
    path, (first, other) = tmp_path / "out.tar.gz", source.records()
    costs = (first.folder / "costs.json").read_text()
    (first.folder / "costs.json").write_text("{}")
    with pytest.raises(FltrainError, match=rf"^{re.escape(first.run_id)}: costs.json"):
        export_records(source.records(), path)
    (first.folder / "costs.json").write_text(costs)
    (first.folder / "spec.json").write_text(json.dumps({**first.spec, "a_setting_of_another_time": 1}))
    notice = f"{path}: 1 record, 1 stale one left out"
    assert cli("records", "export", path, "--results", source.root).output == f"{notice}\n"
    monkeypatch.setattr(FedAvg, "revision", 2)
    with pytest.raises(FltrainError, match=r"another version of fltrain \(methods 1 -> 2\)"):
        export_records([source.record(other.run_id)], path)


NAMES = (
    "/etc/passwd ../outside/spec.json run/../../spec.json run/sub/spec.json run/other.json .hidden/spec.json"
)
TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)


def test_foreign_and_damaged_archives_are_refused(packed: Path, target: Results, tmp_path: Path) -> None:
    path, archive = tmp_path / "bad.tar.gz", packed.read_bytes()
    for name in (*NAMES.split(), "..", "run\\spec.json", "run/spec.json\n"):
        refused(write_tar(path, {name: b"{}"}), target, "not an archive of records", "it holds")
    for kind in TYPES:
        bad = write_tar(path, {"run/spec.json": (kind, "/etc/passwd")})
        refused(bad, target, "not an archive of records", "it holds 'run/spec.json'")
    texts = [b"", b"no archive", *map(gzip.compress, (b"", b"no archive" * 100, b"\0" * 20480))]
    for content in (*texts, archive[: len(archive) // 3], archive[: 9 * len(archive) // 10]):
        path.write_bytes(content)
        refused(path, target, "not an archive of records")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["bad.tar.gz", "records.tar.gz", "source", "target"]


def test_a_record_whose_place_is_taken_is_not_imported(packed: Path, target: Results) -> None:
    """By an ordinary file, or by a training of the run; one that was stopped gives way."""
    import_records(packed, target)
    (record, _) = target.records()
    (record.folder / "summary.json").unlink()
    assert import_records(packed, target) == Counter(added=1, unchanged=1)
    shutil.rmtree(record.folder)
    with (
        FileLock(target.lease(record.run_id)),
        pytest.raises(FltrainError, match=rf"{record.run_id} is being trained; .*; nothing was imported"),
    ):
        import_records(packed, target)
    record.folder.write_text("mine")
    with pytest.raises(FltrainError, match=f"{record.folder} is not a folder; .*nothing was imported"):
        import_records(packed, target)
    assert record.folder.read_text() == "mine"


def test_a_stale_record_is_refused(packed: Path, target: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "revision", 2)
    refused(packed, target, "another version of fltrain (methods 1 -> 2)")


def test_one_invalid_record_refuses_all(source: Results, target: Results, tmp_path: Path) -> None:
    """Even if its digests are valid."""
    first, other = source.records()
    accuracy = {**other.summary["accuracy"], "final": 0.99}
    write_json(other.folder / "summary.json", sealed({**other.summary, "accuracy": accuracy}))
    paths = [record.folder / name for record in (first, other) for name in RECORD_FILES]
    members = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}
    bad = write_tar(tmp_path / "bad.tar.gz", members)
    refused(bad, target, f"{other.run_id}: summary.json: 'accuracy' does not follow")
    del members[f"{first.run_id}/spec.json"]
    refused(write_tar(bad, members), target, f"{first.run_id}: ", "spec.json: No such file")


def test_export_and_import_on_the_command_line(source: Results, target: Results, tmp_path: Path) -> None:
    path, (first, other) = str(tmp_path / "out.tar.gz"), source.records()
    layout = {"table": {"rows": "rounds", "measures": [{"measure": "final_accuracy"}]}}
    config = write_config(tmp_path / "config", {"one": {"title": "t", "axes": {"rounds": [2]}, **layout}})

    def exported(*arguments: str) -> tuple[str, set[str]]:
        """The last line of the output, and the runs in the archive."""
        *_, line = cli("records", "export", path, *arguments, "--results", source.root).output.splitlines()
        with tarfile.open(path) as archive:
            names = [name.split("/") for name in archive.getnames()]
        assert len(names) == len(RECORD_FILES) * len({run for run, _ in names})
        return line, {run for run, _ in names}

    assert exported() == (f"{path}: 2 records", {first.run_id, other.run_id})
    assert exported(first.run_id, first.run_id) == (f"{path}: 1 record", {first.run_id})
    planned = tiny(rounds=2, seed=0).run_id
    assert exported("--scale", "one", "--config", str(config)) == (f"{path}: 1 record", {planned})
    for counts in ("1 added, 0 unchanged", "0 added, 1 unchanged"):
        imported = cli("records", "import", path, "--results", target.root)
        assert imported.output == f"{path}: {counts}\n"
    with pytest.raises(FltrainError, match="not both"):
        cli("records", "export", path, planned, "--scale", "demo")
    with pytest.raises(FltrainError, match=r"^digits-fedavg: no complete record in "):
        cli("records", "export", path, "digits-fedavg", "--results", source.root)
