"""Options that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from fltrain.core.errors import FltrainError
from fltrain.core.shell import command
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import Plan
from fltrain.experiments.selection import Selection
from fltrain.runs.record import Results
from fltrain.runs.where import parse_where

ResultsOption = Annotated[
    Path, typer.Option("--results", metavar="FOLDER", help="Folder for data, runs and tables.")
]


def read_from(results: Path) -> Results:
    """Return the results folder; refuse a missing one, unless it is the default."""
    return Results(results) if results == Path("results") else Results(results).existing()


def check_folder(out: Path | None) -> None:
    """Refuse a file of an option ``--out`` in a missing folder, which may be a typing error."""
    if out and not out.parent.is_dir():
        remedy = shlex.join(["mkdir", "-p", str(out.parent)])
        raise FltrainError(f"--out {out}: no folder {out.parent}; correct it, or make it: {remedy}")


DEMO = "demo"
"""The scale that commands use by default."""
ScaleOption = Annotated[str, typer.Option(metavar="NAME", help="Name of a file in config/scales.")]
ConfigOption = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder that contains papers/ and scales/.")
]
ItemsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ITEM", help="Papers (flfa), tables or figures (flfa/table1); default: all."),
]


def workflow_of(
    results: Path, config: Path, scale: str, chosen: Selection, train: Literal["", "false"] = ""
) -> str:
    """Return the workflow's command for a part of a scale; empty for folders that it does not use."""
    if (results, config) != (Path("results"), Path("config")):
        return ""
    stated = {"scale": scale, "items": ",".join(chosen.items), "seeds": chosen.seeds}
    stated |= {"where": " ".join(chosen.where), "train": train}
    options = (f"{key}={value}" for key, value in stated.items() if value)
    return command(shlex.join(["snakemake", "--config", *options]))


def number_of_seeds(text: str) -> int:
    """Return the value of an option ``--seeds``."""
    if not (text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r} is not a number of seeds; --seeds 3 takes the first three")
    return int(text)


SeedsOption = Annotated[
    int | None,
    typer.Option(
        parser=number_of_seeds, metavar="N", help="Maximum number of seeds (default: the item's own)."
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITIONS",
        help="Only runs that meet conditions: 'dataset=cifar10 method=fedavg,fedprox training.lr!=0.1'; "
        "repeatable.",
    ),
]


def one_item(planned: Plan, name: str) -> PlannedItem:
    """Return the item of a plan with a name; refuse a paper."""
    items = planned.restricted(Selection(items=(name,))).items
    if len(items) > 1 or name == items[0].paper.paper:
        raise FltrainError(f"{name!r} is a paper; name one of its items, for example {items[0].id}")
    return items[0]


def selection_of(items: list[str] | None, seeds: int | None, where: list[str] | None) -> Selection:
    """Return the part of a scale that the options select; refuse wrong values."""
    for term in parse_where(where or ()):
        if term.key == "scale":
            raise FltrainError(f"--where {term}: write --scale {term.values[0]}")
        if term.key == "status":
            raise FltrainError(f"--where {term}: choose by status with `fltrain status` or `compare` only")
        if term.key in ("items", "paper"):
            raise FltrainError(f"--where {term}: write only {' '.join(term.values)}, without --where")
    stated = {"items": items and ",".join(items), "seeds": seeds, "where": where}
    return Selection.parse({key: value for key, value in stated.items() if value is not None}, "command line")
