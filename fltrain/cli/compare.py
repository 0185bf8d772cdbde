"""The command `fltrain compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fltrain.cli.options import ConfigOption, ResultsOption, comma_separated
from fltrain.cli.output import print_table
from fltrain.core.errors import FltrainError


def compare(
    paper: Annotated[
        str | None, typer.Option(help="Runs behind tables and figures of papers: flfa,ecgr.")
    ] = None,
    item: Annotated[str | None, typer.Option(help="Runs behind tables and figures: flfa/table1.")] = None,
    scale: Annotated[str | None, typer.Option(help="Runs of scales: demo.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Runs on data sets: cifar10,mnist.")] = None,
    partition: Annotated[str | None, typer.Option(help="Runs with partition schemes: dirichlet.")] = None,
    model: Annotated[str | None, typer.Option(help="Runs of networks: lenet5.")] = None,
    method: Annotated[str | None, typer.Option(help="Runs of base methods: fedavg,fedprox.")] = None,
    plugins: Annotated[
        str | None, typer.Option(help="Runs with exactly these plug-ins: none,flfa,flfa+ecgr.")
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Runs with seeds: 0,1,2.")] = None,
    status: Annotated[
        str | None, typer.Option(help="completed, diverged, stale; all but stale ones if not given.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="A setting by its dotted name: training.lr=0.01,0.1 or method.mu!=0; repeatable."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="What the table shows: final_accuracy, best_accuracy, test_loss, seconds ...")
    ] = "final_accuracy",
    over: Annotated[
        str | None,
        typer.Option(help="What is compared, by dotted names; method and plug-ins if these differ."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="What is compared with; fedavg, or the first line, if not given.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw curves to this file (.png, .pdf, .svg).")] = None,
    curve: Annotated[str, typer.Option(help="The metric of the curves.")] = "test_accuracy",
    sketch: Annotated[bool, typer.Option("--sketch", help="Show curves in the terminal.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file (.csv, .json).")] = None,
    uri: Annotated[
        str | None, typer.Option(help="Read from this MLflow store in place of the records in RESULTS.")
    ] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Compare trained runs: means over seeds, and differences paired by seed.

    All options that choose runs take several names with commas between them.
    """
    from fltrain.tracking import compare as comparing
    from fltrain.tracking.dataframes import find_runs

    fields = {
        "paper": paper,
        "items": item,
        "scale": scale,
        "dataset": dataset,
        "partition": partition,
        "model": model,
        "method": method,
        "plugins": plugins,
        "seed": seed,
        "status": status,
    }
    wanted = {name: comma_separated(value) for name, value in fields.items() if value}
    for name, names in wanted.items():
        if not names:
            raise FltrainError(f"{name}: {fields[name]!r} holds no name; give one, or leave the option out")
    # Before anything is written.
    for path, endings in ((plot, comparing.PICTURES), (out, comparing.TABLES)):
        if path:
            comparing.check_ending(path, endings)
    runs = find_runs(results, uri, config, where or (), wanted)
    compared = comparing.compare(runs, metric, comma_separated(over or ""), baseline)
    rows = compared.rows()
    table = Table()
    for heading in rows[0]:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    print_table(table)
    for remark in compared.remarks:
        typer.echo(remark)
    if sketch:
        typer.echo("\n".join(comparing.sketch(compared, runs, curve)))
    if plot:
        comparing.plot(compared, runs, curve, plot)
        typer.echo(f"curves: {plot}")
    if out:
        compared.write(out)
        typer.echo(f"table: {out}")
