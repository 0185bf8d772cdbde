"""The command line: ``fltrain train | plan | status | track | data | schema``.

Exit codes: 0 done, 2 a mistake in configuration, data or environment (one line says which), 130 interrupted.
Imports that take long (torch, mlflow) wait until a command needs them.
"""

from __future__ import annotations

import csv
import io
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from fltrain import __version__
from fltrain.component import Settings
from fltrain.errors import FltrainError
from fltrain.experiments import Paper, Plan, Scale, plan, table_rows
from fltrain.files import write_json, write_text
from fltrain.methods.base import Place
from fltrain.records import Results
from fltrain.spec import RunSpec

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
    threads: Annotated[int, typer.Option(min=1, help="Processor threads.")] = 1,
    recordings: Annotated[
        Place, typer.Option(help="Where methods that record local steps (ecgr) keep them.")
    ] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Train even if the record is complete.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write progress to train.log only.")] = False,
) -> None:
    """Train runs and write their records to RESULTS/runs/<run id>/."""
    parsed = [_read_spec(name) for name in specs]
    where = Results(results)
    for spec in parsed:
        record = where.record(spec.run_id)
        if record.complete and not again:
            typer.echo(f"{spec.run_id}: already trained (--again trains it once more)")
            continue
        from fltrain import train as training

        record = training.train(spec, where, training.pick_device(device), threads, quiet, recordings)
        typer.echo(f"{spec.run_id}: {record.summary['status']}, see {record.folder}")


def _read_spec(name: str) -> RunSpec:
    where = "standard input" if name == "-" else name
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        data: Any = yaml.safe_load(text)
    except OSError as error:
        raise FltrainError(f"{where}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FltrainError(f"{where}: neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if isinstance(data, dict):
        data.pop("revisions", None)  # a record's spec.json can be trained as it is
    return RunSpec.parse(data, where)


@app.command("plan")
def show_plan(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
    out: Annotated[Path | None, typer.Option(help="Also write the run table to this CSV file.")] = None,
) -> None:
    """Show what tables and figures need: runs in all, distinct, already trained."""
    planned = plan(config, scale).restricted(items or [])
    done = _complete(planned, Results(results))
    table = Table(title=f"{planned.scale.scale}: {planned.scale.title}", title_justify="left")
    for name in ("item", "title"):
        table.add_column(name, no_wrap=True)
    for name in ("cells x seeds", "runs", "trained"):
        table.add_column(name, justify="right")
    for item in planned.items:
        counts = (len(item.entries), len(item.run_ids), len(done & set(item.run_ids)))
        table.add_row(item.id, item.item.title, *map(str, counts))
    table.add_section()
    table.add_row("all, shared runs once", "", "", str(len(planned.runs)), str(len(done)))
    _print(table)
    if out is not None:
        write_text(out, run_table(planned))
        typer.echo(f"run table: {out}")


def run_table(planned: Plan) -> str:
    """The run table as CSV text."""
    rows = table_rows(planned.items)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _complete(planned: Plan, results: Results) -> set[str]:
    return {run_id for run_id in planned.runs if results.record(run_id).complete}


@app.command()
def status(
    items: ItemsArgument = None,
    scale: ScaleOption = "demo",
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
) -> None:
    """Show each run: completed, diverged, or not trained, with its final accuracy and time."""
    planned = plan(config, scale).restricted(items or [])
    table = Table()
    table.add_column("run", no_wrap=True)
    for name in ("seed", "items", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("final accuracy, %", "seconds"):
        table.add_column(name, justify="right")
    counts: dict[str, int] = {}
    for run_id, spec in planned.runs.items():
        record = Results(results).record(run_id)
        state = str(record.summary["status"]) if record.complete else _unfinished(record.folder)
        counts[state] = counts.get(state, 0) + 1
        final = record.summary["accuracy"]["final"] if record.complete else None
        seconds = f"{record.costs['seconds']['total']:.1f}" if record.complete else ""
        members = ", ".join(planned.memberships[run_id])
        table.add_row(
            run_id, str(spec.seed), members, state, "" if final is None else f"{100 * final:.2f}", seconds
        )
    _print(table)
    typer.echo(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))


def _unfinished(folder: Path) -> str:
    return "started" if (folder / "train.log").exists() else "not trained"


@app.command()
def track(
    scale: ScaleOption = "demo",
    results: ResultsOption = Path("results"),
    config: ConfigOption = Path("config"),
    uri: Annotated[
        str | None, typer.Option(help="MLflow store; sqlite:///RESULTS/mlflow.db if not given.")
    ] = None,
) -> None:
    """Export the trained runs of a scale to MLflow; exporting again changes nothing."""
    from fltrain.tracking import export

    planned = plan(config, scale)
    where = Results(results)
    records = [record for run_id in planned.runs if (record := where.record(run_id)).complete]
    store = uri or f"sqlite:///{where.tracking}"
    done = export(records, planned.memberships, store)
    typer.echo(f"{store}: {done.created} created, {done.replaced} replaced, {done.unchanged} unchanged")


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


SCHEMAS: dict[str, type[Settings]] = {"run": RunSpec, "paper": Paper, "scale": Scale}


def main() -> None:
    """Run the command line; mistakes of the user end in one line and exit code 2."""
    try:
        app()
    except FltrainError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
        sys.exit(FltrainError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
