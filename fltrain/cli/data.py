"""The commands `fltrain data`: list, fetch and show datasets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli.options import ResultsOption
from fltrain.cli.output import print_table
from fltrain.core.errors import FltrainError
from fltrain.runs.record import Results

app = typer.Typer(help="List, fetch and show datasets.", no_args_is_help=True, rich_markup_mode=None)
SizeOption = Annotated[int | None, typer.Option(help="Resize images to this many pixels per side.")]


@app.command("list")
def list_data(results: ResultsOption = Path("results")) -> None:
    """List datasets with size, licence, and folder or source."""
    from fltrain.data.datasets import registry
    from fltrain.data.fetch import whereabouts

    rows = []
    for name, entry in registry().items():
        counts = f"{_count(entry.train_images)} + {_count(entry.test_images)}"
        pixels = "" if entry.side is None else f"{entry.side} x {entry.side} x {entry.channels or '?'}"
        sizes = [file.bytes for file in entry.files]
        download = f"{sum(filter(None, sizes)) / 1e6:,.0f} MB" if sizes and all(sizes) else ""
        where = whereabouts(name, entry, Results(results).downloads)
        rows.append((name, counts, _count(entry.classes), pixels, download, entry.licence or "", where))
    numbers = ("images", "classes", "pixels", "download")
    print_table(("name", *numbers, "licence", "where"), rows, right=numbers)


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


@app.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(help="Names in config/datasets.yaml.")],
    image_size: SizeOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Download and prepare datasets.

    Files in the folder FLTRAIN_DATA are not downloaded.
    """
    from fltrain.data.datasets import Dataset
    from fltrain.data.prepared import load_or_prepare

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    folder = Results(results)
    for dataset in [Dataset.parse({"name": name, "image_size": image_size}, "dataset") for name in names]:
        path = folder.data(dataset)
        load_or_prepare(dataset, path, folder.downloads)
        typer.echo(f"{path}, {path.with_suffix('.png')}")


@app.command("show")
def show_data(
    name: Annotated[str, typer.Argument(help="A name in config/datasets.yaml.")],
    image_size: SizeOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Show the properties of a prepared dataset."""
    from fltrain.data.datasets import Dataset
    from fltrain.data.prepared import load_prepared

    dataset = Dataset.parse({"name": name, "image_size": image_size}, "dataset")
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
    histogram = data.about["histogram"]
    names = data.about["class_names"] or [""] * data.classes
    classes = zip(names, histogram["train"], histogram["test"], strict=True)
    rows = [(str(label), *map(str, row)) for label, row in enumerate(classes)]
    print_table(("class", "name", "training", "test"), rows)
