"""YAML of users: values are read as intended, and ambiguous values are refused with file and line."""

import math
import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import yaml

from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.strict_yaml import read_plain, read_settings
from fltrain.data.datasets import Dataset, load
from fltrain.experiments.plan import plan
from fltrain.experiments.selection import Request
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.tracking.store import artifacts_of

from .helpers import PAPER, SCALE, TINY, TWO_METHODS, cli

CONFIG = Path(__file__).parents[2] / "config"


def parsed(text: str, folder: Path) -> Any:
    """The data of a text in a file ``some.yaml``."""
    path = folder / "some.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    return read_plain(path)


VALUES = {
    "1e-5": 1e-5,
    "-3E+4": -3e4,
    ".5": 0.5,
    "-.5e1": -5.0,
    "1.": 1.0,
    "+7": 7,
    "010": 10,
    "0o17": 15,
    "0x1F": 31,
    "1e400": math.inf,
    "-.INF": -math.inf,
    "True": True,
    "FALSE": False,
    "~": None,
    "": None,
    "null": None,
    "'1'": "1",
    **{text: text for text in ("no", "off", "1:30", "2024-01-01", "1_000", "0b1", "=", "1e", "e5", "0x")},
}


@pytest.mark.parametrize("text", VALUES)
def test_values_follow_the_core_schema(text: str, tmp_path: Path) -> None:
    value = parsed(f"key: {text}", tmp_path)["key"]
    assert repr(value) == repr(VALUES[text])


CHECK = "; check indentation, colons, quotes and brackets of this line and the line before"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: not YAML: the key 'a' occurs twice"),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2, b: 3}", "line 2: not YAML: the key 'b' occurs twice"),
        ("a: {<<: 1}", "line 1: not YAML: expected a mapping"),
        ("a:\n  1: x", "line 2: not YAML: the key '1' is no text; write it in quotes"),
        ("true: x", "line 1: not YAML: the key 'true' is no text"),
        ("a: !!int x", "not YAML: invalid literal for int"),
        (f"a: {'1' * 5000}", "not YAML: Exceeds the limit"),
        ("a: !!python/object/apply:os.system [x]", "line 1: not YAML: could not determine a constructor"),
        (
            "a: {b: 0,05}",
            "line 1: not YAML: the key '05' is no text; write it in quotes (numbers have a",
        ),
        ("a: {b: x, 05}", "line 1: not YAML: the key '05' is no text"),
        ("a:\n\tb: 1", "line 2: not YAML: found character that cannot start any token; indent with spaces"),
        ("a: `b`", "cannot start any token; write a text that begins with '`' in quotes"),
        ("\ufeffa: @b", "cannot start any token; write a text that begins with '@' in quotes"),
        ("a: [b", f"line 2: not YAML: did not find expected ',' or ']'{CHECK}"),
        ("a: [b\nc: 2", f"line 2: not YAML: did not find expected ',' or ']'{CHECK}"),
        ("a: 1\nrounds 30\nb: 2", f"line 2: not YAML: could not find expected ':'{CHECK}"),
        ("a:\n  b: 1\n  c 2\n\n\nd: 3", f"line 3: not YAML: could not find expected ':'{CHECK}"),
        ("a:\n  - b\n c: 1", f"line 3: not YAML: did not find expected key{CHECK}"),
        ("a: 1\n  b: 2", f"line 2: not YAML: mapping values are not allowed in this context{CHECK}"),
        ('a: 1\nb: "c\nd: 2\ne: 3', f"line 2: not YAML: found unexpected end of stream{CHECK}"),
        ('a: "b\n  \\y"', f"line 2: not YAML: found unknown escape character{CHECK}"),
        ("a: \x00", "not YAML: "),
        ("a: \ud800", "not YAML: not a text in UTF-8"),
        ("a: 1\n---\nb: 2", "line 2: not YAML: but found another document"),
        ("a: *x", "line 1: not YAML: found undefined alias"),
    ],
)
def test_mistakes_are_refused_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FltrainError, match=re.escape(message)) as raised:
        parsed(text, tmp_path)
    error = str(raised.value)
    assert error.startswith(f"{tmp_path}/some.yaml: ") and error.isprintable() and len(error) < 1000


def test_all_repeated_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FltrainError, match=r"some.yaml: 2 problems:\n  line 2: .*'a'.*\n  line 4: .*'c' occurs"
    ):
        parsed("a: 1\na: 2\nb: {c: 1,\n c: 2}", tmp_path)


def test_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FltrainError, match=r"^standard input: line 2: not YAML: the key 'a' occurs twice"):
        cli("train", "-", given="a: 1\na: 2")
    for handler in ("strict", "surrogateescape"):  # how Python decodes bytes that are not text
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"a: \xff"), "utf-8", handler))
        with pytest.raises(FltrainError, match=r"^standard input: not YAML: not a text in UTF-8"):
            read_plain(None)


SPEC = """\
dataset: {name: digits}
partition: &some {name: dirichlet, client: 5}
model: lenet
method: fedavg
lr: 0.1
local_test: yes
training:
  lr: .inf
  batch_size: no
  lr_schedule: {name: exponential, decay: 2}
evaluation:
  targets:
    - 0.5
    - .nan
rounds: 1.5
"""
PROBLEMS = {
    2: "partition.client: unknown key 'client'; did you mean 'clients'?",
    3: "model: unknown model 'lenet'; did you mean 'lenet5'?",
    5: "lr: unknown key 'lr'; did you mean 'training.lr'?",
    6: "local_test: a share is a number from 0 to 1, such as 0.5, got 'yes'",
    8: "training.lr: input should be a finite number, got inf",
    9: "training.batch_size: input should be a valid integer, got 'no'",
    10: "training.lr_schedule.decay: input should be less than or equal to 1, got 2",
    14: "evaluation.targets.1: input should be a finite number, got nan",
    15: "rounds: input should be a valid integer, got 1.5",
}


def test_all_problems_of_a_file_are_named_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    with pytest.raises(FltrainError) as raised:
        read_settings(path, RunSpec)
    head, *lines = str(raised.value).splitlines()
    assert head == f"{path}: {len(PROBLEMS)} problems:" and len(lines) == len(PROBLEMS)
    for line, (number, problem) in zip(lines, PROBLEMS.items(), strict=True):
        assert line.startswith(f"  line {number}: {problem}")


@pytest.mark.parametrize("key", ["local_test", "participation"])
def test_a_number_is_short_for_a_fraction(key: str) -> None:
    short, long = ({**TINY, key: value} for value in (0.4, {"fraction": 0.4}))
    assert RunSpec.parse(short, "x") == RunSpec.parse(long, "x")
    for wrong in (True, "0.4", 1.5):
        with pytest.raises(FltrainError, match=f"^x: {key}"):
            RunSpec.parse({**TINY, key: wrong}, "x")


def test_decimal_commas_are_named() -> None:
    for key, value in {"training.lr": "0,05", "rounds": "1,000"}.items():
        with pytest.raises(FltrainError, match=f"got '{value}'; numbers have a decimal point"):
            first, _, inner = key.partition(".")
            RunSpec.parse({**TINY, first: {inner: value} if inner else value}, "x")


def test_data_nested_too_deeply_or_in_themselves_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(f"rounds: {'[' * 3000}{']' * 3000}")
    with pytest.raises(FltrainError, match=f"^{path}: not YAML: lists or mappings are nested too deeply"):
        read_settings(path, RunSpec)
    for text in ("rounds: &x [1, *x]", "rounds: &x {y: *x}"):
        path.write_text(text)
        with pytest.raises(FltrainError, match=f"^{path}: line 1: not YAML: it contains itself"):
            read_settings(path, RunSpec)


UNSAFE = ["", "..", "../x", "/x", "a\\b", ".x", "-x", "a b", "a\n", "é", "a\0", "{x}", "$x", "~", "x" * 101]
OWN = re.compile("becomes part of a path")


@pytest.mark.parametrize("name", UNSAFE)
def test_names_that_are_not_valid_in_a_path_are_refused(name: str) -> None:
    with pytest.raises(FltrainError, match=OWN):
        file_name(name)


def test_names_cannot_lead_out_of_the_results_folder(tmp_path: Path) -> None:
    name, registry = "../x", tmp_path / "datasets.yaml"
    registry.write_text(yaml.safe_dump({name: {"reader": "digits"}}))
    with pytest.raises(FltrainError, match=OWN):
        load(registry)
    for refused in (lambda: plan(CONFIG, name), lambda: Request.parse({"scale": name}, "--config")):
        with pytest.raises(FltrainError, match=OWN):
            refused()
    assert planned(tmp_path, PAPER, SCALE) is None
    for changed, other in (
        ({**PAPER, "paper": name}, SCALE),
        ({**PAPER, "items": {name: TWO_METHODS}}, SCALE),
        ({**PAPER, "items": {"table": {**TWO_METHODS, "reported": name}}}, SCALE),
        (PAPER, {**SCALE, "scale": name}),
    ):
        assert OWN.search(planned(tmp_path, changed, other) or "understood")
    assert planned(tmp_path, PAPER, {**SCALE, "items": [f"{name}/table"]})


def planned(folder: Path, paper: dict[str, Any], scale: dict[str, Any]) -> str | None:
    """The error message for a paper and a scale; None if they are accepted."""
    for name, data in {"papers/toy": paper, "scales/one": scale}.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(data))
    try:
        plan(folder, "one")
    except FltrainError as error:
        return str(error)
    return None


def test_reserved_names_of_the_results_folder_are_refused(tmp_path: Path) -> None:
    results = Results(Path("results"))
    folders = [results.downloads, artifacts_of(results.tracking)]
    data = results.data(Dataset(name="digits"))
    folders += [file.parent for file in (data, results.run("a"), results.lease("a"))]
    for name in ("logs", "benchmarks", *(folder.name for folder in folders)):
        assert f"scale: the name '{name}' is taken" in (
            planned(tmp_path, PAPER, {**SCALE, "scale": name}) or ""
        )
    assert "the name 'claims' is taken" in (
        planned(tmp_path, {**PAPER, "items": {"claims": TWO_METHODS}}, SCALE) or ""
    )


def test_names_in_files_must_equal_the_file_names(tmp_path: Path) -> None:
    """Two files with the same name inside would overwrite each other's tables."""
    message = planned(tmp_path, {**PAPER, "paper": "other"}, SCALE)
    assert message == f"{tmp_path}/papers/toy.yaml: paper: must be called 'toy' like the file, not 'other'"
    message = planned(tmp_path, PAPER, {**SCALE, "scale": "other"})
    assert message == f"{tmp_path}/scales/one.yaml: scale: must be called 'one' like the file, not 'other'"
