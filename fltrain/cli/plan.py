"""The command `fltrain plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table
from fltrain.core.errors import FltrainError, count
from fltrain.core.files import write_text
from fltrain.experiments.costs import PlanCosts, run_table
from fltrain.experiments.plan import plan
from fltrain.experiments.scale_file import scale_file, write_scale
from fltrain.runs.record import Results
from fltrain.runtime.devices import pick_device


def show_plan(
    items: options.ItemsArgument = None,
    scale: options.ScaleOption = "demo",
    seeds: options.SeedsOption = None,
    where: options.WhereOption = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Show the items and seeds that fit into this many hours.")
    ] = None,
    cheapest: Annotated[
        bool, typer.Option("--cheapest", help="Show items that decide a claim of a paper, cheapest first.")
    ] = False,
    new_scale: Annotated[
        Path | None,
        typer.Option("--write-scale", help="Write the items and seeds shown to a new file in config/scales."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure training steps on this machine for the estimates.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device to measure: auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Write a table of the runs and their costs to this CSV file.")
    ] = None,
    results: options.ResultsOption = Path("results"),
    config: options.ConfigOption = Path("config"),
) -> None:
    """Show the runs behind each table and figure, and their costs.

    Costs are hours, traffic and disk space.
    """
    wanted, folder = options.selection_of(items, seeds, where), Results(results)
    planned = plan(config, scale).restricted(wanted)
    if new_scale and where:
        raise FltrainError("--write-scale: a scale file restricts items and seeds only; leave out --where")
    new_file = scale_file(config, new_scale) if new_scale else None
    if calibrate:
        from fltrain.experiments.calibrate import calibrate as measure

        # On a GPU that other runs use, measurements would be too slow.
        measure(planned, folder, pick_device(device, runs=1), typer.echo)
    costs = PlanCosts.of(planned, folder)
    if hours is not None:
        if costs.unknown:
            raise FltrainError(
                f"--hours: {count(len(costs.unknown), 'run')} without an estimate, for example "
                f"{costs.unknown[0]}; add --calibrate, and give the size of datasets in config/datasets.yaml"
            )
        planned = costs.within(hours)
        costs = PlanCosts.of(planned, folder)
    if cheapest:
        costs = replace(costs, plan=costs.cheapest())
        if costs.unknown:
            typer.echo("order: by number of training images, as hours are not estimated yet")
    _print_costs(costs, claims=cheapest)
    for line in _remarks(costs, folder):
        typer.echo(line)
    if out:
        write_text(out, run_table(planned, costs.estimates))
        typer.echo(f"run table: {out}")
    if new_file:
        note = "a part of it" if hours is None else f"the part that fits into {hours:g} hours"
        write_scale(new_file, planned, note)
        typer.echo(f"scale: {new_file}; train it with `snakemake --config scale={new_file.stem}`")


def _print_costs(costs: PlanCosts, claims: bool) -> None:
    """Print the table of items; ``claims`` adds the number of claims that each decides alone."""
    scale = costs.plan.scale
    rows: list[tuple[str, ...]] = []
    for item in costs.plan.items:
        title = f"{item.item.title} ({count(item.claims, 'claim')})" if claims else item.item.title
        counts = (len(item.entries), len(item.run_ids), len(costs.done & set(item.run_ids)))
        rows.append((item.id, title, *map(str, counts), *_prices(costs, item.run_ids)))
    counts = (len(costs.plan.specs), len(costs.plan.runs), len(costs.done & costs.plan.runs.keys()))
    rows += (), ("all, shared runs once", "", *map(str, counts), *_prices(costs, list(costs.plan.runs)))
    numbers = ("cells x seeds", "runs", "trained", "hours", "left", "traffic, GB", "disk, MB")
    typer.echo(f"{scale.scale}: {scale.title}")
    print_table(("item", "title", *numbers), rows, right=numbers)


def _prices(costs: PlanCosts, runs: list[str]) -> list[str]:
    """Return hours of all runs, hours of missing runs, traffic and disk.

    A + marks missing estimates; without any estimate, the texts are empty.
    """
    if costs.estimates.keys().isdisjoint(runs):
        return [""] * 4
    more = "" if costs.estimates.keys() >= set(runs) else " +"
    total, left = costs.sum(runs), costs.sum(set(runs) - costs.done)
    values = (total.seconds / 3600, left.seconds / 3600, total.traffic / 1e9, total.disk / 1e6)
    return [f"{value:,.2f}{more}" for value in values]


def _remarks(costs: PlanCosts, results: Results) -> list[str]:
    if costs.calibration is None:
        return ["hours: not estimated yet; add --calibrate to measure a few steps on this machine"]
    remarks = [f"hours: one process on {costs.calibration.device}"]
    if costs.unknown:
        missing = count(len(costs.unknown), "run")
        remarks.append(f"{missing} without an estimate (+, or empty cells); add --calibrate")
    return [*remarks, *filter(None, [costs.check(results)])]
