"""The command line: one file per command, assembled here.

Exit codes: 0 success, 2 a mistake in configuration, data or environment (one line on standard error);
``fltrain.core.errors`` lists the others. Slow imports (torch, mlflow) are delayed until a command needs them.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from fltrain.cli import (
    compare,
    data,
    explain,
    plan,
    records,
    select,
    status,
    track,
    train,
    ui,
    verify,
)

app = typer.Typer(
    help="Rerun published federated-learning experiments and compare the results with the published values.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(metadata.version("fltrain"))
        raise typer.Exit


app.command("train")(train.train)
app.command("plan")(plan.show_plan)
app.command("explain")(explain.explain)
app.command("status")(status.status)
app.command("select")(select.select)
app.command("verify")(verify.verify)
app.command("track")(track.track)
app.command("ui")(ui.ui)
app.command("compare")(compare.compare)
app.add_typer(records.app, name="records")
app.add_typer(data.app, name="data")

for _group in (app, records.app, data.app):
    for _command in _group.registered_commands:  # lists of commands would cut the first line of their help
        _command.short_help = (_command.callback.__doc__ or "").partition("\n")[0]
