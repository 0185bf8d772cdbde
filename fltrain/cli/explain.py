"""The command `fltrain explain`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table, print_text
from fltrain.core.config import VERY_CLOSE, hint, suggest
from fltrain.core.errors import FltrainError, count, listed
from fltrain.core.located import place_of
from fltrain.core.shell import command
from fltrain.experiments.items import Entry, PlannedItem, with_labels
from fltrain.experiments.layers import leaves, merged
from fltrain.experiments.plan import items_of_scales, plan
from fltrain.runs.where import NONE


def explain(
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Item, for example flfa/table1.")],
    cell: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL",
            help="A label of the cell, as the table prints it (--cell '+ FLFA'). If two axes have it, "
            "name the axis, too (--cell 'plugin=+ FLFA'). Repeatable.",
        ),
    ] = None,
    scale: options.ScaleOption = options.DEMO,
    config: options.ConfigOption = Path("config"),
    every: Annotated[bool, typer.Option("--all", help="Also show settings that have their default.")] = False,
) -> None:
    """Show the settings of a table or figure, and the file and line of each.

    To see the settings of one cell, name its labels with --cell. If several cells have these labels, the
    output shows their common settings, the settings that differ, and the command for one cell.
    """
    planned = options.one_item(plan(config, scale), item)
    entries = [entry for entry in planned.entries if entry.number == 0]
    cells, axis_words = entries, dict[str, str]()
    exact = set().union(*map(_labels, cells))
    for word in cell or ():
        fold = str if word in exact else str.casefold
        labels = dict.fromkeys(label for entry in entries for label in entry.labels.values())
        entries = [entry for entry in entries if fold(word) in map(fold, _labels(entry))]
        named = [(axis, label) for entry in cells for axis, label in entry.labels.items()]
        axes = {axis for axis, label in named if fold(word) in (fold(label), fold(f"{axis}={label}"))}
        if not entries and axes and axes <= axis_words.keys():
            raise FltrainError(
                f"--cell {axis_words[min(axes)]!r} and --cell {word!r} are labels of the same axis, "
                f"{min(axes)!r}; a cell has one label of each axis: leave out one of them"
            )
        axis_words |= dict.fromkeys(axes, word) if len(axes) == 1 else {}
        if not entries:
            near = suggest(word, labels, VERY_CLOSE)
            near = near or hint(word, labels, "labels") + _elsewhere(config, planned, word, exact)
            raise FltrainError(f"no cell of {planned.id} is left with --cell {word!r}{near}")
    if len(entries) > 1:
        _show_common(planned, entries, config, every)
        return
    (entry,) = entries
    print_text(f"{planned.id} ({', '.join(entry.labels.values())}) at scale {scale}, run {entry.spec.run_id}")
    _print_settings(_settings(entry), every)


def _elsewhere(config: Path, planned: PlannedItem, word: str, labels: Collection[str]) -> str:
    """Return a hint at a close label that the item only has at other scales, and at one of these scales."""
    hidden = [label for axis in planned.item.axes.values() for label in axis if label not in labels]
    having = [name for name, ids in items_of_scales(config).items() if planned.id in ids]
    for scale in having if suggest(word, hidden) else ():
        with suppress(FltrainError):  # of a scale that cannot be planned
            axes = options.one_item(plan(config, scale), planned.id).axes
            there = [label for label in hidden if any(label in axis for axis in axes.values())]
            if near := suggest(word, there, text=f"scale {scale} has {{}}: add --scale {scale}"):
                return near
    return ""


_DEFAULT = "default"

_Row = tuple[str, str, str, str]
"""Setting, value, layer and place."""


def _print_settings(rows: Sequence[_Row], with_defaults: bool, heading: str = "setting") -> None:
    """Print the stated settings, then the defaults, or only their number."""
    stated = [row for row in rows if row[2] != _DEFAULT]
    defaults = sorted(row for row in rows if row[2] == _DEFAULT)
    headings = (heading, "value", "layer", "place")
    print_table(headings, [*stated, (), *defaults] if with_defaults else stated, below=headings[2:])
    if defaults and not with_defaults:
        print_text(f"settings with their default: {len(defaults)} (--all shows them)")


def _settings(entry: Entry) -> list[_Row]:
    """Return all settings of a cell."""
    settings, origins = merged(entry.layers), dict[tuple[str, ...], str]()
    for layer in entry.layers:
        origins |= {path: layer.name for path, _ in leaves(layer.patch)}
    rows = [
        (".".join(path), _text(value), origins[path], "{}:{}".format(*place_of(settings, path) or ("", 0)))
        for path, value in leaves(settings)
    ]
    rows += [
        (".".join(path), _text(value), _DEFAULT, "")
        for path, value in leaves(entry.spec.all_settings())
        if path not in dict(leaves(settings)) and path != ("seed",)
    ]
    chosen = {plugin["name"]: plugin for plugin in settings.get("plugins", ()) if isinstance(plugin, Mapping)}
    for plugin in entry.spec.plugins:
        for key, value in plugin.all_settings().items():
            if key != "name" and key not in chosen.get(plugin.name, ()):
                rows.append((f"plugins.{plugin.name}.{key}", _text(value), _DEFAULT, ""))
    return rows


def _show_common(planned: PlannedItem, entries: Sequence[Entry], config: Path, with_defaults: bool) -> None:
    """Print an item, the settings in which its cells differ, the common ones, and the command for one cell.

    Defaults of methods and plug-ins that only some cells have are left out.
    """
    seeds = dict.fromkeys(str(entry.seed) for entry in planned.entries)
    axes = with_labels(planned.axes, (entry.labels for entry in entries))
    print_text(f"{planned.id} at scale {planned.scale.scale}: {planned.item.title} ({planned.scale_title})")
    if planned.item.caption:
        print_text(planned.item.caption)
    print_text(f"{count(len(entries), 'cell')}, {count(len(seeds), 'seed')} ({listed(seeds, 8)})")
    print_table(("axis", "labels"), [(axis, "; ".join(labels)) for axis, labels in axes.items()])
    tables = [{row[0]: row for row in _settings(entry)} for entry in entries]
    differing, common = [], []
    for name in dict.fromkeys(name for table in tables for name in table):
        rows = [table[name] for table in tables if name in table]
        values = [table[name][1] if name in table else NONE for table in tables]
        if len({*values}) == 1:
            common.append(rows[0] if len({*rows}) == 1 else (name, values[0], "several", ""))
        elif len(rows) == len(tables) or any(row[2] != _DEFAULT for row in rows):
            differing.append((name, *_by_axis(values, entries)))
    print_table(("differing setting", "axis", "values"), differing, below=["axis", "values"])
    _print_settings(common, with_defaults, "common setting")
    several = [axis for axis, labels in planned.axes.items() if len(labels) > 1]
    cell = [f"{axis}={entries[-1].labels[axis]}" for axis in several]
    scale = [] if planned.scale.scale == options.DEMO else ["--scale", planned.scale.scale]
    words = [planned.id, *(word for label in cell for word in ("--cell", label)), *scale]
    example = command(f"fltrain explain {shlex.join(words)}", config=config)
    print_text(f"To explain one cell, name its labels: {example}")


def _by_axis(values: Sequence[str], entries: Sequence[Entry]) -> tuple[str, str]:
    """Return the axis that decides a setting (or ``several``), and the values with labels of this axis."""
    for axis in entries[0].labels:
        pairs = dict.fromkeys(zip((entry.labels[axis] for entry in entries), values, strict=True))
        labels: dict[str, list[str]] = {}
        for label, value in pairs:
            labels.setdefault(value, []).append(label)
        if len(pairs) == len({label for label, _ in pairs}):
            return axis, "; ".join(f"{value} ({listed(names, 4)})" for value, names in labels.items())
    return "several", "; ".join(dict.fromkeys(values))


def _labels(entry: Entry) -> set[str]:
    """Return a cell's labels, each alone and with its axis."""
    return {word for axis, label in entry.labels.items() for word in (label, f"{axis}={label}")}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
