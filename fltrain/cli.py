"""The command line: ``fltrain train | plan | status | verify | track | records | data | schema``.

Exit codes: 0 done, 2 a mistake in configuration, data or environment (one line says which); the others are
those of the classes in ``fltrain.errors``.
Imports that take long (torch, mlflow) wait until a command needs them.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fltrain import __version__
from fltrain.component import Settings
from fltrain.costs import PlanCosts, affordable, how_to_calibrate, run_table
from fltrain.declarations import Paper, Register, Scale
from fltrain.determinism import Profile
from fltrain.devices import RUNS, pick_device
from fltrain.errors import FltrainError, Stopped, as_mistake
from fltrain.experiments import Plan, plan
from fltrain.files import write_json, write_text
from fltrain.methods.base import Place
from fltrain.plain_yaml import read_plain
from fltrain.records import Results
from fltrain.selection import Selection
from fltrain.spec import RunSpec
from fltrain.states import State, stale_runs
from fltrain.stopping import Stopping

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
        typer.echo(__version__)
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
    threads: Annotated[int, typer.Option(min=1, help="Processor threads.")] = 1,
    recordings: Annotated[
        Place, typer.Option(help="Where methods that record local steps (ecgr) keep them.")
    ] = "auto",
    client_memory: Annotated[
        float,
        typer.Option(min=0, help="GiB of the device that clients' states may take; more goes into a file."),
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
        typer.Option(help="On CUDA: exact for the same bits every time, fast for whatever PyTorch chooses."),
    ] = "exact",
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
                from fltrain import train as training
                from fltrain.engine.checkpoint import Interval

                chosen = chosen or pick_device(device, runs_per_device)
            interval = Interval(checkpoint_seconds, checkpoint_rounds)
            execution = training.Execution(chosen, threads, recordings, client_memory, interval, determinism)
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
        from fltrain.calibration import calibrate as measure

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
    from fltrain.verify import Verification

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
        str | None, typer.Option(help="MLflow store; sqlite:///RESULTS/mlflow.db if not given.")
    ] = None,
) -> None:
    """Export the trained runs of a scale to MLflow; exporting again changes nothing.

    A restriction chooses runs; they keep all the tables and figures that they are tagged with.
    """
    from fltrain.tracking import export

    where = Results(results)
    whole = plan(config, scale)
    planned = affordable(whole, _selection(items, datasets, methods, seeds, hours), where)
    records = [record for run_id in planned.runs if (record := where.record(run_id)).complete]
    store = uri or f"sqlite:///{where.tracking}"
    done = export(records, whole.memberships, store)
    typer.echo(f"{store}: {done.created} created, {done.replaced} replaced, {done.unchanged} unchanged")


records_app = typer.Typer(
    help="Exchange records of runs: tables and figures can be made from these alone.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(records_app, name="records")


@records_app.command("export")
def export_archive(
    archive: Annotated[Path, typer.Argument(help="The archive to write, for example records.tar.gz.")],
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids; all records if none.")] = None,
    scale: Annotated[str | None, typer.Option(help="All trained runs of a scale instead.")] = None,
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Write records to an archive: a few KB for each run, without logs and models."""
    from fltrain.archive import export_records, named_records

    where = Results(results)
    if runs and scale:
        raise FltrainError(f"name either run ids or --scale {scale}, not both")
    if scale:
        planned = plan(config, scale)
        done = _complete(planned, where)
        typer.echo(f"{scale}: {len(done)} of {len(planned.runs)} runs are trained")
        runs = sorted(done)
    records = where.records() if runs is None else named_records(where, runs)
    typer.echo(f"{archive}: {export_records(records, archive)} records")


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
    from fltrain.archive import import_records

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
    from fltrain.data.obtain import whereabouts

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
    """Print a table as wide as it is: columns folded to a narrow terminal are hard to read and to search."""
    console = Console()
    console.width = max(
        console.width, console.measure(table, options=console.options.update(width=1000)).maximum
    )
    console.print(table)


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
    from fltrain.data.prepared import load_prepared, prepare

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    dataset = Dataset.parse({"name": name, "image_size": image_size}, "data set")
    where = Results(results)
    path = where.data(dataset)
    if path.exists():
        load_prepared(dataset, path)
    else:
        prepare(dataset, path, where.downloads)
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
