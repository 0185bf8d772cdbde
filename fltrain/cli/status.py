"""The command `fltrain status`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table
from fltrain.core.errors import count, listed
from fltrain.experiments.plan import plan
from fltrain.reporting.version import outdated_pages
from fltrain.runs.record import Results
from fltrain.runs.today import RunStatus, changed_runs, stale_runs


def status(
    items: options.ItemsArgument = None,
    scale: options.ScaleOption = options.DEMO,
    seeds: options.SeedsOption = None,
    where: options.WhereOption = None,
    results: options.ResultsOption = Path("results"),
    config: options.ConfigOption = Path("config"),
    changed: Annotated[
        bool,
        typer.Option(
            "--changed",
            help="Print only the summary files of runs whose code changed after training, for "
            "`snakemake -R $(fltrain status --changed)`.",
        ),
    ] = False,
) -> None:
    """Show status, final accuracy and wall time of each run.

    A stopped run resumes from its last checkpoint. A stale run was trained before a component was revised; it
    has to be retrained. A damaged record was changed after training; tables leave it out.
    """
    wanted, folder = options.selection_of(items, seeds, where), Results(results)
    whole = plan(config, scale)
    planned = whole.restricted(wanted)
    if changed:
        for run in changed_runs(planned.runs, folder):
            typer.echo(folder.run(run) / "summary.json")
        return
    stale = stale_runs(planned.runs, folder)
    states = {run: RunStatus.of(spec, folder, stale.get(run)) for run, spec in planned.runs.items()}
    rows = []
    for run, state in states.items():
        members = ", ".join(planned.memberships[run])
        final = "" if state.final is None else f"{100 * state.final:.2f}"
        seconds = "" if state.seconds is None else f"{state.seconds:.1f}"
        rows.append((run, str(planned.runs[run].seed), members, state.name, final, seconds))
    numbers = ("final accuracy, %", "seconds")
    print_table(("run", "seed", "items", "status", *numbers), rows, right=numbers)
    same: dict[tuple[str, str], list[str]] = {}
    for run, state in states.items():
        same.setdefault((state.name, state.detail), []).append(run)
    for (name, detail), runs in same.items():
        if detail:
            typer.echo(f"{listed(runs, 1)}: {name}: {detail}")
    if further := sum(record.run_id not in whole.runs for record in folder.records()):
        typer.echo(
            f"{count(further, 'further run')} that no item of {scale} declares (fltrain compare --results "
            f"{results})"
        )
    if outdated := outdated_pages(folder.root / scale):
        typer.echo(
            f"{listed(outdated, 1)}: made by another version of the rule or of the reporting code; run "
            f"snakemake --config scale={scale} train=false"
        )
    counts = Counter(state.name for state in states.values())
    typer.echo(", ".join(f"{number} {name}" for name, number in sorted(counts.items())))
