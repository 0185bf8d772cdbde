"""The command line: exit codes, one line per mistake, nothing written on the way to it, records that last."""

import csv
import io
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from fltrain import __version__
from fltrain.cli import app, main, train
from fltrain.cli.schema import SCHEMAS
from fltrain.core.files import read_json
from fltrain.data.datasets import Dataset, registry
from fltrain.data.download import OFFLINE
from fltrain.data.prepared import load_prepared
from fltrain.experiments import calibrate as calibration
from fltrain.runs.record import RECORD_FILES, Results
from fltrain.runs.spec import RunSpec

from .helpers import TINY, trained

ROOT = Path(__file__).parents[2]

Yaml = dict[str, Any]


def commands(group: Any, *path: str) -> dict[tuple[str, ...], Any]:
    """All commands by the words that call them, groups of commands included."""
    found: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        found[*path, name] = command
        if hasattr(command, "commands"):
            found |= commands(command, *path, name)
    return found


COMMANDS = commands(get_command(app))
DETERMINISTIC = ("spec.json", "metrics.jsonl", "summary.json")
MINUTE: Yaml = {**TINY, "rounds": 1}
"""A run of one short round."""


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory and a wide terminal; log handlers are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    for handler in set(logging.root.handlers) - set(handlers):
        handler.close()
    logging.root.handlers[:], logging.root.level = handlers, level


def invoke(*arguments: str, given: str | None = None) -> Any:
    """Run a command that succeeds and return its result."""
    result = CliRunner().invoke(app, list(arguments), input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def fail(
    *arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str = ""
) -> str:
    """Run a command that fails as the user's mistakes do, and return its message."""
    monkeypatch.setattr(sys, "argv", ["fltrain", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    return err


def module(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``python -m fltrain`` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fltrain", *arguments], input=given, capture_output=True, text=True
    )


def bytes_of(folder: Path, names: tuple[str, ...] = RECORD_FILES) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def cells_of(line: str) -> list[str]:
    """Texts of a line of a table on a terminal."""
    return [cell.strip() for cell in re.split(r"[│┃]", line)[1:-1]]


# ---------------------------------------------------------------- help
def test_the_version() -> None:
    assert invoke("--version").stdout == f"{__version__}\n"


def test_commands_are_documented() -> None:
    names = {" ".join(path) for path in COMMANDS}
    assert {"train", "plan", "status", "track", "schema", "data list", "data fetch", "data show"} <= names
    for (*group, name), command in COMMANDS.items():
        assert command.help
        assert re.search(rf"^  {name}  +\S", invoke(*group, "--help").stdout, re.MULTILINE)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_has_a_help_text(path: tuple[str, ...]) -> None:
    shown = " ".join(invoke(*path, "--help").stdout.split())
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{path} {parameter.name}"
        assert " ".join(parameter.help.split()) in shown
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in shown


# ---------------------------------------------------------------- mistakes in a spec
def spec(**changes: Any) -> str:
    return yaml.safe_dump({**TINY, **changes})


DIRICHLET = {"name": "dirichlet", "clients": 10}
FIXED = {"name": "flfa", "strategy": "fixed", "layers": ["nope"]}

SPECS: dict[str, tuple[str, list[str]]] = {
    "wrong key": (spec(roundz=3), ["'roundz'", "'rounds'"]),
    "not a number": (spec(training={"lr": float("nan")}), ["spec.yaml"]),
    "unknown method": (spec(method="fedavgg"), ["method", "'fedavgg'", "'fedavg'", "scaffold"]),
    "unknown layer": (spec(plugins=[FIXED]), ["plugins.flfa.layers", "'nope'", "classifier"]),
    "more layers than there are": (spec(plugins=[{"name": "flfa", "n_fa": 99}]), ["n_fa", "99", "9"]),
    "more clients than images": (spec(partition={**DIRICHLET, "clients": 5000}), ["clients", "5000", "1438"]),
    "sizes that no draw reaches": (
        spec(partition={**DIRICHLET, "alpha": 0.01, "min_size": 140, "max_draws": 5}),
        ["min_size", "140", "alpha"],
    ),
    "not YAML": ("a: [b", ["spec.yaml", "YAML"]),
    "a list": ("- a\n- b\n", ["spec.yaml", "mapping"]),
    "empty": ("", ["spec.yaml", "mapping"]),
}
LATE = {
    "unknown layer": {"data", "partitions", "train.log"},
    "more layers than there are": {"data", "partitions", "train.log"},
    "sizes that no draw reaches": {"data", "train.log"},
}
"""Mistakes that only the data or the network show, and what there is until then."""


@pytest.mark.parametrize("mistake", SPECS)
def test_mistakes_in_a_spec_leave_one_line_and_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    text, told = SPECS[mistake]
    (tmp_path / "spec.yaml").write_text(text)
    message = fail("train", "spec.yaml", "--results", "out", capsys=capsys, monkeypatch=monkeypatch)
    assert [word for word in told if word not in message] == [], message
    made = {*tmp_path.glob("out/data"), *tmp_path.glob("out/partitions"), *tmp_path.glob("out/runs/*/*")}
    assert {path.name for path in made} == LATE.get(mistake, set())
    assert (tmp_path / "out").exists() == (mistake in LATE)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("tpu", ["--device", "'tpu'", "cuda"]),
        ("cuda:x", ["--device", "'cuda:x'"]),
        ("meta", ["--device", "'meta'"]),
        ("cuda:99", ["--device", "'cuda:99'"]),
        pytest.param(
            "cuda",
            ["--device", "'cuda'", "0 CUDA devices"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_devices_that_are_not_there(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    told: list[str],
) -> None:
    arguments = ("train", "-", "--results", "out", "--device", device)
    message = fail(*arguments, capsys=capsys, monkeypatch=monkeypatch, given=spec())
    assert [word for word in told if word not in message] == [], message
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.yaml", ".", "binary"):
        assert name in fail("train", name, "--results", "out", capsys=capsys, monkeypatch=monkeypatch)
    assert [path.name for path in tmp_path.iterdir()] == ["binary"]


def test_one_mistake_among_several_specs_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.yaml").write_text(spec())
    (tmp_path / "bad.yaml").write_text(spec(roundz=1))
    arguments = ("train", "good.yaml", "bad.yaml", "--results", "out")
    assert "bad.yaml" in fail(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert not (tmp_path / "out").exists()


def test_results_that_are_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    arguments = ("train", "-", "--results", "file")
    assert "file" in fail(*arguments, capsys=capsys, monkeypatch=monkeypatch, given=spec())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "the same name 'fedprox'"),
        ("def f(:", "cannot be loaded (SyntaxError: invalid syntax"),
        ("import nothere", "cannot be loaded (ModuleNotFoundError: No module named 'nothere')"),
    ],
    ids=["name", "syntax", "import"],
)
def test_a_file_of_ones_own_that_cannot_be_loaded_is_told_in_one_line(
    tmp_path: Path, text: str | None, told: str
) -> None:
    """Whatever the command: all that has a name is loaded first."""
    methods = shutil.copytree(ROOT / "fltrain", tmp_path / "fltrain") / "methods"
    (methods / "mine.py").write_text(text or (methods / "fedprox.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "fltrain", "data", "list"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: fltrain.methods.") and done.stderr.count("\n") == 1
    assert "fltrain.methods.mine" in done.stderr and told in done.stderr


def test_processes_leave_with_the_code_of_what_happened(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(spec(method="fedavgg"))
    for arguments in (["train", "spec.yaml", "--results", "out"], ["plan", "--scale", "huge"]):
        failed = module(*arguments)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert re.fullmatch(r"error: [^\n]+\n", failed.stderr), failed.stderr
    assert module("train", "spec.yaml", "--no-such-option").returncode == 2
    assert module("--version").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


# ---------------------------------------------------------------- training
def test_training_training_again_and_training_a_record(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(MINUTE))
    run = RunSpec.parse(MINUTE, "test").run_id
    folder = Results(tmp_path / "out").run(run)
    train = ("train", "spec.yaml", "--results", "out", "--device", "cpu")

    first = invoke(*train)
    assert f"{run}: completed, see out/runs/{run}" in first.stdout
    assert sorted(path.name for path in folder.iterdir()) == sorted((*RECORD_FILES, "train.log"))
    record = bytes_of(folder, (*RECORD_FILES, "train.log"))
    assert record["train.log"]

    second = invoke(*train)
    assert second.stdout == f"{run}: already trained (--again retrains it)\n"
    assert bytes_of(folder, (*RECORD_FILES, "train.log")) == record

    again = invoke(*train, "--again", "--quiet")
    assert f"{run}: completed" in again.stdout
    assert again.stderr == ""
    assert bytes_of(folder, DETERMINISTIC) == {name: record[name] for name in DETERMINISTIC}
    assert (folder / "costs.json").read_bytes() != record["costs.json"], "it did train once more"

    # Also elsewhere, from what the first run wrote.
    spec_json = str(folder / "spec.json")
    assert run in invoke("train", spec_json, "--results", "elsewhere", "--device", "cpu").stdout
    other = Results(tmp_path / "elsewhere").run(run)
    assert bytes_of(other, DETERMINISTIC) == bytes_of(folder, DETERMINISTIC)


def test_what_another_process_trained_while_one_waited_for_a_gpu_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunSpec.parse(MINUTE, "test")
    records = []

    def waiting(name: str, runs: int | None) -> torch.device:
        records.append(bytes_of(trained(run, tmp_path / "out").folder))
        return torch.device(name)

    monkeypatch.setattr(train, "pick_device", waiting)
    invoke("train", "-", "--results", "out", "--device", "cpu", given=run.to_json())
    assert records == [bytes_of(Results(tmp_path / "out").run(run.run_id))]


def test_a_process_trains_what_is_piped_into_it(tmp_path: Path) -> None:
    done = module("train", "-", "--results", "out", "--device", "cpu", given=json.dumps(MINUTE))
    assert done.returncode == 0, done.stderr
    (record,) = Results(tmp_path / "out").records()
    assert done.stdout == f"{record.run_id}: completed, see out/runs/{record.run_id}\n"
    assert record.run_id == RunSpec.parse(MINUTE, "test").run_id
    assert record.complete


def test_several_specs_are_trained_in_turn(tmp_path: Path) -> None:
    names = []
    for seed in range(2):
        names.append(f"{seed}.yaml")
        (tmp_path / names[-1]).write_text(yaml.safe_dump({**MINUTE, "seed": seed}))
    out = invoke("train", *names, "--results", "out", "--device", "cpu", "--quiet").stdout
    assert [line.split(": ")[1].split(",")[0] for line in out.splitlines()] == ["completed"] * 2
    records = list(Results(tmp_path / "out").records())
    assert {record.spec["seed"] for record in records} == {0, 1}
    for record in records:
        log = (record.folder / "train.log").read_text()
        assert record.run_id in log
        assert not any(other.run_id in log for other in records if other.run_id != record.run_id)


def test_a_diverged_run_is_a_result(tmp_path: Path) -> None:
    diverging = {**MINUTE, "training": {"epochs": 1, "lr": 1e30}}
    arguments = ("train", "-", "--results", "out", "--device", "cpu")
    assert ": diverged, see" in invoke(*arguments, given=yaml.safe_dump(diverging)).stdout
    assert "already trained" in invoke(*arguments, given=yaml.safe_dump(diverging)).stdout


# ---------------------------------------------------------------- data
@pytest.fixture
def own(register: Callable[[Yaml], None]) -> None:
    """A registry of one's own: the digits, a set to be got by hand, and one whose path is wrong."""
    register(
        {
            "digits": {"reader": "digits"},
            "by-hand": {"reader": "npz", "obtain": "Ask its owner."},
            "lost": {"reader": "npz", "path": "nowhere.npz"},
        }
    )


@pytest.mark.parametrize("columns", ["40", "250"])
def test_every_data_set_is_listed_on_one_line(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = [cells for line in invoke("data", "list").stdout.splitlines() if len(cells := cells_of(line)) > 1]
    head, rows = lines[0], {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[1:]}
    assert head == ["name", "images", "classes", "pixels", "download", "licence", "where"]
    assert [line[0] for line in lines[1:]] == list(registry())
    for name, entry in registry().items():
        assert rows[name]["licence"] == entry.licence
        assert rows[name]["classes"] == str(entry.classes or "?")
        if entry.files:
            assert rows[name]["where"] == f"download from {urlsplit(entry.files[0].urls[0]).netloc}"
    assert rows["digits"] | {"images": "1,438 + 359", "pixels": "8 x 8 x 1"} == rows["digits"]
    assert (rows["digits"]["where"], rows["lc25000"]["where"]) == ("ships with a dependency", "by hand")
    assert rows["femnist-leaf"]["images"] == "? + ?"
    assert (rows["cifar10"]["download"], rows["femnist"]["download"]) == ("170 MB", ""), "one states no size"
    assert not Path("results").exists(), "looking writes nothing"


def test_a_registry_of_ones_own_is_listed(own: None) -> None:
    lines = map(cells_of, invoke("data", "list").stdout.splitlines())
    where = {line[0]: line[-1] for line in lines if len(line) > 1}
    del where["name"]
    assert where == {
        "by-hand": "by hand",
        "digits": "ships with a dependency",
        "lost": "nowhere.npz (missing)",
    }


@pytest.mark.parametrize("size", [None, 16], ids=["native", "resized"])
def test_data_are_fetched_once_and_shown(size: int | None) -> None:
    name, option = ("digits", []) if size is None else (f"digits-{size}px", ["--image-size", str(size)])
    path = Path("results", "data", f"{name}.safetensors")
    told = f"{path}, {path.with_suffix('.png')}\n"
    assert invoke("data", "fetch", "digits", *option).stdout == told
    assert sorted(Path("results").rglob("*.*")) == [path.with_suffix(".png"), path]
    date = path.stat().st_mtime_ns
    assert invoke("data", "fetch", "digits", *option).stdout == told
    assert path.stat().st_mtime_ns == date
    assert invoke("data", "fetch", "digits", "digits", *option).stdout == 2 * told

    lines = invoke("data", "show", "digits", *option).stdout.splitlines()
    facts = {key: value.strip() for key, _, value in (line.partition(":") for line in lines) if value}
    data = load_prepared(Dataset(name="digits", image_size=size), path)
    assert facts["images"] == "1,438 for training, 359 for testing"
    assert facts["pixels"] == f"{size or 8} x {size or 8}, 1 channel(s)"
    assert (facts["digest"], facts["licence"]) == (data.digest, "CC BY 4.0")
    assert Path(facts["contact sheet"]).read_bytes().startswith(b"\x89PNG")
    classes = [cells for line in lines if len(cells := cells_of(line)) == 4][1:]
    for label, row in enumerate(classes):
        counts = [str(int((labels == label).sum())) for labels in (data.train_labels, data.test_labels)]
        assert row == [str(label), "", *counts]
    assert len(classes) == 10


DATA_MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "unknown": (["fetch", "digit"], ["unknown dataset 'digit'; did you mean 'digits'?", "by-hand"]),
    "unknown to show": (["show", "digit"], ["unknown dataset 'digit'; did you mean 'digits'?"]),
    "one of two": (["fetch", "digits", "digit"], ["unknown dataset 'digit'; did you mean 'digits'?"]),
    "by hand": (["fetch", "by-hand"], ["'by-hand'", "Ask its owner.", OFFLINE, "by-hand.zip"]),
    "path": (["fetch", "lost"], ["nowhere.npz"]),
    "not prepared": (["show", "digits"], ["digits", "fltrain data fetch digits"]),
    "not prepared in this size": (
        ["show", "digits", "--image-size", "16"],
        ["digits-16px", "fltrain data fetch digits --image-size 16"],
    ),
    "size": (["fetch", "digits", "--image-size", "0"], ["image_size", "1", "0"]),
}


@pytest.mark.parametrize("mistake", DATA_MISTAKES)
def test_mistakes_about_data(
    own: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    arguments, told = DATA_MISTAKES[mistake]
    message = fail("data", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert [word for word in told if word not in message] == [], message
    assert list(Path().rglob("*.safetensors")) == []


def test_damaged_data_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("data", "fetch", "digits")
    path = Path("results", "data", "digits.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for command in ("fetch", "show"):
        message = fail("data", command, "digits", capsys=capsys, monkeypatch=monkeypatch)
        assert f"{path}: " in message and "delete it to have it made again" in message


# ---------------------------------------------------------------- plan, status, track, schema
@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A paper with one table of two runs."""
    folder = tmp_path / "config"
    paper = {
        "paper": "toy",
        "title": "A toy",
        "citation": "none",
        "settings": MINUTE,
        "seeds": 1,
        "items": {
            "table": {
                "title": "Two methods",
                "axes": {"method": ["fedavg", "fedprox"]},
                "table": {"rows": "method", "measures": [{"measure": "final_accuracy"}]},
            }
        },
    }
    scale = {"scale": "one", "title": "a trial", "reduced": True, "items": ["toy/table"]}
    for path, data in (("papers/toy", paper), ("scales/one", scale)):
        (folder / path).parent.mkdir(parents=True)
        (folder / f"{path}.yaml").write_text(yaml.safe_dump(data))
    return folder


def test_plan_and_status_before_and_after_training(tmp_path: Path, config: Path) -> None:
    runs = {
        method: RunSpec.parse({**MINUTE, "method": method}, "").run_id for method in ("fedavg", "fedprox")
    }

    def planned() -> list[str]:
        lines = invoke("plan", "--scale", "one", "--out", "runs.csv").stdout.splitlines()
        return next(cells_of(line) for line in lines if "toy/table" in line)

    def states() -> dict[str, list[str]]:
        lines = map(cells_of, invoke("status", "toy_table", "--scale", "one").stdout.splitlines())
        return {line[0]: line[1:] for line in lines if line and line[0] in runs.values()}

    assert planned() == ["toy/table", "Two methods", "2", "2", "0", "", "", "", ""]
    assert not (tmp_path / "results").exists(), "looking writes nothing"
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [(row["item"], row["cell"], row["run"]) for row in rows] == [
        ("toy/table", method, run) for method, run in runs.items()
    ]
    assert states() == {run: ["0", "toy/table", "not trained", "", ""] for run in runs.values()}

    invoke("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump(MINUTE))
    record = Results(tmp_path / "results").record(runs["fedavg"])
    started = Results(tmp_path / "results").run(runs["fedprox"])
    started.mkdir()
    (started / "train.log").touch()
    assert planned()[4] == "1"
    accuracy = f"{100 * record.summary['accuracy']['final']:.2f}"
    seconds = f"{record.costs['seconds']['total']:.1f}"
    assert states() == {
        runs["fedavg"]: ["0", "toy/table", "completed", accuracy, seconds],
        runs["fedprox"]: ["0", "toy/table", "started", "", ""],
    }
    assert invoke("status", "--scale", "one").stdout.splitlines()[-1] == "1 completed, 1 started"


def test_plan_calibrates_estimates_and_compares_with_what_was_trained(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "PATIENCE", 0.0)
    monkeypatch.setattr(calibration, "_start_up", lambda: 3600.0)
    asked = ("plan", "toy", "--scale", "one", "--methods", "fedavg,fedprox")
    hint = "fltrain plan toy --scale one --methods fedavg,fedprox --calibrate"
    assert f"hours: not estimated yet; measure a few steps on this machine: {hint}" in (
        invoke(*asked).stdout.splitlines()
    )
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert written == [tmp_path / "results" / "one" / "plan.csv"], "the run table, nothing else"
    assert len(list(csv.DictReader(written[0].read_text().splitlines()))) == 2
    said = invoke(*asked, "--calibrate", "--device", "cpu", "--out", "runs.csv").stdout
    assert "1 of 5: " in said and "5 of 5: " in said
    (line,) = (cells_of(line) for line in said.splitlines() if "toy/table" in line)
    assert line[5:7] == ["2.00", "2.00"], "of two runs; only their start takes long"
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [3600 <= int(row["estimated_seconds"]) < 3660 for row in rows] == [True, True]

    invoke("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump(MINUTE))
    after = invoke(*asked).stdout
    (line,) = (cells_of(line) for line in after.splitlines() if "toy/table" in line)
    assert line[5:7] == ["2.00", "1.00"]
    assert re.search(r"^1 finished run: actual / estimated median [\d.]+ \([\d.]+ to [\d.]+\)$", after, re.M)
    within = invoke("plan", "--scale", "one", "--hours", "1.1", "--write-scale", "mine.yaml").stdout
    assert "scale: config/scales/mine.yaml; train it with `snakemake --config scale=mine`" in within
    again = invoke("plan", "--scale", "mine").stdout
    (line,) = (cells_of(line) for line in again.splitlines() if "toy/table" in line)
    assert line[2:5] == ["2", "2", "1"]


@pytest.mark.parametrize("command", ["plan", "status", "track"])
def test_commands_take_restrictions(config: Path, command: str) -> None:
    run = RunSpec.parse({**MINUTE, "method": "fedprox"}, "").run_id
    for method in ("fedavg", "fedprox"):
        invoke("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump({**MINUTE, "method": method}))
    restricted = ("toy", "--methods", "fedprox", "--datasets", "digits", "--seeds", "1", "--scale", "one")
    said = invoke(command, *restricted).stdout
    told = {
        "plan": "all, shared runs once",
        "status": run,
        "track": "sqlite:///results/mlflow.db: 1 created",
    }[command]
    (line,) = (line for line in said.splitlines() if told in line)
    if command == "plan":
        assert cells_of(line)[2:5] == ["1", "1", "1"]
    if command == "status":
        assert said.splitlines()[-1] == "1 completed"


def test_status_shows_whole_run_ids_on_a_narrow_terminal(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert RunSpec.parse(MINUTE, "").run_id in invoke("status", "--scale", "one").stdout


@pytest.mark.parametrize("command", ["plan", "status"])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--scale", "two"], ["unknown scale 'two'", "one"]),
        (["toy/tabel", "--scale", "one"], ["'toy/tabel'", "'toy/table'"]),
        (["--config", "nowhere"], ["nowhere/scales: there is no such folder", "--config"]),
        (["--methods", "fedavgg", "--scale", "one"], ["has no method 'fedavgg'", "'fedavg'"]),
        (["--seeds", "0", "--scale", "one"], ["seeds", "1", "0"]),
    ],
    ids=["scale", "item", "folder", "method", "seeds"],
)
def test_mistakes_in_what_is_asked_for(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    arguments: list[str],
    told: list[str],
) -> None:
    message = fail(command, *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert [word for word in told if word not in message] == [], message


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--hours", "3"],
            "--hours: 2 runs have no estimate yet; run `fltrain plan --scale one --calibrate`",
        ),
        (["--write-scale", "one"], "config/scales/one.yaml exists; delete it"),
        (["--write-scale", "mine", "--methods", "fedavg"], "leave out --datasets and --methods"),
    ],
)
def test_a_part_that_cannot_be_planned(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    message = fail("plan", "--scale", "one", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert told in message


def test_track_keeps_the_items_of_runs_under_a_restriction(config: Path) -> None:
    """The table's run is the other's, too; asking for one of them takes nothing from the other."""
    paper = yaml.safe_load((config / "papers" / "toy.yaml").read_text())
    paper["items"]["other"] = paper["items"]["table"]
    (config / "papers" / "toy.yaml").write_text(yaml.safe_dump(paper))
    scale = config / "scales" / "one.yaml"
    scale.write_text(yaml.safe_dump({**yaml.safe_load(scale.read_text()), "items": ["toy"]}))
    invoke("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump(MINUTE))
    track = ("track", "--scale", "one", "--uri", "sqlite:///shared.db")
    assert "1 created" in invoke(*track).stdout
    assert invoke(*track, "toy/other").stdout.endswith(": 1 unchanged\n")


def test_track_exports_what_is_trained_once(config: Path) -> None:
    track = ("track", "--scale", "one")
    assert "nothing to export" in invoke(*track).stdout
    invoke("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump(MINUTE))
    assert invoke(*track).stdout == "sqlite:///results/mlflow.db: 1 created\n"
    assert invoke(*track).stdout == "sqlite:///results/mlflow.db: 1 unchanged\n"
    elsewhere = invoke(*track, "--uri", "sqlite:///elsewhere.db").stdout
    assert elsewhere == "sqlite:///elsewhere.db: 1 created\n"


def test_schema_writes_a_schema_per_kind_of_file(tmp_path: Path) -> None:
    invoke("schema", "--config", "somewhere")
    files = sorted((tmp_path / "somewhere" / "schemas").iterdir())
    titles = {name: kind.__name__ for name, kind in SCHEMAS.items()} | {"verdicts": "TableCell"}
    assert {path.stem: read_json(path)["title"] for path in files} == titles
