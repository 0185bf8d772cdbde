"""The documentation says what is in the code: pages, settings, generated parts, links."""

import re
import runpy
from pathlib import Path

import pytest
import torch
import yaml

from fltrain.data.prepared import prepare
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.spec import RunSpec

from .helpers import federation, tiny

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"
SECTIONS = [
    "What it optimises",
    "Settings",
    "Variants",
    "What is tested",
    "Where well-known frameworks deviate",
    "Cost and traffic",
]

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))


def page(method: type[Method]) -> str:
    return (PAGES / f"{method.model_fields['name'].default}.md").read_text(encoding="utf-8")


def yaml_of(default: object) -> str:
    """How a default is written in a config."""
    if isinstance(default, tuple):
        return str(list(default))
    return str(default).lower() if isinstance(default, bool) else "null" if default is None else str(default)


@every_method
def test_every_method_has_a_page_with_all_sections(method: type[Method]) -> None:
    assert re.findall(r"^## (.*)$", page(method), flags=re.MULTILINE) == SECTIONS


@every_method
def test_the_page_names_every_setting_with_its_default(method: type[Method]) -> None:
    rows = {
        cells[0].strip().strip("`"): cells[1].strip().strip("`").strip("'\"")
        for line in page(method).splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) >= 4
    }
    for name, field in method.model_fields.items():
        if name != "name":
            assert rows.get(name) == yaml_of(field.default), name
    assert rows.keys() <= method.model_fields.keys()


@every_method
def test_examples_on_the_page_are_valid_runs(method: type[Method]) -> None:
    name = method.model_fields["name"].default
    examples = re.findall(r"^```yaml\n(.*?)^```", page(method), flags=re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        run = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}, "model": "mobilenet_tiny"}
        spec = RunSpec.parse({**run, "method": "fedavg", **yaml.safe_load(example)}, name)
        assert name in spec.composition.name.split("+")


def test_the_example_of_a_method_works(tmp_path: Path) -> None:
    """The file of the guide is a method that trains, and is federated averaging when it is neutral."""
    text = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    code, run = (
        re.search(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL).group(1)
        for kind in ("python", "yaml")
    )
    namespace: dict[str, object] = {}
    exec(code, namespace)
    example = namespace["FedCalm"]
    assert yaml.safe_load(run)["method"]["name"] == example.model_fields["name"].default
    data = prepare(tiny().dataset, tmp_path / "digits.safetensors", tmp_path)
    weights = []
    for method in (example(), example(**example.neutral), METHODS["fedavg"]()):
        simulation = federation(RunSpec.model_construct(**{**dict(tiny()), "method": method}), data)
        simulation.round(0)
        weights.append(simulation.server.weights)
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[2])


def test_the_index_is_up_to_date() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert (PAGES / "README.md").read_text(encoding="utf-8") == generate["index"]()


def test_the_matrix_has_a_row_for_every_base_and_a_column_for_every_plug_in() -> None:
    """Its cells are checked by ``docs/generate.py --check``, which takes longer."""
    text = (PAGES / "compatibility.md").read_text(encoding="utf-8")
    heads, *rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    plugins = {name for name, method in METHODS.items() if method.plugin}
    assert plugins <= {head.strip() for head in heads}
    assert METHODS.keys() - plugins == {row[0].strip() for row in rows if row[0].strip() not in ("", "---")}


def test_files_named_in_the_documentation_exist() -> None:
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"]:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
        for path in re.findall(r"`((?:fltrain|tests|docs|benchmarks|config|workflow)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{document.name}: {path}"
