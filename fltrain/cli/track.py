"""The command `fltrain track`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.core.errors import FltrainError, count
from fltrain.core.shell import workflow
from fltrain.experiments.plan import plan


def track(
    items: options.ItemsArgument = None,
    scale: options.ScaleOption = options.DEMO,
    seeds: options.SeedsOption = None,
    where: options.WhereOption = None,
    results: options.ResultsOption = Path("results"),
    config: options.ConfigOption = Path("config"),
    uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            metavar="URI",
            help="MLflow store (default: sqlite:///RESULTS/mlflow.db).",
        ),
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--every", help="Also export runs in RESULTS/runs that are not in the scale.")
    ] = False,
) -> None:
    """Export trained runs, tables and figures of a scale to MLflow.

    You can export again at any time. Options restrict the exported runs, but the tags of a run always name
    all its tables and figures. For a tracking server, set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME
    and MLFLOW_TRACKING_PASSWORD.
    """
    from fltrain.tracking.export import Export, groups_of, measures_of

    folder = options.read_from(results)
    full_plan = plan(config, scale)
    planned = full_plan.restricted(options.selection_of(items, seeds, where))
    runs = dict.fromkeys(planned.runs)
    if all_runs:
        runs |= dict.fromkeys(record.run_id for record in folder.records())
    store = uri or f"sqlite:///{folder.tracking}"
    chosen = [item for item in full_plan.items if item.id in {part.id for part in planned.items}]
    pages = (path for item in chosen for path in (folder.root / scale).glob(f"{item.id}.*"))
    if not (any(folder.record(run).complete for run in runs) or any(pages)):
        others = sum(record.run_id not in full_plan.runs for record in folder.records())
        also = f", or add --every for {count(others, 'run')} in none of its tables and figures"
        raise FltrainError(
            f"{folder.missing or f'{folder.runs} has no run of scale {scale!r}'}; train its runs with "
            f"{workflow(f'scale={scale}', results)}{also if others else ''}"
        )
    export = Export(folder, scale, groups_of(full_plan), list(runs), chosen, measures_of(full_plan))
    counts = ", ".join(f"{number} {kind}" for kind, number in export.to(store).items() if number)
    typer.echo(f"{store}: MLflow runs: {counts or 'nothing to export'}")
