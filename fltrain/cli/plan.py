"""The command `fltrain plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fltrain.cli.options import (
    ConfigOption,
    DatasetsOption,
    HoursOption,
    ItemsArgument,
    MethodsOption,
    ResultsOption,
    ScaleOption,
    SeedsOption,
    selection_of,
)
from fltrain.cli.output import print_table
from fltrain.core.files import write_text
from fltrain.experiments.costs import PlanCosts, affordable, how_to_calibrate, run_table
from fltrain.experiments.plan import plan
from fltrain.runs.record import Results
from fltrain.runtime.devices import pick_device


def show_plan(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    hours: HoursOption = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure steps here, as far as they are not known yet.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to measure: auto, cpu, cuda or cuda:N.")] = "auto",
    hardware: Annotated[
        str | None,
        typer.Option(help="Whose measured steps count; those of the last device measured if not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run table, a CSV file; RESULTS/SCALE/plan.csv if not given.")
    ] = None,
) -> None:
    """Show what tables and figures need: runs in all, distinct, already trained; hours, traffic and disk."""
    whole, where = plan(config, scale), Results(results)
    wanted = selection_of(items, datasets, methods, seeds, hours)
    if calibrate:
        from fltrain.experiments.calibrate import calibrate as measure

        # A budget can be spent when all that may fit into it is known.
        measure(
            whole.restricted(wanted.model_copy(update={"hours": None})),
            where,
            pick_device(device, runs=1),  # what is measured on a shared one would say little
            typer.echo,
        )
    planned = affordable(whole, wanted, where, hardware)
    costs = PlanCosts.of(planned, where, hardware)
    table = Table(title=f"{planned.scale.scale}: {planned.scale.title}", title_justify="left")
    for name in ("item", "title"):
        table.add_column(name, no_wrap=True)
    for name in ("cells x seeds", "runs", "trained", "hours", "left", "traffic, GB", "disk, MB"):
        table.add_column(name, justify="right")
    for item in planned.items:
        counts = (len(item.entries), len(item.run_ids), len(costs.done & set(item.run_ids)))
        table.add_row(item.id, item.item.title, *map(str, counts), *_prices(costs, item.run_ids))
    table.add_section()
    counts = (len(planned.specs), len(planned.runs), len(costs.done))
    table.add_row("all, shared runs once", "", *map(str, counts), *_prices(costs, list(planned.runs)))
    print_table(table)
    for line in _remarks(costs, where, scale):
        typer.echo(line)
    listed = out or results / scale / "plan.csv"
    write_text(listed, run_table(planned, costs.estimates))
    typer.echo(f"run table: {listed}")


def _prices(costs: PlanCosts, runs: list[str]) -> list[str]:
    """Hours of runs, hours of those to be trained, traffic and disk; with a + if some cannot be estimated."""
    if costs.device is None or not runs:
        return [""] * 4
    more = "" if costs.estimates.keys() >= set(runs) else " +"
    every, left = costs.sum(runs), costs.sum(set(runs) - costs.done)
    values = (every.seconds / 3600, left.seconds / 3600, every.traffic / 1e9, every.disk / 1e6)
    return [f"{value:,.2f}{more}" for value in values]


def _remarks(costs: PlanCosts, results: Results, scale: str) -> list[str]:
    """What there is to say about the estimates."""
    if costs.device is None:
        return [f"hours: measure a few steps on this machine first: {how_to_calibrate(scale)}"]
    said = [f"hours: of one process on {costs.device}"]
    if costs.unknown:
        said.append(f"+: {len(costs.unknown)} runs are not estimated yet: {how_to_calibrate(scale)}")
    return [*said, *filter(None, [costs.check(results)])]
