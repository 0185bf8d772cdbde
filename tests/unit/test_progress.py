"""Texts about jobs on the terminal."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_logger_plugin_fltrain as plugin
from snakemake.settings.types import OutputSettings
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_fltrain import LogHandler, difference, last_words


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("12:00:01 round 1\nerror: no image\nremedy: fetch it\n", "error: no image\nremedy: fetch it"),
        ("error: of an earlier start\n12:00:01 round 1\n12:00:02 round 2\n", "12:00:02 round 2"),
        ("error: the only line", "error: the only line"),
        ("\n".join(map(str, range(50))), "\n".join(map(str, range(30, 50)))),
        ("", ""),
    ],
)
def test_the_end_of_a_log_follows_its_last_line_of_progress(log: str, words: str) -> None:
    assert last_words(log) == words


def test_of_long_parameters_only_the_difference_is_printed() -> None:
    before, now = ("x" * 1000 + f" {word} classes" + "y" * 1000 for word in ("many", "few"))
    text = difference(f"reason: Params have changed: before: {before} now: {now} ")
    assert "many classes" in text and "few classes" in text and len(text) < 700
    short = "reason: Params have changed: before: 1 now: 2"
    assert difference(short) == short


def test_banner_unknown_targets_and_advice_to_skip_changed_jobs_are_left_out() -> None:
    """The Snakefile has its own message on unknown targets."""
    advice = {"msg": "use the command line option '--rerun-triggers mtime'"}
    banner = {"event": LogEvent.WORKFLOW_STARTED}
    target = {"msg": "MissingRuleException:\nNo rule to produce x"}
    records = [logging.makeLogRecord(record) for record in (advice, banner, target, {"msg": "other"})]
    for verbose in (False, True):
        handler = LogHandler(OutputSettings(dryrun=True, verbose=verbose), None)
        assert [bool(handler.filter(record)) for record in records] == [False, verbose, verbose, True]


def test_a_locked_folder_has_one_remedy() -> None:
    """Snakemake's message names an argument without its command."""
    text = "LockException:\nError: Directory cannot be locked. It can be removed with the --unlock argument."
    line = LogHandler(OutputSettings(), None).line(logging.makeLogRecord({"msg": text}))
    assert line.startswith("error: another snakemake works in this folder; wait")
    assert line.endswith("snakemake --unlock")


@pytest.mark.parametrize("text", ["Cannot restore summary.json: no backup found.", "other"])
def test_nothing_follows_the_message_of_a_failed_job(text: str) -> None:
    handler = LogHandler(OutputSettings(), None)
    record = logging.makeLogRecord({"msg": text, "levelno": logging.WARNING})
    assert handler.line(record) == text * (text == "other")


def test_the_time_left_counts_from_the_first_training_and_all_runs_that_started_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten runs of two minutes each, two at a time, after data that take a minute."""
    now = 0.0
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: now))
    handler = LogHandler(OutputSettings(), None)
    handler.total = 10

    def line(event: LogEvent, number: int) -> str:
        record: Any = logging.makeLogRecord(
            {"event": event, "levelno": logging.INFO, "rule_name": "train", "rule_msg": f"training {number}"}
        )
        record.jobid = record.job_id = number
        return handler.line(record)

    assert line(LogEvent.JOB_FINISHED, 2) == "", "with --quiet rules, Snakemake drops the start of jobs"
    now = 60.0
    for number in (0, 1):
        line(LogEvent.JOB_INFO, number)
    now += 120
    texts = [line(LogEvent.JOB_FINISHED, number).rpartition("; ")[2] for number in (0, 1)]
    assert texts == ["about 9 min left", "about 8 min left"]


@pytest.mark.parametrize(("jobs", "printed"), [(80, 20), (3, 3)])
def test_without_training_each_twentieth_of_the_jobs_has_a_line(
    monkeypatch: pytest.MonkeyPatch, jobs: int, printed: int
) -> None:
    now = 0.0
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: now))
    handler = LogHandler(OutputSettings(), None)

    def line(event: LogEvent, number: int, **more: Any) -> str:
        about = {"rule_name": "table", "rule_msg": f"assembling {number}", "jobid": number, "job_id": number}
        return handler.line(logging.makeLogRecord({"event": event, "levelno": logging.INFO, **about, **more}))

    assert line(LogEvent.RUN_INFO, 0, stats={"total": jobs + 1, "all": 1}).endswith(f"{jobs} other jobs")
    assert not any(line(LogEvent.JOB_INFO, number) for number in range(jobs))
    now = 30.0
    lines = [text for number in range(jobs) if (text := line(LogEvent.JOB_FINISHED, number))]
    assert len(lines) == printed and lines[-1] == f"[{jobs}/{jobs}] done: assembling {jobs - 1}"
    assert lines[0].endswith(
        {3: "assembling 0; about 60 s left", 80: "assembling 3; about 10 min left"}[jobs]
    )
