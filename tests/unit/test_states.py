"""States of runs: stale runs and reasons, output of `fltrain status`, display in items."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from fltrain.cli import app
from fltrain.experiments.claims import Claim
from fltrain.experiments.published import Published, Statement
from fltrain.methods.fedavg import FedAvg
from fltrain.methods.fedprox import FedProx
from fltrain.methods.flfa import Flfa
from fltrain.reporting import claims as judgement
from fltrain.reporting.figures import draw as figures
from fltrain.reporting.tables import write as tables
from fltrain.reporting.tables.cells import cells as table_cells
from fltrain.runs.record import Record, Results, checkpoint_file, write_record
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import RunStatus, Stale, stale_runs

from .helpers import TWO_METHODS, Cells, tiny, write_config

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
    assert Stale.of(older[0]) is None and stale_runs(planned(*runs()), results) == {}
    before = f"{FedProx.revision}, {Flfa.revision}"
    monkeypatch.setattr(Flfa, "revision", Flfa.revision + 1)
    monkeypatch.setattr(RunSpec, "engine", 7)
    trained, missing, lost = runs()
    record(trained, results)
    revised = f"engine 1 -> 7; methods {before} -> {FedProx.revision}, {Flfa.revision}"
    stale = Stale(results.record(older[1].run_id), missing.run_id, revised)
    assert stale_runs(planned(trained, missing, lost, tiny()), results) == {missing.run_id: stale}
    assert str(stale) == f"{revised} ({older[1].run_id})"


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
    assert (stale.run, stale.revised) == (spec.run_id, "settings")


def test_states_of_runs_without_a_record(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record(tiny(), results)
    monkeypatch.setattr(FedAvg, "revision", 2)
    spec, stale = tiny(), Stale.of(made)
    run, checkpoints = results.record(spec.run_id), results.checkpoints(spec.run_id)

    def status(stale: Stale | None = None) -> tuple[str, str]:
        return RunStatus.of(spec, results, stale)[:2]

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


def test_status_names_stale_and_damaged_runs(
    tmp_path: Path, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "config", {"table": TWO_METHODS}, seeds=2)
    older, damaged, _ = (record(spec, results) for spec in (tiny(method="fedprox"), tiny(seed=1), tiny()))
    (damaged.folder / "summary.json").write_text("{")
    monkeypatch.setattr(FedProx, "revision", 2)
    stale, missing = (tiny(method="fedprox", seed=seed).run_id for seed in range(2))
    monkeypatch.setenv("COLUMNS", "250")
    arguments = ["status", "--scale", "one", "--results", results.root, "--config", config]
    lines = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False).stdout.splitlines()
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


Fill = Callable[..., Cells]


@pytest.fixture
def filled(tmp_path: Path) -> Fill:
    """Makes cells of methods by name; each seed has an accuracy, or None without a record."""

    def fill(**states: list[float | None]) -> Cells:
        cells = Cells(tmp_path / "results")
        for method, seeds in states.items():
            for seed, state in enumerate(seeds):
                run = f"{method}-{seed}"
                if state is not None:
                    summary = {"run_id": run, "status": "completed", "accuracy": {"final": state}}
                    spec = tiny(seed=seed)
                    write_record(cells.results.run(run), spec, [], summary, COSTS, {})
                cells.place({"method": method}, run, reported={"method": method})
        return cells

    return fill


def rows(text: str) -> dict[str, str]:
    """Second column of a Markdown table by its first one."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    return {line[0]: line[1] for line in lines[2:]}


LAYOUT = {"rows": "method", "measures": [{"measure": "final_accuracy"}]}
POINTS = {"kind": "points", "measure": "final_accuracy", "along": "method", "label": "method"}


def test_tables_and_figures_show_missing_and_damaged_runs(filled: Fill, tmp_path: Path) -> None:
    """In all formats, and never their edited numbers."""
    cells = filled(
        done=[0.5, 0.6],
        missing=[None, None],
        lost=[0.5, None],
        edited=[0.5],
        emptied=[0.5],
        half=[0.5, 0.6],
    )
    run = cells.results.run
    summary = run("edited-0") / "summary.json"
    summary.write_text(summary.read_text().replace("0.5", "0.9999"))
    (run("emptied-0") / "metrics.jsonl").write_text("\n")
    (run("half-1") / "costs.json").write_text("{}")
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
        assert f"{row} & {text.replace('±', '$' + chr(92) + 'pm$')} " in texts["tex"]
        assert f">{text}</a>" in texts["html"].partition(f">{row}</th>")[2].partition("</tr>")[0]
    missing = pd.read_csv(outputs["csv"]).set_index("row")["missing"]
    assert missing[missing > 0].to_dict() == {"missing": 2, "lost": 1}
    for form, text in texts.items():
        assert "99.99" not in text
        assert ("Damaged and left out: " in text) == (form != "csv")
    assert f"Damaged and left out: {summary}" in texts["md"]
    spec, _ = figures.draw(cells.sheet(figure=POINTS), cells.results)
    notes = " ".join(spec["title"]["text"])
    assert "Damaged: edited (seed 0), emptied (seed 0), half (seed 1)." in notes
    assert "Not run: missing (seed 0), missing (seed 1), lost (seed 1)." in notes


def test_missing_runs_do_not_count_for_verdicts(filled: Fill, tmp_path: Path) -> None:
    published = tmp_path / "published.csv"
    published.write_text("method,metric,value,note\npart,acc,50,\nnone,acc,50,\n")
    cells = filled(part=[0.5, 0.5, None], none=[None, None, None])
    measured = {"measure": "final_accuracy", "reported": "acc"}
    sheet = cells.sheet(table={"rows": "method", "measures": [measured]}, reduced=False)
    part, none = table_cells(sheet, cells.results.record, Published.read(published))
    assert (part.n, part.verdict) == (2, "inconclusive")
    assert (none.n, none.verdict) == (0, "not run")


def test_claims_count_missing_runs(filled: Fill) -> None:
    cells = filled(a=[0.8, 0.8, None], b=[0.5, 0.6, 0.5], c=[None, None, None])
    sheet = cells.sheet(table=LAYOUT)

    def evidence(lower: str) -> str:
        test = {"kind": "positive", "item": "table", "measure": "final_accuracy"}
        sides = {"at": {"method": "a"}, "minus": {"method": lower}}
        claim = Claim.parse({"where": "sec. 1", "claim": "so it is", "test": {**test, **sides}}, "claim")
        statement = Statement("sec. 1", "so it is", None, "points")
        nothing = Published.read(None)
        runs = cells.results.record
        judged = judgement.judge([claim], [statement], [sheet], runs, lambda _: nothing, sheet.reduced)
        return judged["evidence"].item()

    assert "over 2 seeds, 1 not run" in evidence("b")
    assert evidence("c") == "No run, or pair of runs, that it needs is complete."
