"""The tutorial runs as it is written, in a copy of the project; its runs have fewer rounds and one seed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:(?:Write|Change)\s`([^`]+)`:\n\n)?```(bash|yaml|python|diff)\n(.*?)```", re.DOTALL)


def changed(text: str, diff: str) -> str:
    """Return a text after the change that a block of the tutorial shows."""
    lines = diff.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    assert text.count(before) == 1, diff
    return text.replace(before, after)


@pytest.mark.slow
def test_the_commands_of_the_tutorial_work(tmp_path: Path) -> None:
    for name in ("Snakefile", "environment.yml", "config", "workflow", "profiles", "fltrain"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)}
    outputs = []
    for target, language, text in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        if language == "diff":
            (tmp_path / target).write_text(changed((tmp_path / target).read_text(), text))
        elif language != "bash":
            (tmp_path / target).write_text(text.replace("rounds: 30", "rounds: 2"))
        elif not text.startswith("make env"):
            text = text.replace("--config scale=tutorial", "--config scale=tutorial seeds=1")
            result = subprocess.run(
                ["bash", "-ec", text], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
            outputs.append(result.stdout + result.stderr)
    planned, _, compared, listed, final, edited = outputs
    assert re.search(r"\b12\b", planned)
    assert re.search(r"FedProx +│ ECGR", compared)
    assert re.search(r"^train +2$", listed, re.MULTILINE), listed
    assert "clip" in final
    assert "methods.clip changed after 2 records; " in edited
    assert not re.search(r"^train\b", edited, re.MULTILINE), edited
