"""The command `fltrain compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import DEMO, ConfigOption, ItemsArgument, ResultsOption, WhereOption
from fltrain.cli.output import print_table
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.experiments.selection import comma_separated
from fltrain.runs.where import parse_where


def compare(
    items: ItemsArgument = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Scale (default: {DEMO} for items, else all runs)."),
    ] = None,
    where: WhereOption = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Measure to compare: best_accuracy, test_loss, seconds ... (default: the first possible one "
            "of the table that you name, or final_accuracy)."
        ),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            help="Settings to compare, by dotted names (default: those that the gains of the table that you "
            "name compare, or method and plug-ins)."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Variant to compare with (default: the base of the table that you name, fedavg, or the "
            "first one)."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all numbers to this CSV file.")] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Compare trained runs, paired by seed.

    The table shows means over seeds, and gains over the baseline with their 90 % intervals.
    """
    from fltrain.reporting.tables.table_cell import to_csv
    from fltrain.tracking import compare as comparing
    from fltrain.tracking.runs import find_runs

    conditions = list(where or ())
    if items:
        for item in items:
            if "=" in item:
                raise FltrainError(f"{item!r} is a condition; write all in quotes: --where '... {item}'")
        conditions.append(f"items={','.join(items)}")
        if not any(condition.key == "scale" for condition in parse_where(conditions)):
            scale = scale or DEMO
    if scale:
        conditions.append(f"scale={scale}")
    if out and out.suffix != ".csv":
        raise FltrainError(f"{out}: name a file that ends in .csv")
    runs = find_runs(results, conditions, config)
    compared = comparing.compare(runs, metric, comma_separated(over or ""), baseline)
    rows = compared.rows()
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    for note in compared.notes:
        typer.echo(note)
    if out:
        write_text(out, to_csv(compared.cells))
        typer.echo(f"table: {out}")
