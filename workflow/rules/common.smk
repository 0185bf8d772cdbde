# The plan of the chosen scale, and look-ups for the rules. Configuration is read here and nowhere else:
# jobs get what they need through `params`, so that a change reruns exactly what it concerns.
import gc
import json
import shlex
import sys
from functools import cache
from pathlib import Path

from fltrain.experiments.costs import affordable, calibration_file
from fltrain.data.datasets import Dataset
from fltrain.experiments.job_resources import Demand, measured
from fltrain.core.errors import FltrainError
from fltrain.experiments.plan import plan
from fltrain.core.files import backdate, read_json, write_json
from fltrain.runs.record import MODELS_FILE, Results
from fltrain.experiments.layout import Sheet, scale_sentence
from fltrain.experiments.selection import Request, budget_note
from fltrain.runs.status import stale_runs

# Planning makes millions of objects that stay: looking for garbage among them would take a fifth of the time.
gc.disable()

# Shell commands find the Python that runs the workflow, whether or not its environment is activated.
shell.prefix(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; ")

RESULTS = Results(Path("results"))


def budget_file(request):
    """The runs that a budget was spent on, with the items that they belong to."""
    return RESULTS.root / request.scale / "budget.json"


def chosen(request, whole):
    """The part of a scale's plan that is asked for.

    A budget is spent once: jobs that read the configuration anew, while records appear, keep to what was
    chosen in the beginning.
    """
    if request.hours is None or workflow.is_main_process:
        return affordable(whole, request.selection, RESULTS)
    unlimited = request.selection.model_copy(update={"hours": None})
    memberships = read_json(budget_file(request))
    return whole.restricted(unlimited).within(memberships, budget_note(request.hours))


def from_records(wanted):
    """The part of a plan that can be made without training, from the files that are there."""
    complete = {run for run in wanted.runs if RESULTS.record(run).complete}

    def there(item):
        runs = item.run_ids if item.looks_into_models else []
        models = [RESULTS.run(run) / MODELS_FILE for run in runs]
        return all(Path(file).exists() for file in (*looked_into(item), *models))

    stale = stale_runs(wanted.runs, RESULTS)
    return wanted.recorded(
        complete, {run: str(old) for run, old in stale.items()}, there
    )


def looked_into(item):
    """What an item is made from beside records."""
    if item.trains and not item.looks_into_models:
        return []
    files = [RESULTS.partition_file(partition) for partition in item.partition_ids]
    if item.looks_into_models:
        files += [RESULTS.data(entry.spec.dataset) for entry in item.entries]
    return sorted({str(file) for file in files})


try:
    REQUEST = Request.parse(config, "config/config.yaml or --config")
    WHOLE = plan(Path("config"), REQUEST.scale)
    PLAN = chosen(REQUEST, WHOLE)
    PLAN = PLAN if REQUEST.train else from_records(PLAN)
except FltrainError as error:
    raise WorkflowError(str(error)) from None


onstart:
    gc.enable()
    if REQUEST.hours is not None:
        write_json(budget_file(REQUEST), PLAN.memberships)


SCALE = REQUEST.scale
OUT = f"results/{SCALE}"

# After a clock was set back, Snakemake would refuse, and delete, what is made from files of the time before.
if workflow.is_main_process:
    MADE = ("data/*", "partitions/*", "runs/*/summary.json", f"{SCALE}/**/*")
    backdate(path for pattern in MADE for path in RESULTS.root.glob(pattern))
ITEMS = {item.id: item for item in PLAN.items}
# The runs that there will be a record of, with all the items of the scale that they belong to: of these MLflow
# must not lose any, whatever is asked for.
MEMBERSHIPS = {
    run: WHOLE.memberships[run]
    for run in PLAN.runs
    if REQUEST.train or RESULTS.record(run).complete
}
DATASETS = {
    data.id: data.prepared
    for spec in PLAN.specs
    for data in (spec.dataset, *spec.evaluation.extra)
}
PARTITIONS = {spec.partition_id: spec for spec in PLAN.specs}
# What the run table's estimates come from, if steps were measured.
CALIBRATION = [str(file) for file in [calibration_file(RESULTS)] if file.exists()]

TABLE_FORMS = ("csv", "md", "tex", "html", "published.html")
FIGURE_FORMS = ("csv", "pdf", "svg", "png")

# Names of tables and of figures, as wildcards of the two rules: both write CSV files.
TABLES = sorted({item.name for item in PLAN.items if item.item.table})
FIGURES = sorted({item.name for item in PLAN.items if item.item.figure})


wildcard_constraints:
    scale="[^/]+",
    paper="[^/]+",
    item="[^/]+",
    run="[^/]+",


def item_outputs(item):
    """Files of a table or figure."""
    forms = TABLE_FORMS if item.item.table else FIGURE_FORMS
    return [f"{OUT}/{item.paper.paper}/{item.name}.{form}" for form in forms]


def versioned(component):
    """Settings and revision of a component: what its product depends on."""
    return {
        "settings": component.model_dump(mode="json"),
        "revision": component.revision,
    }


# Texts, because in nested parameters Snakemake drops what is None.
def dataset_of(wildcards):
    """A data set of the plan, or any other by its name in the registry."""
    dataset = DATASETS.get(wildcards.dataset) or Dataset.parse(
        {"name": wildcards.dataset}, "data set"
    )
    return json.dumps(versioned(dataset), sort_keys=True)


def partition_of(wildcards):
    spec = PARTITIONS[wildcards.partition]
    settings = {
        "dataset": versioned(spec.dataset.prepared),
        "scheme": versioned(spec.partition),
        "local_test": (
            spec.local_test.model_dump(mode="json") if spec.local_test else None
        ),
        "seed": spec.seed,
    }
    return json.dumps(settings, sort_keys=True)


def partition_data(wildcards):
    return str(RESULTS.data(PARTITIONS[wildcards.partition].dataset))


# Snakemake asks for these several times of each of thousands of runs. Data and partitions are checked by digests
# and named after what they depend on: that a file is new, or a clock was wrong, is no reason to train again.
@cache
def run_spec(run):
    return PLAN.runs[run].to_json()


@cache
def run_files(run):
    spec = PLAN.runs[run]
    data = [
        str(RESULTS.data(dataset)) for dataset in (spec.dataset, *spec.evaluation.extra)
    ]
    return {
        "data": ancient(data),
        "partition": ancient(str(RESULTS.partition(spec))),
    }


# Estimates are those of the device that was measured last.
MEASURED = measured(RESULTS)


@cache
def demand_of(run):
    return Demand.of(PLAN.runs[run], MEASURED)


def run_demand(resource):
    """What a job asks for: a number of the run's demand, more whenever it is tried again."""
    return lambda wildcards, attempt: getattr(
        demand_of(wildcards.run).grown(attempt), resource
    )


def run_priority(wildcards):
    return demand_of(wildcards.run).minutes


def spec_of(wildcards):
    return run_spec(wildcards.run)


def run_inputs(wildcards):
    return run_files(wildcards.run)


def records_of(runs):
    """The summaries, which are written last and so stand for whole records."""
    return [f"results/runs/{run}/summary.json" for run in runs if run in MEMBERSHIPS]


def item_records(wildcards):
    """What an item is made from: records of runs, or partitions where these are all it shows."""
    item = ITEMS[f"{wildcards.paper}/{wildcards.item}"]
    return [*records_of(item.run_ids), *looked_into(item)]


@cache
def sheet_of(item):
    return ITEMS[item].sheet.model_dump(mode="json")


def sheet_part(field):
    """Look-up of one field of an item's sheet: one parameter each, so that a dry run names what changed."""
    return lambda wildcards: sheet_of(f"{wildcards.paper}/{wildcards.item}")[field]


SHEET = {field: sheet_part(field) for field in Sheet.model_fields}


def item_published(wildcards):
    reported = ITEMS[f"{wildcards.paper}/{wildcards.item}"].item.reported
    return [f"config/reported/{reported.file}"] if reported else []


def item_labels(numbers=None):
    """What the report calls a table or figure, and whose numbers a table shows: it makes a switch of these."""

    def labels(wildcards):
        item = ITEMS[f"{wildcards.paper}/{wildcards.item}"].item
        named = {"item": f"{wildcards.item}: {item.title}"}
        return {**named, "numbers": numbers} if numbers else named

    return labels


# The papers of the plan. Our own items stand under one without claims.
PAPERS = {item.paper.paper: item.paper for item in PLAN.items}


def items_of(paper):
    return [item for item in PLAN.items if item.paper.paper == paper]


def paper_items(wildcards):
    """The paper's tables and figures: they are made anew whenever a record is, and there are fewer of them."""
    items = items_of(wildcards.paper)
    return [output for item in items for output in item_outputs(item)]


def paper_published(wildcards):
    reported = [item.item.reported for item in items_of(wildcards.paper)]
    files = dict.fromkeys(one.file for one in reported if one)
    return [f"config/reported/{file}" for file in files]


def paper_statements(wildcards):
    file = f"config/reported/{wildcards.paper}_claims.csv"
    return [file] if PAPERS[wildcards.paper].claims else []


# Texts, because in nested parameters Snakemake drops what is None.
def paper_heading(wildcards):
    paper = PAPERS[wildcards.paper]
    scale = PLAN.scale
    heading = {"paper": paper.paper, "title": paper.title, "scale": scale.scale}
    titles = dict.fromkeys(item.scale_title for item in items_of(wildcards.paper))
    note = scale_sentence("; ".join(titles), scale.reduced)
    return json.dumps({**heading, "reduced": scale.reduced, "scale_note": note})


def paper_sheets(wildcards):
    return json.dumps([sheet_of(item.id) for item in items_of(wildcards.paper)])


def paper_claims(wildcards):
    return json.dumps(
        [claim.model_dump(mode="json") for claim in PAPERS[wildcards.paper].claims]
    )
