"""The command `fltrain track`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import (
    ConfigOption,
    DatasetsOption,
    ItemsArgument,
    MethodsOption,
    ResultsOption,
    ScaleOption,
    SeedsOption,
    selection_of,
)
from fltrain.core.errors import Stopped
from fltrain.experiments.plan import plan
from fltrain.runs.record import Results
from fltrain.runtime.signals import Stopping


def track(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
    uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI", help="MLflow store; sqlite:///RESULTS/mlflow.db if not given."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Also the runs in RESULTS/runs that the scale does not have.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on exporting what appears, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="With --follow: seconds between two looks at the records.")
    ] = 10.0,
) -> None:
    """Export the trained runs, tables and figures of a scale to MLflow; exporting again changes nothing.

    A restriction chooses runs; they keep all the tables and figures that they are tagged with. A tracking
    server is told what MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD, say.
    """
    from fltrain.tracking import export as tracking

    where = Results(results)
    whole = plan(config, scale)
    planned = whole.restricted(selection_of(items, datasets, methods, seeds))
    runs = dict.fromkeys(planned.runs)
    if every:
        runs |= dict.fromkeys(record.run_id for record in where.records())
    wanted = tracking.Wanted(where, scale, whole.memberships, list(runs), tracking.pages_of(planned))
    store = uri or f"sqlite:///{where.tracking}"
    if not follow:
        typer.echo(f"{store}: {tracking.export(wanted, store)}")
        return
    stopping = Stopping()
    try:
        with stopping.heeded(), stopping.interruptible():  # what was cut short, the next export makes good
            tracking.follow(wanted, store, typer.echo, interval)
    except (Stopped, KeyboardInterrupt):
        typer.echo(f"{store}: no longer followed; `fltrain track` goes on from here")
