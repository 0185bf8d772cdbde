"""YAML that users write: what is meant comes out, and what is easily misread is refused by file and line."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Strict
from typer.testing import CliRunner

from fltrain.cli import app
from fltrain.core.config import Settings, file_name
from fltrain.core.errors import FltrainError
from fltrain.core.strict_yaml import DEEPEST, MOST_NODES, parse_plain, read_plain
from fltrain.data.datasets import Dataset
from fltrain.data.registry import load
from fltrain.experiments.plan import plan
from fltrain.experiments.selection import Request
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.tracking.mlflow_store import artefacts_of

from .helpers import TINY

CONFIG = Path(__file__).parents[2] / "config"


def refused(text: str) -> str:
    """What is said of a text, after the name of its file."""
    with pytest.raises(FltrainError) as raised:
        parse_plain(text, "some.yaml")
    message = str(raised.value)
    assert message.startswith("some.yaml: ") and message.isprintable() and len(message) < 1000
    return message.removeprefix("some.yaml: ")


# ---------------------------------------------------------------- what is meant
@pytest.mark.parametrize("path", sorted(CONFIG.rglob("*.yaml")), ids=lambda path: path.stem)
def test_files_of_the_checkout_read_as_by_any_other_reader(path: Path) -> None:
    """To the order of keys, which is that of rows and columns."""
    assert repr(read_plain(path)) == repr(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing but a comment",
        "---",
        "a: [1, 2.5, -3e+4, .5, 1_000, 0x10, 0b11, true, off, null, ~, '']",
        "a: .inf\nb: -.INF",
        "\ufeffa: é",
        "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3, e: 4}\nf: {e: 0, <<: *x}",
        "a: &x {b: 1, c: 2}\nd: &y {c: 3, d: 4}\nf: {<<: [*x, *y], e: 5}\ng: {e: 5, d: 6, <<: [*y, *x]}",
        "a: &x {b: 1}\nc: &y {<<: *x, d: 2}\ne: {<<: *y, f: 3}",
        "a: &x []\nb: *x\n*x2 : 1".replace("*x2 ", "'*x2'"),
        "&k key: 1\nother: {*k : 2}",
        "a: |\n  two\n  lines\nb: >-\n  one\n  line",
        "? a\n: - b\n  -   c: d",
        "'<<': 1\n\"<<x\": 2",
        "a: !!str 1\nb: ! 2\nc: !!int '3'\nd: !!float 4\ne: !!map {}\nf: !!seq []",
        '{"json": [1e-05, {"is": "YAML, too\\n"}]}',
        "%YAML 1.1\n---\na: 1\n...\n",
    ],
)
def test_plain_data_read_as_by_any_other_reader(text: str) -> None:
    assert repr(parse_plain(text, "some.yaml")) == repr(yaml.safe_load(text))


def test_without_the_fast_parser_the_data_are_the_same() -> None:
    """PyYAML can be built without libyaml."""
    program = (
        "import sys, yaml; del yaml.CSafeLoader; from pathlib import Path; "
        "from fltrain.core.strict_yaml import read_plain; print(ascii(read_plain(Path(sys.argv[1]))))"
    )
    path = CONFIG / "scales" / "demo.yaml"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii(read_plain(path))


# ---------------------------------------------------------------- what is easily misread
TRAPS = {
    "a key twice": ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is there twice; leave one out"),
    "a key twice, within": ("a:\n  - {b: 1, 'b': 1}", "line 2: the key 'b' is there twice"),
    "a key twice beside a merge": (
        "a: &x {b: 1}\nc: {<<: *x, b: 2, b: 3}",
        "line 2: the key 'b' is there twice",
    ),
    "two merges": ("a: &x {b: 1}\nc: {<<: *x, <<: *x}", "line 2: the key '<<' is there twice"),
    "a merge of nothing": ("a: {<<: 1}", "line 1: what is merged by << must be a mapping"),
    "a merge of lists": ("a: {<<: [[1]]}", "line 1: what is merged by << must be a mapping"),
    "a number as key": ("a:\n  1: x", "line 2: YAML reads the key '1' as a number; write it in quotes"),
    "a small number as key": ("0.1: x", "line 1: YAML reads the key '0.1' as a number; write it in quotes"),
    "Norway as key": ("no: x", "line 1: YAML reads the key 'no' as a truth value; write it in quotes"),
    "nothing as key": ("~: x", "line 1: YAML reads the key '~' as nothing; write it in quotes"),
    "a list as key": ("? [a]\n: x", "line 1: a key must be a text"),
    "a mapping as key": ("{{a: b}: c}", "line 1: a key must be a text"),
    "an alias of a number as key": ("a: &x 1\n*x : 2", "line 2: a key must be a text"),
    "base 60": ("a: 1:30", "line 1: YAML reads '1:30' as a number to the base 60"),
    "base 60 with a fraction": ("a: -1:30.5", "line 1: YAML reads '-1:30.5' as a number to the base 60"),
    "much to the base 60": (f"a: {':'.join(['59'] * 300)}.5", "line 1: YAML reads '59:59:"),
    "base 8": ("a: 010", "line 1: YAML reads '010' as a number to the base 8; write it to the base 10"),
    "base 8 with a line": ("a: -0_17", "line 1: YAML reads '-0_17' as a number to the base 8"),
    "a date": ("a: 2024-01-01", "line 1: YAML reads '2024-01-01' as a date; write it in quotes"),
    "a time": ("a: 2001-12-14 21:59:43", "line 1: YAML reads '2001-12-14 21:59:43' as a date"),
    "no number": ("a: !!int x", "line 1: 'x' cannot be read as a number"),
    "an empty number": ("a: !!float ''", "line 1: '' cannot be read as a number"),
    "no truth value": ("a: !!bool x", "line 1: 'x' cannot be read as a truth value"),
    "a call": (
        "a: !!python/object/apply:os.system [x]",
        "the tag '!!python/object/apply:os.system' is not allowed",
    ),
    "a name": (
        "a: !!python/name:os.system",
        "the tag '!!python/name:os.system' is not allowed; leave it out",
    ),
    "bytes": ("a: !!binary eA==", "the tag '!!binary' is not allowed"),
    "a set": ("a: !!set {x, y}", "the tag '!!set' is not allowed"),
    "an ordered mapping": ("a: !!omap [x: 1]", "the tag '!!omap' is not allowed"),
    "a tag of one's own": ("a: !mine {x: 1}", "the tag '!mine' is not allowed"),
    "a tab": (
        "a:\n\tb: 1",
        "line 2: not YAML: found character that cannot start any token; indent with spaces",
    ),
    "an open list": ("a: [b", "line 2: not YAML: did not find expected ',' or ']'"),
    "a control character": ("a: \x00", "not YAML: "),
    "half a character": ("a: \ud800", "not YAML: not a text in UTF-8"),
    "half a character, escaped": ('a: "\\ud800"', "line 1: not YAML: found invalid Unicode character"),
    "two documents": ("a: 1\n---\nb: 2", "line 2: another document begins; a file holds one"),
    "an unknown alias": ("a: *x", "line 1: no anchor &x comes before the alias *x"),
    "an anchor twice": ("a: &x 1\nb: &x 2", "line 2: the anchor &x is there twice; rename one"),
    "a list in itself": ("a: &x [1, *x]", "line 1: the alias *x is within what it stands for"),
    "a mapping in itself": ("&x a: {b: &y {c: *y}}", "line 1: the alias *y is within what it stands for"),
    "a mapping merged into itself": ("a: &x {<<: *x}", "line 1: the alias *x is within what it stands for"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_traps_are_refused_by_their_line(trap: str) -> None:
    text, message = TRAPS[trap]
    assert message in refused(text)


def bomb(levels: int, fold: int) -> str:
    """A list of ``fold`` texts, and at each further level one of so many times the one before."""
    lines = ["- &a0 [" + ", ".join(["x"] * fold) + "]"]
    for level in range(1, levels):
        lines.append(f"- &a{level} [" + ", ".join([f"*a{level - 1}"] * fold) + "]")
    return "\n".join(lines)


def chain(length: int, depth: int) -> str:
    """Lists of some depth, each of which holds the one before."""
    lines = [f"- &a0 {'[' * depth}{']' * depth}"]
    lines += [f"- &a{n} {'[' * depth}*a{n - 1}, x{']' * depth}" for n in range(1, length)]
    return "\n".join(lines)


MERGED = "a0: &a0 {x: 1}\n" + "\n".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(9, 9), f"more than {MOST_NODES:,} values"),
        (bomb(2000, 2), f"more than {MOST_NODES:,} values"),
        (MERGED, f"more than {MOST_NODES:,} values"),
        ("[" * 100_000, f"more than {DEEPEST} lists and mappings within one another"),
        ("[" * 50_000 + "]" * 50_000, f"more than {DEEPEST} lists"),
        ("- " * 50_000, f"more than {DEEPEST} lists"),
        ("{a: " * 50_000, f"more than {DEEPEST} lists"),
        ("\n".join(" " * n + "a:" for n in range(2000)), f"more than {DEEPEST} lists"),
        (chain(50, 30), f"more than {DEEPEST} lists"),
    ],
    ids=["wide", "long", "merged", "open", "closed", "dashes", "braces", "indented", "chained"],
)
def test_bombs_are_refused_at_once(text: str, message: str) -> None:
    start = time.perf_counter()
    assert message in refused(text)
    assert time.perf_counter() - start < 2


def test_what_is_just_small_enough_is_read() -> None:
    assert len(parse_plain(bomb(5, 9), "some.yaml")) == 5
    deep = parse_plain("[" * DEEPEST + "]" * DEEPEST, "some.yaml")
    for _ in range(DEEPEST - 1):
        (deep,) = deep
    assert deep == []


# ---------------------------------------------------------------- the ways in
ENTRIES = ("spec", "scale", "registry")


def through(entry: str, text: bytes, folder: Path) -> str:
    """What is said of a file when it is read where its kind is; without its path."""
    places = {
        "spec": folder / "spec.yaml",
        "scale": folder / "scales" / "x.yaml",
        "registry": folder / "sets.yaml",
    }
    path = places[entry]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)

    def train() -> None:
        arguments = ["train", str(path), "--results", str(folder / "out")]
        CliRunner().invoke(app, arguments, catch_exceptions=False)

    ways: dict[str, Callable[[], object]] = {
        "spec": train,
        "scale": lambda: plan(folder, "x"),
        "registry": lambda: load(path),
    }
    with pytest.raises(FltrainError) as raised:
        ways[entry]()
    message = str(raised.value)
    assert message.isprintable() and message.startswith(f"{path}: ") and not (folder / "out").exists()
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: 1\na: 2", "line 2: the key 'a' is there twice"),
        (b"no: 1", "line 1: YAML reads the key 'no' as a truth value"),
        (b"a: 010", "line 1: YAML reads '010' as a number to the base 8"),
        (b"a: 2024-01-01", "line 1: YAML reads '2024-01-01' as a date"),
        (b"a: !!python/name:os.system", "line 1: the tag '!!python/name:os.system' is not allowed"),
        (bomb(9, 9).encode(), "values once aliases are written out"),
        (b"[" * 100_000, "within one another"),
        (b"a: \xff", "not YAML: not a text in UTF-8"),
        (
            b"a:\n\tb: 1",
            "line 2: not YAML: found character that cannot start any token; indent with spaces",
        ),
    ],
    ids=["twice", "Norway", "octal", "date", "tag", "bomb", "deep", "bytes", "tab"],
)
def test_all_that_users_write_is_read_like_this(
    tmp_path: Path, entry: str, text: bytes, message: str
) -> None:
    assert message in through(entry, text, tmp_path)


@pytest.mark.parametrize("entry", ENTRIES)
def test_files_without_anything_in_them(tmp_path: Path, entry: str) -> None:
    assert through(entry, b"# later", tmp_path) in (
        "input should be an object, got None",
        "found no entries, expected a mapping from names to data sets",
    )


def test_standard_input_is_read_like_a_file(tmp_path: Path) -> None:
    with pytest.raises(FltrainError, match=r"^standard input: line 2: the key 'a' is there twice"):
        CliRunner().invoke(app, ["train", "-"], input="a: 1\na: 2", catch_exceptions=False)
    arguments = [sys.executable, "-m", "fltrain", "train", "-"]
    for handler in ("strict", "surrogateescape"):  # what Python does with bytes that are no text
        environment = {**os.environ, "PYTHONIOENCODING": f"utf-8:{handler}"}
        done = subprocess.run(arguments, input=b"a: \xff", capture_output=True, env=environment)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"error: standard input: not YAML: not a text in UTF-8")


# ---------------------------------------------------------------- values that YAML takes for others
def spec_error(**changes: Any) -> str:
    """What is said of a run written in YAML with these lines in the place of its own."""
    lines = [f"{key}: {value}" for key, value in {**TINY, **changes}.items()]
    with pytest.raises(FltrainError) as raised:
        RunSpec.parse(parse_plain("\n".join(lines), "spec.yaml"), "spec.yaml")
    return str(raised.value)


TRUTH = "YAML reads no, off, yes and on as truth values: write a text in quotes"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("dataset", "{name: no}", f"dataset.name: input should be a valid string, got False; {TRUTH}"),
        ("dataset", "off", f"dataset: input should be an object, got False; {TRUTH}"),
        ("model", "{name: yes}", f"model: unknown model True; {TRUTH}"),
        ("method", "on", f"method: input should be an object, got True; {TRUTH}"),
        ("batchnorm", "off", f"batchnorm: input should be 'average' or 'local', got False; {TRUTH}"),
        (
            "dataset",
            "{name: 5}",
            "dataset.name: input should be a valid string, got 5",
        ),
        ("rounds", "1e400", "rounds: input should be a valid integer, got inf"),
        ("rounds", "1" + "0" * 30, "rounds: whole numbers must be below 2^63, got one of 31 digits"),
        ("training", "{lr: .inf}", "training.lr: input should be a finite number, got inf"),
        ("training", "{lr: .nan}", "training.lr: input should be a finite number, got nan"),
        ("training", "{lr: 1e400}", "training.lr: input should be a finite number, got inf"),
        (
            "evaluation",
            "{targets: [0.5, .nan]}",
            "evaluation.targets.1: input should be a finite number, got nan",
        ),
    ],
)
def test_values_that_are_not_meant_are_told_by_their_key(key: str, value: str, told: str) -> None:
    assert spec_error(**{key: value}).startswith(f"spec.yaml: {told}")


def test_numbers_without_a_point_are_numbers() -> None:
    written = "\n".join(f"{key}: {value}" for key, value in {**TINY, "training": "{lr: 1e-5}"}.items())
    spec = RunSpec.parse(
        parse_plain(f"{written}\nevaluation: {{targets: [1e-1, 5E-1]}}", "spec.yaml"), "spec.yaml"
    )
    assert (spec.training.lr, spec.evaluation.targets) == (1e-5, (0.1, 0.5))


def test_texts_that_look_like_numbers_stay_texts() -> None:
    class Titled(Settings):
        title: str | None = None
        several: Annotated[tuple[str, ...], Strict(False)] = ()

    titled = Titled.parse(parse_plain("{title: '1e5', several: ['1e5', \"no\"]}", "x"), "x")
    assert (titled.title, titled.several) == ("1e5", ("1e5", "no"))


def test_data_that_go_too_deep_are_refused() -> None:
    for depth in (300, 100_000):
        deep: list[Any] = []
        for _ in range(depth):
            deep = [deep]
        with pytest.raises(FltrainError, match=r"^x: lists or mappings are nested too deeply"):
            RunSpec.parse({**TINY, "rounds": deep}, "x")


def test_texts_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(FltrainError, match=r"^x: not plain data \(.*surrogates not allowed\)"):
        RunSpec.parse({**TINY, "dataset": "\ud800"}, "x")


# ---------------------------------------------------------------- names that become parts of paths
UNSAFE = [
    "",
    ".",
    "..",
    "../x",
    "/x",
    "a/b",
    "a\\b",
    ".x",
    "-x",
    "+x",
    "a b",
    "a\n",
    "é",
    "a\0",
    "{x}",
    "$x",
    "~",
    "x" * 101,
]
OWN = re.compile("becomes part of a path|names consist of up to 100")


@pytest.mark.parametrize("name", UNSAFE)
def test_names_cannot_lead_out_of_the_results_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(FltrainError, match=OWN):
        file_name(name)
    with pytest.raises(FltrainError, match=OWN):
        plan(CONFIG, name)
    with pytest.raises(FltrainError, match=OWN):
        Request.parse({"scale": name}, "--config")
    with pytest.raises(FltrainError, match=OWN):
        path = tmp_path / "datasets.yaml"
        path.write_text(yaml.safe_dump({name: {"reader": "digits"}}))
        load(path)
    with pytest.raises(FltrainError, match=OWN):
        path.write_text(yaml.safe_dump({"mine": {"reader": "npz", "files": [remote(name)]}}))
        load(path)
    paper: dict[str, Any] = {"paper": "toy", "title": "x", "citation": "x", "items": {"table": ITEM}}
    scale: dict[str, Any] = {"scale": "tiny", "title": "x", "reduced": True, "items": ["toy"]}
    assert planned(tmp_path, paper, scale) is None
    for changed, other in (
        ({**paper, "paper": name}, scale),
        ({**paper, "items": {name: ITEM}}, scale),
        ({**paper, "items": {"table": {**ITEM, "reported": name}}}, scale),
        (paper, {**scale, "scale": name}),
    ):
        assert OWN.search(planned(tmp_path, changed, other) or "understood")
    assert planned(tmp_path, paper, {**scale, "items": [f"{name}/table"]})


ITEM: dict[str, Any] = {
    "title": "x",
    "settings": TINY,
    "axes": {"method": ["fedavg"]},
    "table": {"rows": "method", "measures": [{"measure": "final_accuracy"}]},
}


def remote(name: str) -> dict[str, Any]:
    """A file that a data set says it is made from."""
    return {"name": name, "urls": ["http://example.org/x"], "checksum": "md5:" + "0" * 32}


def planned(folder: Path, paper: dict[str, Any], scale: dict[str, Any]) -> str | None:
    """What is said of a paper and a scale, if they are refused."""
    for name, data in {"papers/toy": paper, "scales/tiny": scale}.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(data))
    try:
        plan(folder, "tiny")
    except FltrainError as error:
        return str(error)
    return None


def test_names_that_are_taken_in_the_results_folder(tmp_path: Path) -> None:
    paper: dict[str, Any] = {"paper": "toy", "title": "x", "citation": "x", "items": {"table": ITEM}}
    scale: dict[str, Any] = {"scale": "tiny", "title": "x", "reduced": True, "items": ["toy"]}
    results = Results(Path("results"))
    folders = [results.downloads, results.executors, artefacts_of(results.tracking)]
    data = results.data(Dataset(name="digits"))
    folders += [
        file.parent for file in (data, results.partition_file("a"), results.run("a"), results.lease("a"))
    ]
    for name in ("logs", "benchmarks", *(folder.name for folder in folders)):
        assert f"scale: the name '{name}' is taken" in (
            planned(tmp_path, paper, {**scale, "scale": name}) or ""
        )
    assert "the name 'claims' is taken" in (
        planned(tmp_path, {**paper, "items": {"claims": ITEM}}, scale) or ""
    )


def test_what_is_written_under_a_name_is_read_from_it(tmp_path: Path) -> None:
    """Two files that give themselves the same name would write over each other's tables."""
    paper: dict[str, Any] = {"paper": "toy", "title": "x", "citation": "x", "items": {"table": ITEM}}
    scale: dict[str, Any] = {"scale": "tiny", "title": "x", "reduced": True, "items": ["toy"]}
    told = planned(tmp_path, {**paper, "paper": "other"}, scale)
    assert told == f"{tmp_path}/papers/toy.yaml: paper: must be called 'toy' like the file, not 'other'"
    told = planned(tmp_path, paper, {**scale, "scale": "other"})
    assert told == f"{tmp_path}/scales/tiny.yaml: scale: must be called 'tiny' like the file, not 'other'"


def test_an_item_of_too_many_runs_is_refused(tmp_path: Path) -> None:
    paper: dict[str, Any] = {
        "paper": "toy",
        "title": "x",
        "citation": "x",
        "items": {"table": ITEM},
        "seeds": 10**9,
    }
    scale: dict[str, Any] = {"scale": "tiny", "title": "x", "reduced": True, "items": ["toy"]}
    assert (planned(tmp_path, paper, scale) or "").startswith(
        "toy/table: 1 cells with 1000000000 seeds each are more than 100,000 runs; "
    )
