"""Coverage of the papers: their tables and figures, our items for them, and the numbers of runs.

The papers' side is data: ``config/reported/experiments.csv`` has a row for each table and figure (or panel)
with the number of training runs behind it, ``config/reported/distinct_runs.csv`` the number of a paper's runs
when those that its tables and figures share are counted once. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fltrain.core.hashing import canonical_json
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.published import read_reported
from fltrain.experiments.schema import Paper


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper.

    Attributes:
        paper: the paper's name, for example ``flfa``.
        item: its name in the paper, for example ``figure 2a``.
        shows: its content, in a few words.
        stated_seeds: as the paper says it, for example ``5 (0;1;42;999;2025)`` or ``not stated``.
        runs: training runs behind it, seeds included; None if the text does not allow to count them.
    """

    paper: str
    item: str
    shows: str
    stated_seeds: str
    runs: int | None

    @property
    def seeds(self) -> int:
        """Runs of a cell: the number stated, else one."""
        stated = re.match(r"\d+", self.stated_seeds)
        return int(stated[0]) if stated else 1


@dataclass(frozen=True)
class Total:
    """Runs behind all of a paper, shared ones once.

    Attributes:
        published: as the paper's tables and figures need them; its own number of seeds, one if not stated.
        declared: the same of the items here that stand for them.
        explained: why the two differ, if they do.
    """

    published: int
    declared: int
    explained: str


@dataclass(frozen=True)
class Covered:
    """A table or figure of a paper and the items that stand for it, none if nothing is trained for it."""

    experiment: Experiment
    items: tuple[PlannedItem, ...]

    @cached_property
    def cells(self) -> frozenset[str]:
        """Distinct settings that are trained, whatever the seed."""
        return cells(self.items)

    @property
    def runs(self) -> int:
        """Runs behind the items at the paper's number of seeds."""
        return len(self.cells) * self.experiment.seeds


def cells(items: Iterable[PlannedItem]) -> frozenset[str]:
    """Distinct settings that are trained for the items, whatever their seeds."""
    return frozenset(
        canonical_json({**entry.spec.canonical, "seed": None})
        for item in items
        if item.trains
        for entry in item.entries
        if entry.number == 0
    )


def experiments(path: Path) -> list[Experiment]:
    """Read the list of the papers' tables and figures.

    Raises:
        FltrainError: if the file cannot be read.
    """
    columns = ("paper", "item", "what_it_shows", "seeds", "number_of_runs")
    return [
        Experiment(
            paper=row["paper"],
            item=row["item"],
            shows=row["what_it_shows"],
            stated_seeds=row["seeds"],
            runs=int(row["number_of_runs"]) if row["number_of_runs"] else None,
        )
        for row in read_reported(path, columns)[1]
    ]


def totals(path: Path) -> dict[str, Total]:
    """Read the numbers of distinct runs, by paper.

    Raises:
        FltrainError: if the file cannot be read.
    """
    return {
        row["paper"]: Total(int(row["distinct_runs"]), int(row["declared"]), row["explained"])
        for row in read_reported(path, ("paper", "distinct_runs", "declared", "explained"))[1]
    }


def coverage(paper: Paper, planned: Sequence[PlannedItem], published: Iterable[Experiment]) -> list[Covered]:
    """Match the items of a paper with its tables and figures.

    Args:
        paper: the paper.
        planned: items, of this and other papers.
        published: tables and figures, of this and other papers.
    """
    items = [item for item in planned if item.paper.paper == paper.paper]
    return [
        Covered(experiment, tuple(item for item in items if experiment.item in item.item.covers))
        for experiment in published
        if experiment.paper == paper.paper
    ]
