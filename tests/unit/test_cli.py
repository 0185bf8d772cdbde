"""The command line: exit codes, one line per mistake, no files written on failure, saved records."""

import csv
import io
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.main import get_command

import fltrain
from fltrain import FltrainError, __version__
from fltrain.__main__ import main
from fltrain.cli import app
from fltrain.cli.data import list_data
from fltrain.cli.explain import explain
from fltrain.cli.output import print_table
from fltrain.cli.train import runs_of
from fltrain.core.config import plain
from fltrain.data.datasets import Dataset, registry
from fltrain.data.fetch import OFFLINE
from fltrain.data.prepared import load_prepared
from fltrain.runs.record import RECORD_FILES, Results, checkpoint_file
from fltrain.runs.spec import RunSpec

from .helpers import PAPER, SCALE, TINY, TWO_METHODS, cli, write_config, write_papers

ROOT = Path(__file__).parents[2]

Yaml = dict[str, Any]
Fail = Callable[..., str]


def commands(group: Any, *path: str) -> dict[tuple[str, ...], Any]:
    """All commands by the words that call them, groups of commands included."""
    by_path: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        by_path[*path, name] = command
        if hasattr(command, "commands"):
            by_path |= commands(command, *path, name)
    return by_path


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


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Run a command that fails because of a user mistake, and return its message."""

    def run(*arguments: str, stdin: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["fltrain", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert (caught.value.code, out) == (2, "")
        assert re.fullmatch(r"error: [^\n]+\n(  [^\n]+\n)*", err), err
        return err

    return run


def module(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m fltrain`` in a separate process."""
    return subprocess.run([sys.executable, "-m", "fltrain", *arguments], capture_output=True, text=True)


def bytes_of(folder: Path, names: tuple[str, ...] = RECORD_FILES) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def cells_of(line: str) -> list[str]:
    """Texts in a line of a table on a terminal."""
    return [cell.strip() for cell in re.split(r"[│┃]", line)[1:-1]]


def test_commands_and_their_options_are_documented() -> None:
    assert cli("records", "import", "-h").stdout == cli("records", "import", "--help").stdout
    assert cli("--version").stdout == f"{__version__}\n"
    for path, command in commands(get_command(app)).items():
        assert command.help
        for parameter in command.params:
            assert parameter.help, f"{path} {parameter.name}"
        assert not re.findall(r"--[a-z-]+ <|{[a-z]", cli(*path, "--help").stdout), "a type, or no metavar"


def spec(**changes: Any) -> str:
    return yaml.safe_dump({**TINY, **changes})


DIRICHLET = {"name": "dirichlet", "clients": 10}
UNREACHABLE = {**DIRICHLET, "alpha": 0.01, "min_size": 140, "max_draws": 5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (spec(roundz=3), ["'roundz'", "'rounds'"]),
        ("# nothing\n", ["spec.yaml: is empty; it needs dataset, partition, model, method"]),
        (spec().replace("rounds: 3", "rounds: 1e3"), ["rounds: ", "got 1000.0; write 1000"]),
        (spec(partition=UNREACHABLE), ["min_size", "140", "alpha"]),
        ("a: [b", ["spec.yaml", "YAML"]),
    ],
)
def test_mistakes_in_a_spec_print_one_line_and_leave_no_record(
    tmp_path: Path, fail: Fail, text: str, words: list[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    message = fail("train", "spec.yaml", "--results", "out")
    assert [word for word in words if word not in message] == [], message
    assert list(tmp_path.glob("out/runs/*/*.json")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("good.yaml bad.yaml", ["bad.yaml"]),
        ("missing.yaml", ["missing.yaml: no such file; name an existing YAML or JSON file"]),
        ("godo.yaml", ["godo.yaml: no such file; did you mean 'good.yaml'?"]),
        ("paper.yaml", ["error: paper.yaml: declares a paper, not a run; `fltrain plan` and `snakemake`"]),
        ("scale.yaml", ["error: scale.yaml: declares a scale, not a run"]),
        ("item.yaml --set seed=1", ["error: item.yaml with seed=1: declares a table or figure, not a run"]),
        (".", ["error: .: a folder; name an existing YAML or JSON file"]),
        ("binary", ["binary"]),
        ("good.yaml --device tpu", ["device 'tpu': use auto, cpu, cuda or cuda:N"]),
        (
            "good.yaml --results bad.yaml",
            ["results folder bad.yaml cannot be written (Not a directory)"],
        ),
        (
            "good.yaml --results /proc/x",
            ["/proc/x cannot be written (No such file", "choose another"],
        ),
    ],
)
def test_wrong_arguments_train_nothing(tmp_path: Path, fail: Fail, arguments: str, words: list[str]) -> None:
    (tmp_path / "good.yaml").write_text(spec())
    (tmp_path / "bad.yaml").write_text(spec(roundz=1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, data in {"paper": PAPER, "scale": SCALE, "item": TWO_METHODS}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(data))
    message = fail("train", "--results", "out", *arguments.split())
    assert [word for word in words if word not in message] == [], message
    assert not (tmp_path / "out").exists()


def test_a_custom_file_that_cannot_be_loaded_gives_one_line(tmp_path: Path) -> None:
    """For any command: all components are loaded first."""
    methods = shutil.copytree(ROOT / "fltrain", tmp_path / "fltrain") / "methods"
    (methods / "mine.py").write_text((methods / "fedprox.py").read_text())
    done = module("data", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: fltrain.methods.") and done.stderr.count("\n") == 1
    assert "fltrain.methods.mine" in done.stderr and "the same name 'fedprox'" in done.stderr


CTRL_C_DURING_IMPORTS = """
import os, signal, sys
from fltrain.__main__ import main
class Finder:
    def find_spec(name, path, target=None):
        name == "fltrain.runs.spec" and os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
main()
"""


def test_ctrl_c_while_packages_are_imported_gives_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C_DURING_IMPORTS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped by SIGINT before the start\n"


def test_a_terminal_that_knows_ascii_only_gets_question_marks() -> None:
    code = "import sys, fltrain.cli as cli; cli.app = lambda **_: print('91 \xb1 2')\n"
    code += "from fltrain.__main__ import main; main()"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ascii_only)
    assert (done.stdout, done.stderr) == ("91 ? 2\n", "")


def test_a_port_in_use_is_refused(tmp_path: Path, fail: Fail) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = fail("ui", "--port", str(port), "--results", str(tmp_path))
    assert message.startswith(
        f"error: --port {port}: cannot be used (Address already in use); choose another"
    )


def test_train_again_and_train_from_a_record(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / f"{seed}.yaml").write_text(yaml.safe_dump({**MINUTE, "seed": seed}))
    run, other = (RunSpec.parse({**MINUTE, "seed": seed}, "test").run_id for seed in (0, 1))
    folder = Results(tmp_path / "out").run(run)
    twice = ("train", "0.yaml", "1.yaml", "0.yaml", "--results", "both", "--device", "cpu", "--quiet")
    both = cli(*twice).stdout
    assert both.count(": completed, final accuracy ") == len(both.splitlines()) == 2
    log = (Results(tmp_path / "both").run(run) / "train.log").read_text()
    assert run in log and other not in log, "each run has a separate log"
    assert re.search(r" layers, \d+ of \d+ clients per round, on cpu", log)
    assert "another process" not in log, "a run that is named twice is trained once"
    train = ("train", "0.yaml", "--results", "out", "--device", "cpu")

    first = cli(*train)
    final = Results(tmp_path / "out").record(run).summary["accuracy"]["final"]
    assert first.stdout == f"{run}: completed, final accuracy {100 * final:.2f} %, see out/runs/{run}\n"
    assert sorted(path.name for path in folder.iterdir()) == sorted((*RECORD_FILES, "train.log"))
    record = bytes_of(folder, (*RECORD_FILES, "train.log"))
    assert record["train.log"]

    second = cli(*train)
    assert second.stdout == f"{run}: already trained (--again retrains it)\n"
    assert bytes_of(folder, (*RECORD_FILES, "train.log")) == record

    again = cli(*train, "--again", "--quiet")
    assert f"{run}: completed" in again.stdout
    assert again.stderr == ""
    assert bytes_of(folder, DETERMINISTIC) == {name: record[name] for name in DETERMINISTIC}
    assert (folder / "costs.json").read_bytes() != record["costs.json"], "the run was trained again"


def test_damaged_records_are_refused_before_any_run_is_trained(tmp_path: Path, fail: Fail) -> None:
    """Also beside a checkpoint; Python refuses the same records."""
    spec = {**MINUTE, "method": "fedavg", "seed": 0}
    first, second, missing = (
        RunSpec.parse({**spec, "method": method}, "test").run_id
        for method in ("fedavg", "fedprox", "scaffold")
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(spec))
    train = ("train", "run.yaml", "--device", "cpu", "--quiet")
    cli(*train, "--set", "method=fedavg,fedprox")
    results = Results(Path("results"))
    rows, leftover = results.run(first) / "metrics.jsonl", checkpoint_file(results.checkpoints(first), 1)
    correct = rows.read_bytes()
    rows.write_bytes(b"")
    leftover.parent.mkdir(parents=True)
    for _ in range(2):
        problem = f"{first}: the record is damaged (metrics.jsonl: changed after training); restore it or"
        assert fail(*train) == f"error: {problem} retrain it with --again\n"
        with pytest.raises(FltrainError) as refused:
            fltrain.train(spec)
        assert str(refused.value) == f"{problem} retrain it with again=True"
        leftover.touch()
    (results.run(second) / "costs.json").unlink()
    message = fail(*train, "--set", "method=scaffold,fedprox,fedavg")
    assert message.startswith("error: train: 2 problems:\n") and "costs.json: No such file" in message
    assert [line.split(":")[0].strip() for line in message.splitlines()[1:]] == [second, first]
    assert not results.run(missing).exists(), "nothing was trained"
    cli(*train, "--again")
    assert rows.read_bytes() == correct and results.record(first).usable
    cli(*train)


def test_variants_of_a_run_are_trained_and_compared(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**MINUTE, "method": "scaffold", "seed": 7}))
    changes = ("--set", "method=fedavg,fedprox", "--set", "training.lr=5e-2", "--set", "plugins=[flfa]")
    done = cli("train", "run.yaml", *changes, "--seeds", "2", "--device", "cpu", "--quiet")
    assert done.stderr.endswith("compare them: fltrain compare\n")
    printed = done.stdout
    expected = [
        RunSpec.parse(
            {
                **MINUTE,
                **{"method": method, "plugins": ["flfa"], "seed": seed},
                "training": {**MINUTE["training"], "lr": 0.05},
            },
            "test",
        ).run_id
        for method in ("fedavg", "fedprox")
        for seed in (0, 1)
    ]
    assert [line.partition(":")[0] for line in printed.splitlines()] == expected
    compared = cli("compare").stdout
    assert "fedavg+flfa" in compared and "fedprox+flfa" in compared


def test_an_option_of_a_plug_in_is_changed_by_its_name(tmp_path: Path) -> None:
    """Its other options and other plug-ins stay; a list of plug-ins comes first, in any order of changes."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**MINUTE, "plugins": [{"name": "flfa", "strategy": "lowest"}, "ecgr"]}))

    def changed(*changes: str) -> list[list[Any]]:
        return [plain(run.plugins) for run in runs_of(path, changes)]

    def plugins(*expected: Any) -> list[Any]:
        return plain(RunSpec.parse({**MINUTE, "plugins": [*expected]}, "test").plugins)

    lowest = {"name": "flfa", "strategy": "lowest"}
    assert changed("plugins.flfa.n_fa=3,4") == [plugins({**lowest, "n_fa": n}, "ecgr") for n in (3, 4)]
    replaced = changed("plugins.flfa.n_fa=3", "plugins=[flfa],[ecgr,flfa]")
    flfa = {"name": "flfa", "n_fa": 3}
    assert replaced == [plugins(flfa), plugins("ecgr", flfa)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.lr", ["--set: 'training.lr': write KEY=VALUE"]),
        (
            "method=fedavg,fedpro",
            ["run.yaml with method=fedpro: method: unknown method 'fedpro'; did you mean"],
        ),
        (
            "method=[fedavg",
            [
                "error: --set method: not YAML: did not find expected ',' or ']'; check indentation, colons, "
                "quotes and brackets\n"
            ],
        ),
        ("method='{a: 1, a: 2}'", ["error: --set method: not YAML: the key 'a' occurs twice; leave one"]),
        ("plugins=[flfa,flfa]", ["error: run.yaml with plugins=[flfa,flfa]: 'flfa' is named twice\n"]),
        ("plugins=[flfa,fla]", ["with plugins=[flfa,fla]: plugins.1: unknown plug-in 'fla'"]),
        ("training='{lr: x}'", ["with training={lr: x}: training.lr: input should be a valid number"]),
        ("plugins='{name: flfa}'", ["plugins: input should be a list"]),
        ("plugins=flfa --set plugins.flfa.n_fa=2", ["plugins: input should be a list"]),
        (
            "plugins.flfa.n_fa=2",
            ["with plugins.flfa.n_fa=2: plugins: the run has no plug-in 'flfa' (its plug-ins: none)"],
        ),
        (
            "plugins.flfaa.n_fa=2 --set plugins=[flfa]",
            ["plugins: the run has no plug-in 'flfaa'; did you mean 'flfa'?"],
        ),
        (
            "method=fedavg,fedprox,scaffold --set method.mu=0.5",
            [
                "'mu' (known: name); ",
                "fedprox, moon have it; write --set 'method=fedavg,{name: fedprox, mu: 0.5},scaffold'\n",
            ],
        ),
        (
            "method=fedavg,scaffold --set method.mu=0.5",
            ["unknown key 'mu' (known: name); ", "fedprox, moon have it\n"],
        ),
        (".=3", ["--set: '.=3': write KEY=VALUE"]),
        (
            "rounds=1 --set rounds=2",
            ["--set: 'rounds' is set twice; write alternatives with commas: rounds=A,B"],
        ),
        (
            "training.lr=0,05",
            ["'0,05': numbers have a decimal point, as in 0.05, and no comma; commas stand"],
        ),
        ("training.weight_decay=0,05,0.1", ["'0,05,0.1': numbers have a decimal point"]),
        ("seed=3,4 --seeds 2", ["--seeds 2 and --set seed=... contradict each other; leave out one of them"]),
    ],
)
def test_wrong_changes_give_one_line(tmp_path: Path, fail: Fail, change: str, words: list[str]) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(MINUTE))
    message = fail("train", "run.yaml", "--set", *shlex.split(change))
    assert all(word in message for word in words), message


def test_all_wrong_files_and_changes_are_named(tmp_path: Path, fail: Fail) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(spec(roundz=1))
    (tmp_path / "good.yaml").write_text(spec())
    for arguments, expected in {
        "one.yaml two.yaml": ["one.yaml: line 10: roundz: unknown", "two.yaml: line 10: roundz: unknown"],
        "good.yaml --set method=fedavg,fedprx,scafold": [
            "unknown method 'fedprx'",
            "unknown method 'scafold'",
        ],
    }.items():
        _, *lines = fail("train", *arguments.split()).splitlines()
        assert [text in line for text, line in zip(expected, lines, strict=True)] == [True, True], lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "no such command 'trian'; did you mean 'train', 'track'? (see fltrain --help)"),
        ("train", "missing argument 'FILE' (see fltrain train --help)"),
        (
            "data fetch --imagesize 3 mnist",
            "--imagesize; did you mean --image-size? (see fltrain data fetch --help)",
        ),
        ("ui --port x", "invalid value for '--port': "),
        ("explain a b", "got unexpected extra argument(s) (b) (see fltrain explain --help)"),
        (
            "records export x.tar.gz y",
            "y: no complete record in results/runs; `fltrain status` lists the runs",
        ),
        ("records import no.gz", "no.gz: no such file; make one with `fltrain records export`, or use publ"),
        ("verify --results nowhere", "; name your folder with --results, or make 're"),
        (
            "verify --results /nowhere",
            "/nowhere: no such folder; name your folder with --results, or make 're",
        ),
        ("verify", "error: results: nothing to verify; name your folder with --results\n"),
        ("ui", "mlflow.db does not exist yet; run `make reproduce` or `fltrain track --scale NAME` first\n"),
        ("ui --results .", "does not exist yet; run `fltrain track --scale NAME --results .` first\n"),
        (
            "records export x.tar.gz y --results .",
            "in runs; `fltrain status --results .` lists the runs that have one",
        ),
        *(
            (f"{command} --results nowhere", "nowhere: no such folder; you are in /")
            for command in ("status", "plan", "compare", "track", "ui", "records export x.tar.gz")
        ),
        *(
            (f"{command} --results /dev/null", "/dev/null: not a folder; ")
            for command in ("verify", "compare")
        ),
        ("compare --results nowhere", "train runs, or name another results folder\n"),
        ("verify --results ressults", "ressults: no such folder; did you mean 'results'?"),
        *(
            (
                f"train good.yaml {option} 2",
                f"no such option: {option}; --set KEY=VALUE changes a setting, and s",
            )
            for option in ("--lr", "--jobs")
        ),
        *(
            (f"train good.yaml {wrong}", f"no such option: {wrong[:6]}; --set {right} changes a setting")
            for wrong, right in {
                "--seed 2": "seed=2",
                "--seed=2": "seed=2",
                "--seed": "seed=VALUE",
                "--seed --quiet": "seed=VALUE",
            }.items()
        ),
        ("train good.yaml --local-test 0.2", "no such option: --local-test; --set local_test=0.2 changes"),
        ("train good.yaml --training.lr 0.2", "no such option: --training.lr; --set training.lr=0.2 changes"),
        ("train good.yaml --determinism slow", "(env var: 'FLTRAIN_DETERMINISM'): 'slow' is not one of "),
        ("records export x.zip", "x.zip: name an archive that ends in .tar.gz"),
        ("train --device", "option '--device' requires an argument (see fltrain --help)"),
        *(
            (f"{command} --seeds 0,1,2", "'0,1,2' is not a number of seeds; --seeds 3 takes the first three")
            for command in ("train good.yaml", "plan", "status")
        ),
    ],
)
def test_wrong_uses_of_commands_give_one_line(fail: Fail, arguments: str, message: str) -> None:
    Path("results").mkdir()
    error = fail(*arguments.split())
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("group", [(), ("data",), ("records",)])
def test_groups_list_their_commands_with_whole_sentences(
    group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    help_text = " ".join(cli(*group, "--help").stdout.split())
    listed = get_command(app)
    for name in group:
        listed = listed.commands[name]  # type: ignore[attr-defined]
    for name, command in listed.commands.items():  # type: ignore[attr-defined]
        assert f"{name} {command.help.splitlines()[0]}" in help_text


@pytest.mark.parametrize("group", [(), ("data",), ("records",)])
def test_groups_without_a_command_show_their_help(
    group: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fltrain", *group])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith("Usage: ")


@pytest.fixture
def custom(register: Callable[[Yaml], None]) -> None:
    """A custom registry: the digits, a manual download, and a dataset with a wrong path."""
    by_hand, lost = {"obtain": "Ask its owner."}, {"path": "nowhere.npz"}
    others = {name: {"reader": "npz", **entry} for name, entry in (("by-hand", by_hand), ("lost", lost))}
    register({"digits": {"reader": "digits"}, **others})


def test_a_narrow_terminal_lists_datasets_without_licence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    list_data(Path("results"))
    printed = capsys.readouterr().out
    assert " 50,000 + 10,000 " in printed and "Hidden columns: licence, pixels;" in printed


def test_every_dataset_is_listed_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = [cells for line in cli("data", "list").stdout.splitlines() if len(cells := cells_of(line)) > 1]
    head, rows = lines[0], {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[1:]}
    assert head == ["name", "images", "classes", "pixels", "download", "licence", "where"]
    assert [line[0] for line in lines[1:]] == list(registry())
    assert rows["mnist"]["where"] == "download from ossci-datasets.s3.amazonaws.com"
    assert rows["digits"] | {"images": "1,438 + 359", "pixels": "8 x 8 x 1"} == rows["digits"]
    assert (rows["digits"]["where"], rows["lc25000"]["where"]) == ("ships with a dependency", "by hand")
    assert (rows["cifar10"]["download"], rows["femnist"]["download"]) == ("170 MB", ""), "one without size"
    assert not Path("results").exists(), "the command writes no files"


def test_data_are_fetched_once_and_shown() -> None:
    option = ["--image-size", "16"]
    path = Path("results", "data", "digits-16px.safetensors")
    printed = cli("data", "fetch", "digits", *option).stdout
    assert sorted(Path("results/data").rglob("*.*")) == [path.with_suffix(".png"), path]
    date = path.stat().st_mtime_ns
    assert cli("data", "fetch", "digits", "digits", *option).stdout == 2 * printed
    assert path.stat().st_mtime_ns == date

    lines = printed.splitlines()
    facts = {key: value.strip() for key, _, value in (line.partition(":") for line in lines) if value}
    data = load_prepared(Dataset(name="digits", image_size=16), path)
    assert facts["images"] == "1,438 for training, 359 for testing"
    assert facts["pixels"] == "16 x 16, 1 channel"
    assert facts["mean"] == f"{data.mean[0]:.4f}" and facts["std"] == f"{data.std[0]:.4f}"
    assert (facts["digest"], facts["licence"]) == (data.digest, "CC BY 4.0")
    assert Path(facts["contact sheet"]).read_bytes().startswith(b"\x89PNG")
    classes = [cells for line in lines if len(cells := cells_of(line)) == 4][1:]
    assert [int(row[2]) for row in classes] == np.bincount(data.train_labels).tolist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fetch digits digit", ["error: unknown dataset 'digit'; did you mean 'digits'?\n"]),
        ("fetch by-hand", ["'by-hand'", "Ask its owner.", OFFLINE, "by-hand.zip"]),
    ],
)
def test_wrong_data_arguments(custom: None, fail: Fail, arguments: str, words: list[str]) -> None:
    message = fail("data", *arguments.split())
    assert [word for word in words if word not in message] == [], message
    assert list(Path().rglob("*.safetensors")) == []


def test_explain_splits_no_keys_or_paths_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        explain("flfa/table1", config=ROOT / "config", every=True)
        lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).replace("│", " ").splitlines()
        (line,) = [line for line in lines if line.split()[:1] == ["training.weight_decay"]]
        below = lines[lines.index(line) + 1]
        assert re.search(r"/config/papers/flfa/paper\.yaml:\d+ *$", below if width < 200 else line)
        assert len(line.split()) == (2 if width < 200 else 4)


def test_the_help_of_explain_names_cells_of_its_item() -> None:
    item, cell, *_ = commands(get_command(app))["explain",].params
    (named,) = re.findall(r"for example ([\w/]+)", item.help)
    labels = re.findall(r"\(--cell ([^)]+)\)", cell.help)
    assert len(labels) == 2
    for label in labels:
        printed = cli("explain", named, "--cell", *shlex.split(label), "--config", ROOT / "config").stdout
        assert printed.startswith(f"{named} (") and "run digits-fedavg+flfa-" in printed, "a single cell"


HEADINGS = ["item", "title", "cells, which is a very long heading", "multiply-adds", "left"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A paper with one table of two runs."""
    return write_config(tmp_path / "config", {"table": TWO_METHODS}, rounds=1)


def test_plan_and_status_before_and_after_training(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ("fedavg", "fedprox")
    runs = {method: RunSpec.parse({**MINUTE, "method": method}, "").run_id for method in methods}

    def planned() -> list[str]:
        lines = cli("plan", "--scale", "one", "--out", "runs.csv").stdout.splitlines()
        assert any(re.fullmatch(r"cohorts: \d+ of \d+ clients? per round", line) for line in lines)
        return next(cells_of(line) for line in lines if "toy/table" in line)

    assert planned()[:5] == ["toy/table", "Two methods", "2", "2", "0"]
    make = "make tables and figures: snakemake --config scale=one"
    chosen = ("plan", "toy", "--scale", "one", "--where", "method=fedavg")
    assert cli(*chosen).stdout.endswith(f"\nto train 1 run and {make} items=toy where=method=fedavg\n")
    assert not (tmp_path / "results").exists(), "the command writes no files"
    rows = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert {row["cell"]: row["run"] for row in rows} == runs

    cli("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump(MINUTE))
    started = Results(tmp_path / "results").run(runs["fedprox"])
    started.mkdir()
    (started / "train.log").touch()
    assert planned()[4] == "1"
    assert cli(*chosen).stdout.endswith(f"\nto {make} items=toy where=method=fedavg train=false\n")
    assert "make tables" not in cli(*chosen, "--config", config.resolve()).stdout, "not the workflow's folder"
    assert cli("status", "toy_table", "--scale", "one").stdout.endswith("┘\n1 completed, 1 started\n")
    cli("train", "-", "--device", "cpu", "--quiet", "--set", "seed=7", given=yaml.safe_dump(MINUTE))
    assert "other run" not in cli("status", "toy_table", "--scale", "one").stdout
    printed = cli("status", "--scale", "one").stdout
    others = r"\n1 other run .*, of other scales or of your own; compare them by settings: fltrain (.*)\n"
    (command,) = re.findall(others, printed)
    assert "damaged" not in printed
    monkeypatch.setattr("fltrain.cli.compare.MOST_LINES", 0)
    assert cli(*command.split()).stdout == "table: compared.csv\n"
    other = Results(tmp_path / "results").run(RunSpec.parse({**MINUTE, "seed": 7}, "").run_id)
    (other / "summary.json").write_text("{")
    assert "\n1 of them damaged: see fltrain verify\n" in cli("status", "--scale", "one").stdout


@pytest.mark.parametrize("command", ["plan --scale one", "compare"])
def test_a_table_goes_to_an_existing_folder_only(config: Path, fail: Fail, command: str) -> None:
    error = "error: --out nowhere/x.csv: no folder nowhere; correct it, or make it: mkdir -p nowhere\n"
    assert fail(*command.split(), "--out", "nowhere/x.csv") == error
    assert not Path("nowhere").exists()


def test_plan_counts_the_runs_that_no_paper_has(config: Path) -> None:
    assert "of the papers" not in cli("plan", "--scale", "one").stdout
    methods = {**TWO_METHODS, "axes": {"method": ["fedavg", "fedprox", "moon"]}}
    ours = {
        **PAPER,
        "paper": "ours",
        "kind": "comparison",
        "settings": {**TINY, "rounds": 1},
        "items": {"table": methods},
    }
    write_papers(config, ours)
    (config / "scales" / "one.yaml").write_text(yaml.safe_dump({**SCALE, "items": ["toy", "ours"]}))
    line = "\nruns: 2 of the papers, 1 only of comparisons or controls\n"
    assert line in cli("plan", "--scale", "one").stdout


def test_plan_names_the_most_frequent_cohorts(config: Path) -> None:
    (measured,) = TWO_METHODS["table"]["measures"]
    axes = {"participation": [0.25, 0.5, 0.75, 1.0]}
    shares = {"title": "Shares", "axes": axes, "table": {"rows": "participation", "measures": [measured]}}
    methods = {**TWO_METHODS, "settings": {"participation": 1.0}}
    write_config(config, {"shares": shares, "table": methods}, partition={"name": "iid", "clients": 4})
    cohorts = (
        "cohorts: 4 of 4 clients per round, 1 of 4 clients per round, 2 of 4 clients per round and 1 more"
    )
    assert f"\n{cohorts}\n" in cli("plan", "--scale", "one").stdout


@pytest.mark.parametrize(
    ("width", "headings"), [(100, ["item", "title", "multiply-adds", "left"]), (200, HEADINGS)]
)
def test_a_narrow_terminal_keeps_titles_on_two_lines(
    width: int, headings: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    title = "Separability of the classes in the global model's features"
    rows = [("a/table", title, *["1"] * 3), (), ("all", "", *["1"] * 3)]
    print_table(HEADINGS, rows, right=HEADINGS[2:], optional=HEADINGS[2:4])
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert cells_of(lines[1]) == headings
    assert max(map(len, lines)) <= width
    note = f"Hidden columns: {HEADINGS[2]}; wider terminals show them"
    table = [line for line in lines if line[0] in "┏┃┡│├└"]
    assert len(table) == (8 if width == 100 else 7)
    assert " ".join(" ".join(lines[len(table) :]).split()) == (note if width == 100 else "")
    rows[0] = ("paper/" + "x" * 40, *rows[0][1:])
    print_table(HEADINGS, rows, HEADINGS[2:], HEADINGS[2:4], unfolded=["item"])
    assert f" {rows[0][0]} " in capsys.readouterr().out


def test_a_narrow_terminal_splits_no_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    headings = ("run", "skew", "method", "final accuracy, %", "gain", "verdict on the gain")
    verdict = "inconclusive (not significant after correction), exploratory"
    row = ("digits-fedavg-b08614c92f", "Dirichlet 0.1", "FedAvg + FedImpro", "94.69 ± 0.60", "+5.40", verdict)
    print_table(headings, [row], unfolded=["run"])
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert {*map(len, lines)} <= {*range(81)}
    body = [cells_of(line) for line in lines if line.startswith("│")]
    cells = [" ".join(filter(None, texts)) for texts in zip(*body, strict=True)]
    assert cells == list(row)


def test_a_narrow_terminal_lists_grouped_columns_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    conditions = ("dataset.image_size", "partition.name", "partition.clients", "participation.fraction")
    headings = (*conditions, "compared", "final accuracy, %")
    rows = [("12", "iid", "5", "1.0", name, "95.17 ± 1.61") for name in ("fedavg", "fedprox, method.mu=0.1")]
    rows.append(("null", "iid", "10", "0.1", "fedavg", "94.85 ± 1.14"))
    for width, last in ((80, "case 2:  dataset.image_size=null, partition.name=iid, "), (150, "└")):
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(headings, rows, grouped=conditions)
        lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
        assert any(line.startswith(last) for line in lines[-2:])
        words = " ".join(lines).replace("│", " ").split()
        assert {*" ".join(cell for row in rows for cell in row[4:]).split()} <= {*words}
        body = [cells_of(line) for line in lines if line.startswith("│")]
        assert [texts[0] for texts in body] == (["1", "1", "2"] if width == 80 else ["12", "12", "null"])


def test_a_table_can_have_an_empty_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["", "run"], [["", "one"]])
    assert "│ one │" in capsys.readouterr().out


def test_options_of_train_decide_how_it_trains(tmp_path: Path, fail: Fail) -> None:
    specs = [RunSpec.parse({**MINUTE, "model": "mlp", "seed": seed}, "test") for seed in (0, 1)]
    for spec in specs:
        (tmp_path / f"{spec.seed}.json").write_text(spec.to_json())
    cli("train", "0.json", "1.json", *["--device", "cpu", "--threads", "2", "--quiet"])
    for spec in specs:
        facts = Results(tmp_path / "results").record(spec.run_id).provenance
        assert (facts["executor"], facts["threads"]) == ("sequential", 2)
    refusal = fail("train", "0.json", "--again", "--quiet", "--cuda-graph", "--device", "cpu")
    assert "--cuda-graph: needs a CUDA device, not 'cpu'; leave out --cuda-graph" in refusal


def test_plan_names_datasets_without_a_size(config: Path, register: Callable[[Yaml], None]) -> None:
    register({"mine": {"reader": "npz", "path": "mine.npz"}})
    write_config(config, {"table": {**TWO_METHODS, "settings": {"dataset": "mine"}}})
    printed = cli("plan", "--scale", "one").stdout
    line = next(cells_of(line) for line in printed.splitlines() if "toy/table" in line)
    assert line[4:7] == ["0", "?", ""]
    assert "2 runs (+) not counted: datasets.yaml has no counts or size of the images of mine\n" in printed


def test_the_heading_of_a_plan_holds_for_all_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paper = {**PAPER, "settings": TINY, "items": {"table": TWO_METHODS, "other": TWO_METHODS}, "seeds": 2}
    pair, single = {"toy/table": {"title": "two seeds"}}, {"toy/other": {"title": "a seed", "seeds": 1}}
    write_papers(tmp_path / "config", paper, scale={**SCALE, "items": [pair, single]})
    for arguments, heading in {
        (): "one",
        ("toy/table",): "one: two seeds; restricted to item toy/table",
        ("toy/table", "--seeds", "1"): "one: two seeds; restricted to item toy/table, 1 seed",
        ("toy", "--seeds", "1"): "one; restricted to 1 seed",
        ("toy", "--where", "method=fedprox"): "one; restricted to method=fedprox",
    }.items():
        assert cli("plan", "--scale", "one", *arguments).stdout.partition("\n")[0] == heading


def test_plan_shows_multiply_adds_and_hours(config: Path) -> None:
    plain = cli("plan", "--scale", "one").stdout
    scale = config / "scales" / "one.yaml"
    scale.write_text(f"{scale.read_text()}\npage: Our results\n")
    assert cli("plan", "--scale", "one").stdout.startswith("one (Our results): ")
    assert "time: add --gpu NAME (arithmetic) or --measure" in plain
    timed = cli("plan", "--scale", "one", "--gpu", "h100").stdout
    assert "5 to 20 % of the peak of one NVIDIA H100 SXM (67 / 495 / 989 TFLOP/s" in timed
    without, line = (
        next(cells_of(line) for line in text.splitlines() if "toy/table" in line) for text in (plain, timed)
    )
    assert without == line[:7]
    assert line[:5] == ["toy/table", "Two methods", "2", "2", "0"]
    assert re.fullmatch(r"[\d.]+ G", line[5]) and re.fullmatch(r"< 1 s|\d+ s( to \d+ s)?", line[7])
    assert "< 1 s" in line[7]
    assert float(line[5][:-2]) == pytest.approx(2 * float(line[6][:-2]), rel=0.01), "of two equal runs"
    measured = cli("plan", "--scale", "one", "--measure", "--device", "cpu").stdout
    assert "time left: one run at a time on this machine (cpu), measured with FedAvg" in measured


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "plan --config nowhere",
            ["nowhere/scales: there is no such folder; work in", "--config PATH in a shell"],
        ),
        ("verify --config nowhere", ["nowhere/scales: there is no such folder"]),
        ("compare --config nowhere", ["nowhere/scales: there is no such folder"]),
        ("plan --scale one --gpu h10", ["--gpu: unknown GPU 'h10'; did you mean 'h100'?"]),
        ("plan --scale one --gpu H1000", ["--gpu: unknown GPU 'H1000'; did you mean 'h100'?"]),
        ("plan --scale one --gpu h100 --measure", ["leave out one of the two"]),
        (
            "plan --scale one xyz/table",
            [" (known: toy); if it is your own, set FLTRAIN_PATH to your folder\n"],
        ),
        ("compare --scale one trial", ["'trial'; trial is a folder with runs: write --results trial\n"]),
        ("plan --scale one toy/table,toy/nix", ["scale 'one' has no item 'toy/nix' (items of toy: table)\n"]),
        (
            "plan --scale one fedavgm",
            ["it is a method: fltrain compare --where method=fedavgm shows its runs\n"],
        ),
        (
            "compare --scale one ecgr",
            ["it is a method: fltrain compare --where plugins=ecgr shows its runs\n"],
        ),
        (
            "plan --scale one x-0123456789",
            ["is a run ID: see RESULTS/runs/x-0123456789\n"],
        ),
        ("plan --scale one --where seed=77", ["no run is left with seed=77 (values of seed: '0')\n"]),
        ("status --where scale=one", ["--where scale=one: write --scale one\n"]),
        (
            "plan --scale one --where status=failed",
            ["status=failed: choose by status with `fltrain status` or `compare` only\n"],
        ),
        (
            "status --where status=done,failed",
            ["--where status: unknown status 'done' (known: completed, diverged, ", ", not-trained)\n"],
        ),
        ("status --where status=divergd", ["unknown status 'divergd'; did you mean 'diverged'?\n"]),
        ("plan --scale one --where items=toy", ["--where items=toy: write only toy, without --where\n"]),
        (
            "explain toy/tabel --scale one",
            ["scale 'one' has no item 'toy/tabel'; did you mean 'toy/table'?\n"],
        ),
        ("plan --scale one config/papers/toy/table.yaml", ["is a file; name the paper or item: toy/table\n"]),
        ("plan --scale one toy/run.yaml", ["is a file; name a paper or item: flfa/table1\n"]),
        (
            "plan --scale toy/table",
            ["'toy/table' is no name of a scale; write the stem of a file in"],
        ),
        ("plan --scale config/scales/one.yaml", ["is a file; write the scale's name: one\n"]),
        ("plan --scale run", ["scales/run.yaml: declares a run, not a scale; `fltrain train` trains"]),
    ],
)
def test_wrong_selections_give_one_line(config: Path, fail: Fail, arguments: str, words: list[str]) -> None:
    Path("trial/runs").mkdir(parents=True)
    Path("results/runs").mkdir(parents=True)
    (config / "scales" / "run.yaml").write_text(spec())
    message = fail(*arguments.split())
    assert [word for word in words if word not in message] == [], message


def test_track_exports_every_trained_run_once(config: Path) -> None:
    """Two items share the table's run; tracking one item removes nothing from the other."""
    write_config(config, {"table": TWO_METHODS, "other": TWO_METHODS}, rounds=1)
    track = ("track", "--scale", "one")
    train = "train its runs with `snakemake --config scale=one`"
    with pytest.raises(FltrainError, match=rf"^results: no such folder; .*; {train}$"):
        cli(*track)
    Results(Path("results")).create()
    with pytest.raises(FltrainError, match=rf"^results/runs has no run of scale 'one'; {train}$"):
        cli(*track)
    cli("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump({**MINUTE, "seed": 9}))
    with pytest.raises(
        FltrainError, match=f"{train}, or add --every for 1 run in none of its tables and fig"
    ):
        cli(*track)
    assert not Path("results/mlflow.db").exists(), "there would be nothing in it"
    cli("train", "-", "--device", "cpu", "--quiet", given=yaml.safe_dump(MINUTE))
    assert cli(*track, "--uri", "sqlite:///own.db").stdout == "sqlite:///own.db: MLflow runs: 1 created\n"
    assert cli(*track, "--uri", "sqlite:///own.db", "toy/other").stdout.endswith(": 1 unchanged\n")
