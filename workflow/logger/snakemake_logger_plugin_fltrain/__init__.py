"""Snakemake's terminal output for this workflow: a line for each finished run, and why a job failed.

Snakemake's log file has the rest.

The profiles select it (``logger: fltrain``); Snakemake finds it by the name of the package. A dry run, and
``--verbose``, print what Snakemake prints.
"""

import logging
import re
import sys
import time
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from fltrain.core.errors import FltrainError, count
from fltrain.experiments.progress import duration, last_words
from fltrain.runs.record import Results

ANNOUNCED = ("data", "model_figure", "index", "track")
"""Rules whose jobs may take long: their start is printed. Without training, the start of every job is."""

HIDDEN = (
    *("Using workflow specific profile", "Config file", "Assuming unrestricted", "Building DAG"),
    *("Using shell", "Provided ", "Rules claiming", "Conda environments: ignored", "Select jobs"),
    *("Elapsed time", "Loading script", "Adding "),
)
"""Beginnings of messages that do not help the user."""


class LogHandler(LogHandlerBase):
    """A handler of log records that prints to standard error."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.runs: dict[int, str] = {}
        self.messages: dict[int, str] = {}
        self.total = self.done = 0
        self.start = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, in short if it is about progress."""
        settings = self.common_settings
        whole = settings.dryrun or settings.verbose
        text = difference(self.format(record)) if whole else self.line(record)
        if text and text != "None":
            print(text, file=sys.stdout if settings.stdout else sys.stderr, flush=True)

    def line(self, record: logging.LogRecord) -> str:
        """Return the text to print for a record; empty if there is none."""
        event = getattr(record, "event", None)
        if record.levelno > logging.INFO:
            # A job on a cluster has a message of the executor, and logs of its own.
            if event == LogEvent.JOB_ERROR and not record.rule_msg:
                return self.failure(record)
            # It only repeats the command of a job whose failure is reported.
            repeated = event == LogEvent.ERROR and "CalledProcessError" in record.getMessage()
            return "" if repeated else self.format(record)
        if event is None:
            message = record.getMessage()
            return "" if message.startswith(HIDDEN) else message
        if event == LogEvent.RUN_INFO:
            self.total = record.stats.get("train", 0)
            others = record.stats.keys() - {"train", "all", "default", "total"}
            other_jobs = sum(record.stats[rule] for rule in others)
            return f"{count(self.total, 'run')} to train, {other_jobs} other jobs"
        if event == LogEvent.JOB_INFO:
            self.messages[record.jobid] = record.rule_msg
            if record.rule_name == "train":
                self.start = self.start or time.monotonic()
                self.runs[record.jobid] = record.wildcards["run"]
            elif record.rule_name in ANNOUNCED or not self.total:
                return record.rule_msg
        if event == LogEvent.JOB_FINISHED and record.job_id in self.runs:
            return self.finished(self.runs.pop(record.job_id))
        return ""

    def finished(self, run: str) -> str:
        """Return a line for a finished run: number, run ID, final accuracy, seconds, and the time left."""
        self.done += 1
        try:
            record = Results(Path("results")).record(run)
            seconds, accuracy = record.costs["seconds"]["total"], record.summary["accuracy"]["final"]
            outcome = "diverged" if accuracy is None else f"{100 * accuracy:.2f} %"
            outcome += f", {seconds:,.1f} s"
        except (FltrainError, KeyError):
            outcome = "finished"
        each = (time.monotonic() - self.start) / self.done
        missing = self.total - self.done
        left = f"about {duration(each * missing)} left" if missing > 0 else "all runs are trained"
        return f"[{self.done:{len(str(self.total))}}/{self.total}] {run}: {outcome}; {left}"

    def failure(self, record: logging.LogRecord) -> str:
        """Return what a failed job did, the end of its log, and the log's place."""
        done = self.messages.get(record.jobid) or f"rule {record.rule_name}"
        logs = [log for log in record.log if Path(log).is_file()]
        ends = [f"\n{last_words(Path(log).read_text(errors='replace'))}\n(log: {log})" for log in logs]
        return f"{done} did not finish{':' if ends else ', and left no log'}{''.join(ends)}"


def difference(text: str) -> str:
    """Shorten what Snakemake prints about changed parameters to the part that differs."""

    def shown(found: re.Match[str]) -> str:
        before, now = found.groups()
        start = next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), 0)
        pair = (part[max(0, start - 40) :][:200] for part in (before, now))
        return "before: ...{}... now: ...{}...".format(*pair)

    return re.sub(r"before: (.{400,}) now: (.{400,})", shown, text)
