"""The command `fltrain plan`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table, print_text
from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError, count, duration, listed
from fltrain.core.files import write_text
from fltrain.experiments.costs import GPUS, SHARES, Range, hours, run_table, together
from fltrain.experiments.plan import plan
from fltrain.runtime.devices import pick_device


def show_plan(
    items: options.ItemsArgument = None,
    scale: options.ScaleOption = options.DEMO,
    seeds: options.SeedsOption = None,
    where: options.WhereOption = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Estimate the time on a GPU: {', '.join(GPUS)}.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the time on this machine, in a short run of each network."),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Device to measure: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a table of the runs and their multiply-adds to this CSV file."
        ),
    ] = None,
    results: options.ResultsOption = Path("results"),
    config: options.ConfigOption = Path("config"),
) -> None:
    """List tables and figures with their runs and costs.

    The costs of a run are its multiply-adds, counted from the shapes of its network. They include gradients,
    tests and all further passes of methods. The count is exact for clients of equal size. If a pass needs an
    earlier round of the client (MOON), the count has its mean share. --gpu and --measure add the time.
    """
    from fltrain.experiments.work import Work

    check_known("--gpu: unknown GPU", [gpu] if gpu else [], GPUS)
    if gpu and measure:
        raise FltrainError("--gpu is arithmetic, --measure uses this machine; leave out one of the two")
    options.check_folder(out)
    folder = options.read_from(results)
    chosen, work = options.selection_of(items, seeds, where), Work()
    planned = plan(config, scale).restricted(chosen)
    runs = planned.runs
    counts = {run: n for run, spec in runs.items() if (n := work.multiply_adds(spec)) is not None}
    speeds: dict[str, Range] = {}
    origin = "time: add --gpu NAME (arithmetic) or --measure (this machine)"
    if gpu:
        low, high = (f"{100 * share:.0f}" for share in SHARES)
        title, *peaks = GPUS[gpu]
        origin = (
            f"time left: arithmetic at {low} to {high} % of the peak of one {title} "
            f"({' / '.join(f'{peak:g}' for peak in peaks)} TFLOP/s in fp32 / tf32 / bf16), not measured"
        )
        speeds = {run: GPUS[gpu].speed(runs[run].precision) for run in counts}
    elif measure:
        fastest = pick_device(device, runs=1)  # if other runs used the GPU, measurements would be too slow
        busy = os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
        warning = "; other processes keep it busy, so these times are too long" if busy else ""
        origin = f"time left: one run at a time on this machine ({fastest}), measured with FedAvg{warning}"
        measured = {run: work.speed(runs[run], fastest) for run in counts}
        speeds = {run: (speed, speed) for run, speed in measured.items()}
    needed = {run: hours(counts[run], speed) for run, speed in speeds.items()}
    done = {run for run in runs if folder.record(run).complete}

    def columns(cells: int, runs: Collection[str]) -> list[str]:
        """Return the numbers of an item; a + marks runs without a number of multiply-adds."""
        costs = [counts[run] for run in runs if run in counts]
        more = "" if len(costs) == len(runs) else " +"
        texts = [*map("{:,}".format, (cells, len(runs), len(done & set(runs))))]
        texts.append(_prefixed(sum(costs)) + more if costs or not runs else "?")
        texts.append(_prefixed(sum(costs) / len(costs)) if costs else "")
        if speeds:
            left = (needed[run] for run in runs if run in needed and run not in done)
            ends = dict.fromkeys(
                duration(3600 * end) if end < 100 else f"{end:,.0f} h" for end in together(left)
            )
            texts.append(" to ".join(ends) + more)
        return texts

    rows = [(item.id, item.item.title, *columns(len(item.entries), item.run_ids)) for item in planned.items]
    total = ("all, shared runs once", "", *columns(len(planned.specs), runs))
    numbers = ["cells x seeds", "runs", "trained", "multiply-adds", "per run"]
    numbers += ["time left"] if speeds else []
    page = f" ({planned.scale.page})" if planned.scale.page else ""
    title = planned.title and f": {planned.title}"
    part = f"; restricted to {', '.join(planned.restrictions)}" * bool(planned.restrictions)
    print_text(f"{planned.scale.scale}{page}{title}{part}")
    optional = ["cells x seeds", "per run", *["multiply-adds"] * bool(speeds)]
    print_table(("item", "title", *numbers), [*rows, (), total], numbers, optional, unfolded=["item"])
    cohorts = Counter(spec.participation.in_words(spec.partition.clients) for spec in runs.values())
    of_papers = {run for item in planned.items if item.paper.kind == "paper" for run in item.run_ids}
    if added := len(of_papers) and len(runs) - len(of_papers):
        print_text(f"runs: {len(of_papers):,} of the papers, {added:,} only of comparisons or controls")
    print_text(f"cohorts: {listed((cohort for cohort, _ in cohorts.most_common()), 3)}")
    prefixes = "G 1e9, T 1e12, P 1e15, E 1e18"
    print_text(f"multiply-adds: of convolutions and linear layers ({prefixes}); mean per run")
    if unknown := [spec.dataset.name for run, spec in runs.items() if run not in counts]:
        names = ", ".join(dict.fromkeys(unknown))
        lack = f"datasets.yaml has no counts or size of the images of {names}"
        print_text(f"{count(len(unknown), 'run')} (+) not counted: {lack}")
    print_text(origin)
    if out:
        import pandas as pd

        write_text(out, pd.DataFrame(run_table(planned, counts, needed)).to_csv(index=False))
        typer.echo(f"run table: {out}")
    left = len(runs) - len(done)
    if workflow := options.workflow_of(results, config, scale, chosen, "" if left else "false"):
        train = f"train {count(left, 'run')} and " * bool(left)
        print_text(f"to {train}make tables and figures: {workflow}")


def _prefixed(number: float) -> str:
    """Return a number with three digits and a prefix: G is 1e9, T is 1e12, P is 1e15, E is 1e18."""
    for prefix, size in {"E": 1e18, "P": 1e15, "T": 1e12}.items():
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + f" {prefix}"
    return f"{number / 1e9:.3g} G"
