"""Verification: undamaged results are consistent; each kind of damage is named, and nothing else."""

import csv
import io
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_arrays, write_arrays, write_json
from fltrain.core.hashing import short_hash
from fltrain.core.own import VARIABLE
from fltrain.data.datasets import Dataset, registry
from fltrain.experiments.plan import Plan, plan
from fltrain.methods.fedprox import FedProx
from fltrain.reporting.tables import write as tables
from fltrain.reporting.verify import Problem, Verification
from fltrain.reporting.version import reporting_version
from fltrain.runs.record import (
    MODELS_FILE,
    Record,
    Results,
    checkpoint_file,
)

from .helpers import PAPER, SCALE, TINY, TWO_METHODS, as_another_user, cli, flip, seal, trained, write_papers

KEPT = {
    **TWO_METHODS,
    "title": "One whose model is kept, on another partition",
    "settings": {"evaluation": {"keep": "model"}, "partition": {"clients": 5}},
    "axes": {"method": ["fedavg"]},
}
TOY = {
    **PAPER,
    "settings": {**TINY, "rounds": 2},
    "items": {"table": {**TWO_METHODS, "reported": "toy.csv"}, "kept": KEPT},
}
REPORTED = {"toy.csv": "method,metric,value,note\n"}


@dataclass(frozen=True)
class Place:
    """A folder with configuration and results."""

    root: Path

    @property
    def results(self) -> Results:
        return Results(self.root / "results")

    @property
    def plan(self) -> Plan:
        return plan(self.root / "config", "one")

    @property
    def records(self) -> list[Record]:
        """Records of FedAvg, FedProx, and of the run with a saved model."""
        return [self.results.record(run) for run in self.plan.runs]

    def table(self, name: str = "table") -> Path:
        return self.results.root / "one" / "toy" / f"{name}.csv"

    def make_tables(self, planned: Plan, *forms: str) -> None:
        """Write the tables as the workflow does, in CSV and these forms."""
        reported = self.root / "config" / "reported"
        for item in planned.items:
            published = reported / item.item.reported.file if item.item.reported else None
            outputs = {form: self.table(item.name).with_suffix(f".{form}") for form in ("csv", *forms)}
            tables.write(item.sheet, self.results.record, published, outputs)

    def findings(self, scale: str | None = None) -> list[Problem]:
        return list(Verification(self.results, self.root / "config", scale).findings())

    def only(self, *words: Any, harmless: bool = False) -> None:
        """Check that there is one finding, with these words in one line."""
        (problem,) = self.findings()
        assert [str(word) for word in words if str(word) not in problem.text] == [], problem.text
        assert problem.harmless == harmless
        assert "\n" not in problem.text


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Three runs, their data and partitions, two tables; tests must not change them."""
    place = Place(tmp_path_factory.mktemp("whole"))
    reported = write_papers(place.root / "config", TOY) / "reported"
    reported.mkdir()
    for name, text in REPORTED.items():
        (reported / name).write_text(text)
    for spec in place.plan.runs.values():
        trained(spec, place.results.root)
    place.make_tables(place.plan)
    return place


@pytest.fixture
def place(source: Place, tmp_path: Path) -> Place:
    """A copy that a test may damage."""
    return Place(Path(shutil.copytree(source.root, tmp_path / "copy")))


def verify(place: Place, *arguments: str, code: int = 0) -> str:
    options = ("--results", place.results.root, "--config", place.root / "config")
    return cli("verify", *options, *arguments, code=code).stdout


def test_whole_results_are_consistent(source: Place) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.root.rglob("*")}
    assert verify(source) == "3 records, 2 partitions, 1 dataset, 2 tables: all consistent\n"
    assert {path: path.stat().st_mtime_ns for path in source.root.rglob("*")} == before, "nothing is changed"


def test_records_without_other_files_are_consistent(place: Place) -> None:
    """As after an import: no data, partitions, models or logs. Unfinished runs are ignored."""
    for folder in ("data", "partitions", "one"):
        shutil.rmtree(place.results.root / folder)
    for record in place.records:
        (record.folder / "train.log").unlink()
    (place.records[2].folder / MODELS_FILE).unlink()
    started = place.results.run("digits-fedavg-started")
    started.mkdir()
    (started / "train.log").write_text("killed")
    make = "make them with `snakemake --config scale=NAME train=false` (it fills 'results')"
    consistent = "3 records, 0 partitions, 0 datasets: all consistent"
    assert verify(place) == f"{consistent}; no tables yet: {make}\n"


def test_every_problem_has_a_line_and_the_exit_code_is_2(place: Place) -> None:
    fedavg, fedprox, with_model = place.records
    (fedavg.folder / "costs.json").unlink()
    flip(with_model.folder / MODELS_FILE, -1)
    flip(fedprox.folder / "metrics.jsonl", 20)
    damaged, _ = sorted((place.results.root / "partitions").iterdir())
    flip(damaged, -1)
    place.table("kept").write_text("row\n")
    *lines, last = verify(place, code=2).splitlines()
    assert last == "3 records, 2 partitions, 1 dataset, 1 table: 5 problems; 1 table not checked"
    starts = (damaged, f"{fedavg.run_id}: costs.json", f"{fedprox.run_id}: metrics.jsonl")
    for start in (*starts, with_model.folder / MODELS_FILE, place.table("kept")):
        assert sum(line.startswith(str(start)) for line in lines) == 1, start
    (unchecked,) = (line for line in lines if line.startswith(str(place.table("table"))))
    assert "not checked: made from" in unchecked and "which is damaged" in unchecked


def test_files_that_do_not_belong_to_a_record_are_named(place: Place) -> None:
    fedavg, _, with_model = place.records
    (fedavg.folder / "notes.txt").touch()
    place.only(f"{fedavg.run_id}: notes.txt is not a file of a record")
    (fedavg.folder / "notes.txt").rename(fedavg.folder / MODELS_FILE)
    place.only(f"{fedavg.run_id}: {MODELS_FILE} is not a file of a record")
    (fedavg.folder / MODELS_FILE).unlink()
    (with_model.folder / ".hidden").touch()
    place.only(f"{with_model.run_id}: .hidden is not a file of a record")


def test_files_of_interrupted_processes_are_harmless(place: Place) -> None:
    leftovers = [
        place.records[0].folder / ".metrics.jsonl.abc.part",
        place.results.root / "data" / ".digits.safetensors.abc.part",
        place.results.root / "runs" / ".import-abc",
    ]
    for path in leftovers:
        path.touch()
    problems = place.findings()
    assert [problem.harmless for problem in problems] == [True, True, True]
    assert {problem.text.partition(": ")[0] for problem in problems} == {str(path) for path in leftovers}
    verify(place)


def test_checkpoints_of_complete_runs_are_harmless(place: Place) -> None:
    checkpoint = checkpoint_file(place.results.checkpoints(place.records[0].run_id), 2)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    place.only(checkpoint.parent, harmless=True)


def test_stale_records_are_not_damaged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    older = place.records[1]
    monkeypatch.setattr(FedProx, "revision", 2)
    record, table = place.findings()
    assert record == Problem(f"{older.run_id}: stale: methods 1 -> 2", harmless=True)
    assert table == Problem(f"{place.table()}: not checked: made from another selection", harmless=True)
    flip(older.folder / "metrics.jsonl", 50)
    damaged, _ = place.findings()
    assert not damaged.harmless and "changed after training" in damaged.text


def test_records_of_an_own_method_need_its_folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = {**place.records[1].spec, "method": "fedprocs"}  # as if it were a name of the user's
    monkeypatch.setattr(Record, "spec", property(lambda self: unknown))
    remedy = "; if it is your own, set FLTRAIN_PATH to your folder"
    register = "; if a notebook or script defines it, register it first (fltrain.register)"
    problem = "method: unknown method 'fedprocs'"  # without guesses: a record has no misspelled names
    assert place.records[1].stale == problem + remedy + register
    monkeypatch.setenv(VARIABLE, str(place.root))
    assert Record(place.records[1].folder).stale == problem + register


def test_records_of_an_unknown_method_have_one_line(place: Place) -> None:
    shutil.rmtree(place.results.root / "one")
    for seed, record in enumerate(place.records[:2]):
        spec = {**record.spec, "method": {"name": "mine"}, "seed": seed}
        folder = record.folder.with_name(f"digits-mine-{short_hash(spec)}")
        record.folder.rename(folder)
        write_json(folder / "spec.json", spec)
        seal(folder)
    place.only("2 unknown records: method: unknown method 'mine'; if it is your own, set", harmless=True)
    text = "1 record, 2 partitions, 1 dataset, 0 tables: 2 unknown records not checked, all others consistent"
    assert verify(place).splitlines()[-1] == text
    flip(next(place.results.root.glob("partitions/*.safetensors")), -1)
    assert verify(place, code=2).endswith(": 1 problem; 2 unknown records not checked\n")


def test_data_of_an_older_revision_are_stale(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records are stale, too."""
    entry = registry()["digits"]
    monkeypatch.setitem(registry(), "digits", entry.model_copy(update={"revision": 2}))
    data = place.results.data(Dataset(name="digits"))
    assert Problem(f"{data}: stale: dataset 1 -> 2", harmless=True) in place.findings()
    assert all(problem.harmless for problem in place.findings())
    arrays, about = read_arrays(data, "prepared data set")
    arrays["train_labels"] = arrays["train_labels"][::-1]
    write_arrays(data, arrays, {**about, "revision": 2})
    problems = place.findings()
    assert all(problem.harmless for problem in problems)
    assert not any("safetensors" in problem.text for problem in problems)


def test_damaged_data_and_data_of_another_dataset_are_named(place: Place) -> None:
    data = place.results.data(Dataset(name="digits"))
    (content, sheet) = (data.read_bytes(), data.with_suffix(".png"))
    flip(data, -1)
    place.only(data, "delete it")
    data.write_bytes(content)
    sheet.unlink()
    place.only(sheet, "no such contact sheet")
    sheet.touch()
    data.rename(data.with_name("digits-16px.safetensors"))
    sheet.rename(sheet.with_name("digits-16px.png"))
    place.only("digits-16px.safetensors: holds 'digits'")


def test_runs_on_other_data_or_partitions_are_named(place: Place) -> None:
    """After the files were replaced, the runs on them no longer match."""
    first, second = sorted((place.results.root / "partitions").iterdir())
    shutil.copyfile(first, second)
    divided = [problem.text for problem in place.findings()]
    assert divided and all("trained on other partition" in text for text in divided)
    data = place.results.data(Dataset(name="digits"))
    arrays, about = read_arrays(data, "prepared data set")
    arrays["train_labels"] = arrays["train_labels"][::-1]
    write_arrays(data, arrays, about)
    texts = [problem.text for problem in place.findings()]
    assert sum("trained on other data" in text for text in texts) == 3


def change_cell(path: Path, column: str, text: str) -> None:
    """Change a cell of the first line of a CSV file, and no other byte."""
    head, line, *rest = path.read_text().splitlines(keepends=True)
    (names, cells) = csv.reader([head, line])
    assert cells[names.index(column)] != text
    cells[names.index(column)] = text
    changed = io.StringIO()
    csv.writer(changed, lineterminator="\n").writerow(cells)
    path.write_text("".join([head, changed.getvalue(), *rest]))


@pytest.mark.parametrize("form", ["csv", "md", "tex"])
def test_an_edited_number_is_named_in_every_form(form: str, place: Place) -> None:
    place.make_tables(place.plan, "md", "tex")
    assert place.findings() == []
    path = place.table().with_suffix(f".{form}")
    text = path.read_text()
    number = "mean" if form == "csv" else re.search(r"\d\d\.\d\d", text)[0]  # type: ignore[index]
    if form == "csv":
        change_cell(path, "mean", "99.0")
    else:
        path.write_text(text.replace(number, "99.99", 1))
    place.only(path, "differs from its records")


def test_a_page_of_another_version_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make_tables(place.plan, "html")
    page = place.table().with_suffix(".html")
    assert place.findings() == []
    page.write_text(page.read_text().replace(reporting_version(), "1-abc"))
    change_cell(place.table(), "mean", "99.0")
    place.only("1 table made by another version", "not checked: toy/table")
    assert not any("snakemake" in problem.text for problem in place.findings()), "it makes no other folder"
    assert verify(place, code=2).endswith("1 dataset, 1 table: 1 problem; 1 table not checked\n")
    monkeypatch.chdir(place.root)
    (problem,) = Verification(Results(Path("results")), place.root / "config").findings()
    assert problem.text.endswith("; run snakemake --config scale=one train=false, then verify again")


def test_a_table_that_names_an_unknown_run_is_named(place: Place) -> None:
    run = place.records[0].run_id
    path = place.table()
    path.write_text(path.read_text().replace(run, f"{run[:-10]}0000000000"))
    place.only(path, f"names {run[:-10]}0000000000, which is neither planned nor trained")


def test_a_record_whose_summary_vanished_is_named(place: Place) -> None:
    shutil.rmtree(place.results.root / "one")
    record = place.records[0]
    (record.folder / "summary.json").unlink()
    place.only(
        f"{record.run_id}: summary.json: No such file or directory; restore the file or retrain the run"
    )
    checkpoint = checkpoint_file(place.results.checkpoints(record.run_id), 2)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert place.findings() == [], "a training was killed while it wrote the record, and resumes"


def test_a_record_without_access_is_named(place: Place) -> None:
    shutil.rmtree(place.results.root / "one")
    folder = place.records[0].folder

    def look() -> None:
        folder.chmod(0)
        try:
            place.only(f"{folder.name}: ", "Permission denied")
        finally:
            folder.chmod(0o755)

    as_another_user(look, place.root)


def test_models_of_another_training_are_named(place: Place) -> None:
    """Their file is whole, and of the same run."""
    models = place.records[2].folder / MODELS_FILE
    arrays, about = read_arrays(models, "file of models")
    write_arrays(models, {name: array + 1 for name, array in arrays.items()}, about)
    place.only(f"{place.records[2].run_id}: {MODELS_FILE} is of another training")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"runs\n", b"row,row\na,b,c,d\n"])
def test_files_that_are_not_tables_are_named(content: bytes, place: Place) -> None:
    place.table().write_bytes(content)
    place.only(place.table())


def test_a_table_of_a_part_of_the_plan_is_not_checked(place: Place) -> None:
    average = place.records[0].run_id
    items = [item.keeping("a whim", lambda entry: entry.spec.run_id == average) for item in place.plan.items]
    place.make_tables(replace(place.plan, items=[item for item in items if item.entries]))
    place.only(place.table(), "not checked: made from another selection", harmless=True)
    assert verify(place).endswith("1 table: 1 table not checked, all others consistent\n")
    place.table("kept").unlink()
    assert verify(place, code=2).endswith("0 tables: 1 table not checked, all others consistent\n")


def test_a_table_of_best_labels_is_checked_against_all_its_runs(place: Place) -> None:
    """Its file names the runs of the best label only."""
    best = {**TWO_METHODS, "axes": {**TWO_METHODS["axes"], "kind": {"plain": {}}}}
    best["table"] = {**TWO_METHODS["table"], "rows": "kind", "best_of": "method"}
    write_papers(place.root / "config", {**TOY, "items": {"table": best}})
    place.make_tables(place.plan)
    (line,) = csv.DictReader(place.table().read_text().splitlines())
    (run,) = line["runs"].split()
    assert place.findings() == []
    folder, aside = place.results.run(run), place.root / "aside"
    folder.rename(aside)
    place.only(place.table(), "differs from its records")
    aside.rename(folder)
    change_cell(place.table(), "mean", "99.0")
    place.only(place.table(), "differs from its records")


def test_only_the_tables_of_the_chosen_scale_are_checked(place: Place) -> None:
    write_papers(place.root / "config", TOY, scale={**SCALE, "scale": "other"})
    shutil.copytree(place.results.root / "one", place.results.root / "other")
    assert "4 tables: all consistent" in verify(place)
    change_cell(place.table(), "mean", "99.0")
    assert "4 tables: 1 problem\n" in verify(place, code=2)
    assert "2 tables: all consistent" in verify(place, "--scale", "other")
    shutil.rmtree(place.results.root / "other")
    assert re.search(
        r"other: no tables to verify\n3 records, .*, 0 tables: 1 problem\n$",
        verify(place, "--scale", "other", code=2),
    )
    with pytest.raises(FltrainError, match=r"unknown scale 'otter'; did you mean 'other'\?"):
        verify(place, "--scale", "otter")


def test_a_scale_that_cannot_be_planned_hides_no_other(place: Place) -> None:
    broken = {**TOY, "paper": "broken", "settings": {**TOY["settings"], "plugins": ["lost"]}}
    write_papers(place.root / "config", broken, scale={**SCALE, "scale": "other", "items": ["broken"]})
    shutil.copytree(place.results.root / "one", place.results.root / "other")
    place.only("scale 'other' cannot be planned and is left out: ", "unknown plug-in 'lost'")
    assert verify(place, code=2).endswith("2 tables: 1 problem; 2 tables not checked\n")
    with pytest.raises(FltrainError, match="unknown plug-in 'lost'"):
        verify(place, "--scale", "other")


def test_tables_of_the_own_scales_are_checked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    scales = place.root / "own" / "scales"
    scales.mkdir(parents=True)
    (place.root / "config" / "scales" / "one.yaml").rename(scales / "one.yaml")
    monkeypatch.setenv(VARIABLE, str(scales.parent))
    assert "2 tables: all consistent" in verify(place)
    change_cell(place.table(), "mean", "99.0")
    place.only(place.table(), "differs from its records")
