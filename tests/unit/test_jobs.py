"""Jobs of the workflow: inputs for the rules, and resources of training jobs."""

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.cli import get_argument_parser
from snakemake.settings.types import DAGSettings

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json
from fltrain.experiments.jobs import Jobs, check_command, train_again_if_forced
from fltrain.experiments.selection import JobResources
from fltrain.runs.record import MODELS_FILE, Results
from fltrain.runs.spec import RunSpec

from .helpers import PAPER, SCALE, TINY, TWO_METHODS, trained, write_papers

ROOT = Path(__file__).parents[2]


def chart(title: str, **figure: Any) -> dict[str, Any]:
    """An item with a figure of one method."""
    return {"title": title, "axes": {"method": ["fedavg"]}, "figure": figure}


CURVE = {"curve": "test_accuracy", "label": ""}
TOY: dict[str, Any] = {
    **PAPER,
    "settings": {**TINY, "evaluation": {"keep": "clients"}},
    "items": {
        "table1": TWO_METHODS,
        "figure1": chart("Curves", kind="curves", series="method", panels=[CURVE]),
        "figure2": chart("Sizes", kind="bubbles", columns="method"),
    },
}
# It has the name of a figure of the other paper, but is made from models.
OTHER = {**TOY, "paper": "other", "items": {"figure1": chart("Classes", kind="preference", columns="method")}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_papers(tmp_path, TOY, OTHER, scale={**SCALE, "items": ["toy", "other"]})


def jobs(folder: Path, **settings: Any) -> Jobs:
    return Jobs.of({"scale": "one", **settings}, folder, folder / "results")


def test_a_paper_has_its_conclusions(tmp_path: Path) -> None:
    conclusions = {"toy": "Toys help.", "other": "Others do not."}
    folder = write_papers(
        tmp_path, TOY, OTHER, scale={**SCALE, "items": ["toy", "other"], "conclusions": conclusions}
    )
    assert jobs(folder).paper_job("toy")["conclusions"] == {"": "Toys help."}


@pytest.mark.parametrize("reduced", [False, True])
def test_a_note_on_verdicts_stands_only_beside_verdicts(tmp_path: Path, reduced: bool) -> None:
    scale = {**SCALE, "items": ["toy", "other"], "reduced": reduced}
    folder = write_papers(tmp_path, {**TOY, "note": "Toys are small."}, OTHER, scale=scale)
    assert jobs(folder).paper_job("toy")["note"] == ("" if reduced else "Toys are small.")


def test_a_paper_leads_to_the_claims_of_others_on_it(tmp_path: Path) -> None:
    test = {"kind": "tested", "by": "tests/unit/test_jobs.py"}
    claims = [{"where": "Toy, table 1", "claim": "Toys help", "test": test}]
    folder = write_papers(
        tmp_path, TOY, {**OTHER, "claims": claims}, scale={**SCALE, "items": ["toy", "other"]}
    )
    (folder / "reported").mkdir()
    (folder / "reported" / "other_claims.csv").write_text(
        'paper,where,claim,metric,value,unit\nother,"Toy, table 1",Toys help,ordering,,\n'
    )
    jobset = jobs(folder)
    assert jobset.paper_job("toy")["about"]["elsewhere"] == {"other": OTHER["title"]}
    assert jobset.paper_job("other")["about"]["elsewhere"] == {}


def test_complete_records_need_no_data(folder: Path) -> None:
    """With an imported record, neither data nor partition are made; where they are, they stay inputs."""
    first, second = jobs(folder).plan.runs.values()
    for spec in (first, second):
        trained(spec, folder / "results")
    data, partitions = (folder / "results" / name for name in ("data", "partitions"))
    assert all(jobs(folder).run_inputs.values())
    partitions.rename(folder / "elsewhere")
    (folder / "results" / "runs" / second.run_id / "summary.json").unlink()
    inputs = jobs(folder).run_inputs
    assert inputs[first.run_id] == [] and len(inputs[second.run_id]) == 2
    (folder / "elsewhere").rename(partitions)
    shutil.rmtree(data)
    assert jobs(folder).run_inputs[first.run_id] == []


def test_runs_with_the_id_of_another_run_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that has the ID, and two runs of the plan: IDs have 40 bits."""
    spec, _ = jobs(folder).plan.runs.values()
    results = Results(folder / "results")
    settings = trained(spec, results.root).spec
    write_json(results.run(spec.run_id) / "spec.json", {**settings, "seed": 99})
    jobs(folder)  # the record is damaged
    monkeypatch.setattr("fltrain.runs.record.short_hash", lambda data: "0123456789")
    with pytest.raises(FltrainError, match=r"other settings with the same ID \(they differ in seed\)"):
        jobs(folder)
    monkeypatch.setattr(RunSpec, "run_id", property(lambda self: "digits-0"))
    with pytest.raises(FltrainError, match="digits-0: two runs have this ID"):
        jobs(folder)


@pytest.mark.parametrize(
    ("arguments", "forced"),
    [
        ("-R train --cores 1", True),
        ("-Rtrain", True),
        ("--forcerun claims results/runs/digits-fedavg-0/summary.json -p", True),
        ("--forcer=train", True),
        ("-pF", True),
        ("-f results/runs/digits-fedavg-0/summary.json", True),
        ("results/runs/digits-fedavg-0/summary.json", False),
        ("-R claims --until train", False),
        ("-f flfa/table1", False),
    ],
)
def test_training_that_snakemake_is_forced_to_is_done(
    arguments: str, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {})
    parsed = get_argument_parser().parse_args(arguments.split())
    settings = DAGSettings(
        targets=set(parsed.targets),
        forcetargets=parsed.force,
        forceall=parsed.forceall,
        forcerun=parsed.forcerun,
    )
    train_again_if_forced(settings)
    assert os.environ == ({"FLTRAIN_AGAIN": "true"} if forced else {})


def test_a_damaged_record_stops_the_workflow_before_it_starts(folder: Path) -> None:
    first, _ = jobs(folder).plan.runs.values()
    record = trained(first, folder / "results")
    jobs(folder).refuse_damaged()
    (record.folder / "summary.json").write_text("")
    with pytest.raises(FltrainError) as refused:
        jobs(folder).refuse_damaged()
    start, end = f"{first.run_id}: the record is damaged (summary.json: ", "delete its folder to retrain it"
    assert str(refused.value).startswith(start) and str(refused.value).endswith(f"restore it or {end}")


def test_trained_runs_are_counted_before_the_workflow_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = jobs(folder).plan.runs.values()
    assert jobs(folder).notes() == []
    trained(first, folder / "results")
    assert jobs(folder).notes() == ["one: 1 of 2 runs are trained"]
    trained(second, folder / "results")
    assert jobs(folder).notes() == []
    monkeypatch.setattr("fltrain.experiments.jobs.changed_runs", lambda *_: {first.run_id: ["methods.mine"]})
    (warning,) = jobs(folder).notes()
    valid = "if a change of yours affects results, increase `revision` (docs/records.md#changed-code)"
    assert warning.startswith(f"methods.mine changed after 1 record; {valid}; to train again: snakemake")
    calm = "an earlier version of the code made 1 of 2 records; their run IDs are unchanged, so they "
    calm += "count as valid (docs/records.md#changed-code)"
    assert jobs(folder, train="false").notes() == [calm], "such as our records"


def test_the_nearest_target_is_named(folder: Path) -> None:
    jobset = jobs(folder)
    path = f"{jobset.results.root}/one/toy/"
    for wrong in ("toy_tabel1", "toy/tabel1", f"{path}tabel1.html"):
        assert jobset.hint(wrong).endswith("did you mean 'toy/table1'?")
    assert jobset.hint(f"{path}table1.htm").endswith("table1.htm'; did you mean 'toy/table1'?")
    assert jobset.hint("toy") == "the paper 'toy' is no target; run snakemake --config scale=one items=toy"
    assert jobset.hint("toy/x").endswith("'toy/x' (items of toy: figure1, figure2, table1)")
    assert (
        jobs(folder, items="other")
        .hint("toy/figure1")
        .startswith("'toy/figure1' is not in the requested part")
    )
    write_papers(folder, scale={**SCALE, "items": ["other"]})
    write_papers(folder, scale={**SCALE, "scale": "two", "items": ["toy"]})
    assert "no item 'toy/figure1'; scale two has it: add --scale two" in jobs(folder).hint("toy/figure1")


def test_items_are_made_from_records_and_if_needed_from_data(folder: Path) -> None:
    jobset = jobs(folder)
    (run,) = jobset.items["toy/figure1"].run_ids
    record = jobset.summaries([run])[0]
    data, partition = jobset.run_inputs[run]
    assert partition in jobset.partition_files()
    assert jobset.item_inputs("toy/figure1") == {"records": [record]}
    assert jobset.item_inputs("toy/figure2") == {"records": [data]}
    assert jobset.item_inputs("other/figure1") == {"records": [record, data]}
    records = jobset.summaries(jobset.plan.runs)
    assert jobset.item_inputs("toy/table1") == {"records": records, "published": []}
    assert jobset.outputs()[:2] == [f"{folder}/results/one/toy/table1.{form}" for form in ("html", "csv")]
    rules = {"table": ["toy/table1"], "figure": ["toy/figure1", "toy/figure2"]}
    for rule, expected in {**rules, "model_figure": ["other/figure1"]}.items():
        assert [name for name in jobset.items if re.fullmatch(jobset.pattern(rule), name)] == expected
    assert not re.fullmatch(jobs(folder, items="toy/figure1").pattern("table"), "")


def test_without_training_only_items_with_records_remain(folder: Path) -> None:
    results = Results(folder / "results")
    spec = jobs(folder).items["toy/figure1"].entries[0].spec
    with pytest.raises(FltrainError, match="none of its runs has a record"):
        jobs(folder, train="false")
    record = trained(spec, results.root)
    shutil.rmtree(results.root / "data")
    jobset = jobs(folder, train="false")
    assert set(jobset.items) == {"toy/table1", "toy/figure1"}, "data are not there"
    assert jobset.summaries(jobset.plan.runs) == [str(record.folder / "summary.json")]
    results.data(spec.dataset).parent.mkdir()
    results.data(spec.dataset).touch()
    assert (record.folder / MODELS_FILE).exists()
    assert set(jobs(folder, train="false").items) == {
        "toy/table1",
        "toy/figure1",
        "toy/figure2",
        "other/figure1",
    }


def test_resources_of_networks_grow_with_attempts_up_to_a_limit(folder: Path) -> None:
    resources = {
        "default": {"runtime": 60, "mem_mb": 100, "disk_mb": 5},
        "networks": {"mobilenet_tiny": {"mem_mb": 10}},
    }
    jobset = jobs(folder, resources=resources)
    (run, *_) = jobset.plan.runs
    assert jobset.plan.runs[run].model.name == "mobilenet_tiny"
    wildcards = SimpleNamespace(run=run)
    assert [jobset.resource("runtime")(wildcards, attempt) for attempt in (1, 2, 3, 9)] == [60, 120, 180, 180]
    assert jobset.resource("mem_mb")(wildcards, 2) == 20
    assert JobResources.parse(resources, "test").amount("mem_mb", "resnet18", 1) == 100


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--delete-all-output --cores 1", "--delete-all-output: would delete finished runs"),
        ("--delete-all", "--delete-all: would delete finished runs"),
        ("--delete-temp-output -n", ""),
        ("--workflow-profile profiles/slrm", "no folder profiles/slrm; did you mean 'slurm'?"),
        ("--workflow-profile=profiles/slrm", "no folder profiles/slrm; did you mean 'slurm'?"),
        ("--workflow-profile none", ""),
        (f"--workflow-profile {ROOT}/workflow/profiles/slurm -n", ""),
    ],
)
def test_commands_that_snakemake_would_misunderstand_are_refused(arguments: str, problem: str) -> None:
    """Snakemake would delete finished runs, or train here instead of on the cluster."""
    try:
        check_command(["snakemake", *arguments.split()])
        assert not problem
    except FltrainError as error:
        assert problem and problem in str(error)


def test_a_path_with_braces_is_refused() -> None:
    with pytest.raises(FltrainError, match=r"path with braces: move '/some/\{a\}/checkout'"):
        check_command([], Path("/some/{a}/checkout"))
