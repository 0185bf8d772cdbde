"""The command `fltrain ui`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.core.errors import FltrainError
from fltrain.runs.record import Results


def ui(
    results: options.ResultsOption = Path("results"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Browse the runs in MLflow.

    It prints the address of each paper's runs; Ctrl-C ends it. MLflow has no login: every user of this
    machine can read and change the runs in it, but not the records.
    """
    database = Results(results).tracking
    if not database.exists():
        raise FltrainError(f"{database} does not exist yet; run `make reproduce` or `fltrain track` first")
    from fltrain.tracking.mlflow_store import SQLITE, artifacts_of
    from fltrain.tracking.views import views_in

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise FltrainError(
                f"--port {port}: cannot be used ({error.strerror}); choose another, for example {port + 1}"
            ) from None
    store = f"{SQLITE}{database}"
    typer.echo("Open one of these addresses; Ctrl-C ends the server.")
    for name, address in views_in(store).items():
        typer.echo(f"  {name:11} http://127.0.0.1:{port}/{address}")
    sys.stdout.flush()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1"]  # one user; the default of four takes more memory
    command += ["--backend-store-uri", store, "--artifacts-destination", str(artifacts_of(database))]
    command += ["--registry-store-uri", store, "--uvicorn-opts", "--log-level warning"]
    quiet = {"MLFLOW_LOGGING_LEVEL": "WARNING", "PYTHONWARNINGS": "ignore"}
    os.execve(sys.executable, command, {**quiet, **os.environ})
