# Look-ups for the rules. Configuration is read here only: jobs get their settings through `params`, so that a change
# reruns only the affected jobs. Nothing here writes a file.
import gc
import sys
import time
from functools import partial
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.experiments.jobs import (
    Jobs,
    check_folder,
    check_profile,
    declarations,
    lock_folder,
    pass_force_on,
    put_python_on_path,
)
from fltrain.experiments.layout import Sheet
from fltrain.reporting.version import reporting_version

# A storage provider transfers declared outputs only, and a record has more files than the summary that stands for it.
# Without a provider, Snakemake itself refuses executors that share no file system.
if workflow.storage_settings.default_storage_provider:
    raise WorkflowError(
        "records need a file system that all jobs share; leave out --default-storage-provider, and choose an "
        "executor with a shared file system (docs/cluster.md)"
    )

try:
    check_folder(Path.cwd())
    check_profile(sys.argv)
    JOBS = Jobs.of(config, declarations())
    if workflow.is_main_process:
        JOBS.refuse_missing()
        JOBS.refuse_damaged()
except FltrainError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)

# The plan is needed until the end; looking for garbage in it would take a quarter of the time.
gc.freeze()

SCALE, OUT = JOBS.request.scale, JOBS.folder

# Tables, figures, claims and pages are made again when the rule or the code that makes them has changed.
REPORTING = reporting_version()

# Without `--sdm`, jobs run in the Python environment of this process, even if it is not activated. The environment of
# `--sdm conda` comes before it, because a job activates it later.
put_python_on_path()


# Runs that the user forces Snakemake to make are trained even if they have a record.
if workflow.is_main_process:
    pass_force_on(sys.argv)


onstart:
    try:
        workflow.fltrain_lock = lock_folder()  # until this process ends
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    JOBS.redate()
    workflow.fltrain_start = time.time()
    # With its default limit of 100 jobs a second, Snakemake 9 looks at all waiting jobs again one second after each look,
    # and each finished job adds a look: after n jobs, n looks a second. A limit that the user has set stays.
    limit = workflow.scheduler.job_rate_limiter
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    pages = sorted(Path(OUT).rglob("*.html"))
    made = [page for page in pages if page.stat().st_mtime >= workflow.fltrain_start]
    # The front page and those of papers lead to all others.
    shown = [page for page in made if page.name == "index.html"] or made
    if shown:
        print("Pages:", *sorted(shown, key=lambda page: len(page.parts)), sep="\n  ", file=sys.stderr)


wildcard_constraints:
    paper="[^/]+",
    item=r"[^/]+(?<!\.curves)",
    run="[^/]+",


def by(lookup, *wildcard_names):
    """An input or params function that looks up by wildcards, joined with a slash."""
    return lambda wildcards: lookup(
        "/".join(wildcards[name] for name in wildcard_names)
    )


# One parameter for each field, so that a dry run names what has changed.
SHEET = {
    field: by(partial(JOBS.sheet, field), "paper", "item")
    for field in Sheet.model_fields
}


def train_resource(name):
    """Amount that a run's job requests, more at each further attempt; see `resources` in config/config.yaml."""
    return lambda wildcards, attempt: JOBS.resource(name, wildcards.run, attempt)


# Data and partitions are checked by digests and named after their settings: a newer file is no reason to retrain.
def run_inputs(wildcards):
    return {
        name: ancient(files) for name, files in JOBS.run_inputs[wildcards.run].items()
    }
