"""The files on packages, versions and citation must agree."""

import json
import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

# Packages with different names in conda and on PyPI.
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


def test_the_lock_satisfies_the_declared_bounds() -> None:
    for requirement in DECLARED:
        versions = locked_versions(requirement.name)
        assert versions, f"{requirement.name} is not in requirements.lock: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def test_every_line_of_the_lock_is_a_package_with_hashes_and_no_address() -> None:
    unindented = [line for line in LOCK.splitlines() if line and line[0] not in " #"]
    assert len(LOCKED) == len(unindented) > 0
    assert [entry.split()[0] for entry in LOCKED if "--hash=sha256:" not in entry] == []
    assert [line for line in LOCK.splitlines() if "://" in line or "index-url" in line or " @ " in line] == []


def test_environment_yml_has_the_declared_packages_and_bounds() -> None:
    declared = {
        canonicalize_name(CONDA_NAMES.get(requirement.name, requirement.name)): requirement.specifier
        for requirement in DECLARED
    }
    specs, options = conda_specs()
    assert specs == {**declared, "python": SpecifierSet(PROJECT["requires-python"]), "pip": SpecifierSet()}
    # The project itself is installed afterwards: a relative path in this file would mean another folder
    # when the workflow makes the environment.
    assert options == []


def test_the_version_is_the_same_everywhere() -> None:
    """pyproject.toml is the source; the changelog has a dated section on it."""
    version = PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    codemeta = json.loads((ROOT / "codemeta.json").read_text())
    assert (citation["version"], codemeta["version"]) == (version, version)
    released = str(citation["date-released"])
    assert codemeta["dateModified"] == released
    assert f"\n## [{version}] - {released}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert " ".join(citation["abstract"].split()) == codemeta["description"]
