"""The command line: ``fltrain train | plan | status | verify | track | compare | bench | data ...``.

Exit codes: 0 done, 2 a mistake in configuration, data or environment (one line says which); the others are
those of the classes in ``fltrain.core.errors``.
Imports that take long (torch, mlflow) wait until a command needs them.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.table import Table

from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError, Stopped, as_mistake
from fltrain.core.files import write_json, write_text
from fltrain.core.strict_yaml import read_plain
from fltrain.engine import ExecutorName
from fltrain.experiments.costs import PlanCosts, affordable, how_to_calibrate, run_table
from fltrain.experiments.job_resources import most_vram_mb
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.schema import Paper, Register, Scale
from fltrain.experiments.selection import Selection
from fltrain.methods.types import Place
from fltrain.runs.record import Results
from fltrain.runs.spec import Precision, RunSpec
from fltrain.runs.status import State, stale_runs
from fltrain.runtime.determinism import Profile
from fltrain.runtime.devices import RUNS, pick_device
from fltrain.runtime.signals import Stopping

app = typer.Typer(
    help="Train and compare federated-learning runs of the papers FLFA, ECGR, Fed2, FedFCD and FedImpro.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ResultsOption = Annotated[Path, typer.Option("--results", help="Folder for everything that is written.")]
ScaleOption = Annotated[str, typer.Option(help="A file in config/scales, for example demo.")]
ConfigOption = Annotated[Path, typer.Option(help="Folder with papers/ and scales/.")]
ItemsArgument = Annotated[
    list[str] | None, typer.Argument(help="Papers (flfa) or items (flfa/table1); everything if none.")
]
DatasetsOption = Annotated[str | None, typer.Option(help="Only runs on these data sets: cifar10,mnist.")]
MethodsOption = Annotated[
    str | None,
    typer.Option(
        help="Only runs of these methods or plug-ins, and what they are compared with: fedavg,flfa."
    ),
]
SeedsOption = Annotated[int | None, typer.Option(help="At most so many seeds.")]
HoursOption = Annotated[
    float | None, typer.Option(help="What fits into so many hours of the measured device, seed by seed.")
]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(metadata.version("fltrain"))
        raise typer.Exit


@app.command()
def train(
    specs: Annotated[
        list[str], typer.Argument(help="YAML or JSON files with one run each; - reads one from stdin.")
    ],
    results: ResultsOption = Path("results"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    runs_per_device: Annotated[
        int | None,
        typer.Option(min=1, help=f"Processes that may share a GPU; {RUNS} if not given, or 1."),
    ] = None,
    vram_mb: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Megabytes of a GPU for these runs: others share it only if theirs fit, too; "
            "an estimate if not given.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads.")] = 1,
    recordings: Annotated[
        Place,
        typer.Option(
            envvar="FLTRAIN_RECORDINGS", help="Where methods that record local steps (ecgr) keep them."
        ),
    ] = "auto",
    client_memory: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="FLTRAIN_CLIENT_MEMORY",
            help="GiB that clients' states may take on the device, and in memory before they are in a file.",
        ),
    ] = 4.0,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            min=0, envvar="FLTRAIN_CHECKPOINT_SECONDS", help="Save the state of a run after so many seconds."
        ),
    ] = 120.0,
    checkpoint_rounds: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="FLTRAIN_CHECKPOINT_ROUNDS", help="Save it after every so many rounds, too."
        ),
    ] = None,
    determinism: Annotated[
        Profile,
        typer.Option(
            envvar="FLTRAIN_DETERMINISM",
            help="exact for the same bits every time; fast for whatever PyTorch chooses on CUDA, and for "
            "executors that are exact up to rounding.",
        ),
    ] = "exact",
    executor: Annotated[
        ExecutorName,
        typer.Option(
            envvar="FLTRAIN_EXECUTOR",
            help="How local steps are run: loop; graph, recorded and replayed; or by a trial.",
        ),
    ] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Train even if the record is complete.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write progress to train.log only.")] = False,
) -> None:
    """Train runs and write their records to RESULTS/runs/<run id>/.

    A run that was stopped (Ctrl-C, SIGTERM, SIGUSR1) or killed goes on from its last checkpoint.
    """
    parsed, stopping = [_read_spec(name) for name in specs], Stopping()
    where = Results(results)
    chosen = None
    with stopping.heeded():
        for spec in parsed:
            # What is left of a complete run is cleared away by whoever holds it.
            if where.record(spec.run_id).complete and not again and not where.saved_rounds(spec.run_id):
                typer.echo(f"{spec.run_id}: already trained (--again trains it once more)")
                continue
            with stopping.interruptible():  # all GPUs may be taken for long
                from fltrain.engine import train as training
                from fltrain.engine.checkpoint import Interval

                if chosen is None:
                    needed = most_vram_mb(parsed, where) if vram_mb is None else vram_mb
                    chosen = pick_device(device, runs_per_device, needed)
            interval = Interval(checkpoint_seconds, checkpoint_rounds)
            execution = training.Execution(
                chosen, threads, recordings, client_memory, interval, determinism, executor
            )
            record = training.train(spec, where, execution, again=again, quiet=quiet, stopping=stopping)
            typer.echo(f"{spec.run_id}: {record.summary['status']}, see {record.folder}")


def _read_spec(name: str) -> RunSpec:
    data = read_plain(None if name == "-" else Path(name))
    if isinstance(data, dict):
        data.pop("revisions", None)  # a record's spec.json can be trained as it is
    return RunSpec.parse(data, "standard input" if name == "-" else name)


@app.command("plan")
def show_plan(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    hours: HoursOption = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure steps here, as far as they are not known yet.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to measure: auto, cpu, cuda or cuda:N.")] = "auto",
    hardware: Annotated[
        str | None,
        typer.Option(help="Whose measured steps count; those of the last device measured if not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run table, a CSV file; RESULTS/SCALE/plan.csv if not given.")
    ] = None,
) -> None:
    """Show what tables and figures need: runs in all, distinct, already trained; hours, traffic and disk."""
    whole, where = plan(config, scale), Results(results)
    wanted = _selection(items, datasets, methods, seeds, hours)
    if calibrate:
        from fltrain.experiments.calibrate import calibrate as measure

        # A budget can be spent when all that may fit into it is known.
        measure(
            whole.restricted(wanted.model_copy(update={"hours": None})),
            where,
            pick_device(device, runs=1),  # what is measured on a shared one would say little
            typer.echo,
        )
    planned = affordable(whole, wanted, where, hardware)
    costs = PlanCosts.of(planned, where, hardware)
    table = Table(title=f"{planned.scale.scale}: {planned.scale.title}", title_justify="left")
    for name in ("item", "title"):
        table.add_column(name, no_wrap=True)
    for name in ("cells x seeds", "runs", "trained", "hours", "left", "traffic, GB", "disk, MB"):
        table.add_column(name, justify="right")
    for item in planned.items:
        counts = (len(item.entries), len(item.run_ids), len(costs.done & set(item.run_ids)))
        table.add_row(item.id, item.item.title, *map(str, counts), *_prices(costs, item.run_ids))
    table.add_section()
    counts = (len(planned.specs), len(planned.runs), len(costs.done))
    table.add_row("all, shared runs once", "", *map(str, counts), *_prices(costs, list(planned.runs)))
    _print(table)
    for line in _remarks(costs, where, scale):
        typer.echo(line)
    listed = out or results / scale / "plan.csv"
    write_text(listed, run_table(planned, costs.estimates))
    typer.echo(f"run table: {listed}")


def _selection(
    items: list[str] | None,
    datasets: str | None,
    methods: str | None,
    seeds: int | None,
    hours: float | None,
) -> Selection:
    wanted = {"items": items, "datasets": datasets, "methods": methods, "seeds": seeds, "hours": hours}
    return Selection.parse(wanted, "command line")


def _prices(costs: PlanCosts, runs: list[str]) -> list[str]:
    """Hours of runs, hours of those to be trained, traffic and disk; with a + if some cannot be estimated."""
    if costs.device is None or not runs:
        return [""] * 4
    more = "" if costs.estimates.keys() >= set(runs) else " +"
    every, left = costs.sum(runs), costs.sum(set(runs) - costs.done)
    values = (every.seconds / 3600, left.seconds / 3600, every.traffic / 1e9, every.disk / 1e6)
    return [f"{value:,.2f}{more}" for value in values]


def _remarks(costs: PlanCosts, results: Results, scale: str) -> list[str]:
    """What there is to say about the estimates."""
    if costs.device is None:
        return [f"hours: measure a few steps on this machine first: {how_to_calibrate(scale)}"]
    said = [f"hours: of one process on {costs.device}"]
    if costs.unknown:
        said.append(f"+: {len(costs.unknown)} runs are not estimated yet: {how_to_calibrate(scale)}")
    return [*said, *filter(None, [costs.check(results)])]


def _complete(planned: Plan, results: Results) -> set[str]:
    return {run_id for run_id in planned.runs if results.record(run_id).complete}


@app.command()
def status(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    hours: HoursOption = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Show what became of each run, with its final accuracy and time.

    A stopped run goes on from its last checkpoint. A stale run was trained before one of its components was
    revised; it takes training again.
    """
    wanted, where = _selection(items, datasets, methods, seeds, hours), Results(results)
    planned = affordable(plan(config, scale), wanted, where)
    table = Table()
    table.add_column("run", no_wrap=True)
    for name in ("seed", "items", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("final accuracy, %", "seconds"):
        table.add_column(name, justify="right")
    stale = stale_runs(planned.runs, where)
    states = {run: State.of(run, where, stale.get(run)) for run in planned.runs}
    for run, state in states.items():
        members = ", ".join(planned.memberships[run])
        final = "" if state.final is None else f"{100 * state.final:.2f}"
        seconds = "" if state.seconds is None else f"{state.seconds:.1f}"
        table.add_row(run, str(planned.runs[run].seed), members, state.name, final, seconds)
    _print(table)
    for run, state in states.items():
        if state.detail:
            typer.echo(f"{run}: {state.name}: {state.detail}")
    counts = Counter(state.name for state in states.values())
    typer.echo(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))


@app.command()
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


@app.command()
def track(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    hours: HoursOption = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
    uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI", help="MLflow store; sqlite:///RESULTS/mlflow.db if not given."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Also the runs in RESULTS/runs that the scale does not have.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on exporting what appears, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="With --follow: seconds between two looks at the records.")
    ] = 10.0,
) -> None:
    """Export the trained runs, tables and figures of a scale to MLflow; exporting again changes nothing.

    A restriction chooses runs; they keep all the tables and figures that they are tagged with. A tracking
    server is told what MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD, say.
    """
    from fltrain.tracking import export as tracking

    where = Results(results)
    whole = plan(config, scale)
    planned = affordable(whole, _selection(items, datasets, methods, seeds, hours), where)
    runs = dict.fromkeys(planned.runs)
    if every:
        runs |= dict.fromkeys(record.run_id for record in where.records())
    pages = [tracking.Page(item.id, item.item.title, item.item.caption) for item in planned.items]
    wanted = tracking.Wanted(where, scale, whole.memberships, list(runs), pages)
    store = uri or f"sqlite:///{where.tracking}"
    if not follow:
        typer.echo(f"{store}: {tracking.export(wanted, store)}")
        return
    stopping = Stopping()
    try:
        with stopping.heeded(), stopping.interruptible():  # what was cut short, the next export makes good
            tracking.follow(wanted, store, typer.echo, interval)
    except (Stopped, KeyboardInterrupt):
        typer.echo(f"{store}: no longer followed; `fltrain track` goes on from here")


@app.command()
def compare(
    paper: Annotated[
        str | None, typer.Option(help="Runs behind tables and figures of papers: flfa,ecgr.")
    ] = None,
    item: Annotated[str | None, typer.Option(help="Runs behind tables and figures: flfa/table1.")] = None,
    scale: Annotated[str | None, typer.Option(help="Runs of scales: demo.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Runs on data sets: cifar10,mnist.")] = None,
    partition: Annotated[str | None, typer.Option(help="Runs with partition schemes: dirichlet.")] = None,
    model: Annotated[str | None, typer.Option(help="Runs of networks: lenet5.")] = None,
    method: Annotated[str | None, typer.Option(help="Runs of base methods: fedavg,fedprox.")] = None,
    plugins: Annotated[
        str | None, typer.Option(help="Runs with exactly these plug-ins: none,flfa,flfa+ecgr.")
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Runs with seeds: 0,1,2.")] = None,
    status: Annotated[
        str | None, typer.Option(help="completed, diverged, stale; all but stale ones if not given.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="A setting by its dotted name: training.lr=0.01,0.1 or method.mu!=0; repeatable."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="What the table shows: final_accuracy, best_accuracy, test_loss, seconds ...")
    ] = "final_accuracy",
    over: Annotated[
        str | None,
        typer.Option(help="What is compared, by dotted names; method and plug-ins if these differ."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="What is compared with; fedavg, or the first line, if not given.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw curves to this file (.png, .pdf, .svg).")] = None,
    curve: Annotated[str, typer.Option(help="The metric of the curves.")] = "test_accuracy",
    sketch: Annotated[bool, typer.Option("--sketch", help="Show curves in the terminal.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file (.csv, .json).")] = None,
    uri: Annotated[
        str | None, typer.Option(help="Read from this MLflow store in place of the records in RESULTS.")
    ] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Compare trained runs: means over seeds, and differences paired by seed.

    All options that choose runs take several names with commas between them.
    """
    from fltrain.tracking import compare as comparing
    from fltrain.tracking.dataframes import find_runs

    fields = {
        "paper": paper,
        "items": item,
        "scale": scale,
        "dataset": dataset,
        "partition": partition,
        "model": model,
        "method": method,
        "plugins": plugins,
        "seed": seed,
        "status": status,
    }
    wanted = {name: _names(value) for name, value in fields.items() if value}
    for name, names in wanted.items():
        if not names:
            raise FltrainError(f"{name}: {fields[name]!r} holds no name; give one, or leave the option out")
    # Before anything is written.
    for path, endings in ((plot, comparing.PICTURES), (out, comparing.TABLES)):
        if path:
            comparing.check_ending(path, endings)
    runs = find_runs(results, uri, config, where or (), wanted)
    compared = comparing.compare(runs, metric, _names(over or ""), baseline)
    rows = compared.rows()
    table = Table()
    for heading in rows[0]:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    _print(table)
    for remark in compared.remarks:
        typer.echo(remark)
    if sketch:
        typer.echo("\n".join(comparing.sketch(compared, runs, curve)))
    if plot:
        comparing.plot(compared, runs, curve, plot)
        typer.echo(f"curves: {plot}")
    if out:
        compared.write(out)
        typer.echo(f"table: {out}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


records_app = typer.Typer(
    help="Exchange records of runs: tables and figures can be made from these alone.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(records_app, name="records")


@records_app.command("export")
def export_archive(
    archive: Annotated[Path, typer.Argument(help="The archive to write, for example records.tar.gz.")],
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run ids; all records but stale ones if none.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="All trained runs of a scale instead.")] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Write records to an archive: a few KB for each run, without logs and models."""
    from fltrain.runs.archive import current_records, export_records, named_records

    where = Results(results)
    if runs and scale:
        raise FltrainError(f"name either run ids or --scale {scale}, not both")
    if scale:
        planned = plan(config, scale)
        done = _complete(planned, where)
        typer.echo(f"{scale}: {len(done)} of {len(planned.runs)} runs are trained")
        runs = sorted(done)
    records, stale = current_records(where) if runs is None else (named_records(where, runs), 0)
    left = f", {stale} stale ones left out" if stale else ""
    typer.echo(f"{archive}: {export_records(records, archive)} records{left}")


@records_app.command("import")
def import_archive(
    archive: Annotated[Path, typer.Argument(help="An archive that `fltrain records export` made.")],
    results: ResultsOption = Path("results"),
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Take archived records in place of different ones of the same run."),
    ] = False,
) -> None:
    """Bring the records of an archive into RESULTS/runs: all of them, or none if something is wrong."""
    from fltrain.runs.archive import import_records

    done = import_records(archive, Results(results), replace)
    typer.echo(f"{archive}: {done.added} added, {done.replaced} replaced, {done.unchanged} unchanged")


data_app = typer.Typer(help="List, get and look at data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
DataArgument = Annotated[str, typer.Argument(help="A name in config/datasets.yaml.")]
SizeOption = Annotated[int | None, typer.Option(help="Bring images to this many pixels on each side.")]


@data_app.command("list")
def list_data(results: ResultsOption = Path("results")) -> None:
    """List the data sets: size, licence, and where each is or would come from."""
    from fltrain.data.datasets import registry
    from fltrain.data.fetch import whereabouts

    table = Table()
    table.add_column("name", no_wrap=True)
    for name in ("images", "classes", "pixels", "download"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("licence", "where"):
        table.add_column(name, no_wrap=True)
    for name, entry in registry().items():
        counts = f"{_count(entry.train_images)} + {_count(entry.test_images)}"
        pixels = "" if entry.side is None else f"{entry.side} x {entry.side} x {entry.channels or '?'}"
        sizes = [file.bytes for file in entry.files]
        download = f"{sum(filter(None, sizes)) / 1e6:,.0f} MB" if sizes and all(sizes) else ""
        where = whereabouts(name, entry, Results(results).downloads)
        table.add_row(name, counts, _count(entry.classes), pixels, download, entry.licence or "", where)
    _print(table)


def _print(table: Table) -> None:
    """Print a table as wide as it is: columns folded to a narrow terminal are hard to read and to search.

    With ten thousand runs, rich itself would take a minute for it.
    """
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    widths = [max(map(cell_len, cells)) for cells in columns]
    right = [column.justify == "right" for column in table.columns]

    def line(left: str, fill: str, middle: str, end: str) -> str:
        return left + middle.join(fill * (width + 2) for width in widths) + end

    def row(side: str, cells: Sequence[str]) -> str:
        padding = [" " * (width - cell_len(cell)) for width, cell in zip(widths, cells, strict=True)]
        placed = [
            pad + cell if to_right else cell + pad
            for cell, pad, to_right in zip(cells, padding, right, strict=True)
        ]
        return f"{side} {f' {side} '.join(placed)} {side}"

    head, *rows = zip(*columns, strict=True)
    lines = [str(table.title)] if table.title else []
    lines += [line("┏", "━", "┳", "┓"), row("┃", head), line("┡", "━", "╇", "┩")]
    for cells, state in zip(rows, table.rows, strict=True):
        lines.append(row("│", cells))
        if state.end_section:
            lines.append(line("├", "─", "┼", "┤"))
    typer.echo("\n".join([*lines, line("└", "─", "┴", "┘")]))


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


@data_app.command("fetch")
def fetch_data(
    name: DataArgument,
    image_size: SizeOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Download a data set (or take it from the folder that FLTRAIN_DATA names) and prepare it."""
    from fltrain.data.datasets import Dataset
    from fltrain.data.prepared import load_or_prepare

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    dataset = Dataset.parse({"name": name, "image_size": image_size}, "data set")
    where = Results(results)
    path = where.data(dataset)
    load_or_prepare(dataset, path, where.downloads)
    typer.echo(f"{path}, {path.with_suffix('.png')}")


@data_app.command("show")
def show_data(
    name: DataArgument,
    image_size: SizeOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Show what a prepared data set holds."""
    from fltrain.data.datasets import Dataset
    from fltrain.data.prepared import load_prepared

    dataset = Dataset.parse({"name": name, "image_size": image_size}, "data set")
    path = Results(results).data(dataset)
    if not path.exists():
        size = "" if image_size is None else f" --image-size {image_size}"
        raise FltrainError(f"{path}: not prepared yet; run `fltrain data fetch {name}{size}`")
    data = load_prepared(dataset, path)
    entry = dataset.entry
    lines = {
        "title": entry.title,
        "images": f"{len(data.train_labels):,} for training, {len(data.test_labels):,} for testing",
        "pixels": f"{data.side} x {data.side}, {data.channels} channel(s)",
        "mean": data.mean,
        "std": data.std,
        "digest": data.digest,
        "notes": "; ".join(data.about["notes"]) or None,
        "licence": entry.licence,
        "citation": entry.citation,
        "contact sheet": path.with_suffix(".png"),
    }
    for key, value in lines.items():
        if value is not None:
            typer.echo(f"{key + ':':15}{value}")
    table = Table("class", "name", "training", "test")
    histogram = data.about["histogram"]
    names = data.about["class_names"] or [""] * data.classes
    for label, row in enumerate(zip(names, histogram["train"], histogram["test"], strict=True)):
        table.add_row(str(label), *map(str, row))
    _print(table)


@app.command("bench")
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
        models=_names(models),
        datasets=_names(datasets),
        methods=_names(methods),
        executors=list(EXECUTORS) if executors is None else _names(executors),
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
        _print(table)
    for reason in measured.left_out:
        typer.echo(f"left out: {reason}")
    typer.echo(f"memory of the whole process at most: {measured.memory_mb:,.0f} MB")
    benching.write(measured, out, profile)
    typer.echo(f"written: {', '.join(map(str, where))}")


@app.command()
def schema(config: ConfigOption = Path("config")) -> None:
    """Write the JSON schemas of the configuration, for editors."""
    for name, kind in SCHEMAS.items():
        write_json(config / "schemas" / f"{name}.json", kind.model_json_schema())


SCHEMAS: dict[str, type[Settings]] = {"run": RunSpec, "paper": Paper, "scale": Scale, "register": Register}


def main() -> None:
    """Run the command line; mistakes of the user end in one line and exit code 2."""
    try:
        app()
    except (FltrainError, OSError) as error:
        mistake = as_mistake(error)
        typer.echo(f"error: {mistake}", err=True)
        sys.exit(mistake.exit_code)
    except Stopped as stopped:
        typer.echo(str(stopped), err=True)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
