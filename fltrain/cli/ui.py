"""The command `fltrain ui`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.core.errors import FltrainError
from fltrain.core.shell import command


def ui(
    results: options.ResultsOption = Path("results"),
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Browse the runs in MLflow.

    It prints the addresses of tables, cells and papers; Ctrl-C ends it. MLflow has no login: every user of
    this machine can read and change the runs in it, but not the records.
    """
    database = options.read_from(results).tracking
    if not database.exists():
        make = "`make reproduce` or " * (results == Path("results"))  # it always fills this folder
        track = command("fltrain track --scale NAME", results)
        raise FltrainError(f"{database} does not exist yet; run {make}`{track}` first")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise FltrainError(
                f"--port {port}: cannot be used ({error.strerror}); choose another, for example {port + 1}"
            ) from None
    from fltrain.tracking import server

    address, cells = f"http://127.0.0.1:{port}", server.experiments(database).get("cells")
    typer.echo("Open one of these lists; Ctrl-C ends the server.")
    typer.echo(f"  tables  {address}")
    if cells:
        typer.echo(f"  cells   {address}/#/experiments/{cells}/runs")
    typer.echo(f"  papers  {address}/#/experiments")
    sys.stdout.flush()
    server.serve(database, port)
