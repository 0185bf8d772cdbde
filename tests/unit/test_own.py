"""The user's own folder, `FLTRAIN_PATH`: the template adds a paper, a scale, a dataset and a method."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fltrain.core.errors import OWN_PACKAGE, FltrainError
from fltrain.core.own import VARIABLE, import_own
from fltrain.data.datasets import registry
from fltrain.experiments.plan import plan
from fltrain.experiments.schema import Register, read_added

from ..released import UNTRACKED
from .helpers import PAPER, SCALE, TWO_METHODS, write_papers

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "config" / "examples" / "own"


def run(folder: Path, *arguments: str, stdin: str = "", own_folder: Path = TEMPLATE) -> str:
    """The output of a program in a folder with the project's configuration, and with an own folder."""
    environment = {**os.environ, "COLUMNS": "250", VARIABLE: str(own_folder)}
    environment.pop("PYTEST_XDIST_WORKER", None)  # a pytest that it starts is no worker of this one
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment, input=stdin
    )
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("config", "workflow", "Snakefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


# One process, because components are loaded once per process.
PROGRAM = """
import sys
from fltrain.__main__ import main
for arguments in ("plan --scale mine --gpu a100", "train - --device cpu --quiet --set method=fedhalf"):
    sys.argv = ["fltrain", *arguments.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments
from fltrain.experiments.jobs import Jobs
print(Jobs.of({"scale": "mine"}).paper_inputs("mine")["published"])
"""


def test_the_template_is_planned_and_trained(project: Path) -> None:
    settings = yaml.safe_load((TEMPLATE / "papers" / "mine.yaml").read_text())["settings"]
    output = run(project, "-c", PROGRAM, stdin=yaml.safe_dump({**settings, "rounds": 1}))
    assert "Accuracy with smaller gradients" in output and "NVIDIA A100" in output, output
    assert "my-digits-fedhalf-" in output and ": completed, final accuracy " in output, output
    assert str([f"{TEMPLATE}/reported/mine_table1.csv"]) in output


@pytest.mark.slow
def test_the_workflow_makes_the_template(project: Path) -> None:
    dry = run(project, "-m", "snakemake", "--dry-run", "--config", "scale=mine")
    assert "results/runs/my-digits-fedhalf-" in dry and "results/mine/mine/table1.csv" in dry, dry


@pytest.mark.skipif(bool(UNTRACKED), reason="generated files follow once Git tracks new components")
def test_generated_files_have_no_components_of_the_own_folder() -> None:
    pages = ("schemas/run.json", "schemas/register.json")
    assert run(ROOT, "docs/generate.py", "--check", *pages) == ""


@pytest.mark.slow
def test_own_methods_and_networks_are_tested_on_request(tmp_path: Path) -> None:
    """The generated tests, with the template's method and the network of the guide."""
    shutil.copytree(TEMPLATE, tmp_path / "own")
    (tmp_path / "own" / "models").mkdir()
    guide = (ROOT / "docs" / "add-a-network.md").read_text()
    network = guide.split("```python\n")[1].split("```")[0].replace("two_layer", "two_own")
    (tmp_path / "own" / "models" / "mine.py").write_text(network)  # the package may have the guide's, too
    command = (
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/properties/test_every_method.py",
    )
    chosen = ("-k", "two_own or (fedhalf and (overwrite or neutral_base))")
    output = run(ROOT, *command, "--own", *chosen, own_folder=tmp_path / "own")
    assert (
        "3 passed" in output
        and "UserWarning: fedimpro refuses: plugins.fedimpro.split: this network cannot be" in output
    ), output
    assert " passed" not in run(ROOT, *command, *chosen, own_folder=tmp_path / "own")


FORWARD = """
from typing import ClassVar, Literal
from fltrain.methods.base import Method

class Whole(Method):
    name: Literal["zwhole"] = "zwhole"
    plugin: ClassVar[bool] = True

    def forward(self, network, step, local, step_state):
        return super().forward(network, step, local, step_state)
"""


def test_tests_are_collected_with_any_further_plugin(tmp_path: Path) -> None:
    """With the tutorial's plug-in, and one that like fedimpro defines the exclusive hook ``forward``.

    The package may have the tutorial's plug-in, or others, too.
    """
    methods = tmp_path / "methods"
    methods.mkdir()
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    clip = tutorial.split("```python\n")[1].split("```")[0]
    (methods / "aclip.py").write_text(clip.replace('"clip"', '"aclip"'))
    (methods / "zwhole.py").write_text(FORWARD)
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "--collect-only", "--own")
    output = run(ROOT, "-m", "pytest", *options, "tests/engine", "tests/properties", own_folder=tmp_path)
    assert "ERROR" not in output and "[fedavg+zwhole]" in output, output[-2000:]
    together = {name for name in re.findall(r"[a-z+0-9]+", output) if name.startswith("fedsol+")}
    (parts,) = (name.split("+") for name in together if name.count("+") > 1)
    assert parts[1] == "aclip" and "zwhole" not in parts


def test_registers_are_added_and_names_in_both_places_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, own_folder = tmp_path / "config", tmp_path / "own"
    write_papers(config, PAPER)
    assert [item.id for item in plan(config, "one").items] == ["toy/table"]
    study = {**PAPER, "paper": "study", "items": {"figure": TWO_METHODS}}
    write_papers(own_folder, study, scale={**SCALE, "scale": "both", "items": ["toy", "study"]})
    entry = {"question": "q", "assumed": "a"}
    for folder, name in ((config, "one"), (own_folder, "two")):
        (folder / "register.yaml").write_text(yaml.safe_dump({"entries": {name: entry}}))
    monkeypatch.setenv(VARIABLE, str(own_folder))
    assert [item.id for item in plan(config, "both").items] == ["toy/table", "study/figure"]
    assert [*read_added(config, "register.yaml", Register).entries] == ["one", "two"]
    shutil.copy(config / "register.yaml", own_folder)
    with pytest.raises(
        FltrainError, match=r"own/register.yaml: entries: .*config/register.yaml has 'one', too"
    ):
        plan(config, "both")
    (own_folder / "register.yaml").unlink()
    with pytest.raises(FltrainError, match="unknown scale 'bot'; did you mean 'both'"):
        plan(config, "bot")
    (own_folder / "scales" / "xyz.yml").touch()
    with pytest.raises(FltrainError, match=r"'xyz' \(known from .yaml files in .*/scales and .*own/scales: "):
        plan(config, "xyz")
    shutil.copy(config / "papers" / "toy.yaml", own_folder / "papers")
    with pytest.raises(FltrainError, match=r"own/papers/toy.yaml: the paper is also in .*config/papers/toy"):
        plan(config, "both")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(FltrainError, match="nowhere: there is no such folder; copy config/examples/own"):
        plan(config, "one")


def test_wrong_entries_of_datasets_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_papers(tmp_path, {**PAPER, "items": {"one": TWO_METHODS, "two": TWO_METHODS}})
    (tmp_path / "datasets.yaml").write_text("a: {reader: npz, pathh: x}\nb: {reader: npz}\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    registry.cache_clear()
    with pytest.raises(
        FltrainError, match=r"2 problems:\n  a: line 1: pathh: .*\n  b: line 2: reader 'npz'.*$"
    ):
        plan(tmp_path, "one")


def test_the_workflow_names_a_fault_in_the_own_folder_in_one_line(project: Path) -> None:
    (project / "own" / "readers").mkdir(parents=True)
    reader = "from fltrain.data.readers.base import Reader\n\nclass Nameless(Reader):\n    pass\n"
    (project / "own" / "readers" / "mine.py").write_text(reader)
    output = run(project, "-m", "snakemake", "--dry-run", own_folder=project / "own")
    assert output == (
        f"error: {project}/own/readers/mine.py:3: class Nameless: lacks 'name'; "
        "write name: Literal['nameless'] = 'nameless'\n"
    )


UNTYPED = "from fltrain.methods.base import Method\n\nclass Broken(Method):\n    mu = 0.1\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "import nothing_like_this\n",
            r"methods/broken\.py: cannot be loaded \(ModuleNotFoundError: .*\); see methods/broken\.py:1$",
        ),
        (
            UNTYPED,
            r"methods/broken\.py:3: class Broken: 'mu' has no type; write `mu: ClassVar\[float\] = 0\.1` ",
        ),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "broken.py").write_text(text)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.delitem(sys.modules, OWN_PACKAGE, raising=False)
    with pytest.raises(FltrainError, match=reason):
        import_own("methods")


def test_a_file_can_import_classes_of_a_package(tmp_path: Path) -> None:
    method = """
from typing import ClassVar, Literal
from fltrain.methods.base import Method

class Outside(Method):
    name: Literal["outside"] = "outside"
    citation: ClassVar[str] = "an example"
"""
    for name, text in {
        "package/outside": method,
        "own/methods/mine": "from outside import Outside\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / f"{name}.py").write_text(text)
    paths = [str(ROOT), str(tmp_path / "package")]
    environment = {**os.environ, VARIABLE: str(tmp_path / "own"), "PYTHONPATH": os.pathsep.join(paths)}
    program = "from fltrain.methods import METHODS; print(METHODS['outside'].__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "outside\n", done.stderr
