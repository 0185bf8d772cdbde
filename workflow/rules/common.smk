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

# A storage provider transfers declared outputs only, and a record has more files than the summary that stands for it.
# Without a provider, Snakemake itself refuses executors that share no file system.
if workflow.storage_settings.default_storage_provider:
    raise WorkflowError(
        "records need a file system that all jobs share; leave out --default-storage-provider, and choose an "
        "executor with a shared file system (docs/cluster.md)"
    )

try:
    jobs.check_command(sys.argv)
    JOBS = jobs.Jobs.of(config, jobs.declarations())
    if workflow.is_main_process:
        JOBS.refuse_damaged()
except FltrainError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)

# The plan is needed until the end; looking for garbage in it would take a quarter of the time.
gc.freeze()

SCALE, OUT = JOBS.request.scale, JOBS.folder

# Without `--sdm`, jobs run in the Python environment of this process. That of `--sdm conda` comes before it, because a job
# activates it later.
jobs.set_path()

# Tables, figures, claims and pages are made again when the rule or the code that makes them has changed.
REPORTING = reporting_version()


onstart:
    try:
        workflow.fltrain_lock = jobs.lock_folder()  # until this process ends
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if jobs.forces_training(workflow.dag_settings):
        os.environ["FLTRAIN_AGAIN"] = "true"  # jobs train runs even if they have a record
    JOBS.redate()
    workflow.fltrain_start = time.time()
    # With its default limit of 100 jobs a second, Snakemake 9 looks at all waiting jobs again one second after each look,
    # and each finished job adds a look: after n jobs, n looks a second. A limit that the user has set stays.
    limit = workflow.scheduler.job_rate_limiter
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    pages = sorted(Path(OUT).rglob("*.html"))
    made = [
        page for page in pages if page.stat().st_mtime >= workflow.fltrain_start
    ]
    # The front page and those of papers lead to all others.
    shown = [page for page in made if page.name == "index.html"] or made
    if shown:
        print(
            "Pages:",
            *sorted(shown, key=lambda page: len(page.parts)),
            sep="\n  ",
            file=sys.stderr,
        )


wildcard_constraints:
    paper="[^/]+",
    item=r"[^/]+(?<!\.curves)",
    run="[^/]+",


def by(lookup, *wildcard_names):
    """An input or params function that looks up by wildcards, joined with a slash."""
    return lambda wildcards: lookup(
        "/".join(wildcards[name] for name in wildcard_names)
    )


def item_files(forms, shown, kind):
    """The files of an item by form; the report has one of them."""
    files = {form: f"{OUT}/{{paper}}/{{item}}{end}" for form, end in forms.items()}
    files[shown] = report(
        files[shown],
        caption="../report/item.rst",
        category="{paper}",
        subcategory=kind,
        labels=by(JOBS.report_labels, "paper", "item"),
    )
    return files
