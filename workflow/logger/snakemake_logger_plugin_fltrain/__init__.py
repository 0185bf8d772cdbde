"""Snakemake's terminal output for this workflow: a line for each finished run. The log file has the rest.

The profiles select it (``logger: fltrain``); Snakemake finds it by the name of the package. A dry run, and
``--verbose``, print what Snakemake prints.
"""

import logging
import sys
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from fltrain.experiments.progress import WorkflowProgress
from fltrain.runs.record import Results

ANNOUNCED = ("data", "model_figure", "index", "track")
"""Rules whose jobs may take long: their start is printed. Without training, the start of every job is."""

HIDDEN = (
    "Using workflow specific profile",
    "Config file",
    "Assuming unrestricted",
    "Building DAG",
    "Using shell",
    "Provided ",
    "Rules claiming",
    "Conda environments: ignored",
    "Select jobs",
    "Elapsed time",
    "Loading script",
    "Adding ",
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
        self.progress = WorkflowProgress(Results(Path("results")))
        self.runs: dict[int, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, in short if it is about progress."""
        settings = self.common_settings
        text = self.format(record) if settings.dryrun or settings.verbose else self.line(record)
        if text and text != "None":
            print(text, file=sys.stdout if settings.stdout else sys.stderr, flush=True)

    def line(self, record: logging.LogRecord) -> str:
        """Return the text to print for a record; empty if there is none."""
        if record.levelno > logging.INFO:
            return self.format(record)
        event = getattr(record, "event", None)
        if event is None:
            message = record.getMessage()
            return "" if message.startswith(HIDDEN) else message
        if event == LogEvent.RUN_INFO:
            return self.progress.planned(record.stats)
        if event == LogEvent.JOB_INFO and record.rule_name == "train":
            self.progress.started()
            self.runs[record.jobid] = record.wildcards["run"]
        elif event == LogEvent.JOB_INFO and (record.rule_name in ANNOUNCED or not self.progress.total):
            return record.rule_msg
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.runs:
            return self.progress.finished(self.runs.pop(record.job_id))
        return ""
