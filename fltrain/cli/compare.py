"""The command `fltrain compare`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fltrain.cli.options import DEMO, ConfigOption, ItemsArgument, ResultsOption, WhereOption, check_folder
from fltrain.cli.output import print_entries, print_table, print_text
from fltrain.core.errors import FltrainError, count
from fltrain.core.files import write_text
from fltrain.core.shell import command
from fltrain.experiments.selection import comma_separated

if TYPE_CHECKING:
    from fltrain.tracking.compare import PaperSummary

MOST_LINES, MOST_ITEMS = 150, 4
"""Lines that a terminal shows, and tables and figures of runs that no option chooses."""


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
            help="Measure to compare: best_accuracy, test_loss, seconds ... (docs/configuration.md#measures; "
            "default: the first one of the item that you name, or final_accuracy).",
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
    """Compare trained runs, or show the results of a paper, table or figure.

    Name a paper to see its claims, tables and figures with their verdicts. Name a table to see the numbers,
    labels and verdicts of its page, or a figure with curves to see the final accuracies of its runs. In all
    other cases, for example a paper with --metric, the output has a line for each combination of settings.
    It refuses more than four tables and figures unless you choose runs with --where. Gains are paired by seed
    and have intervals of 90 %.
    """
    from fltrain.reporting.tables.table_cell import to_csv
    from fltrain.tracking import compare as comparing

    for item in items or ():
        if "=" in item:
            raise FltrainError(f"{item!r} is a condition; write all in quotes: --where '... {item}'")
    if out and out.suffix != ".csv":
        raise FltrainError(f"{out}: name a file that ends in .csv")
    check_folder(out)
    if items and not (where or metric or over or baseline or out):
        scale = scale or DEMO
        if summaries := comparing.summarise_papers(results, config, items, scale):
            for summary in summaries:
                example = max(summary.items, key=lambda item: bool(summary.items[item][1]))
                _print_summary(
                    summary, scale, command(f"fltrain compare {example} --scale {scale}", results, config)
                )
            return
    settings = comma_separated(over or "")
    compared = comparing.compare(results, config, items or (), scale, where or (), metric, settings, baseline)
    rows = compared.rows()
    many = len(compared.items) > MOST_ITEMS and not (where or baseline)
    if (many or len(rows) > MOST_LINES) and not out:
        origin = f"{len(compared.items)} tables and figures" if compared.items else "several experiments"
        raise FltrainError(
            f"{len(rows)} lines of {origin}; name a table or figure and its scale ("
            + (compared.example and f"for example `{compared.example}`; ")
            + f"`{command('fltrain plan --scale NAME', results, config)}` lists them), choose runs with "
            "--where (items=none: in no table or figure), or write all lines to a file with --out"
        )
    if len(rows) <= MOST_LINES and not many:
        if compared.heading:
            print_text(compared.heading)
        print_table(list(rows[0]), [list(row.values()) for row in rows], grouped=compared.grouping)
        for note in compared.notes:
            print_text(note)
    if out:
        write_text(out, to_csv(compared.cells))
        typer.echo(f"table: {out}")


def _print_summary(summary: PaperSummary, scale: str, example: str) -> None:
    from fltrain.reporting.claims import DROPPED_CLAIMS, EXPLORATORY, LEGEND, full_verdict, result_lines

    if summary.claims:
        counts = Counter(map(full_verdict, summary.claims))
        verdicts = "; ".join(f"{number} {verdict}" for verdict, number in counts.items())
        print_text(f"Claims of {summary.paper} at scale {scale}: {verdicts}")
        claims = [
            (full_verdict(claim), f"{claim['where']}: {claim['claim']}", "\n".join(result_lines(claim)))
            for claim in summary.claims
        ]
        print_entries(claims, label_width=14)
        notes = {"dropped": DROPPED_CLAIMS, "exploratory": EXPLORATORY}
        for note in [LEGEND, *(notes[key] for key in notes if any(claim[key] for claim in summary.claims))]:
            print_text(note)
    if summary.unjudged:
        print_text(f"{count(summary.unjudged, 'further claim')}: not run, or not judged")
    print_text(f"Tables and figures of {summary.paper} at scale {scale}:")
    print_entries([(item, *texts) for item, texts in summary.items.items()])
    print_text(f"cells of a table or figure: {example}")
    print_text("runs grouped by settings: add --metric final_accuracy, --where, --over, --baseline or --out")
