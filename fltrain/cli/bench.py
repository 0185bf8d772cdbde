"""The command `fltrain bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.output import print_table
from fltrain.core.config import check_known
from fltrain.core.files import write_json
from fltrain.experiments.selection import comma_separated
from fltrain.runs.spec import Precision
from fltrain.runtime.determinism import Profile
from fltrain.runtime.devices import pick_device


def run_bench(
    model: Annotated[str, typer.Option(help="Network.")] = "lenet5",
    dataset: Annotated[str, typer.Option(help="Dataset whose image size is used.")] = "mnist",
    method: Annotated[str, typer.Option(help="Method, with plug-ins or not: fedprox+flfa.")] = "fedavg",
    executors: Annotated[
        str | None, typer.Option(help="Executors, separated by commas (default: all that the device has).")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 64,
    clients: Annotated[int, typer.Option(min=1, help="Clients in a round.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Batches of each client in a round.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of each executor.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    determinism: Annotated[
        Profile, typer.Option(help="On CUDA: exact for the same bits every time, or fast.")
    ] = "exact",
    precision: Annotated[Precision, typer.Option(help="Number format: fp32, tf32 or bf16.")] = "fp32",
    out: Annotated[Path | None, typer.Option(help="Also write settings and table to this JSON file.")] = None,
) -> None:
    """Compare the training speed with a bare PyTorch loop.

    Images are random.
    """
    from fltrain import bench as benching
    from fltrain.bench import TRAINERS

    chosen = pick_device(device, runs=1)  # another process on the device would disturb the times
    on_gpu = chosen.type == "cuda"
    names = [name for name in TRAINERS if on_gpu or name == "sequential"]
    if executors is not None:
        names = comma_separated(executors)
        check_known("--executors: unknown", names, TRAINERS)
    settings = benching.Bench(
        model=model,
        dataset=dataset,
        method=method,
        executors=names,
        batch_size=batch_size,
        clients=clients,
        steps=steps,
        repeats=repeats,
        threads=threads,
        device=chosen,
        determinism=determinism,
        precision=precision,
    )
    rows = benching.measure(settings)
    print_table(
        ["executor", "samples/s", "ms/step", "of bare (quartiles)", "of peak"],
        [
            [
                row["executor"],
                f"{row['samples_per_second']:,.0f}",
                f"{row['step_ms']:.2f}",
                f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})",
                f"{row['share']:.1%}",
            ]
            for row in rows
        ],
    )
    if out is not None:
        write_json(out, {**asdict(settings), "device": str(settings.device), "rows": rows})
        typer.echo(f"written: {out}")
