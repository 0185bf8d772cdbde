"""The command `fltrain explain`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table
from fltrain.core.errors import FltrainError, count
from fltrain.core.located import place_of
from fltrain.experiments.items import Entry
from fltrain.experiments.layers import leaves, merged
from fltrain.experiments.plan import plan


def explain(
    item: Annotated[str, typer.Argument(help="Item, for example flfa/table1.")],
    cell: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<label>",
            help="One label of the cell, whole and as the table prints it (--cell FedProx), with its axis if "
            "two share it (--cell method=FedProx). Repeatable.",
        ),
    ] = None,
    scale: options.ScaleOption = options.DEMO,
    config: options.ConfigOption = Path("config"),
) -> None:
    """Show layer, file and line of each setting of a cell."""
    planned = options.one_item(plan(config, scale), item)
    entries = [entry for entry in planned.entries if entry.number == 0]
    exact = set().union(*map(_labels, entries))
    for word in cell or ():
        fold = str if word in exact else str.casefold
        entries = [entry for entry in entries if fold(word) in map(fold, _labels(entry))]
    if len(entries) != 1:
        axes = "; ".join(f"{axis}: {', '.join(map(repr, labels))}" for axis, labels in planned.axes.items())
        found = f"{planned.id} has {count(len(entries), 'cell')}"
        if cell:
            found = f"{count(len(entries), 'cell')} of {planned.id} match {', '.join(map(repr, cell))}"
        raise FltrainError(f"{found}; give --cell once for each axis, with one of its labels: {axes}")
    (entry,) = entries
    settings, origins = merged(entry.layers), dict[tuple[str, ...], str]()
    for layer in entry.layers:
        origins |= {path: layer.name for path, _ in leaves(layer.patch)}
    rows = [
        (".".join(path), _text(value), origins[path], "{}:{}".format(*place_of(settings, path) or ("", 0)))
        for path, value in leaves(settings)
    ]
    defaults = [
        (".".join(path), _text(value), "default", "")
        for path, value in leaves(entry.spec.all_settings())
        if path not in dict(leaves(settings)) and path != ("seed",)
    ]
    chosen = {one["name"]: one for one in settings.get("plugins", ()) if isinstance(one, Mapping)}
    for plugin in entry.spec.plugins:
        for key, value in plugin.all_settings().items():
            if key != "name" and key not in chosen.get(plugin.name, ()):
                defaults.append((f"plugins.{plugin.name}.{key}", _text(value), "default", ""))
    typer.echo(f"{planned.id} ({', '.join(entry.labels.values())}) at scale {scale}, run {entry.spec.run_id}")
    print_table(("setting", "value", "layer", "place"), [*rows, (), *sorted(defaults)])


def _labels(entry: Entry) -> set[str]:
    """Return a cell's labels, each alone and with its axis."""
    return {word for axis, label in entry.labels.items() for word in (label, f"{axis}={label}")}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
