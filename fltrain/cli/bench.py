"""The command `fltrain bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fltrain.cli.options import comma_separated
from fltrain.cli.output import print_table
from fltrain.core.errors import FltrainError
from fltrain.runs.spec import Precision
from fltrain.runtime.determinism import Profile
from fltrain.runtime.devices import pick_device


def run_bench(
    models: Annotated[str, typer.Option(help="Networks: lenet5,resnet18.")] = "lenet5",
    datasets: Annotated[str, typer.Option(help="Data sets whose images they get: mnist,cifar10.")] = "mnist",
    methods: Annotated[
        str, typer.Option(help="Methods, with plug-ins or not: fedavg,fedprox+flfa.")
    ] = "fedavg",
    executors: Annotated[
        str | None, typer.Option(help="How local steps are run: loop,graph; all ways if not given.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 64,
    clients: Annotated[int, typer.Option(min=1, help="Clients in a round.")] = 2,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Batches of each client in a round; 2 to 20, by their cost, if not given."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of each.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    determinism: Annotated[
        Profile,
        typer.Option(help="On CUDA: exact for the same bits every time, fast for whatever PyTorch chooses."),
    ] = "exact",
    precision: Annotated[Precision, typer.Option(help="How layers multiply: fp32, tf32 or bf16.")] = "fp32",
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time goes, by kind of kernel (CPU).")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="The table, a CSV file; a figure and profiles go beside it.")
    ] = Path("results/bench.csv"),
) -> None:
    """Measure how fast runs are trained here, beside what the device can do and a bare PyTorch loop.

    Images are random: no data set is needed. Options that name several take commas between them.
    """
    from fltrain import bench as benching
    from fltrain.engine.executors.choose import EXECUTORS

    where = benching.files_of(out, profile)
    wanted = benching.Bench(
        models=comma_separated(models),
        datasets=comma_separated(datasets),
        methods=comma_separated(methods),
        executors=list(EXECUTORS) if executors is None else comma_separated(executors),
        batch_size=batch_size,
        clients=clients,
        steps=steps,
        repeats=repeats,
        threads=threads,
        device=pick_device(device, runs=1),  # what is measured on a shared one would say little
        determinism=determinism,
        precision=precision,
    )
    if profile and wanted.device.type != "cpu":
        raise FltrainError(
            f"--profile: kernels are told apart on the CPU, not on {device!r}; add --device cpu"
        )
    measured = benching.measure(wanted, typer.echo)
    tables = [[row.cells for row in measured.rows]]
    if profile:
        tables.append(benching.profile_table(measured.profiles))
    for lines in tables:
        table = Table()
        for heading in lines[0]:
            table.add_column(heading, no_wrap=True)
        for line in lines:
            table.add_row(*line.values())
        print_table(table)
    for reason in measured.left_out:
        typer.echo(f"left out: {reason}")
    typer.echo(f"memory of the whole process at most: {measured.memory_mb:,.0f} MB")
    benching.write(measured, out, profile)
    typer.echo(f"written: {', '.join(map(str, where))}")
