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
        str | None,
        typer.Option(metavar="NAME", help="Check only the tables of this scale (default: of all scales)."),
    ] = None,
    config: ConfigOption = Path("config"),
) -> None:
    """Check datasets, partitions, records and tables in RESULTS.

    The command makes the tables again from the records and compares them. It prints a line for each problem,
    and then ends with exit code 2, as for an empty folder, or if it could check none of the tables. It also
    lists stale records and leftovers of interrupted processes, which are not problems.
    """
    from fltrain.reporting.verify import Verification

    verification = Verification(Results(results), config, scale)
    for finding in verification.findings():
        typer.echo(finding.text)
    if verification.empty:
        raise FltrainError(f"{results}: nothing to verify; name your folder with --results")
    typer.echo(verification.summary)
    if verification.failed:
        raise typer.Exit(FltrainError.exit_code)
