"""The example of docs/python.md runs as it is written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_python_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").symlink_to(ROOT / "config")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    exec("\n".join(blocks), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    accuracies = [float(line.split()[1]) for line in lines if line.startswith("digits-")]
    assert len(accuracies) == 4
    assert min(accuracies) > 0.2, "twice the accuracy of guessing"
    assert (tmp_path / "results" / "python" / "curves.png").stat().st_size > 1000
