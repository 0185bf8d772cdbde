"""The documentation agrees with the code: pages, settings, generated parts, links."""

import csv
import importlib
import json
import math
import re
import runpy
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pandas
import pytest
import torch
import yaml
from sklearn.datasets import load_digits
from typer.main import get_command

from fltrain.cli import app
from fltrain.core.errors import FltrainError
from fltrain.data.datasets import Dataset, registry
from fltrain.data.prepared import PreparedData, prepare
from fltrain.experiments.plan import plan
from fltrain.experiments.schema import Point, spelled_out
from fltrain.methods import METHODS
from fltrain.reporting.claims import JUDGED
from fltrain.reporting.tables.table_cell import Verdict
from fltrain.runs.measures import ROW_FIELDS
from fltrain.runs.record import Row, summarise
from fltrain.runs.spec import RunSpec

from ..released import RELEASED, untracked
from .conftest import Register
from .helpers import accuracies, federation, shipped, tiny

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"
SECTIONS = ["Method", "Use", "Other code", "Settings"]


def test_the_documentation_fits_its_budget() -> None:
    """45,000 words outside generated reference, 900 in README; the pages of methods stay short."""
    counter = runpy.run_path(str(ROOT / "docs" / "words.py"))
    counts = counter["by_page"]()
    assert sum(counts.values()) <= counter["BUDGET"], "shorten a page; `python docs/words.py` lists all"
    assert len((ROOT / "README.md").read_text().split()) <= 900
    assert not {name for name in RELEASED if counts.get(f"methods/{name}.md", 0) > 550}


@pytest.mark.parametrize("name", RELEASED)
def test_pages_of_methods_are_complete(name: str) -> None:
    """A page has its sections and describes every setting; its examples are valid runs."""
    file = PAGES / f"{name}.md"
    assert file.exists(), f"write {file} with the sections of the other pages: docs/add-a-method.md"
    page = file.read_text(encoding="utf-8")
    optional = [] if "\n## Other code\n" in page else ["Other code"]
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == [
        section for section in SECTIONS if section not in optional
    ]
    rows = {row[0].strip("`"): row[3] for row in table_rows(page) if len(row) == 4}
    fields = set(METHODS[name].model_fields) - {"name"}
    assert fields <= set(rows)
    assert all(rows[key] for key in fields), "each setting needs a line under `Attributes:`"
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for example in blocks:
        run = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}, "model": "mobilenet_tiny"}
        spec = RunSpec.parse({**run, "method": "fedavg", **yaml.safe_load(example)}, name)
        assert name in spec.composition.name.split("+")


def test_results_have_lines_and_details_do_not_repeat_them() -> None:
    """Numbers are in the line of a claim, runs and seeds once for all claims on the same table."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"((?:^\|[^\n]*\n)+)\n<details><summary>Details</summary>(.*?)</details>", page, re.M | re.S
    )
    for table, details in blocks:
        rows = table_rows(table.replace("\u00a0", " "))[2:]
        assert all((claim and verdict) or name for claim, verdict, name, _, _ in rows)
        assert all(number for *_, number, needed in rows if needed)
        assert not [number for *_, number, _ in rows if "[" in number and number in details]
        runs = re.findall(r"^\| (.*) (\(\d+ runs.*?\)) \|", details, re.M)
        assert len(runs) == len(set(runs)) and "the runs cover only" not in details
    assert len(blocks) == 12 + page.count("<details><summary>Exploratory claims (") == 18
    lines = r"^\| FLFA improves each .*\| contradicted .*\n\|  \|  \| weakest of 4 cases \(MOON\) \|"
    assert re.search(lines, page, re.M), "a line for each number"


def test_pages_have_the_papers_in_one_order() -> None:
    orders = []
    for name, pattern in (
        ("README.md", r"^\| \["),
        ("docs/README.md", r"^\| papers"),
        ("docs/results.md", "^## "),
    ):
        text = (ROOT / name).read_text(encoding="utf-8")
        lines = "\n".join(line for line in text.splitlines() if re.match(pattern, line))
        orders.append(list(dict.fromkeys(re.findall(r"papers/(\w+)\.md", lines))))
    assert len(orders[0]) == 6 and orders == 3 * [orders[0]]
    sections = re.findall(r"^## .*papers/(\w+)\.md|^### (\w+) on ([\w-]+) \(conceptual", text, re.MULTILINE)
    paper, pairs = "", []
    for section, name, dataset in sections:
        paper = section or paper
        assert not name or name.lower() == paper, "replications stand in the section of their paper"
        pairs.append((name, dataset))
    assert [pair for pair in pairs if pair[0]] == [("ECGR", "CIFAR-10")] + [
        (name, dataset)
        for name in ("Fed2", "FedImpro", "FLFA", "FedFCD")
        for dataset in ("CIFAR-10", "MNIST")
    ]


def test_a_new_file_needs_no_page_before_git_tracks_it(tmp_path: Path) -> None:
    methods = tmp_path / "fltrain" / "methods"
    methods.mkdir(parents=True)
    for name in ("tried", "released"):
        (methods / f"{name}.py").touch()
    assert untracked(tmp_path) == set(), "without Git, all methods are the project's"
    for command in ("init -q", "add fltrain/methods/released.py"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    assert untracked(tmp_path) == {"fltrain.methods.tried"}


def examples(guide: str, language: str) -> list[str]:
    """The blocks of a guide in a language, in order."""
    text = (ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_example_of_a_method_works(tmp_path: Path) -> None:
    """The guide's file is a method that trains, and is federated averaging with neutral settings."""
    code, *_ = examples("add-a-method", "python")
    run, line = map(yaml.safe_load, examples("add-a-method", "yaml"))
    namespace: dict[str, object] = {}
    exec(code, namespace)
    example = namespace["FedCalm"]
    name = example.model_fields["name"].default
    assert run["method"]["name"] == name and name in line["axes"]["method"]
    data = prepare(tiny().dataset, tmp_path / "digits.safetensors", tmp_path)
    weights = []
    for method in (example(), example(**example.neutral), METHODS["fedavg"]()):
        simulation = federation(RunSpec.model_construct(**{**dict(tiny()), "method": method}), data)
        simulation.round(0)
        weights.append(simulation.server.weights)
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[2])


def test_the_example_with_client_state_works(digits: PreparedData) -> None:
    """Clients upload their share and add the rest to their next change."""
    namespace: dict[str, object] = {}
    exec(examples("add-a-method", "python")[1], namespace)
    method = namespace["TopK"]()
    settings = yaml.safe_load(examples("add-a-method", "yaml")[0])
    plain = RunSpec.parse({**settings, "method": "fedavg", "plugins": []}, "run")
    (printed,) = examples("add-a-method", "text")
    assert printed.startswith(f"{plain.run_id}: completed, final accuracy ") and "\ndigits-topk-" in printed
    run = federation(RunSpec.model_construct(**{**dict(tiny(model="mlp")), "method": method}), digits)
    run.round(0)
    memories = [state["topk"]["memory"] for state in run.clients.values()]
    size = memories[0].numel()
    assert {int((memory == 0).sum()) for memory in memories} == {math.ceil(method.share * size)}
    assert run.bytes_up == len(memories) * math.ceil(method.footprint.upload * 4 * size)
    client = next(iter(run.clients))
    local, state = run.trainer.clients.receive(run.at(1), client, run.clients[client])
    hooks = run.composition.client_init(local, {"topk": {}}, state)
    zeros = torch.zeros(())
    update, states = hooks.client_final(run.trainer.clients.update(local, 1, zeros, None))
    assert update.displacement.count_nonzero() == math.ceil(method.share * size)
    assert torch.allclose(update.displacement + states["topk"]["memory"], state["topk"]["memory"], atol=1e-6)


def test_the_example_with_server_state_works(digits: PreparedData) -> None:
    """The server sends its last change; without a share, the method is federated averaging."""
    namespace: dict[str, object] = {}
    exec(examples("add-a-method", "python")[2], namespace)
    example = namespace["FedCarry"]
    assert examples("add-a-method", "bash")[2].startswith(
        ".venv/bin/fltrain train calm.yaml --set method=fedcarry "
    )
    weights, sent = [], []
    for method in (example(), example(**example.neutral), METHODS["fedavg"]()):
        run = federation(RunSpec.model_construct(**{**dict(tiny(model="mlp")), "method": method}), digits)
        run.round(0)
        before = run.server.weights
        run.round(1)
        change = run.server.states.get("fedcarry", {}).get("change")
        assert change is None or torch.equal(change, run.server.weights - before)
        weights.append(run.server.weights)
        sent.append(run.bytes_down)
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[0], weights[2])
    assert sent[0] == 2 * sent[2], "weights and a vector of their size"


def test_the_rows_of_a_record_are_described(
    digits: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names every kind, the fields of all runs, and lines that give the final accuracy."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    described = {row[0]: row[1] for row in table_rows(page.partition("## Rows of")[2]) if len(row) == 2}
    assert all(any(f"`{kind}`" in name for name in described) for kind in ROW_FIELDS)
    spec = tiny(model="mlp", rounds=11, plugins=["ecgr"])
    run = federation(spec, digits)
    rows = [row for number in range(spec.rounds) for row in run.round(number)]
    assert {row["kind"] for row in rows} == {"train", "evaluation", "ecgr"}
    local_rows = federation(tiny(model="mlp", method="fedper", local_test={}), digits).round(0)
    for row in [*rows, *local_rows]:
        kind = row["kind"]
        (text,) = (text for name, text in described.items() if f"`{kind}`" in name)
        assert kind == "ecgr" or all(f"`{field}`" in text for field in row.keys() - {"round", "kind"})
    assert final_of(rows, spec) == pytest.approx(summarise(spec, rows, None, {})["accuracy"]["final"])


def final_of(rows: Sequence[Row], spec: RunSpec) -> float:
    """The final accuracy of a record with these rows by the lines of the page, in the working folder."""
    Path("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("summary.json").write_text(json.dumps(summarise(spec, rows, None, {})))
    names: dict[str, Any] = {"pd": pandas}
    exec(examples("records", "python")[0], names)
    return float(names["final"])


@pytest.mark.parametrize(("rounds", "expected"), [(11, 0.11), (18, 0.18), (19, 0.19), (20, 0.195)])
def test_the_final_accuracy_of_a_run_that_ends_at_a_target_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, expected: float
) -> None:
    """Of 20 rounds, the last two count; a run that ends before them has its last accuracy."""
    monkeypatch.chdir(tmp_path)
    tests = accuracies(*(number / 100 for number in range(1, rounds + 1)))
    rows = [{**test, "loss": 1.0} for test in tests]
    spec = tiny(rounds=20, evaluation={"until": rounds / 100})
    assert final_of(rows, spec) == pytest.approx(expected)
    assert summarise(spec, rows, None, {})["accuracy"]["final"] == pytest.approx(expected)


def test_the_example_of_a_dataset_works(
    tmp_path: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's files are read as its short and full entries describe, and can be used for training."""
    monkeypatch.chdir(tmp_path)
    official = registry()["mnist"]
    exec(examples("add-a-dataset", "python")[0], {})
    short, folders, medical, run, axis, full, remote, mnist, _ = map(
        yaml.safe_load, examples("add-a-dataset", "yaml")
    )
    digits = load_digits()
    for entry in (short, full):
        register(entry)
        data = prepare(Dataset(name="parity"), tmp_path / "prepared", tmp_path)
        assert data.train_labels.tolist() == (digits.target[:1400] % 2).tolist()
        assert data.mean == pytest.approx([digits.images[:1400].mean() / 16], abs=1e-3)
    assert RunSpec.parse(run, "run").dataset.name == "parity"
    written = spelled_out("dataset", axis["axes"]["dataset"]).values()
    points = [Point.parse(point, "point") for point in written]
    assert [RunSpec.parse({**run, **point.set}, "run").dataset.side for point in points] == [8, 16]
    register({**folders, **medical, **remote, **mnist})
    for fact in ("classes", "channels", "side", "train_images", "test_images", "mean", "std", "revision"):
        assert getattr(Dataset(name="mnist").entry, fact) == getattr(official, fact), fact
    assert Dataset(name="photos").side == 32 and Dataset(name="dermamnist").entry.classes == 7


def test_the_example_of_a_reader_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the guide's format, refuses invalid data in one line, and is named in the entry."""
    (tmp_path / "example_reader.py").write_text(examples("add-a-dataset", "python")[1])
    monkeypatch.syspath_prepend(tmp_path)
    lines = importlib.import_module("example_reader").Lines
    (entry,) = yaml.safe_load(examples("add-a-dataset", "yaml")[-1]).values()
    assert lines.model_fields["name"].default == entry["reader"]
    (tmp_path / "train.csv").write_text("1,0,10,20,30\n0,255,0,0,0\n")
    (tmp_path / "test.csv").write_text("0,1,2,3,4\n")
    read = lines().read(tmp_path)
    assert read.train_images.tolist() == [[[[0, 10], [20, 30]]], [[[255, 0], [0, 0]]]]
    assert (read.train_labels.tolist(), read.test_labels.tolist()) == ([1, 0], [0])
    for damaged in ("0,1,2,3,256\n", "0,1,2,3\n", "0,1,2,3,x\n"):
        (tmp_path / "test.csv").write_text(damaged)
        with pytest.raises(FltrainError, match=r"test\.csv: not readable as lines of a label"):
            lines().read(tmp_path)


def test_the_example_of_an_experiment_works(tmp_path: Path) -> None:
    """Grid, exception, shared runs, published values, claim and assumption agree with the guide."""
    paper, _, register, scale, quick = examples("add-an-experiment", "yaml")
    tuned, searched = examples("tune-settings", "yaml")
    values, claims = examples("add-an-experiment", "csv")
    files = {"papers/skew.yaml": paper, "scales/skew.yaml": scale, "scales/skew_quick.yaml": quick}
    files |= {"reported/skew_table1.csv": values, "reported/skew_claims.csv": claims}
    for name, text in (files | {"register.yaml": register}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    table, figure = plan(tmp_path, "skew").items
    assert (len(table.run_ids), len(figure.run_ids)) == (24, 6)
    assert set(figure.run_ids) < set(table.run_ids)
    prox = [entry for entry in table.entries if entry.labels["method"] == "fedprox"]
    weights = {entry.labels["skew"]: entry.spec.method.mu for entry in prox}
    assert weights == {"strong": 0.1, "weak": METHODS["fedprox"]().mu}
    assert len(plan(tmp_path, "skew_quick").runs) == 4
    assert table.assumptions[0].startswith("O-1: ")
    for row in csv.DictReader(values.splitlines()):
        assert [entry.seed for entry in table.entries if entry.reported.items() <= row.items()] == [0, 1, 2]
    (claim,) = table.paper.claims
    assert claim.test.minus and claim.test.over, "a difference of gains, as the question"
    assert [(claim.where, claim.claim)] == [
        (row["where"], row["claim"]) for row in csv.DictReader(claims.splitlines())
    ]
    (tmp_path / "papers/skew.yaml").write_text(paper.replace("items:\n", f"items:\n{tuned}"))
    rounds = plan(tmp_path, "skew").items[0]
    assert (rounds.layout.best_of, len(rounds.run_ids)) == ("rate", 16)
    (tmp_path / "papers/skew.yaml").write_text(paper.replace("items:\n", f"items:\n{searched}"))
    trials, final = plan(tmp_path, "skew").items[:2]
    assert len(trials.entries) == 10 and "nothing is selected yet" in final.refused


def test_files_named_in_the_documentation_exist() -> None:
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"]:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
        for path in re.findall(r"`((?:fltrain|tests|docs|benchmarks|config|workflow)/[\w./-]+)`", text):
            created = f"Write `{path}`" in text
            assert created or (ROOT / path).exists(), f"{document.name}: {path}"


def test_the_readme_counts_the_published_runs() -> None:
    scales = ("paper", "published", "demo")
    plans = [shipped(scale) for scale in scales]
    published, demo = (set(planned.runs) for planned in plans[1:])
    items = [item for item in plans[0].items if item.paper.paper != "common"]
    assert len({item.paper.paper for item in items}) == 6
    declared = {run for item in items for run in item.run_ids}
    of_papers = len(declared & published)
    assert {plans[1].runs[run].dataset.name for run in declared & published} == {"mnist"}
    text = " ".join((ROOT / "README.md").read_text().split())
    theirs, others = f"{len(declared):,} runs", f"{len(published) - of_papers:,} others"
    sentence = f"declared, with {theirs}. We trained {of_papers} of them, all on MNIST, and {others}"
    ours = f"# {theirs} of the papers, {len(plans[0].runs) - len(declared)} of ours"
    assert sentence in text and ours in text
    assert f"The demonstration trains {len(demo)} runs on scikit-learn's digits" in text


def table_rows(text: str) -> list[list[str]]:
    """The cells of all lines of tables."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def test_pages_explain_every_verdict() -> None:
    page = (ROOT / "fltrain" / "reporting" / "templates" / "meanings.html").read_text(encoding="utf-8")
    assert {*get_args(Verdict), *JUDGED} <= set(re.findall(r'^  "(.+?)": "', page, re.MULTILINE))


COMMAND = re.compile(r"^(?:\.venv/bin/)?fltrain (.+)$", re.MULTILINE)


def test_commands_in_the_documentation_parse() -> None:
    """Every `fltrain` line of a shell block names commands and options that exist."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "published" / "README.md"):
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL):
            for line in COMMAND.findall(block.replace("\\\n", " ")):
                command, words = get_command(app), shlex.split(line.split(" | ")[0], comments=True)
                while words and words[0] in getattr(command, "commands", ()):
                    command = command.commands[words.pop(0)]
                words = [word for word in words if word != "--help"]
                command.make_context(line, words)


def test_generated_pages_name_ranges_and_fixed_values_plainly() -> None:
    """A range is one text, parts on different numbers are two, and a key with one value has no bounds."""
    costs, keys = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("artifact.md", "configuration.md")
    )
    size, *_ = re.findall(r"by one to two points on MNIST .*", costs)
    (parts,) = re.findall(r"without adaptive scaling the gain turns negative .*", costs)
    assert "| between 0.5 and 2.5 |" in size and "| above 0; below 0 |" in parts
    assert not re.findall(r"at least (\S+), at most \1(?= )", keys)
