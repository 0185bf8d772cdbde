"""The command `fltrain plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table
from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError, count
from fltrain.core.files import write_text
from fltrain.experiments.costs import GPUS, SHARES, PlanCosts, arithmetic, run_table
from fltrain.experiments.plan import Plan, plan
from fltrain.runs.record import Results
from fltrain.runtime.devices import pick_device


def show_plan(
    items: options.ItemsArgument = None,
    scale: options.ScaleOption = "demo",
    seeds: options.SeedsOption = None,
    where: options.WhereOption = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Hours by arithmetic for a GPU: {', '.join(GPUS)}.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Hours on this machine, from a short run of each network.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device to measure: auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Write a table of the runs and their multiply-adds to this CSV file.")
    ] = None,
    results: options.ResultsOption = Path("results"),
    config: options.ConfigOption = Path("config"),
) -> None:
    """Show the runs behind each table and figure, and their costs.

    Costs are the multiply-adds of the runs: exact, from the shapes of their networks, including gradients,
    tests and all further passes of methods. --gpu and --measure add hours.
    """
    check_known("--gpu: unknown GPU", [gpu] if gpu else [], GPUS)
    if gpu and measure:
        raise FltrainError("--gpu is arithmetic, --measure uses this machine; leave out one of the two")
    planned = plan(config, scale).restricted(options.selection_of(items, seeds, where))
    costs, remarks = _costs(planned, gpu, device if measure else None)
    done = frozenset(run for run in planned.runs if Results(results).record(run).complete)
    _print(planned, costs, done)
    cohorts = (spec.participation.in_words(spec.partition.clients) for spec in planned.runs.values())
    for line in (f"cohorts: {', '.join(dict.fromkeys(cohorts))}", *remarks):
        typer.echo(line)
    if out:
        write_text(out, run_table(planned, costs))
        typer.echo(f"run table: {out}")


def _costs(planned: Plan, gpu: str | None, device: str | None) -> tuple[PlanCosts, list[str]]:
    """Return the costs of all runs, and remarks on their origin."""
    from fltrain.experiments.work import Work

    work, runs = Work(), planned.runs
    found = {run: n for run, spec in runs.items() if (n := work.multiply_adds(spec)) is not None}
    remarks = [
        "multiply-adds: of convolutions and linear layers (G 1e9, T 1e12, P 1e15, E 1e18); mean per run"
    ]
    if unknown := len(runs) - len(found):
        remarks.append(
            f"{count(unknown, 'run')} (+) not counted: config/datasets.yaml lacks the dataset's size"
        )
    if gpu:
        low, high = (f"{100 * share:.0f}" for share in SHARES)
        title, *peaks = GPUS[gpu]
        remarks.append(
            f"hours left: arithmetic at {low} to {high} % of the peak of one {title} "
            f"({' / '.join(f'{peak:g}' for peak in peaks)} TFLOP/s in fp32 / tf32 / bf16), not measured"
        )
        return arithmetic(runs, found, GPUS[gpu]), remarks
    if device is None:
        return PlanCosts(found), [*remarks, "hours: add --gpu NAME (arithmetic) or --measure (this machine)"]
    if os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        remarks.append("warning: other processes keep this machine busy; hours are too high")
    chosen = pick_device(device, runs=1)  # if other runs used the GPU, measurements would be too slow
    hours = {run: n / work.speed(runs[run], chosen) / 3600 for run, n in found.items()}
    remarks.append(f"hours left: one run at a time on this machine ({chosen}), measured with FedAvg")
    return PlanCosts(found, {run: (one, one) for run, one in hours.items()}), remarks


def _print(planned: Plan, costs: PlanCosts, done: frozenset[str]) -> None:
    """Print the table of items."""
    rows: list[tuple[str, ...]] = []
    for item in planned.items:
        counts = (len(item.entries), len(item.run_ids), len(done & set(item.run_ids)))
        rows.append((item.id, item.item.title, *map(str, counts), *_prices(costs, item.run_ids, done)))
    counts = (len(planned.specs), len(planned.runs), len(done & planned.runs.keys()))
    rows += (), ("all, shared runs once", "", *map(str, counts), *_prices(costs, list(planned.runs), done))
    numbers = ["cells x seeds", "runs", "trained", "multiply-adds", "per run"]
    numbers += ["hours left"] if costs.hours else []
    typer.echo(f"{planned.scale.scale}: {planned.scale.title}")
    print_table(("item", "title", *numbers), rows, right=numbers)


def _prices(costs: PlanCosts, runs: list[str], done: frozenset[str]) -> list[str]:
    """Return multiply-adds of all runs and of one, and the hours of missing runs; a + marks runs without."""
    known = [run for run in runs if run in costs.multiply_adds]
    more = "" if len(known) == len(runs) else " +"
    total = costs.sum(runs)
    prices = [_prefixed(total) + more, _prefixed(total / len(known)) if known else ""]
    if costs.hours:
        least, most = (
            f"{hours:,.2g}" if hours < 10 else f"{hours:,.0f}" for hours in costs.range(set(runs) - done)
        )
        prices.append((least if least == most else f"{least} to {most}") + more)
    return prices


def _prefixed(number: float) -> str:
    """Return a number with three digits and a prefix: G is 1e9, T is 1e12, P is 1e15, E is 1e18."""
    for prefix, size in {"E": 1e18, "P": 1e15, "T": 1e12}.items():
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + f" {prefix}"
    return f"{number / 1e9:.3g} G"
