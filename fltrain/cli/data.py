"""The commands `fltrain data`: list and fetch datasets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fltrain.cli.options import ResultsOption
from fltrain.cli.output import print_table
from fltrain.core.config import check_known
from fltrain.core.errors import count
from fltrain.core.own import own_remedy
from fltrain.runs.record import Results

if TYPE_CHECKING:
    from fltrain.data.datasets import DatasetEntry
    from fltrain.data.prepared import PreparedData

app = typer.Typer(help="List and fetch datasets.", no_args_is_help=True, rich_markup_mode=None)


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
    print_table(("name", *numbers, "licence", "where"), rows, numbers, ["licence", "pixels"])


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


@app.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(metavar="DATASET", help="Names in config/datasets.yaml.")],
    image_size: Annotated[
        int | None, typer.Option(metavar="N", help="Resize images to this many pixels per side.")
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Download and prepare datasets, and show their properties.

    Files in the folder FLTRAIN_DATA are not downloaded, and prepared datasets are not prepared again.
    """
    from fltrain.data.datasets import Dataset, registry
    from fltrain.data.prepared import load_or_prepare

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    folder = Results(results)
    check_known("unknown dataset", names, registry(), remedy=own_remedy())
    folder.create()
    for dataset in [Dataset.parse({"name": name, "image_size": image_size}, name) for name in names]:
        path = folder.data(dataset)
        _show(dataset.entry, load_or_prepare(dataset, path, folder.downloads), path)


def _digits(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.4f}" for number in numbers)


def _show(entry: DatasetEntry, data: PreparedData, path: Path) -> None:
    """Print the properties of a prepared dataset."""
    lines = {
        "title": entry.title,
        "images": f"{len(data.train_labels):,} for training, {len(data.test_labels):,} for testing",
        "pixels": f"{data.side} x {data.side}, {count(data.channels, 'channel')}",
        "mean": _digits(data.mean),
        "std": _digits(data.std),
        "digest": data.digest,
        "notes": "; ".join(data.about["notes"]) or None,
        "licence": entry.licence,
        "citation": entry.citation,
        "file": path,
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
