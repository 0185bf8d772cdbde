"""Snakemake's terminal output for this workflow: a line for each finished run, and the log of a failed job.

The profiles select it (``logger: fltrain``). A dry run, and ``--verbose``, print what Snakemake prints.
"""

import logging
import sys
import time

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from fltrain.core.errors import count
from fltrain.experiments.progress import difference, failure, finished

ANNOUNCED = ("data", "model_figure", "index", "track")
"""Rules whose jobs may take long: their start is printed. Without training, the start of every job is."""

SHOWN = ("Nothing to be done", "Complete log", "Shutting down", "Unlocked", "Congratulations", "archived")
"""Beginnings of Snakemake's remarks that help the user."""


class LogHandler(LogHandlerBase):
    """A handler of log records that prints to standard error."""

    writes_to_stream = True
    writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        self.jobs: dict[int, str] = {}
        self.total = self.done = 0
        self.start = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, in short if it is about progress."""
        settings = self.common_settings
        text = self.line(record) if not (settings.dryrun or settings.verbose) else self.format(record)
        if text and text != "None":
            print(difference(text), file=sys.stdout if settings.stdout else sys.stderr, flush=True)

    def line(self, record: logging.LogRecord) -> str:
        """Return the text to print for a record; empty if there is none."""
        match getattr(record, "event", None):
            case LogEvent.RUN_INFO:
                self.total = record.stats.get("train", 0)
                counted = [record.stats.get(rule, 0) for rule in ("train", "all", "default")]
                others = record.stats["total"] - sum(counted)
                return f"{count(self.total, 'run')} to train, {others} other jobs"
            case LogEvent.JOB_INFO:
                self.jobs[record.jobid] = record.rule_msg
                return record.rule_msg if record.rule_name in ANNOUNCED or not self.total else ""
            case LogEvent.JOB_FINISHED if (self.jobs[record.job_id] or "").startswith("training "):
                self.done += 1
                return finished(
                    self.jobs[record.job_id], self.done, self.total, time.monotonic() - self.start
                )
            case LogEvent.JOB_ERROR if not record.rule_msg:  # else it is a message of an executor
                return failure(self.jobs.get(record.jobid) or f"rule {record.rule_name}", record.log)
            case LogEvent.ERROR if "CalledProcessError" in record.getMessage():
                return ""  # it only repeats the command of a job whose failure is reported
            case event:
                remark = event is None and record.getMessage().startswith(SHOWN)
                return self.format(record) if remark or record.levelno > logging.INFO else ""
