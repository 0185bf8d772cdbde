"""States of runs: stale runs and reasons, output of `fltrain status`, display in items."""

import json
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

from fltrain.core.errors import FltrainError
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedprox import FedProx
from fltrain.methods.flfa import Flfa
from fltrain.reporting.figures import draw as figures
from fltrain.reporting.tables import write as tables
from fltrain.runs import today
from fltrain.runs.record import Record, Results, checkpoint_file, write_record
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import RunStatus, stale_runs

from .helpers import MISSING, PAPER, SCALE, TWO_METHODS, Cells, cli, seal, tiny, write_config, write_papers

SUMMARY = {"status": "completed", "accuracy": {"final": 0.5}, "digests": {}}
COSTS = {"seconds": {"total": 2.0}}


def record(spec: RunSpec, results: Results) -> Record:
    """A hand-made record of a run."""
    write_record(results.run(spec.run_id), spec, [], {"run_id": spec.run_id, **SUMMARY}, COSTS, {})
    return results.record(spec.run_id)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def planned(*specs: RunSpec) -> dict[str, RunSpec]:
    return {spec.run_id: spec for spec in specs}


def test_missing_runs_with_a_record_of_older_revisions_are_stale(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs() -> list[RunSpec]:
        return [tiny(method="fedprox", plugins=["flfa"], seed=seed) for seed in range(3)]

    older = [record(spec, results) for spec in runs()[:2]]
    record(tiny(method={"name": "fedprox", "mu": 0.5}, plugins=["flfa"]), results)
    assert not older[0].stale and stale_runs(planned(*runs()), results) == {}
    before = f"{FedProx.revision}, {Flfa.revision}"
    monkeypatch.setattr(Flfa, "revision", Flfa.revision + 1)
    monkeypatch.setattr(RunSpec, "engine", 7)
    complete, missing, lost = runs()
    record(complete, results)
    revised = f"engine 1 -> 7; methods {before} -> {FedProx.revision}, {Flfa.revision}"
    stale = results.record(older[1].run_id)
    assert stale_runs(planned(complete, missing, lost, tiny()), results) == {missing.run_id: stale}
    assert stale.stale == revised


@pytest.mark.parametrize("content", ["{", "[]", '{"dataset": "digits"}', '{"revisions": 3, "rounds": {}}'])
def test_records_without_settings_are_ignored(
    content: str, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record(tiny(), results).folder / "spec.json").write_text(content)
    monkeypatch.setattr(FedAvg, "revision", 2)
    assert stale_runs(planned(tiny()), results) == {}


def test_settings_added_later_make_a_record_stale(results: Results) -> None:
    """The setting has a default: the current code reads the record as the planned run."""
    spec = tiny()
    older = record(spec, results).folder.rename(results.run("digits-fedavg-0123456789"))
    data = json.loads((older / "spec.json").read_text())
    del data["training"]["clip_norm"]
    (older / "spec.json").write_text(json.dumps(data))
    (stale,) = stale_runs(planned(spec), results).values()
    assert stale.stale == "settings"


def test_states_of_runs_without_a_record(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record(tiny(), results)
    monkeypatch.setattr(FedAvg, "revision", 2)
    spec, stale = tiny(), made
    run, checkpoints = results.record(spec.run_id), results.checkpoints(spec.run_id)

    def status(stale: Record | None = None) -> tuple[str, str]:
        return RunStatus.of(spec.run_id, spec, results, stale)[:2]

    assert status() == ("not trained", "")
    assert status(stale) == ("stale", f"methods 1 -> 2 ({made.run_id})")
    run.folder.mkdir()
    (run.folder / "train.log").touch()
    assert status(stale) == status() == ("started", "")
    checkpoints.mkdir(parents=True)
    for finished in (9, 12):
        checkpoint_file(checkpoints, finished).touch()
    stopped = ("stopped", "after round 12; the next start resumes there")
    assert status(stale) == stopped
    with FileLock(results.lease(run.run_id)):
        assert status(stale) == ("training", "")
    assert status() == stopped, "the lock of a process that has ended"


def test_a_run_of_a_method_that_the_code_lacks_is_unknown(results: Results) -> None:
    """It need not be trained again: its method may be in a folder of your own."""
    made = record(tiny(), results)
    path = made.folder / "spec.json"
    path.write_text(path.read_text().replace('"fedavg"', '"mine"'))
    seal(made.folder)
    name, why, *_ = RunStatus.of(made.run_id, None, results)
    assert name == "unknown" and "unknown method 'mine'" in why


def test_status_names_stale_and_damaged_runs(
    tmp_path: Path, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "config", {"table": TWO_METHODS}, seeds=2)
    older, damaged, _ = (record(spec, results) for spec in (tiny(method="fedprox"), tiny(seed=1), tiny()))
    (damaged.folder / "summary.json").write_text("{")
    monkeypatch.setattr(FedProx, "revision", 2)
    stale, missing = (tiny(method="fedprox", seed=seed).run_id for seed in range(2))
    monkeypatch.setenv("COLUMNS", "250")
    result = cli("status", "--scale", "one", "--results", results.root, "--config", config)
    lines = result.stdout.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert {row[0]: row[3:] for row in cells if len(row) > 3 and "digits" in row[0]} == {
        tiny().run_id: ["completed", "50.00", "2.0"],
        damaged.run_id: ["damaged", "", ""],
        stale: ["stale", "", ""],
        missing: ["not trained", "", ""],
    }
    assert f"{stale}: stale: methods 1 -> 2 ({older.run_id})" in lines
    assert any(line.startswith(f"{damaged.run_id}: damaged: {damaged.folder}") for line in lines)
    assert lines[-1] == "1 completed, 1 damaged, 1 not trained, 1 stale"
    place = ("--scale", "one", "--results", results.root, "--config", config)
    (chosen,) = [
        line
        for line in cli("status", *place, "--where", "status=damaged,stale seed=1").stdout.splitlines()
        if "digits" in line and "│" in line
    ]
    assert damaged.run_id in chosen
    unfinished = cli("status", *place, "--where", "status!=completed").stdout
    assert unfinished.endswith("\n1 damaged, 1 not trained, 1 stale\n") and tiny().run_id not in unfinished
    assert cli("status", *place, "--where", "status=not-trained").stdout.endswith("\n1 not trained\n")
    none = cli("status", *place, "--where", "status=failed,diverged").stdout
    assert none.startswith("no run of one has status=failed,diverged\n")
    # A second damaged record makes one line for both, with the command that lists them.
    (results.record(tiny().run_id).folder / "metrics.jsonl").write_text("{")
    result = cli("status", "--scale", "one", "--results", results.root, "--config", config)
    notes = [line for line in result.stdout.splitlines() if "damaged" in line and "│" not in line]
    assert notes == [
        f"2 damaged: see fltrain verify --scale one --results {results.root} --config {config}",
        "2 damaged, 1 not trained, 1 stale",
    ]


def test_status_summarises_runs_of_older_code(
    tmp_path: Path, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "config", {"table": TWO_METHODS})
    place = f"--scale one --results {results.root} --config {config}"
    record(tiny(), results), record(tiny(method="fedprox"), results)
    changes = {"fedavg": "engine.loop changed after this run", "fedprox": "code not recorded"}
    monkeypatch.setattr(today, "changed_code", lambda _, spec: changes[spec.composition.name])
    valid = "if a change of yours affects results, increase `revision` (docs/records.md#changed-code)"
    why = f"2 runs come from older or unrecorded code; {valid}"
    line = f"{why}: see fltrain status --changed {place}\n"
    assert f"┘\n{line}" in cli("status", *place.split()).stdout
    output = cli("status", "--where", "method=fedavg", *place.split()).stdout
    assert f"┘\n{tiny().run_id}: {changes['fedavg']}; {valid}\n1 completed\n" in output
    notice = "not listed: 1 run whose code is not recorded, so a change is not visible\n"
    assert cli("status", "--changed", *place.split()).stderr == notice
    assert cli("status", "--changed", "--where", "method=fedavg", *place.split()).stderr == ""


def test_status_names_two_items_of_a_run_and_counts_the_others(tmp_path: Path, results: Results) -> None:
    results.create()
    config = write_config(tmp_path / "config", dict.fromkeys(["a", "b", "c", "d"], TWO_METHODS))
    output = cli("status", "--scale", "one", "--results", results.root, "--config", config).stdout
    assert output.count(" toy/a, toy/b and 2 more ") == 2 and "toy/c" not in output


def test_status_lists_other_runs_of_a_folder_without_runs_of_demo(
    tmp_path: Path, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_papers(tmp_path / "config", PAPER, scale={**SCALE, "scale": "demo"})
    place = ("--results", results.root, "--config", config)

    def listed(*arguments: str, place: tuple[object, ...] = place) -> dict[str, str]:
        *lines, last = cli("status", *arguments, *place).stdout.splitlines()
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│ digits-" in line]
        return {run: f"seed {''.join(seed)} {status}" for run, *seed, _, status, _, _ in cells} | {"": last}

    declared = dict.fromkeys([tiny().run_id, tiny(method="fedprox").run_id], "seed 0 not trained")
    declared |= {"": "2 not trained"}
    with pytest.raises(FltrainError, match="results: no such folder; name your folder with --results"):
        listed()
    results.create()
    assert listed() == declared, "an empty folder"
    monkeypatch.chdir(tmp_path)
    remedy = "; to train them: snakemake --config scale=demo"
    assert listed(place=()) == declared | {"": f"2 not trained{remedy}"}, "the folder of the workflow"
    monkeypatch.setenv("PATH", "/bin")
    assert listed(place=())[""].endswith("bin/snakemake --config scale=demo"), (
        "an environment that is not active"
    )
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    complete, unknown, damaged = (record(tiny(seed=seed), results) for seed in (7, 8, 9))
    data = {**json.loads((unknown.folder / "spec.json").read_text()), "method": {"name": "mine"}}
    (unknown.folder / "spec.json").write_text(json.dumps(data))
    seal(unknown.folder)
    (damaged.folder / "summary.json").write_text("{")
    begun = tiny(seed=10).run_id
    results.run(begun).mkdir()
    (results.run(begun) / "train.log").touch()
    others = {
        complete.run_id: "seed 7 completed",
        unknown.run_id: "seed  unknown",
        damaged.run_id: "seed  damaged",
        begun: "seed  started",
    }
    assert listed() == others | {"": "1 completed, 1 damaged, 1 started, 1 unknown"}
    assert "other run" not in cli("status", *place).stdout, "all are listed"
    assert listed("--where", "status=damaged,started") == {
        damaged.run_id: "seed  damaged",
        begun: "seed  started",
        "": "1 damaged, 1 started",
    }
    begun_only = cli("status", "--where", "status=started", *place).stdout
    assert " items " in begun_only and " seed " not in begun_only, "no file has the seed yet"
    assert listed("toy/table", "--seeds", "1", place=()) == declared | {
        "": f"2 not trained{remedy} items=toy/table seeds=1"
    }
    assert listed("toy", place=()) == declared | {"": f"2 not trained{remedy} items=toy"}
    record(tiny(), results)
    mixed = declared | {tiny().run_id: "seed 0 completed", "": "1 completed, 1 not trained"}
    assert listed(place=()) == mixed, "the folder of the workflow"
    completed = {tiny().run_id: "seed 0 completed", "": "2 completed, 1 damaged, 1 started, 1 unknown"}
    assert listed() == others | completed, "a folder that is named"


def rows(text: str) -> dict[str, str]:
    """Second column of a Markdown table by its first one."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    return {line[0]: line[1] for line in lines[2:]}


LAYOUT = {"rows": "method", "measures": [{"measure": "final_accuracy"}]}
POINTS = {"kind": "points", "measure": "final_accuracy", "along": "method", "label": "method"}


def test_tables_and_figures_show_missing_and_damaged_runs(tmp_path: Path) -> None:
    """In all formats, and never their edited numbers."""
    cells = Cells(tmp_path / "results")

    def fill(method: str, *accuracies: float | str) -> Path:
        return cells.results.run(cells.add({"method": method}, *accuracies))

    fill("done", 0.5, 0.6)
    fill("missing", MISSING, MISSING)
    fill("lost", 0.5, MISSING)
    edited, emptied, half = fill("edited", 0.5), fill("emptied", 0.5), fill("half", 0.5, 0.6)
    summary = edited / "summary.json"
    summary.write_text(summary.read_text().replace("0.5", "0.9999"))
    (emptied / "metrics.jsonl").write_text("\n")
    (half / "costs.json").write_text("{}")
    outputs = {form: tmp_path / f"table.{form}" for form in ("csv", "md", "tex", "html")}
    tables.write(cells.sheet(table=LAYOUT), cells.results.record, None, outputs)
    texts = {form: path.read_text() for form, path in outputs.items()}
    expected = {
        "done": "55.00 ± 7.07",
        "missing": "not run",
        "lost": "50.00 (1 of 2 not run)",
        "edited": "damaged",
        "emptied": "damaged",
        "half": "50.00 (1 of 2 damaged)",
    }
    assert rows(texts["md"]) == expected
    for row, text in expected.items():
        assert f"{row} & {text} " in texts["tex"]
        cell = texts["html"].partition(f">{row}</th>")[2].partition("</tr>")[0]
        assert f">{text}</a>" in cell.replace("\N{NO-BREAK SPACE}", " ")
    missing = pd.read_csv(outputs["csv"]).set_index("row")["missing"]
    assert missing[missing > 0].to_dict() == {"missing": 2, "lost": 1}
    for form, text in texts.items():
        assert "99.99" not in text
        assert ("Damaged and left out: " in text) == (form != "csv")
    assert f"Damaged and left out: {summary}" in texts["md"]
    spec, _ = figures.draw(cells.sheet(figure=POINTS), cells.results)
    assert "Damaged: edited (seed 0), emptied (seed 0), half (seed 1)." in spec["description"]
    assert "Not run: missing (seed 0), missing (seed 1), lost (seed 1)." in spec["description"]
