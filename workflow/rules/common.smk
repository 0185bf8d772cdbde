# The plan of the chosen scale, and look-ups for the rules. Configuration is read here and nowhere else:
# jobs get what they need through `params`, so that a change reruns exactly what it concerns.
import json
import shlex
import sys
from pathlib import Path

from fltrain.data.datasets import Dataset
from fltrain.errors import FltrainError
from fltrain.experiments import plan
from fltrain.records import Results
from fltrain.reporting.layout import Sheet

# Shell commands find the Python that runs the workflow, whether or not its environment is activated.
shell.prefix(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; ")

RESULTS = Results(Path("results"))
try:
    SCALE = str(config.get("scale", "demo"))
    PLAN = plan(Path("config"), SCALE)
except FltrainError as error:
    raise WorkflowError(str(error)) from None

OUT = f"results/{SCALE}"
ITEMS = {f"{item.paper.paper}/{item.name}": item for item in PLAN.items}
DATASETS = {
    data.id: data.prepared
    for spec in PLAN.specs
    for data in (spec.dataset, *spec.evaluation.extra)
}
PARTITIONS = {spec.partition_id: spec for spec in PLAN.specs}

TABLE_FORMS = ("csv", "md", "tex", "html")
FIGURE_FORMS = ("csv", "pdf", "png")

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


def spec_of(wildcards):
    return PLAN.runs[wildcards.run].to_json()


def run_inputs(wildcards):
    spec = PLAN.runs[wildcards.run]
    data = [
        str(RESULTS.data(dataset)) for dataset in (spec.dataset, *spec.evaluation.extra)
    ]
    return {"data": data, "partition": str(RESULTS.partition(spec))}


def records_of(runs):
    """The summaries, which are written last and so stand for whole records."""
    return [f"results/runs/{run}/summary.json" for run in runs]


def item_records(wildcards):
    """What an item is made from: records of runs, or partitions where these are all it shows."""
    item = ITEMS[f"{wildcards.paper}/{wildcards.item}"]
    partitions = [
        str(RESULTS.partition_file(partition)) for partition in item.partition_ids
    ]
    if not item.trains:
        return partitions
    if not item.looks_into_models:
        return records_of(item.run_ids)
    data = {str(RESULTS.data(entry.spec.dataset)) for entry in item.entries}
    return [*records_of(item.run_ids), *partitions, *sorted(data)]


def sheet_part(field):
    """Look-up of one field of an item's sheet: one parameter each, so that a dry run names what changed."""

    def part(wildcards):
        return ITEMS[f"{wildcards.paper}/{wildcards.item}"].sheet.model_dump(
            mode="json"
        )[field]

    return part


SHEET = {field: sheet_part(field) for field in Sheet.model_fields}


def item_published(wildcards):
    reported = ITEMS[f"{wildcards.paper}/{wildcards.item}"].item.reported
    return [f"config/reported/{reported}"] if reported else []


def item_labels(wildcards):
    """What the report calls a table or figure. One label: it makes switches of labels with two values."""
    return {
        "item": f"{wildcards.item}: {ITEMS[f'{wildcards.paper}/{wildcards.item}'].item.title}"
    }
