"""Experiments: papers x scale -> the runs behind every table and figure. No torch here.

A paper file declares its tables and figures (*items*) as grids: named axes, each a few labelled points, each
point a patch on the settings. A scale file says how far the papers' protocol is reduced, for all items or for
one. Settings are merged in this order, later ones winning: the paper's, the item's, the scale's, the scale's
for this item, the points' of the axes, exceptions, the seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import yaml
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, Strict, model_validator
from pydantic_core import CoreSchema

from fltrain.component import Settings, suggest
from fltrain.errors import FltrainError
from fltrain.reporting.inversions import Inversion
from fltrain.reporting.layout import (
    Bubbles,
    Cell,
    Figure,
    Labels,
    Preference,
    Sheet,
    Table,
    Variance,
)
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

    points: dict[str, Point] = Field(min_length=1)

    @classmethod
    def spelled_out(cls, name: str, written: Any) -> Patch:
        """Return the long form of an axis."""
        if isinstance(written, Sequence) and not isinstance(written, str):
            written = {str(value): value for value in written}
        if not isinstance(written, Mapping):
            raise ValueError(f"axis {name!r} must be a list of values or a mapping from labels to values")

        def point(value: Any) -> Any:
            if isinstance(value, Mapping) and (not value or set(value) & set(Point.model_fields)):
                return value
            return {"set": {name: value}, "reported": {name: str(value)}}

        return {"points": {str(label): point(value) for label, value in written.items()}}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema of what is written, for editors: the short forms."""
        reference = handler(schema)
        axis = handler.resolve_ref_schema(reference)
        point = axis.pop("properties")["points"]["additionalProperties"]
        for key in ("type", "required", "additionalProperties"):
            axis.pop(key)
        short = {"not": {"type": "object", "anyOf": [{"required": [key]} for key in Point.model_fields]}}
        axis["anyOf"] = [
            {"type": "array", "minItems": 1},
            {"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": [point, short]}},
        ]
        return reference


def _axes(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("axes"), Mapping):
        return {**value, "axes": {name: Axis.spelled_out(name, axis) for name, axis in value["axes"].items()}}
    return value


class Special(Settings):
    """Cells that differ from their grid: those with the labels ``when`` are also patched by ``set``."""

    when: Labels = Field(min_length=1)
    set: Patch


class Item(Settings):
    """A table or figure of a paper: the grid of runs behind it, and how it is laid out."""

    title: str
    caption: str = ""
    settings: Patch = {}
    axes: dict[str, Axis]
    exceptions: Annotated[tuple[Special, ...], Strict(False)] = ()
    seeds: int | None = Field(default=None, ge=1)
    table: Table | None = None
    figure: Figure | None = None
    reported: str | None = None

    _spell_out = model_validator(mode="before")(_axes)

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if (self.table is None) == (self.figure is None):
            raise ValueError("an item needs either a 'table' or a 'figure'")
        for special in self.exceptions:
            for axis, label in special.when.items():
                if axis not in self.axes or label not in self.axes[axis].points:
                    raise ValueError(f"exceptions: there is no {label!r} on an axis {axis!r}")
        return self

    def redrawn(self, patch: Patch, where: str) -> Self:
        """Return the item with a figure whose layout is patched.

        Raises:
            FltrainError: if it is a table, or the layout is not valid then.
        """
        if not patch:
            return self
        if self.figure is None:
            raise FltrainError(f"{where}: 'figure' patches the layout of figures; this is a table")
        layout = type(self.figure).parse(
            merge(self.figure.model_dump(mode="json"), patch), f"{where}: figure"
        )
        return self.model_copy(update={"figure": layout})


class Paper(Settings):
    """A paper: its protocol and its items."""

    paper: str
    title: str
    citation: str
    settings: Patch = {}
    seeds: int = Field(default=3, ge=1)
    items: dict[str, Item]


class Reduction(Settings):
    """Settings and axes that replace an item's own; ``seeds`` is the most that are run.

    ``title`` says in a few words what is shown then; ``figure`` patches the layout of a figure.
    """

    title: str | None = None
    figure: Patch = {}
    settings: Patch = {}
    axes: dict[str, Axis] = {}
    seeds: int | None = Field(default=None, ge=1)

    _spell_out = model_validator(mode="before")(_axes)


def _by_name(written: Any) -> Any:
    """Spell out the list of a scale's items: names, or ``name: reduction`` where the scale has one for it."""
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise ValueError("the items must be a list")
    items: dict[str, Any] = {}
    for entry in written:
        named = {entry: {}} if isinstance(entry, str) else entry
        if not isinstance(named, Mapping) or len(named) != 1:
            raise ValueError(f"an item is a name (flfa/table1) or one 'name: settings', not {entry!r}")
        for name, reduction in named.items():
            if name in items:
                raise ValueError(f"the item {name!r} is named twice")
            items[name] = reduction
    return items


class Scale(Reduction):
    """How far the papers' protocol is reduced, and which items run, each possibly reduced further."""

    scale: str
    title: str
    reduced: bool
    items: Annotated[
        dict[str, Reduction],
        BeforeValidator(_by_name, json_schema_input_type=list[str | dict[str, Reduction]]),
        Field(min_length=1),
    ]


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

    @property
    def layout(self) -> Table | Figure:
        """How the item is laid out."""
        layout = self.item.table or self.item.figure
        assert layout is not None  # Item has made sure
        return layout

    @property
    def trains(self) -> bool:
        """Whether the item is made from run records; else partitions are enough."""
        return not isinstance(self.layout, Bubbles)

    @property
    def looks_into_models(self) -> bool:
        """Whether the item needs the models that records keep, and the data behind them."""
        return isinstance(self.layout, Preference | Variance | Inversion)

    @cached_property
    def run_ids(self) -> list[str]:
        """Distinct runs to be trained, in the order of the grid."""
        return list(dict.fromkeys(entry.spec.run_id for entry in self.entries)) if self.trains else []

    @cached_property
    def partition_ids(self) -> list[str]:
        """Distinct partitions, in the order of the grid."""
        return list(dict.fromkeys(entry.spec.partition_id for entry in self.entries))

    @cached_property
    def sheet(self) -> Sheet:
        """What the assembler needs to make the table or figure from run records."""
        return Sheet(
            id=self.id,
            paper=self.paper.title,
            title=self.item.title,
            caption=self.item.caption,
            scale=self.scale.items[self.id].title or self.scale.title,
            reduced=self.scale.reduced,
            axes={axis: tuple(labels) for axis, labels in self.axes.items()},
            table=self.item.table,
            figure=self.item.figure,
            reported=self.item.reported,
            cells=tuple(
                Cell(
                    labels=entry.labels,
                    reported=entry.reported,
                    seed=entry.seed,
                    run=entry.spec.run_id,
                    partition=entry.spec.partition_id,
                )
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
        """Distinct runs to be trained, by id."""
        return {entry.spec.run_id: entry.spec for item in self.items if item.trains for entry in item.entries}

    @cached_property
    def specs(self) -> list[RunSpec]:
        """All specs, also those whose partition alone is shown."""
        return [entry.spec for item in self.items for entry in item.entries]

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
        if name not in papers:
            papers[name] = read_yaml(config / "papers" / f"{name}.yaml", Paper, "paper")
        paper = papers[name]
        if item not in paper.items:
            raise FltrainError(
                f"scale {scale!r}: unknown item {item_id!r}{suggest(item, paper.items)} "
                f"(known: {', '.join(f'{name}/{known}' for known in paper.items)})"
            )
        planned.append(_expand(paper, item, chosen))
    _check_axes(f"scale {scale!r}: no item", chosen, {axis for item in planned for axis in item.axes})
    for one in planned:
        _check_axes(f"scale {scale!r}: {one.id!r}", chosen.items[one.id], set(one.axes))
    return Plan(chosen, planned)


def _check_axes(who: str, reduction: Reduction, known: Set[str]) -> None:
    for axis in reduction.axes:
        if axis not in known:
            hint = f"{suggest(axis, known)} (axes: {', '.join(sorted(known))})"
            raise FltrainError(f"{who} has the axis {axis!r}{hint}")


def _expand(paper: Paper, name: str, scale: Scale) -> PlannedItem:
    own = scale.items[f"{paper.paper}/{name}"]
    item = paper.items[name].redrawn(own.figure, f"{scale.scale}: {paper.paper}/{name}")
    replaced = {**scale.axes, **own.axes}
    axes = {axis: replaced.get(axis, declared).points for axis, declared in item.axes.items()}
    common = paper.settings
    for patch in (item.settings, scale.settings, own.settings):
        common = merge(common, patch)
    limits = [item.seeds or paper.seeds, *filter(None, (scale.seeds, own.seeds))]
    seeds = min(limits)
    if isinstance(item.figure, Bubbles):
        seeds = 1  # it shows the partitions of the first
    entries: list[Entry] = []
    for combination in itertools.product(*(points.items() for points in axes.values())):
        labels = dict(zip(axes, (label for label, _ in combination), strict=True))
        settings, reported = common, dict[str, str]()
        for _, point in combination:
            settings = merge(settings, point.set)
            reported.update(point.reported)
        for special in item.exceptions:
            if special.when.items() <= labels.items():
                settings = merge(settings, special.set)
        where = f"{paper.paper}/{name} ({', '.join(labels.values())})"
        specs = (RunSpec.parse({**settings, "seed": seed}, where) for seed in range(seeds))
        entries += [Entry(labels, reported, spec.seed, spec) for spec in specs]
    planned = PlannedItem(
        paper, name, scale, item, {axis: list(points) for axis, points in axes.items()}, entries
    )
    planned.layout.check(planned.id, planned.axes)
    if planned.looks_into_models and any(entry.spec.evaluation.keep == "nothing" for entry in entries):
        raise FltrainError(f"{planned.id}: the figure looks into models; set evaluation.keep in its settings")
    return planned


def table_rows(items: Iterable[PlannedItem]) -> list[dict[str, Any]]:
    """The run table: a row per trained item, cell and seed, for people to read before spending anything."""
    return [
        {
            "item": item.id,
            "cell": " / ".join(entry.labels.values()),
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
        if item.trains
        for entry in item.entries
    ]
