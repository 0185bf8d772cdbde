"""The commands `fltrain records ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import ConfigOption, ResultsOption, read_from
from fltrain.core.errors import FltrainError, count
from fltrain.experiments.plan import plan
from fltrain.runs.record import Results

app = typer.Typer(
    help="Export and import records of runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("export")
def export_archive(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Archive to write, for example records.tar.gz.")
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Run IDs (default: all records that are not stale)."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="NAME", help="Export all trained runs of a scale.")
    ] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Write records to an archive, without logs and models.

    A record takes a few KB.
    """
    from fltrain.runs.archive import export_records

    if archive.suffixes[-2:] != [".tar", ".gz"]:
        raise FltrainError(f"{archive}: name an archive that ends in .tar.gz")
    where, left = read_from(results), ""
    if runs and scale:
        raise FltrainError(f"name either run IDs or --scale {scale}, not both")
    if scale:
        planned = plan(config, scale)
        runs = [run_id for run_id in planned.runs if where.record(run_id).complete]
        typer.echo(f"{scale}: {len(runs):,} of {len(planned.runs):,} runs are trained")
    if runs is None:
        records = list(where.records())
        current = [record for record in records if not record.stale]
        left = f", {count(stale, 'stale one')} left out" if (stale := len(records) - len(current)) else ""
    else:
        current = [where.record(run) for run in dict.fromkeys(runs)]
    typer.echo(f"{archive}: {count(export_records(current, archive), 'record')}{left}")


@app.command("import")
def import_archive(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Archive from `fltrain records export`.")
    ],
    results: ResultsOption = Path("results"),
) -> None:
    """Import the records of an archive into RESULTS/runs.

    If one record is invalid, the command imports none. It keeps existing records, and counts those whose
    numbers differ from the archive by more than rounding.
    """
    from fltrain.runs.archive import import_records

    done = import_records(archive, Results(results))
    note = (
        f"; {done['kept']} of your own runs kept, because their numbers differ, usually because CPUs round "
        "differently (docs/records.md#equal-bits). To take the archived ones, delete their folders"
    )
    typer.echo(
        f"{archive}: {done['added']} added, {done['unchanged']} unchanged{note if done['kept'] else ''}"
    )
