# The plan of the chosen scale, and look-ups for the rules. Configuration is read here and nowhere else:
# jobs get what they need through `params`, so that a change reruns exactly what it concerns.
import json
from pathlib import Path

from fltrain.errors import FltrainError
from fltrain.experiments import Sheet, plan
from fltrain.records import Results

RESULTS = Results(Path("results"))
try:
    SCALE = str(config.get("scale", "demo"))
    PLAN = plan(Path("config"), SCALE)
except FltrainError as error:
    raise WorkflowError(str(error)) from None

OUT = f"results/{SCALE}"
ITEMS = {f"{item.paper.paper}/{item.name}": item for item in PLAN.items}
DATASETS = {spec.dataset.id: spec.dataset for spec in PLAN.runs.values()}
PARTITIONS = {spec.partition_id: spec for spec in PLAN.runs.values()}

TABLE_FORMS = ("csv", "md", "tex", "html")
FIGURE_FORMS = ("pdf", "png")


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
    """Settings and revision of a component, as one text: what a rerun depends on."""
    settings = component.model_dump(mode="json")
    return json.dumps(
        {"settings": settings, "revision": component.revision}, sort_keys=True
    )


def dataset_of(wildcards):
    return versioned(DATASETS[wildcards.dataset])


def partition_of(wildcards):
    spec = PARTITIONS[wildcards.partition]
    return {
        "dataset": versioned(spec.dataset),
        "scheme": versioned(spec.partition),
        "seed": spec.seed,
    }


def partition_data(wildcards):
    return str(RESULTS.data(PARTITIONS[wildcards.partition]))


def spec_of(wildcards):
    return PLAN.runs[wildcards.run].to_json()


def run_inputs(wildcards):
    spec = PLAN.runs[wildcards.run]
    return {"data": str(RESULTS.data(spec)), "partition": str(RESULTS.partition(spec))}


def records_of(runs):
    """The summaries, which are written last and so stand for whole records."""
    return [f"results/runs/{run}/summary.json" for run in runs]


def item_records(wildcards):
    return records_of(ITEMS[f"{wildcards.paper}/{wildcards.item}"].run_ids)


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
