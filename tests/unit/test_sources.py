"""Code and machine in records: digests of sources, provenance, and remarks about differing runs."""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fltrain.core.files import write_json
from fltrain.runs import today
from fltrain.runs.record import Record, Results, sealed, write_record
from fltrain.runs.today import (
    RunStatus,
    changed_code,
    changed_modules,
    components,
    notes_on,
    source_digests,
)
from fltrain.runtime import provenance
from fltrain.runtime.provenance import DECISIVE, changes, gather, merged

from .helpers import CPU, cli, forget_sources, tiny, trained

OUTSIDE = '''
from typing import Literal

from outside_code import helper
from fltrain.methods.base import Method


class Mine(Method):
    """A method in a file of its own."""

    name: Literal["outside_mine"] = "outside_mine"

    def factor(self) -> float:
        # a comment
        return helper.FACTOR * 2.0
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package outside fltrain with a method and a module that the method imports."""
    folder = tmp_path / "outside_code"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "helper.py").write_text("FACTOR = 1.0\n")
    (folder / "mine.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    kind = importlib.import_module("outside_code.mine").Mine
    monkeypatch.setattr(today, "components", lambda spec: [kind(), *components(spec)])
    forget_sources()
    yield folder
    for name in [name for name in sys.modules if name.startswith("outside_code")]:
        del sys.modules[name]
    forget_sources()


def made(folder: Path, *provenances: dict[str, Any], settings: Sequence[dict[str, Any]] = ()) -> list[Record]:
    """Hand-made records with these provenances, which differ in these settings (default: their seeds)."""
    specs = [tiny(**entry) for entry in settings or [{"seed": seed} for seed in range(len(provenances))]]
    records = [Record(folder / spec.run_id) for spec in specs]
    for record, spec, about in zip(records, specs, provenances, strict=True):
        write_record(record.folder, spec, [], {"run_id": record.run_id, "digests": {}}, {}, about)
    return records


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("mine.py", "* 2.0", "* 3.0", ["outside_code.mine"]),
        ("helper.py", "1.0", "1.5", ["outside_code.helper"]),
        ("mine.py", "# a comment", "# another comment", []),
        ("mine.py", "A method in a file of its own.", "Doubles.", []),
        ("mine.py", "helper.FACTOR * 2.0", "(\n            helper.FACTOR\n * 2.00)", []),
    ],
)
def test_a_digest_changes_with_the_code_only(
    file: str, old: str, new: str, changed: list[str], outside: Path
) -> None:
    (record,) = made(outside.parent, {"sources": source_digests(tiny())})
    path = outside / file
    path.write_text(path.read_text().replace(old, new))
    forget_sources()
    assert changed_modules(record, tiny()) == changed


def test_a_run_depends_on_its_own_components_only() -> None:
    average = source_digests(tiny())
    prox = source_digests(tiny(method="fedprox", plugins=["ecgr"]))
    assert {*prox} - {*average} == {"methods.fedprox", "methods.ecgr"}
    assert {*average} - {*prox} == {"methods.fedavg"}
    assert all(average[name] == prox[name] for name in {*average} & {*prox})
    perceptron = source_digests(tiny(model="mlp"))
    assert {*perceptron} - {*average} == {"models.networks.mlp"}
    assert {*average} - {*perceptron} == {"models.networks.mobilenet_tiny"}


def test_copies_that_an_editor_keeps_are_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("methods/toy.py", "methods/.ipynb_checkpoints/toy-checkpoint.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("toy = 1\n")
    monkeypatch.setattr(today, "_PACKAGE", tmp_path)
    forget_sources()
    assert {*source_digests(tiny())} == {"methods.toy"}
    forget_sources()


def test_digests_cover_all_code_that_determines_numbers() -> None:
    names = source_digests(tiny())
    assert {*names} >= {
        "engine.simulation",
        "engine.cuda_graph",
        "engine.local",
        "data.prepared",
        "core.rng",
        "methods.base",
        "models.flat",
        "data.readers.digits",
    }
    assert not {name for name in names if name.startswith(("runs.", "reporting.", "core.errors"))}
    assert "data.fetch" not in names, "checksums cover its files"


@pytest.fixture(scope="module")
def prox(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return trained(tiny(method="fedprox", model="mlp", rounds=1), tmp_path_factory.mktemp("results"))


def test_changed_code_is_reported(prox: Record, tmp_path: Path) -> None:
    """By status and train, until the run is trained again; a record without digests is valid."""
    spec, results = tiny(method="fedprox", model="mlp", rounds=1), Results(tmp_path / "results")
    record = Record(Path(shutil.copytree(prox.folder, results.run(prox.run_id))))
    original = record.provenance
    assert original["sources"] == source_digests(spec)
    assert RunStatus.of(spec.run_id, spec, results).detail == "" and notes_on([record, record]) == []
    (tmp_path / "run.json").write_text(spec.to_json())
    arguments = ("train", tmp_path / "run.json", "--results", results.root)
    edited = {**original["sources"], "methods.fedprox": "0"}
    for sources, expected in {
        "edited": (edited, "methods.fedprox changed after this run"),
        "none": (None, "code not recorded"),
    }.values():
        write_json(record.folder / "provenance.json", sealed({**original, "sources": sources}))
        changed = Record(record.folder)
        assert changed.usable and changed_code(changed, spec) == expected
        assert RunStatus.of(spec.run_id, spec, results)[:2] == ("completed", expected)
        line = f"{spec.run_id}: already trained (--again retrains it); {expected}\n"
        if sources:
            line = (
                f"{spec.run_id}: already trained; {expected}; if a change of yours affects results, increase "
            )
            line += "`revision` (docs/records.md#changed-code); --again retrains it\n"
        assert cli(*arguments).stdout == line
        assert changed_modules(changed, spec) == (["methods.fedprox"] if sources else [])
    assert changed_code(trained(spec, results.root), spec) == ""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout with a package, from which provenance is gathered."""
    package = tmp_path / "checkout" / "fltrain"
    (package / "runtime").mkdir(parents=True)
    (package / "runtime" / "provenance.py").write_text("")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "start"],
    ):
        subprocess.run(["git", *command], cwd=package.parent, check=True)
    monkeypatch.setattr(provenance, "__file__", str(package / "runtime" / "provenance.py"))
    return package


def test_dirty_counts_untracked_files_of_the_package_and_plugins(checkout: Path, tmp_path: Path) -> None:
    assert gather(CPU, 1)["dirty"] is False
    (checkout.parent / "notes.txt").touch()
    assert gather(CPU, 1)["dirty"] is False, "not below the package"
    (checkout / "methods").mkdir()
    (checkout / "methods" / "ditto.py").touch()
    assert gather(CPU, 1)["dirty"] is True
    (checkout / "methods" / "ditto.py").unlink()
    alone, installed = tmp_path / "plugin.py", Path(pytest.__file__)
    alone.touch()
    assert gather(CPU, 1, [alone])["dirty"] is True, "a file without history"
    assert gather(CPU, 1, [installed])["dirty"] is False, "its package has a version"
    assert gather(CPU, 1, [checkout / "runtime" / "provenance.py"])["dirty"] is False, "committed"


def test_without_a_commit_the_state_of_the_code_is_unknown(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without git, without a repository, or in a package that another project's git ignores."""
    unknown = {"commit": None, "dirty": None}
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        assert gather(CPU, 1, [checkout / "plugin.py"]).items() >= unknown.items()
    subprocess.run(["git", "rm", "-rq", "--cached", "."], cwd=checkout, check=True)
    (checkout.parent / ".gitignore").write_text("fltrain\n")
    assert gather(CPU, 1).items() >= unknown.items()
    shutil.rmtree(checkout.parent / ".git")
    assert gather(CPU, 1).items() >= unknown.items()


FACTS: dict[str, Any] = {
    **gather(CPU, 1),
    "sources": {"engine.clients": "1", "methods.fedavg": "2"},
    "determinism": "bitwise",
    "nondeterministic_operations": [],
    "after_round": 0,
}


@pytest.mark.parametrize("fact", DECISIVE)
def test_a_run_that_resumed_under_other_conditions_is_not_bitwise(fact: str) -> None:
    other = {"methods.fedavg": "3"} if fact == "sources" else "another"
    before = {**FACTS, fact: other}
    assert merged([FACTS, {**FACTS, "after_round": 3}])["determinism"] == "bitwise"
    facts = merged([before, {**FACTS, "after_round": 3}])
    assert facts["determinism"] == "statistical"
    assert facts["resumed"] == [{fact: other, "after_round": 3}]
    assert len(changes(before, FACTS)) == 1


@pytest.mark.parametrize(
    ("key", "other", "words"),
    [
        ("processor", "Other CPU", "processors"),
        ("cpu_capability", "Other", "instruction sets"),
        ("threads", 4, "thread counts"),
        ("determinism", "statistical", "determinism levels"),
    ],
)
def test_runs_under_mixed_conditions_have_one_line(key: str, other: Any, words: str, tmp_path: Path) -> None:
    assert notes_on(made(tmp_path, FACTS, FACTS)) == []
    (line,) = notes_on(made(tmp_path, FACTS, FACTS, {**FACTS, key: other}))
    assert line.startswith(f"These runs mix {words}") and line.count("\n") == 0
    assert f"{FACTS[key]}: 2" in line and f"{other}: 1" in line


def test_mixed_conditions_have_a_fixed_order(tmp_path: Path) -> None:
    """Also if the first record lacks one, as older records do."""
    older, other = {**FACTS, "cpu_capability": ""}, {**FACTS, "cpu_capability": "Other", "threads": 4}
    (line,) = notes_on(made(tmp_path, older, FACTS, other))
    assert re.findall(r"(?:mix|\),) ([a-z ]+) \(", line) == ["instruction sets", "thread counts"]


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (1, "Modules that differ: m0."),
        (2, "Modules that differ: m0, m1."),
        (5, "Modules that differ: m0, m1 and 3 more."),
        (None, "Some records lack the versions of their modules."),
    ],
)
def test_mixed_code_names_the_modules_and_what_is_declared(
    modules: int | None, words: str, tmp_path: Path
) -> None:
    first, other = ({f"m{number}": digest for number in range(modules or 1)} for digest in "12")
    records = made(tmp_path, {"sources": first}, {"sources": other if modules else None, "commit": "c"})
    assert notes_on(records) == [
        "Different versions of the code trained these runs. The developers declared, by equal "
        "revisions, that the changes alter no number. So results count as comparable "
        f"(docs/records.md#changed-code). {words}"
    ]


@pytest.mark.parametrize(
    ("versions", "share"),
    [("1122", True), ("1222", False), ("11-2", False)],
)
def test_mixed_code_tells_if_pairs_share_a_version(versions: str, share: bool, tmp_path: Path) -> None:
    """Pairs of one seed without and with a plug-in; a record without versions of modules shares none."""
    settings = [{"seed": seed, "plugins": plugins} for seed in (0, 1) for plugins in ([], ["ecgr"])]
    about = [{"commit": "c"} if version == "-" else {"sources": {"m": version}} for version in versions]
    (line,) = notes_on(made(tmp_path, *about, settings=settings))
    assert line.endswith("Runs that differ only in plug-ins share a version.") == share
