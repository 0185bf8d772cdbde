"""pyproject.toml, requirements.lock, constraints.txt and environment.yml must tell the same story."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

# Where conda calls a package of PyPI by another name.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base", "snakemake": "snakemake-minimal"}

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DECLARED = [
    Requirement(line)
    for lines in (
        PROJECT["dependencies"],
        *PROJECT["optional-dependencies"].values(),
        PYPROJECT["build-system"]["requires"],
    )
    for line in lines
]

LOCK = (ROOT / "requirements.lock").read_text()
# One string per locked package: the line that names it and the indented lines after it.
LOCKED = re.findall(r"^\S+==.*(?:\n[ ].*)*", LOCK, flags=re.MULTILINE)


def locked_versions(name: str) -> set[str]:
    """Return the versions of a package in the lock: several if they differ by platform or Python."""
    pins = (entry.split()[0].split("==") for entry in LOCKED)
    return {version for locked, version in pins if canonicalize_name(locked) == canonicalize_name(name)}


def conda_specs() -> tuple[dict[str, SpecifierSet], list[str]]:
    """Return the bounds of environment.yml by package name, and its arguments for pip."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    from_pip = [line for entry in entries if isinstance(entry, dict) for line in entry["pip"]]
    options = [line for line in from_pip if line.startswith("-")]
    lines = [entry for entry in entries if isinstance(entry, str)] + from_pip
    requirements = [Requirement(line) for line in lines if line not in options]
    specs = {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements}
    assert len(specs) == len(requirements), "environment.yml names a package twice"
    return specs, options


def test_every_line_of_the_lock_is_understood() -> None:
    unindented = [line for line in LOCK.splitlines() if line and line[0] not in " #"]
    assert len(LOCKED) == len(unindented) > 0


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_lock_satisfies_the_declared_bound(requirement: Requirement) -> None:
    versions = locked_versions(requirement.name)
    assert versions, f"{requirement.name} is not in requirements.lock: run `make lock`"
    assert all(requirement.specifier.contains(version) for version in versions)


def test_lock_keeps_to_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {c.name for c in constraints} == {"torch", "torchvision"}
    for constraint in constraints:
        assert {f"=={version}" for version in locked_versions(constraint.name)} == {str(constraint.specifier)}


def test_lock_has_a_hash_for_every_package() -> None:
    assert [entry.split()[0] for entry in LOCKED if "--hash=sha256:" not in entry] == []


def test_lock_names_no_address() -> None:
    assert [line for line in LOCK.splitlines() if "://" in line or "index-url" in line or " @ " in line] == []


def test_environment_yml_has_the_declared_packages_and_bounds() -> None:
    declared = {
        canonicalize_name(CONDA_NAMES.get(requirement.name, requirement.name)): requirement.specifier
        for requirement in DECLARED
    }
    specs, options = conda_specs()
    assert specs == {
        **declared,
        "python": SpecifierSet(PROJECT["requires-python"]),
        "pip": SpecifierSet(),
    }
    # The project itself is installed afterwards: a relative path in this file would mean another folder
    # when the workflow makes the environment.
    assert options == []


def test_bounds_agree_where_a_package_is_declared_twice() -> None:
    assert len({(r.name, str(r.specifier)) for r in DECLARED}) == len({r.name for r in DECLARED})


def test_tools_aim_at_the_oldest_python() -> None:
    oldest = ".".join(PROJECT["requires-python"].removeprefix(">=").split(".")[:2])
    assert PYPROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"--python-version {oldest} " in (ROOT / "Makefile").read_text()


def test_the_container_installs_what_the_lock_says() -> None:
    """What `make env` needs is there, and it is `make env` that installs."""
    text = (ROOT / "apptainer.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n((?:    .*\n|\n)+)", text, re.MULTILINE))
    copied = dict(line.split() for line in sections["files"].split("\n") if line)
    needed = {"Makefile", "pyproject.toml", "requirements.lock", PROJECT["readme"], *PROJECT["license-files"]}
    needed |= set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert copied == {name: f"/opt/fltrain/{name}" for name in needed}
    assert all((ROOT / name).exists() for name in copied)
    (version,) = re.findall(r"^From: python:(\S+)-slim$", text, re.MULTILINE)
    assert version == PYPROJECT["tool"]["mypy"]["python_version"]
    commands = sections["post"].split("\n")
    assert [line.strip() for line in commands if line][-2:] == ["cd /opt/fltrain", "make env"]
    assert "/opt/fltrain/.venv/bin:" in sections["environment"]
    assert re.search(r"^VENV +:= \.venv$", (ROOT / "Makefile").read_text(), re.MULTILINE)
