"""The files on packages, versions and citation must agree."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("command", "line"),
    [
        # pyenv has a command of this name, which fails unless its version is chosen.
        (
            "python3.12",
            "'python3.12' does not start (pyenv: python3.12: command not found); "
            "set PYENV_VERSION=3.12.1, or",
        ),
        ("python3.9", "'python3.9' does not start (pyenv: python3.9: command not found);"),  # too old
        ("python2", "fltrain needs Python 3.11.4 or newer, not Python 2.7.18;"),
        ("python4", "'python4' not found;"),
    ],
)
def test_make_env_tells_why_a_python_cannot_be_used(command: str, line: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shims = ("python3.9", "python3.12")
    for name, script in {
        "pyenv": "case $* in 'whence python3.12') echo 3.12.1 ;; 'whence python3.9') echo 3.9.18 ;; esac",
        **{shim: f"echo 'pyenv: {shim}: command not found' >&2; echo more >&2; exit 127" for shim in shims},
        "python2": 'case "$*" in -V) echo Python 2.7.18 ;; *exit*) exit 1 ;; esac',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), "/usr/bin", "/bin"])
    failed = subprocess.run(
        ["make", ".venv/bin/python", f"PYTHON={command}"],
        cwd=tmp_path,
        env={"PATH": path},
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 2
    first, *lines = failed.stderr.splitlines()
    assert first == f"error: {line} set PYTHON=/path/to/python3".replace("or set", "or")
    assert all(text.startswith("make: ") for text in lines)


def test_make_names_an_unknown_target(tmp_path: Path) -> None:
    failed = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "quik"], cwd=tmp_path, capture_output=True, text=True
    )
    assert failed.returncode == 2
    assert "unknown target or missing file 'quik'; `make help` lists the targets" in failed.stderr


def test_make_quick_ends_with_the_verdicts_of_both_controls() -> None:
    steps = subprocess.run(["make", "-n", "quick"], cwd=ROOT, capture_output=True, text=True).stdout
    last = steps.partition("results/demo/index.html\n")[2]
    assert re.findall("fltrain compare (.*)", last) == ["controls/flower", "controls/flower_spiked"]


def test_make_env_does_not_keep_an_environment_of_another_python_silently(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    environment = tmp_path / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / ".installed").touch()
    (tmp_path / "other").write_text("#!/bin/sh\necho Python 3.99.1\n")
    (tmp_path / "other").chmod(0o755)
    make = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
    assert make(["make", "env"]).returncode == 0
    refused = make(["make", "env", f"PYTHON={tmp_path / 'other'}"])
    assert refused.returncode == 2
    assert re.match(r"error: \.venv has Python 3\S+, not Python 3\.99\.1; delete \.venv to", refused.stderr)


def test_make_env_shows_only_large_downloads_without_a_terminal(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    lines = ["Downloading torch (846.8MiB)", "Downloading cudnn (1.2GiB)", "Downloading pandas (99.9MiB)"]
    lines += ["Downloading rich (500.0KiB)", " Downloaded torch", " + torch==1", "Prepared 4 packages in 2s"]
    echoes = "; ".join(f"echo '{line}'" for line in lines)
    python.write_text(f'#!/bin/sh\ncase "$*" in *"pip sync"*) {echoes} ;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(["make", "env"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line in lines] == [*lines[:2], lines[-1]]
    assert [line[:5] for line in done.stdout.splitlines() if line.startswith("[")] == [
        "[1/3]",
        "[2/3]",
        "[3/3]",
    ]
