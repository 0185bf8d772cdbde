"""Experiments: papers x scale -> the runs behind every table and figure. No torch here.

A paper file declares its tables and figures (*items*) as grids: named axes, each a few labelled points, each
point a patch on the settings. A scale file says how far the papers' protocol is reduced. Settings are merged
in this order, later ones winning: the paper's, the item's, the scale's, the points' of the axes, the seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import Field, Strict, model_validator

from fltrain.component import Settings, suggest
from fltrain.errors import FltrainError
from fltrain.spec import RunSpec

Patch = dict[str, Any]


class Point(Settings):
    """One value of an axis: the settings that it patches, and how the published table calls it."""

    set: Patch
    reported: dict[str, str] = {}


class Axis(Settings):
    """Labelled points of one dimension of a grid, in the order in which they are shown.

    Written as a list of values or as ``label: value``; a value is a mapping with ``set`` and ``reported``, or
    short for ``set: {<axis>: value}`` and ``reported: {<axis>: value}``.
    """

    points: dict[str, Point]

    @classmethod
    def spelled_out(cls, name: str, written: Any) -> Patch:
        """Return the long form of an axis."""
        if isinstance(written, Sequence) and not isinstance(written, str):
            written = {str(value): value for value in written}
        if not isinstance(written, Mapping):
            raise ValueError(f"axis {name!r} must be a list of values or a mapping from labels to values")

        def point(value: Any) -> Any:
            if isinstance(value, Mapping) and set(value) <= set(Point.model_fields):
                return value
            return {"set": {name: value}, "reported": {name: str(value)}}

        return {"points": {str(label): point(value) for label, value in written.items()}}


def _axes(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("axes"), Mapping):
        return {**value, "axes": {name: Axis.spelled_out(name, axis) for name, axis in value["axes"].items()}}
    return value


Labels = dict[str, str]
"""Axis -> label of one of its points."""


class Measured(Settings):
    """A number shown in a table: what is measured, and against what.

    Attributes:
        measure: name of a measure (see ``fltrain.reporting.measures``).
        label: heading of its columns, if not the measure's own.
        reported: value of the column ``metric`` in the file of published values.
        gain_over: adds the difference to the cell with these labels, paired over seeds.
        relative_to: shows multiples of the cell with these labels.
    """

    measure: str
    label: str | None = None
    reported: str | None = None
    gain_over: Labels = {}
    relative_to: Labels = {}


class Table(Settings):
    """Layout of a table: which axis (or dimension of the measure) runs down and which across."""

    rows: str
    columns: str | None = None
    panels: str | None = None
    measures: Annotated[tuple[Measured, ...], Strict(False)]


class Panel(Settings):
    """One panel of a figure of curves: ``curve`` is ``kind.field`` of the rows in ``metrics.jsonl``."""

    curve: str
    label: str
    reduction_from: Labels = {}


class Figure(Settings):
    """Layout of a figure: panels side by side, one line per point of the axis ``series``."""

    kind: Literal["curves"] = "curves"
    series: str
    panels: Annotated[tuple[Panel, ...], Strict(False)]


class Item(Settings):
    """A table or figure of a paper: the grid of runs behind it, and how it is laid out."""

    title: str
    caption: str = ""
    settings: Patch = {}
    axes: dict[str, Axis]
    seeds: int | None = Field(default=None, ge=1)
    table: Table | None = None
    figure: Figure | None = None
    reported: str | None = None

    _spell_out = model_validator(mode="before")(_axes)

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if (self.table is None) == (self.figure is None):
            raise ValueError("an item needs either a 'table' or a 'figure'")
        return self


class Paper(Settings):
    """A paper: its protocol and its items."""

    paper: str
    title: str
    citation: str
    settings: Patch = {}
    seeds: int = Field(default=3, ge=1)
    items: dict[str, Item]


class Scale(Settings):
    """How far the papers' protocol is reduced: settings and axes that replace theirs, and which items run."""

    scale: str
    title: str
    reduced: bool
    settings: Patch = {}
    axes: dict[str, Axis] = {}
    seeds: int | None = Field(default=None, ge=1)
    items: Annotated[tuple[str, ...], Strict(False)]

    _spell_out = model_validator(mode="before")(_axes)


class Cell(Settings):
    """One run in its place: labels on the item's axes, seed, run id, and its names in the published table."""

    labels: Labels
    reported: dict[str, str]
    seed: int
    run: str


class Sheet(Settings):
    """A table or figure to be assembled: layout and runs, as plain data that a workflow can hand to a job."""

    id: str
    paper: str
    title: str
    caption: str
    scale: str
    reduced: bool
    axes: dict[str, Annotated[tuple[str, ...], Strict(False)]]
    table: Table | None
    figure: Figure | None
    reported: str | None
    cells: Annotated[tuple[Cell, ...], Strict(False)]

    @property
    def scale_note(self) -> str:
        """One sentence that says at what scale the item was made."""
        return f"Reduced scale: {self.scale}." if self.reduced else f"{self.scale}."


@dataclass(frozen=True)
class Entry:
    """One cell's run with one seed: where it stands in the item's grid, and its spec."""

    labels: Labels
    reported: dict[str, str]
    seed: int
    spec: RunSpec


@dataclass(frozen=True)
class PlannedItem:
    """An item at a scale: what is shown and the runs behind it."""

    paper: Paper
    name: str
    scale: Scale
    item: Item
    axes: dict[str, list[str]]
    entries: list[Entry]

    @property
    def id(self) -> str:
        """For example ``flfa/table1``."""
        return f"{self.paper.paper}/{self.name}"

    @property
    def target(self) -> str:
        """Name of the workflow's target, for example ``flfa_table1``."""
        return f"{self.paper.paper}_{self.name}"

    @cached_property
    def run_ids(self) -> list[str]:
        """Distinct runs, in the order of the grid."""
        return list(dict.fromkeys(entry.spec.run_id for entry in self.entries))

    @cached_property
    def sheet(self) -> Sheet:
        """What the assembler needs to make the table or figure from run records."""
        return Sheet(
            id=self.id,
            paper=self.paper.title,
            title=self.item.title,
            caption=self.item.caption,
            scale=self.scale.title,
            reduced=self.scale.reduced,
            axes={axis: tuple(labels) for axis, labels in self.axes.items()},
            table=self.item.table,
            figure=self.item.figure,
            reported=self.item.reported,
            cells=tuple(
                Cell(labels=entry.labels, reported=entry.reported, seed=entry.seed, run=entry.spec.run_id)
                for entry in self.entries
            ),
        )


@dataclass(frozen=True)
class Plan:
    """All items of a scale. Runs that items share are one run."""

    scale: Scale
    items: list[PlannedItem] = field(default_factory=list)

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """Distinct runs by id."""
        return {entry.spec.run_id: entry.spec for item in self.items for entry in item.entries}

    @cached_property
    def memberships(self) -> dict[str, list[str]]:
        """The items that each run belongs to, by run id."""
        found: dict[str, list[str]] = {}
        for item in self.items:
            for run_id in item.run_ids:
                found.setdefault(run_id, []).append(item.id)
        return found

    def restricted(self, wanted: Sequence[str]) -> Plan:
        """The plan of the wanted papers, items (``flfa/table1``) or targets (``flfa_table1``); all if none.

        Raises:
            FltrainError: if one is unknown.
        """
        known = {name for item in self.items for name in (item.paper.paper, item.id, item.target)}
        for name in wanted:
            if name not in known:
                raise FltrainError(
                    f"unknown item {name!r}{suggest(name, known)} (known: {', '.join(sorted(known))})"
                )
        if not wanted:
            return self
        return Plan(
            self.scale,
            [item for item in self.items if {item.paper.paper, item.id, item.target} & set(wanted)],
        )


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Patch:
    """Merge settings: mappings key by key, anything else replaced.

    A mapping whose ``name`` differs is another component and replaces the old one whole.
    """
    merged = dict(base)
    for key, value in patch.items():
        old = merged.get(key)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("name") in (None, old.get("name"))
        ):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


AnySettings = TypeVar("AnySettings", bound=Settings)


def read_yaml(path: Path, kind: type[AnySettings], what: str) -> AnySettings:
    """Read and validate a YAML file.

    Raises:
        FltrainError: if it is missing, not YAML, or not valid; a missing one names its neighbours.
    """
    try:
        data = yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except FileNotFoundError:
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        hint = f"{suggest(path.stem, known)} (known in {path.parent}: {', '.join(known)})"
        raise FltrainError(f"unknown {what} {path.stem!r}{hint}") from None
    except (OSError, yaml.YAMLError) as error:
        raise FltrainError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    return kind.parse(data, str(path))


def plan(config: Path, scale: str) -> Plan:
    """Expand every item that the scale names into its runs.

    Args:
        config: folder with ``papers/`` and ``scales/``.
        scale: stem of a file in ``scales/``.

    Raises:
        FltrainError: if a file or a run is not valid; the message names item and cell.
    """
    chosen = read_yaml(config / "scales" / f"{scale}.yaml", Scale, "scale")
    papers: dict[str, Paper] = {}
    planned: list[PlannedItem] = []
    for item_id in chosen.items:
        name, _, item = item_id.partition("/")
        paper = papers.setdefault(name, read_yaml(config / "papers" / f"{name}.yaml", Paper, "paper"))
        if item not in paper.items:
            raise FltrainError(
                f"scale {scale!r}: unknown item {item_id!r}{suggest(item, paper.items)} "
                f"(known: {', '.join(f'{name}/{known}' for known in paper.items)})"
            )
        planned.append(_expand(paper, item, chosen))
    return Plan(chosen, planned)


def _expand(paper: Paper, name: str, scale: Scale) -> PlannedItem:
    item = paper.items[name]
    axes = {axis: scale.axes.get(axis, declared).points for axis, declared in item.axes.items()}
    common = merge(merge(paper.settings, item.settings), scale.settings)
    seeds = scale.seeds or item.seeds or paper.seeds
    entries: list[Entry] = []
    for combination in itertools.product(*(points.items() for points in axes.values())):
        labels = dict(zip(axes, (label for label, _ in combination), strict=True))
        settings, reported = common, dict[str, str]()
        for _, point in combination:
            settings = merge(settings, point.set)
            reported.update(point.reported)
        where = f"{paper.paper}/{name} ({', '.join(labels.values())})"
        specs = (RunSpec.parse({**settings, "seed": seed}, where) for seed in range(seeds))
        entries += [Entry(labels, reported, spec.seed, spec) for spec in specs]
    return PlannedItem(
        paper, name, scale, item, {axis: list(points) for axis, points in axes.items()}, entries
    )


def table_rows(items: Iterable[PlannedItem]) -> list[dict[str, Any]]:
    """The run table: one row per item, cell and seed, for people to read before spending anything."""
    return [
        {
            "item": item.id,
            **{"cell": " / ".join(entry.labels.values())},
            "seed": entry.seed,
            "run": entry.spec.run_id,
            "dataset": entry.spec.dataset.id,
            "model": entry.spec.model.name,
            "method": entry.spec.composition.name,
            "partition": entry.spec.partition_id,
            "clients": entry.spec.partition.clients,
            "per_round": entry.spec.participation.per_round(entry.spec.partition.clients),
            "rounds": entry.spec.rounds,
        }
        for item in items
        for entry in item.entries
    ]
