"""The command `fltrain status`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer
from rich.table import Table

from fltrain.cli.options import (
    ConfigOption,
    DatasetsOption,
    ItemsArgument,
    MethodsOption,
    ResultsOption,
    ScaleOption,
    SeedsOption,
    WhereOption,
    selection_of,
)
from fltrain.cli.output import print_table
from fltrain.experiments.plan import plan
from fltrain.runs.record import Results
from fltrain.runs.status import State, stale_runs


def status(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    where: WhereOption = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Show the status of each run, with its final accuracy and wall time.

    A stopped run resumes from its last checkpoint. A stale run was trained before a component was revised; it
    has to be retrained. A damaged record was changed after training; tables leave it out.
    """
    wanted, folder = selection_of(items, datasets, methods, seeds, where), Results(results)
    planned = plan(config, scale).restricted(wanted)
    table = Table()
    table.add_column("run", no_wrap=True)
    for name in ("seed", "items", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("final accuracy, %", "seconds"):
        table.add_column(name, justify="right")
    stale = stale_runs(planned.runs, folder)
    states = {run: State.of(run, folder, stale.get(run), spec) for run, spec in planned.runs.items()}
    for run, state in states.items():
        members = ", ".join(planned.memberships[run])
        final = "" if state.final is None else f"{100 * state.final:.2f}"
        seconds = "" if state.seconds is None else f"{state.seconds:.1f}"
        table.add_row(run, str(planned.runs[run].seed), members, state.name, final, seconds)
    print_table(table)
    same: dict[tuple[str, str], list[str]] = {}
    for run, state in states.items():
        same.setdefault((state.name, state.detail), []).append(run)
    for (name, detail), runs in same.items():
        if detail:
            more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
            typer.echo(f"{runs[0]}{more}: {name}: {detail}")
    counts = Counter(state.name for state in states.values())
    typer.echo(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
