"""Snakemake's terminal output for this workflow: a line for each finished run, and the log of a failed job.

Without training, each twentieth of the jobs has a line.

The profiles select it (``logger: fltrain``). A dry run, and ``--verbose``, print what Snakemake prints,
without its advice to skip changed jobs, which would leave tables out of date. Only ``--verbose`` prints its
banner.
"""

import logging
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from snakemake.logging import DefaultFilter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from fltrain.core.errors import FltrainError, count, duration
from fltrain.core.shell import command

try:
    from fltrain.runs.record import Results
except FltrainError as error:  # a fault in the user's own folder; Snakemake would print a traceback
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)

ANNOUNCED = ("data", "model_figure", "index", "track")
"""Rules whose jobs may take long: their start is printed."""

SHOWN = ("Nothing to be done", "Complete log", "Shutting down", "Unlocked", "Congratulations", "archived")
"""Beginnings of Snakemake's remarks that help the user."""

REPEATED = ("CalledProcessError", "At least one job did not complete", "no backup found")
"""Parts of messages that follow an earlier one: a job failed, or the user stopped the workflow."""

LOCKED = f"""error: another snakemake works in this folder; wait for it to end
If none is running (it was killed), unlock the folder: {command("snakemake --unlock")}"""
"""In place of Snakemake's message, which names an argument without its command."""


class LogHandler(LogHandlerBase):
    """A handler of log records that prints to standard error."""

    writes_to_stream = has_filter = True
    writes_to_file = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        self.jobs: dict[int, str] = {}
        self.total = self.others = self.done = self.parallel = 0
        self.start = time.monotonic()
        settings = self.common_settings
        standard = DefaultFilter(
            *(settings.quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds)
        )
        # A dry run with --quiet ends after the numbers of jobs, which Snakemake's own filter would drop.
        counted = {LogEvent.RUN_INFO} if settings.dryrun else set()
        self.addFilter(lambda record: getattr(record, "event", None) in counted or standard.filter(record))
        self.addFilter(lambda record: "--rerun-triggers mtime" not in record.getMessage())
        banner = set() if settings.verbose else {LogEvent.WORKFLOW_STARTED}
        self.addFilter(lambda record: getattr(record, "event", None) not in banner)
        # The Snakefile has a better message on unknown targets.
        unknown = set() if settings.verbose else {"MissingRuleException"}
        self.addFilter(lambda record: record.getMessage().partition(":")[0] not in unknown)

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
                self.total, self.start = record.stats.get("train", 0), time.monotonic()
                counted = [record.stats.get(rule, 0) for rule in ("train", "all", "default")]
                self.others = record.stats["total"] - sum(counted)
                return f"{count(self.total, 'run')} to train, {self.others} other jobs"
            case LogEvent.JOB_INFO:
                self.jobs[record.jobid] = record.rule_msg
                if not self.done and (record.rule_msg or "").startswith("training "):
                    self.start = self.start if self.parallel else time.monotonic()
                    self.parallel += 1
                return record.rule_msg if record.rule_name in ANNOUNCED else ""
            case LogEvent.JOB_FINISHED if (self.jobs.get(record.job_id) or "").startswith("training "):
                self.done += 1
                return self.finished(self.jobs[record.job_id].removeprefix("training "))
            case LogEvent.JOB_FINISHED if self.others and not self.total and self.jobs.get(record.job_id):
                self.done += 1
                if 20 * self.done // self.others == 20 * (self.done - 1) // self.others:
                    return ""
                number = f"[{self.done:{len(str(self.others))}}/{self.others}]"
                seconds = (time.monotonic() - self.start) * (self.others / self.done - 1)
                estimate = f"; about {duration(seconds)} left" * (self.done < self.others)
                return f"{number} done: {self.jobs[record.job_id]}{estimate}"
            case LogEvent.JOB_ERROR if not record.rule_msg:  # else it is a message of an executor
                return failure(self.jobs.get(record.jobid) or f"rule {record.rule_name}", record.log)
            case _ if record.getMessage().startswith("LockException"):
                return LOCKED
            case _ if any(part in record.getMessage() for part in REPEATED):
                return ""
            case event:
                remark = event is None and record.getMessage().startswith(SHOWN)
                return self.format(record) if remark or record.levelno > logging.INFO else ""

    def finished(self, run: str) -> str:
        """Return the line of a finished run: number, run, final accuracy, its time, the time left."""
        try:
            record = Results(Path("results")).record(run)
            taken, accuracy = record.costs["seconds"]["total"], record.summary["accuracy"]["final"]
            ended = "diverged" if accuracy is None else f"final accuracy {100 * accuracy:.2f} %"
            outcome = f"{ended}, {taken:,.1f} s"
        except (FltrainError, KeyError):
            outcome = "finished"
        # The runs that started together end at about the same time.
        run_seconds = (time.monotonic() - self.start) / max(self.done, self.parallel)
        remaining = duration(run_seconds * (self.total - self.done))
        status = f"about {remaining} left" if self.done < self.total else "all runs are trained"
        return f"[{self.done:{len(str(self.total))}}/{self.total}] {run}: {outcome}; {status}"


def failure(job: str, logs: Iterable[str]) -> str:
    """Return that a job failed, the end of its logs, and their places."""
    written = [Path(log) for log in logs if Path(log).is_file()]
    ends = [f"\n{last_words(log.read_text(errors='replace'))}\n(log: {log})" for log in written]
    return f"{job} did not finish{':' if ends else ', and left no log'}{''.join(ends)}"


def last_words(log: str) -> str:
    """Return what a job's log says after its last line of progress, or else this line; at most 20 lines."""
    lines = log.strip().splitlines()
    start = max((n for n, line in enumerate(lines, 1) if re.match(r"\d\d:\d\d:\d\d ", line)), default=0)
    return "\n".join((lines[start:] or lines[-1:])[-20:])


def difference(text: str) -> str:
    """Shorten what Snakemake prints about changed parameters to the part that differs."""

    def shortened(match: re.Match[str]) -> str:
        pairs = enumerate(zip(*match.groups(), strict=False))
        start = max(0, next((place for place, (old, new) in pairs if old != new), 0) - 40)
        return "before: ...{}... now: ...{}...".format(*(part[start:][:200] for part in match.groups()))

    return re.sub(r"before: (.{400,}) now: (.{400,})", shortened, text)
