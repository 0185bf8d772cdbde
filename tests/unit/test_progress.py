"""The progress lines that a workflow prints."""

from pathlib import Path

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
