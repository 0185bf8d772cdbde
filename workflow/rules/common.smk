# Look-ups for the rules. Configuration is read here only: jobs get their settings through `params`, so that a change
# reruns only the affected jobs. Nothing here writes a file.
import gc
import os
import sys
import time
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.experiments import jobs
from fltrain.reporting.version import reporting_version

# The plan and the graph of jobs stay until the end; looking for garbage in them takes a tenth of a dry run's time.
gc.disable()


def checked(function, *arguments):
    """Return the result of a function; end Snakemake with one line if it refuses something."""
    try:
        return function(*arguments)
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


# A storage provider transfers declared outputs only; a record has more files than its summary, the declared one.
# Without a provider, Snakemake itself refuses executors that share no file system.
if workflow.storage_settings.default_storage_provider:
    raise WorkflowError(
        "records need a file system that all jobs share; leave out --default-storage-provider, and choose an "
        "executor with a shared file system (docs/cluster.md)"
    )

checked(jobs.check_command, sys.argv)
JOBS = checked(jobs.Jobs.of, config)
if workflow.is_main_process:
    checked(JOBS.refuse_damaged)

SCALE, OUT = JOBS.request.scale, JOBS.folder

# Tables, figures, claims and pages are made again when the rule or the code that makes them has changed.
REPORTING = reporting_version()

# Without `--sdm`, jobs run in the Python environment of this process, even if it is not activated.
jobs.use_this_python()


onstart:
    gc.freeze()
    gc.enable()
    jobs.train_again_if_forced(workflow.dag_settings)
    workflow.fltrain_start = time.time()
    # With its default limit of 100 jobs a second, Snakemake 9 looks at all waiting jobs again one second after each look,
    # and each finished job adds a look: after n jobs, n looks a second. A limit that the user has set stays.
    limit = workflow.scheduler.job_rate_limiter
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    pages = [
        page
        for page in sorted(Path(OUT).rglob("*.html"))
        if page.stat().st_mtime >= workflow.fltrain_start
    ]
    if Path(OUT, "index.html") in pages:
        from fltrain.reporting.overview import (  # not for each job
            main_results,
            verdict_lines,
        )

        if lines := main_results(JOBS.listing(), Path(OUT)):
            print("Main results:", *lines, sep="\n  ", file=sys.stderr)
        if lines := verdict_lines(Path(OUT)):
            print(
                "Verdicts on published values:", *lines, sep="\n  ", file=sys.stderr
            )
    # The front page and the papers' pages lead to all others.
    if any(page.name == "index.html" for page in pages):
        pages = [Path(OUT, "index.html"), *sorted(Path(OUT).glob("*/index.html"))]
    if pages:
        print("Pages:", *pages, sep="\n  ", file=sys.stderr)


onerror:
    print(
        "Finished runs are kept: run the same command again to go on.",
        file=sys.stderr,
    )


wildcard_constraints:
    paper="[^/]+",
    run="[^/]+",


def by(lookup):
    """An input or params function that looks up by the wildcard of the rule."""
    return lambda wildcards: lookup(*wildcards)


def literal(text):
    """Keep Snakemake from taking {word} for a wildcard, by an invisible word joiner."""
    return text.replace("{", "{\u2060")


def item_files(rule, report_form):
    """The files of an item by form; the report has one of them."""
    files = {form: f"{OUT}/{{item}}.{form}" for form in jobs.FORMS[rule]}
    files[report_form] = report(
        files[report_form],
        caption="../report/item.rst",
        category=by(lambda item: literal(JOBS.items[item].paper.title)),
        labels=by(lambda item: {"item": literal(JOBS.items[item].item.title)}),
    )
    return files


def hint_at_targets():
    """Name the nearest target for each that no rule makes."""
    if settings := workflow.dag_settings:
        names = {rule.name for rule in workflow.rules}
        scheduling = workflow.scheduling_settings
        chosen = {*settings.targets, *settings.until, *settings.forcerun}
        chosen |= {*(scheduling.prioritytargets if scheduling else ())}
        for target in sorted(map(os.path.relpath, chosen - names)):
            made = any(rule.is_producer(target) for rule in workflow.rules)
            if not made and not Path(target).exists():
                print(f"error: {JOBS.hint(target)}", file=sys.stderr)
