"""The progress lines that a workflow prints."""

from pathlib import Path

import pytest

from fltrain.experiments.progress import Progress
from fltrain.runs.record import Results

from .helpers import tiny, trained


class Clock:
    """A clock that a test sets, in seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_has_number_accuracy_seconds_and_the_time_left(tmp_path: Path) -> None:
    record, clock = trained(tiny(), tmp_path), Clock()
    progress = Progress(Results(tmp_path), clock)
    assert progress.planned({"train": 10, "table": 2, "all": 1, "total": 13}) == (
        "10 runs to train, 2 other jobs"
    )
    progress.started()
    clock.now += 6
    accuracy, seconds = record.summary["accuracy"]["final"], record.costs["seconds"]["total"]
    assert progress.finished(record.run_id) == (
        f"[ 1/10] {record.run_id}: {100 * accuracy:.2f} %, {seconds:.1f} s; about 54 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "total", "left"),
    [
        (10, 2, "about 10 s left"),
        (300, 3, "about 10 min left"),
        (3600, 4, "about 3.0 h left"),
        (9, 1, "all runs"),
    ],
)
def test_the_time_left_is_that_of_the_missing_runs(
    tmp_path: Path, seconds: float, total: int, left: str
) -> None:
    clock = Clock()
    progress = Progress(Results(tmp_path), clock)
    progress.planned({"train": total})
    progress.started()
    clock.now += seconds
    assert f"a-run: finished; {left}" in progress.finished("a-run"), "there is no record"
