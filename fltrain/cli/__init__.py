"""The command line: one file per command, assembled here.

Exit codes: 0 success, 2 a mistake in configuration, data or environment (one line on standard error);
``fltrain.core.errors`` lists the others. Slow imports (torch, mlflow) are delayed until a command needs them.
"""

from __future__ import annotations

import sys
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated

import typer
from typer.exceptions import TyperException

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
from fltrain.core.errors import FltrainError, Stopped, as_mistake

app = typer.Typer(
    help="Rerun published federated-learning experiments and compare the results with the published values.",
    no_args_is_help=True,
    add_completion=False,
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


def main() -> None:
    """Run the command line; mistakes of the user end in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know ASCII only
    try:
        sys.exit(app(standalone_mode=False))
    except TyperException as error:
        typer.echo(_usage_error(error), err=True)
        sys.exit(error.exit_code)
    except (FltrainError, OSError) as error:
        mistake = as_mistake(error)
        typer.echo(f"error: {mistake}", err=True)
        sys.exit(mistake.exit_code)
    except Stopped as stopped:
        typer.echo(str(stopped), err=True)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _usage_error(error: TyperException) -> str:
    """Return one line on a wrong use of a command, or the help of a group without a command."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage: "):
        return message
    command = context.command_path if context else "fltrain"
    return f"error: {message[:1].lower()}{message[1:].rstrip('.')} (see {command} --help)"
