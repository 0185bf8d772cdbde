"""The example of docs/python.md runs as it is written."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_example_runs(tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to(ROOT / "config")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    accuracies = [float(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("digits-")]
    assert len(accuracies) == 4
    assert min(accuracies) > 0.2, "twice the accuracy of guessing"
    assert (tmp_path / "results" / "python" / "curves.png").stat().st_size > 1000
