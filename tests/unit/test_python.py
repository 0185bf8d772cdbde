"""Use from Python: the page of the documentation, registered classes, errors."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from PIL import Image

import fltrain
from fltrain.core.errors import FltrainError
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.fedavg import FedAvg
from fltrain.models.base import Model
from fltrain.models.networks import MODELS
from fltrain.runs.register import refresh
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import CONDITIONS

from .helpers import TINY, shipped

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Forget the classes that a test registered."""
    mappings: tuple[dict[str, Any], ...] = (METHODS, MODELS)
    before = [dict(mapping) for mapping in mappings]
    yield
    for registry, names in zip(mappings, before, strict=True):
        registry.clear()
        registry.update(names)
    refresh()


def blocks(text: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the output that follows it."""
    pairs = re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", text, re.DOTALL)
    assert pairs
    return pairs


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_the_page_shows_what_its_code_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rounds: int
) -> None:
    """The last digits of accuracies can differ between machines; fewer rounds give other numbers."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    page = PAGE.read_text(encoding="utf-8")
    assert page.count('"rounds": 20,') == 1
    for code, output in blocks(page.replace('"rounds": 20,', f'"rounds": {rounds},')):
        exec(compile(code, "python.md", "exec"), names)
        printed = capsys.readouterr().out
        words, documented = (
            re.sub(r"-[0-9a-f]{10}\b|[-\d.]+|\s+", " ", text).split() for text in (printed, output)
        )
        assert words == documented
        if rounds < 20:
            continue
        numbers, expected = (
            [float(number) for number in re.findall(r"(?<![\w-])-?\d+\.\d+(?![\w-])", text)]
            for text in (printed, output)
        )
        assert numbers == pytest.approx(expected, abs=0.02 if max(expected, default=0) <= 1 else 1.0)
    if rounds == 20:
        documented, made = (
            np.asarray(Image.open(picture).convert("RGB"), dtype=float)
            for picture in (PAGE.parent / "images" / "python.webp", "results/curves.png")
        )
        assert documented.shape == made.shape and abs(documented - made).mean() < 2


NOTEBOOK = """
import fltrain, torch
from typing import ClassVar, Literal
from pydantic import Field
from fltrain.methods.base import Method

BEFORE

@fltrain.register
class Half(Method):
    name: Literal["half"] = "half"
    BODY

    def correct(self, gradient, weights, local, step_state):
        return FACTOR * gradient
"""


def cell(factor: float | str, before: str = "", body: str = "") -> str:
    """A cell of a notebook, which defines a method."""
    return NOTEBOOK.replace("FACTOR", str(factor)).replace("BEFORE", before).replace("BODY", body)


def define(factor: float | str, before: str = "", body: str = "") -> dict[str, Any]:
    """Run a cell, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(cell(factor, before, body), names)
    return names


def test_an_edited_class_is_another_run(tmp_path: Path) -> None:
    runs = []
    for factor in (0.5, 0.25, 0.5):
        define(factor)
        runs.append(fltrain.train({**TINY, "method": "half", "rounds": 1}, tmp_path))
    first, second, again = runs
    assert first.run_id == again.run_id != second.run_id
    assert not first.metrics.equals(second.metrics) and first.metrics.equals(again.metrics)


USES = {
    "attribute": ("", "strength: ClassVar[float] = VALUE", "self.strength"),
    "private attribute": ("", "_strength: float = VALUE", "self._strength"),
    "default": ("", "strength: float = VALUE", "self.strength"),
    "annotation": ("", "strength: float = Field(default=1.0, gt=VALUE)", "self.strength"),
    "method": ("", "@staticmethod\n    def _helper(): return VALUE", "self._helper()"),
    "constant": ("K = VALUE", "", "K"),
    "nested code": ("K = VALUE", "", "sum(K * i for i in [1])"),
    "helper": ("K = VALUE\ndef helper(): return K\ndef outer(): return helper()", "", "outer()"),
    "base": ("class Base(Method):\n    strength: ClassVar = [{'a': (VALUE,)}]\nMethod = Base", "", "0"),
    "base of its name": ("class Half(Method):\n    strength: ClassVar = VALUE\nMethod = Half", "", "0"),
    "object": ("import types\none = types.SimpleNamespace(value=VALUE)\none.one = one", "", "one.value"),
    "array": ("K = torch.tensor([VALUE])", "", "K"),
    "expression": ("import re\nK = re.compile('VALUE')", "", "float(K.pattern)"),
    "partial": ("from functools import partial\nK = partial(pow, VALUE)", "", "K(1)"),
    "module": ("import types, sys\nM = sys.modules['M'] = types.ModuleType('M')\nM.K = VALUE", "", "M.K"),
    "itself": ("def helper(): return Half.strength", "strength: ClassVar = VALUE", "helper()"),
}


@pytest.mark.parametrize("launcher", ["script.py", "lib/site-packages/pytest/__main__.py"])
@pytest.mark.parametrize("use", USES)
def test_whatever_an_edited_class_uses_makes_another_run(
    use: str, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", launcher, raising=False)
    before, body, factor = USES[use]
    revisions = []
    for value in ("0.5", "0.25", "0.5"):
        names = define(factor, before.replace("VALUE", value), body.replace("VALUE", value))
        revisions.append(METHODS["half"].revision)
    assert revisions[0] == revisions[2] != revisions[1]
    fltrain.register(names["Half"])
    assert METHODS["half"].revision == revisions[2]


def test_the_variable_of_a_loop_makes_another_run() -> None:
    revisions = []
    for factor in (0.5, 0.25, 0.5):

        @fltrain.register
        class Looped(Method):
            name: Literal["looped"] = "looped"

            def correct(self, gradient: Any, weights: Any, local: Any, step_state: Any) -> Any:
                return factor * gradient  # noqa: B023

        revisions.append(Looped.revision)
    assert revisions[0] == revisions[2] != revisions[1]


def test_a_class_has_one_revision_in_all_processes(tmp_path: Path) -> None:
    """As a script and as a cell of a notebook, whose source Python knows, and whatever the order of sets."""
    befores, bodies, factors = zip(*USES.values(), strict=True)
    lines = [*befores, "from fltrain.core.lazy import nn", f"S = [{set('abcdef')}, lambda: (S, K), object()]"]
    code = cell(f"[{', '.join(factors)}, S, nn]", "\n".join(lines), "\n    ".join(bodies)).replace(
        "VALUE", "1"
    )
    script = tmp_path / "script.py"
    script.write_text(f"{code}\nprint(Half.revision)")
    as_cell = f"import linecache\ncode = open({str(script)!r}).read()\n"
    as_cell += "linecache.cache['<cell>'] = len(code), None, code.splitlines(True), '<cell>'\n"
    as_cell += "exec(compile(code, '<cell>', 'exec'))"
    revisions = []
    for seed, arguments in enumerate(([script], [script], ["-c", as_cell])):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, *map(str, arguments)]
        revisions.append(subprocess.check_output(command, env=environment, text=True))
    assert len({*revisions}) == 1 and revisions[0].strip().isdecimal()


def test_training_leaves_the_threads_of_a_notebook(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    fltrain.train({**TINY, "rounds": 1}, tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 2


def test_whole_numbers_of_numpy_are_those_of_python(tmp_path: Path) -> None:
    run = fltrain.train({**TINY, "rounds": np.int64(1), "seed": np.int16(1)}, tmp_path, threads=np.int8(1))
    assert run.run_id == RunSpec.recorded({**TINY, "rounds": 1, "seed": 1}).run_id


ARGUMENTS: dict[str, Callable[[Path], object]] = {
    "results should be a path, got 5": lambda root: fltrain.train(TINY, 5),  # type: ignore[arg-type]
    "threads should be a whole number from 1, got 'a'": lambda root: fltrain.train(TINY, root, threads="a"),  # type: ignore[arg-type]
    "threads should be a whole number from 1, got 0": lambda root: fltrain.train(TINY, root, threads=0),
    "device 'gpu': use auto, cpu, cuda or cuda:N": lambda root: fltrain.train(TINY, root, device="gpu"),
    "scale should be a text, got 5": lambda root: fltrain.plan(5),  # type: ignore[arg-type]
    "config should be a path, got 5": lambda root: fltrain.plan(config=5),  # type: ignore[arg-type]
    "items should be a text or a list of texts, got 5": lambda root: fltrain.compare(root, items=5),  # type: ignore[arg-type]
    "metric should be a text, got 5": lambda root: fltrain.compare(root, metric=5),  # type: ignore[arg-type]
    f"where should be {CONDITIONS}, got [5]": lambda root: fltrain.load_runs(root, where=[5]),  # type: ignore[list-item]
    f"where should be {CONDITIONS}, got {{'seed': 0}}": lambda root: fltrain.load_runs(
        root,
        where={"seed": 0},  # type: ignore[arg-type]
    ),
    "results should be a path, got None": lambda root: fltrain.load_settings(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_arguments_of_a_wrong_type_are_refused(tmp_path: Path, message: str) -> None:
    """Also if the run has a record, so that nothing is trained."""
    fltrain.train({**TINY, "rounds": 1}, tmp_path)
    with pytest.raises(FltrainError) as refused:
        ARGUMENTS[message](tmp_path)
    assert str(refused.value) == message


def test_a_single_text_stands_for_a_list(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        fltrain.train({**TINY, "rounds": 1, "method": method}, tmp_path)
    frame = fltrain.compare(tmp_path, over="method", config=ROOT / "config")
    assert frame["row"].tolist() == ["fedavg", "fedprox"]


def test_an_unknown_item_is_named_where_no_run_is_trained(tmp_path: Path) -> None:
    with pytest.raises(FltrainError, match="'demo' has no item 'flfa/table99'; did you mean 'flfa/table1'"):
        fltrain.compare(tmp_path, items="flfa/table99", config=ROOT / "config")
    with pytest.raises(FltrainError, match="runs: no runs"):
        fltrain.compare(tmp_path, items=["flfa/table1", "flfa/figure2"], config=ROOT / "config")


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    file = fltrain.train({**TINY, "rounds": 1}, tmp_path).record.folder / "metrics.jsonl"
    rows = file.read_text()
    file.write_text("")
    with pytest.raises(FltrainError, match=r"metrics\.jsonl: changed after training"):
        fltrain.train({**TINY, "rounds": 1}, tmp_path)
    assert fltrain.train({**TINY, "rounds": 1}, tmp_path, again=True).record.usable
    assert file.read_text() == rows


def test_the_order_of_a_set_in_a_class_without_source_changes_no_run() -> None:
    """Python orders sets of texts anew in each process; 0 and 8 stand in the order of their insertion."""
    revisions = []
    for members in ("{0, 8}", "{8, 0}", "{8, 1}"):
        define(f"(local.client in {members})")
        revisions.append(METHODS["half"].revision)
    assert revisions[0] == revisions[1] != revisions[2]


def test_a_class_can_be_older_than_the_registry() -> None:
    """Without ``@``, ``fltrain.register`` is loaded after the class, which it must not take for fltrain's."""
    call = """
import fltrain
from typing import ClassVar, Literal
from fltrain.models.base import Model

class Small(Model):
    name: Literal["small"] = "small"
    min_side: ClassVar[int] = 1

    def blocks(self, channels, side, classes):
        return {}

print(fltrain.register(Small).__name__)
"""
    assert subprocess.check_output([sys.executable, "-c", call], text=True) == "Small\n"


def test_registering_changes_no_other_run() -> None:
    before = [RunSpec.parse({**TINY, "plugins": plugins}, "test").run_id for plugins in ([], ["flfa"])]
    define(0.5)
    assert [
        RunSpec.parse({**TINY, "plugins": plugins}, "test").run_id for plugins in ([], ["flfa"])
    ] == before
    for wrong, message in (
        ({"method": "hal"}, "unknown method 'hal'; did you mean 'half'"),
        ({"plugins": ["half"]}, "'half' is no plug-in; write it under 'method'"),
        ({"method": {"name": "fedprox", "mux": 1}}, "unknown key 'mux'; did you mean 'mu'"),
    ):
        with pytest.raises(FltrainError, match=message):
            RunSpec.parse({**TINY, **wrong}, "test")


def test_a_registered_network_is_trained_and_loaded(tmp_path: Path) -> None:
    from torch import nn

    @fltrain.register
    class Flat(Model):
        name: Literal["flat_notebook"] = "flat_notebook"
        min_side: ClassVar[int] = 1
        lacking: int = 0

        def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
            classifier = nn.Linear(channels * side * side, classes - self.lacking)
            return {"flatten": nn.Flatten(), "classifier": classifier}

    with pytest.raises(FltrainError, match=r"'flat_notebook' should return logits \[1, 10\] .*\[1, 9\]"):
        fltrain.train({**TINY, "model": {"name": "flat_notebook", "lacking": 1}}, tmp_path)
    record = fltrain.train({**TINY, "model": "flat_notebook", "evaluation": {"keep": "model"}}, tmp_path)
    images, labels = record.test_images()
    right = (record.model()(images).argmax(1) == labels).float().mean()
    assert float(right) == pytest.approx(record.metrics["test_accuracy"].iloc[-1])
    with pytest.raises(FltrainError, match=r"no metric 'drift' \(it has: test_accuracy"):
        record.plot("drift")
    axes = record.plot()
    assert [*axes.get_xticks()] == [*map(round, axes.get_xticks())], "rounds are whole numbers"
    assert axes.lines[0].get_ydata() == pytest.approx(record.metrics["test_accuracy"])
    assert record.plot() is not axes and len(axes.lines) == 1
    assert record.plot(ax=axes) is axes and len(axes.lines) == 2


def test_a_run_shows_its_progress_and_its_last_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fltrain.train({**TINY, "rounds": 6}, tmp_path)
    assert f"{run.run_id}: round 6 of 6, accuracy" in capsys.readouterr().err
    fltrain.train({**TINY, "rounds": 6}, tmp_path)
    assert capsys.readouterr().err == f"{run.run_id}: already trained (again=True retrains it)\n"
    for again in (True, False):
        fltrain.train({**TINY, "rounds": 6}, tmp_path, again=again, quiet=True)
    assert capsys.readouterr().err == ""
    html = run._repr_html_()
    assert html.startswith(f"<p>{run.run_id}: completed, final accuracy ")
    assert re.findall(r"<th>(\d+)</th>", html) == list("23456")


INTERRUPTED = """
import os, signal, threading, fltrain
from typing import Literal
from fltrain.methods.base import Aggregate, Method

ROUNDS = []

@fltrain.register
class Interrupted(Method):
    name: Literal["interrupted"] = "interrupted"

    def aggregate(self, task, state, before, updates):
        ROUNDS.append(1)
        if len(ROUNDS) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return Aggregate()

spec = {**SPEC, "rounds": 5, "method": "interrupted"}
try:
    fltrain.train(spec, "results")
except KeyboardInterrupt as stopped:
    print(stopped)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(fltrain.train(spec, "results").status)
train = lambda: print(fltrain.train({**spec, "seed": 1}, "results").status, flush=True)
thread = threading.Thread(target=train)
thread.start()
thread.join()
os._exit(0)  # after a gradient in a thread, the end of Python can abort in PyTorch
"""


def test_ctrl_c_saves_a_run_of_a_session_which_goes_on(tmp_path: Path) -> None:
    """It is pressed in the third round; the next call resumes the run. Other threads have no signals."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.replace("SPEC", repr(TINY))],
        **{"cwd": tmp_path, "capture_output": True, "text": True, "check": True},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    stopped, *statuses = done.stdout.splitlines()
    rounds = re.fullmatch(
        r"digits-interrupted-\w+: stopped by SIGINT after round (\d) of 5; the next start resumes after "
        r"round (\d)",
        stopped,
    )
    assert rounds and rounds[1] == rounds[2] and rounds[1] in "23" and statuses == ["completed", "completed"]
    assert f"resumed after round {rounds[1]} of 5" in done.stderr


def test_a_run_of_a_file_without_a_model_says_how_to_keep_one(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps({**TINY, "rounds": 1}))
    record = fltrain.train(str(file), tmp_path)
    assert repr(record).startswith(f"<{record.run_id}: completed, final accuracy ")
    images, labels = record.test_images()
    assert (images.shape, labels.dtype) == ((len(labels), 1, 8, 8), torch.int64)
    with pytest.raises(fltrain.FltrainError, match=r"keeps no model; set evaluation\.keep"):
        record.model()
    assert fltrain.train(tmp_path / "runs" / record.run_id / "spec.json", tmp_path).run_id == record.run_id
    file.write_text("dataset: digits\nroundz: 1\n")
    with pytest.raises(FltrainError, match=r"spec\.yaml: 4 problems:(?s:.*) line 2: roundz: "):
        fltrain.train(file, tmp_path)
    with pytest.raises(FltrainError, match=r"nofile\.yaml: no such file"):
        fltrain.train("nofile.yaml", tmp_path)


def test_an_attribute_without_a_type_is_refused() -> None:
    form = "'min_side' has no type; write `min_side: ClassVar[int] = 1` (a constant) or `min_side: int = 1`"
    with pytest.raises(FltrainError, match=rf"\.py:\d+: class Small: {re.escape(form)}"):

        class Small(Model):
            min_side = 1  # type: ignore[misc,assignment]

    with pytest.raises(
        FltrainError, match=r": class Mine: 'name' has no type; write `name: Literal\['mine'\] = "
    ):

        class Mine(Method):
            name = "mine"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (FedAvg, "'fedavg' is the name of fltrain.methods.fedavg.FedAvg; choose another"),
        (int, "int is no subclass of fltrain.methods.base.Method"),
        (Method, "Method has no name"),
        (Model, "Model has no name; write, for example,"),
    ],
)
def test_a_class_that_cannot_be_registered_is_refused(wrong: type, message: str) -> None:
    with pytest.raises(FltrainError, match=message):
        fltrain.register(wrong)  # type: ignore[type-var]


def test_a_plan_is_made_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = shipped("demo").runs
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()  # of another project
    planned = fltrain.plan("demo")
    assert planned.runs.keys() == runs.keys()
    assert str(planned) == f"<scale demo: {len(runs)} runs for {len(planned.items)} items>"
    assert repr(planned.items[0]) == "<fedavg/table1_2nn: 4 runs>"
    record = fltrain.train({**TINY, "rounds": 1}, "results", quiet=True)
    assert (tmp_path / "results" / ".gitignore").read_text() == "*\n"
    with pytest.raises(FltrainError, match="no run of 'fedavg/table1_2nn'"):
        fltrain.compare(items="fedavg/table1_2nn")
    calls: tuple[Callable[[], object], ...] = (
        lambda: fltrain.plan("demo", config="nowhere"),
        lambda: fltrain.compare(items="fedavg/table1_2nn", config="nowhere"),
    )
    for call in calls:
        with pytest.raises(FltrainError, match=r"no such folder; .*: config=PATH in Python"):
            call()
    assert {*fltrain.load_runs()["run"]} == {record.run_id}
