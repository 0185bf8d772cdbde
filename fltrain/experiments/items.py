"""Items of papers with the runs behind them, and the plain data from which jobs make them. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from fltrain.core.errors import count
from fltrain.experiments.layers import SettingsLayer
from fltrain.experiments.layout import (
    Bubbles,
    Cell,
    Curves,
    Figure,
    Inversion,
    ItemJob,
    Labels,
    Preference,
    Restriction,
    Table,
    Variance,
    named,
)
from fltrain.experiments.schema import Item, Paper, Patch, Reduction, Scale, Special, reported_folder
from fltrain.runs.spec import RunSpec

_DRAWN = ("pdf", "svg", "png", "csv")
FORMS = {"table": ("html", "csv", "md", "tex"), "figure": _DRAWN, "model_figure": _DRAWN}
"""Forms of a table or figure, which are the endings of its files, by the rule that makes it."""


BASE = "base"
"""Label of a method without the paper's plug-in."""


@dataclass(frozen=True)
class Entry:
    """The run of a cell with one seed.

    Attributes:
        labels: labels of the cell on the axes.
        reported: names of the cell in the published table.
        number: position of the seed among the cell's seeds.
        spec: the run.
        layers: patches of the cell's settings; the last one comes from its trial.
    """

    labels: Labels
    reported: dict[str, str]
    number: int
    spec: RunSpec
    layers: Sequence[SettingsLayer]

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.spec.seed

    @property
    def drawn(self) -> Patch:
        """Settings of the cell's trial; empty without one."""
        return self.layers[-1].patch


def cell_of(entry: Entry, axes: Mapping[str, Sequence[str]]) -> str:
    """Return the name of an entry's cell: labels that vary, from the longest axis on, or the method."""
    several = [axis for axis, labels in axes.items() if len(labels) > 1 and axis in entry.labels]
    several.sort(key=lambda axis: -len(axes[axis]))
    name = ", ".join(named(axis, entry.labels[axis]) for axis in several) or entry.spec.composition.name
    return entry.labels.get("method", name) if name == BASE else re.sub("^([^,]+), [+]", r"\1 +", name)


def names_of(item: str) -> frozenset[str]:
    """Return the names by which the user can select an item: ID, ID with ``_`` for the slash, paper."""
    return frozenset((item, item.replace("/", "_"), item.partition("/")[0]))


@dataclass(frozen=True)
class PlannedItem:
    """An item at a scale, with the runs behind it.

    Attributes:
        applied: the exceptions that match a cell.
        restricted: restrictions of the item, by a full scale's axes or by the user's selection.
        refused: reason why an item that needs a selection has no entries yet.
    """

    paper: Paper
    name: str
    scale: Scale
    reduction: Reduction
    item: Item
    assumptions: tuple[str, ...]
    axes: dict[str, list[str]]
    entries: list[Entry]
    applied: tuple[Special, ...] = ()
    restricted: tuple[Restriction, ...] = ()
    refused: str = ""

    def __repr__(self) -> str:
        return f"<{self.id}: {count(len(self.run_ids), 'run')}>"

    @property
    def id(self) -> str:
        """ID of the item, for example ``flfa/table1``."""
        return f"{self.paper.paper}/{self.name}"

    @property
    def names(self) -> frozenset[str]:
        """Names by which the user can select the item."""
        return names_of(self.id)

    @property
    def layout(self) -> Table | Figure:
        """Layout of the item."""
        return self.item.layout

    @property
    def trains(self) -> bool:
        """True if the item needs run records, false if it needs only datasets."""
        return not isinstance(self.layout, Bubbles)

    @property
    def rule(self) -> Literal["table", "figure", "model_figure"]:
        """Rule of the workflow that makes it; a ``model_figure`` needs models and the dataset."""
        if isinstance(self.layout, Preference | Variance | Inversion):
            return "model_figure"
        return "table" if self.item.table else "figure"

    @property
    def run_cells(self) -> dict[str, str]:
        """The cell of each distinct run, the first one of several, in the order of the grid."""
        cells: dict[str, str] = {}
        for entry in self.entries if self.trains else ():
            cells.setdefault(entry.spec.run_id, cell_of(entry, self.axes))
        return cells

    @cached_property
    def run_ids(self) -> list[str]:
        """Distinct runs to be trained, in the order of the grid."""
        return list(dict.fromkeys(entry.spec.run_id for entry in self.entries)) if self.trains else []

    def published(self, config: Path) -> Path | None:
        """Return the file of the item's published values; None without one."""
        reported = self.item.reported
        return reported_folder(config, self.paper.paper) / reported.file if reported else None

    @property
    def places(self) -> set[str]:
        """Panel, row and column of the cells of a table, such as ``Dirichlet 0.1 / FedDyn / tuned``."""
        if not (table := self.item.table):
            return set()
        axes = [axis for axis in (table.panels, table.rows, table.columns) if axis in self.axes]
        return {" / ".join(entry.labels[axis] for axis in axes) for entry in self.entries}

    @property
    def scale_title(self) -> str:
        """Scale of the item in words, if the item is complete."""
        return self.reduction.title or self.scale.title

    def keeping(self, text: str, holds: Callable[[Entry], bool]) -> Self:
        """Return the item with the cells that meet a condition, which ``text`` describes in words."""
        entries = [entry for entry in self.entries if holds(entry)]
        if len(entries) == len(self.entries):
            return self
        axes = with_labels(self.axes, (entry.labels for entry in entries))
        return replace(self, axes=axes, entries=entries, restricted=(*self.restricted, Restriction(to=text)))

    @cached_property
    def sheet(self) -> ItemJob:
        """Plain data from which a job makes the table or figure."""
        part = f", restricted to {', '.join(map(str, self.restricted))}" if self.restricted else ""
        reduced, figure = self.scale.reduces(self.paper), self.item.figure
        if reduced and isinstance(figure, Curves):  # few rounds, shown as measured
            figure = figure.model_copy(update={"smoothing": 1})
        spread_by = self.item.table.spread_by if self.item.table else ()
        return ItemJob(
            id=self.id,
            paper=self.paper.title,
            title=self.item.title,
            caption=self.item.caption,
            scale=self.scale_title + part,
            restricted=self.restricted,
            assumptions=self.assumptions,
            reduced=reduced,
            control=self.paper.kind == "control",
            seen=self.reduction.seen or self.scale.seen,
            rejudged=self.reduction.rejudged,
            axes={axis: tuple(labels) for axis, labels in self.axes.items()},
            table=self.item.table,
            figure=figure,
            reported=self.item.reported.file if self.item.reported else None,
            reported_seeds=self.item.reported.seeds if self.item.reported else None,
            cells=tuple(
                Cell(
                    labels=entry.labels,
                    reported=entry.reported,
                    seed=entry.seed,
                    run=entry.spec.run_id,
                    methods=tuple(method.name for method in entry.spec.composition.methods),
                    family=tuple(entry.labels[axis] for axis in spread_by),
                    spec={} if self.trains else entry.spec.canonical,
                )
                for entry in self.entries
            ),
        )


def with_labels(axes: Mapping[str, Iterable[str]], used: Iterable[Labels]) -> dict[str, list[str]]:
    """Return the axes with the labels that are used, in the order of the axes."""
    places = {place for labels in used for place in labels.items()}
    return {axis: [label for label in labels if (axis, label) in places] for axis, labels in axes.items()}
