"""The command `fltrain verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import ConfigOption, ResultsOption
from fltrain.core.errors import FltrainError
from fltrain.runs.record import Results


def verify(
    results: ResultsOption = Path("results"),
    scale: Annotated[
        str | None, typer.Option(help="Only the tables of this scale; of all that were made if not given.")
    ] = None,
    config: ConfigOption = Path("config"),
) -> None:
    """Check everything in RESULTS once more: data sets, partitions, records, and tables against the records.

    There is a line for each problem; the exit code is 2 if there is one. What is stale or left over is named,
    but is no problem.
    """
    from fltrain.reporting.verify import Verification

    verification = Verification(Results(results), config, scale)
    for finding in verification.findings():
        typer.echo(finding.text)
    typer.echo(verification.summary)
    if verification.problems:
        raise typer.Exit(FltrainError.exit_code)
