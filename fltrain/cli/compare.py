"""The command `fltrain compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import DEMO, ConfigOption, ItemsArgument, ResultsOption, WhereOption
from fltrain.cli.output import print_table, print_text
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.experiments.selection import comma_separated

MOST_LINES = 150
"""Lines that a terminal shows."""


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
            metavar="NAME",
            help="Measure to compare: best_accuracy, test_loss, seconds ... (default: the first one of the "
            "item that you name, or final_accuracy).",
        ),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="SETTINGS",
            help="Settings to compare instead of an item's cells, by dotted names (default: method and "
            "plug-ins).",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="VARIANT",
            help="Variant of these settings to compare with (default: fedavg, or the first one).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all numbers to this CSV file.")
    ] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Show the cells of a table or figure, or compare trained runs by their settings.

    If you name one item, the output has the numbers, labels and verdicts of its page. Otherwise, it has a
    line for each combination of settings. If you name a paper, its claims follow, with verdicts. Gains are
    paired by seed and have 90 % intervals.
    """
    from fltrain.reporting.claims import full_verdict
    from fltrain.reporting.tables.table_cell import to_csv
    from fltrain.tracking import compare as comparing

    for item in items or ():
        if "=" in item:
            raise FltrainError(f"{item!r} is a condition; write all in quotes: --where '... {item}'")
    if out and out.suffix != ".csv":
        raise FltrainError(f"{out}: name a file that ends in .csv")
    settings = comma_separated(over or "")
    compared = comparing.compare(results, config, items or (), scale, where or (), metric, settings, baseline)
    rows = compared.rows()
    if len(rows) > MOST_LINES and not out:
        raise FltrainError(
            f"{len(rows)} lines of several experiments; name a table or figure ('fltrain plan' lists them), "
            "choose runs with --where, or write all lines to a file with --out"
        )
    if len(rows) <= MOST_LINES:
        if compared.heading:
            print_text(compared.heading)
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        for note in compared.notes:
            print_text(note)
        for paper, claims in compared.claims.items():
            if claims:
                lines = [(one["where"], one["claim"], full_verdict(one), one["number"]) for one in claims]
                print_text(f"claims of {paper}:")
                print_table(("where", "claim", "verdict", "number"), lines)
    if out:
        write_text(out, to_csv(compared.cells))
        typer.echo(f"table: {out}")
