"""End of workflow jobs: exit code, log, terminal output."""

import re
import subprocess
import sys
from pathlib import Path

LOG = Path("logs", "deep", "job.log")


def job(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run these lines as a job in a separate process: logging is set up once per process."""
    work = "\n".join(f"    {line}" for line in lines)
    program = "from fltrain.core.errors import FltrainError\nfrom fltrain.core.job_log import LOG, job\n"
    program += f"with job({str(LOG)!r}):\n{work}\nprint('after the job')\n"
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)


def logged(folder: Path) -> list[str]:
    """Lines of the log; without date and time at the start."""
    return [
        re.sub(r"^\d{4}-\d\d-\d\d [\d:,]+ ", "@ ", line) for line in (folder / LOG).read_text().splitlines()
    ]


def test_a_successful_job_is_reported_in_its_log(tmp_path: Path) -> None:
    done = job(tmp_path, "LOG.info('half way: %d', 7)", "print('printed')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "printed\nafter the job\n", "")
    assert logged(tmp_path) == ["@ half way: 7", "@ done"]


def test_other_errors_are_raised_with_a_traceback_in_the_log(tmp_path: Path) -> None:
    done = job(tmp_path, "print(1 // 0)")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.splitlines()[-1].startswith("ZeroDivisionError")
    first, second, *_, last = logged(tmp_path)
    assert (first, second) == ("@ the job failed", "Traceback (most recent call last):")
    assert last.startswith("ZeroDivisionError")
