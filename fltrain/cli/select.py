"""The command `fltrain select`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import ConfigOption, ResultsOption, ScaleOption, one_item, read_from
from fltrain.cli.output import print_table
from fltrain.experiments.plan import plan
from fltrain.runs.where import flat_settings


def select(
    item: Annotated[
        str, typer.Argument(metavar="ITEM", help="Item with the trials, for example fair/trials.")
    ],
    scale: ScaleOption,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Choose the best trial of each cell on validation images.

    The command writes the choice to config/selected. Other items of the scale use it: commit the file before
    you train them.
    """
    from fltrain.experiments.tuning import select as choose
    from fltrain.experiments.tuning import selected_file, write_selection

    trials = one_item(plan(config, scale), item)
    selected, path = choose(trials, read_from(results)), selected_file(config, trials)
    write_selection(path, selected)
    rows = []
    for cell in selected.cells:
        best = cell.trials[cell.chosen]
        value = "diverged" if best.value is None else f"{best.value:.4g}"
        settings = " ".join(map("=".join, flat_settings(best.settings)))
        rows.append((", ".join(cell.labels.values()), cell.chosen, value, settings))
    numbers = ("trial", selected.measure)
    print_table(("cell", *numbers, "settings"), rows, right=numbers)
    typer.echo(f"selection: {path}; commit it, then train the other items of {scale!r}")
