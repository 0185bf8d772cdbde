"""Run records, tables and figures -> MLflow: a view for browsing; you can delete and recreate it at any time.

There is one experiment per paper with one MLflow run per run ID. The experiment ``tables`` has one MLflow run
per table or figure, which holds its files, and ``cells`` one per cell of every table, with mean, gain and
verdict. Each is an ``TrackedRun`` of the store. Tags and descriptions link runs, cells and tables.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.console import Console
from rich.progress import track

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.layout import named
from fltrain.experiments.plan import Plan
from fltrain.reporting.tables.table_cell import TableCell, read_csv
from fltrain.runs.measures import factor
from fltrain.runs.record import BROKEN, MODELS_FILE, RECORD_FILES, Record, Results
from fltrain.runs.where import NONE, short_names
from fltrain.tracking.runs import RecordedRun, membership
from fltrain.tracking.store import NOTE, UNCHANGED, Store, TrackedRun, writing

if TYPE_CHECKING:
    from mlflow import entities

FORMS = (".html", ".md", ".csv", ".png", ".pdf")
"""Files of a table or figure that become artifacts, in this order."""
TABLES, CELLS = "tables", "cells"
"""Experiments of all tables and figures, and of the cells of all tables."""
CELL_METRICS = (
    *("mean", "std", "n", "gain", "gain_low", "gain_high"),
    *("diverged", "base_diverged", "published", "published_gain"),
)
"""Metrics of a cell: columns of the table's CSV file."""

_CELL_TAGS = ("row", "column", "panel", "measure", "verdict", "gain_verdict", "side")
_RUN_NAMES = ("dataset", "partition", "model", "method", "plugins")
_ITEMS, _MODEL = "fltrain.items", "fltrain.model"  # tags: items of a run by scale, file with its weights
# MLflow marks these, so that nobody mistakes them for usable results.
_STATUS = {"completed": "FINISHED", "diverged": "FAILED"}
_SKEWS = {"alpha": "alpha", "classes_per_client": "classes a client", "shards_per_client": "shards a client"}


def in_words(counts: Mapping[str, int]) -> str:
    """Return the numbers of an export as text."""
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "nothing to export"


@dataclass(frozen=True)
class Export:
    """Everything to export.

    Attributes:
        results: folder of records, tables and figures.
        scale: scale of the runs.
        memberships: paper items by run ID, such as ``flfa/table1``, of the whole scale: runs keep their items
            if only some of them are exported. The first item of a run decides its group and, by its paper,
            its experiment, which is ``unassigned`` without an item.
        runs: IDs; runs without a complete record are skipped.
        items: tables and figures with all of their runs; those without files are left out.
        models: also export the final weights of runs that keep them.
        labels: text of the labels of a run's cell by run ID and item, see ``labels_of``.
    """

    results: Results
    scale: str
    memberships: Mapping[str, Sequence[str]]
    runs: Collection[str]
    items: Sequence[PlannedItem] = ()
    models: bool = False
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def to(self, uri: str) -> Counter[str]:
        """Update an MLflow store to match records, tables and figures; do not change anything else in it.

        Damaged records and records of another version are left out with a warning; an earlier export of them
        stays.

        Args:
            uri: address of the store, ``sqlite:///path`` or a tracking server's.

        Returns:
            Numbers of runs that were created, unchanged and so on.

        Raises:
            FltrainError: if the store cannot be written to. The next export continues after the last run.
        """
        papers = {_paper(item): "" for items in self.memberships.values() for item in items}
        papers |= {one.paper.paper: f"**{one.paper.title}**\n\n{one.paper.citation}" for one in self.items}
        counts = Counter[str]()
        with writing(uri, self.results.root) as store:
            # Restoring a deleted experiment restores its runs, so this precedes the search for runs.
            for paper, note in papers.items():
                store.experiment(paper)
                tables = opened(store.experiment(TABLES), equals("paper", paper))
                home = f"{self.results.root.name}/{self.scale}/{paper}/index.html"
                store.experiment(paper, {NOTE: f"[Tables and figures]({tables}), page `{home}`\n\n{note}"})
            present = store.present("tags.kind = 'run'") if self.runs else {}

            def export_run(record: Record) -> Counter[str]:
                run = RecordedRun.of(record, {self.scale: self.memberships})
                before = present.get(run.run_id, ())
                return Counter({store.put(self._of_run(store, run, before), before): 1})

            records = (record for record in map(self.results.record, self.runs) if record.complete)
            parts: list[Callable[[], Counter[str]]] = [partial(export_run, one) for one in records]
            parts += [partial(self._export_item, store, item) for item in self.items]
            console = Console(stderr=True)
            for part in track(
                parts, "export", console=console, transient=True, disable=not console.is_terminal
            ):
                try:
                    counts += part()
                except (FltrainError, *BROKEN) as error:
                    logging.getLogger(__name__).warning("left out: %s", error)
                    counts["left out"] += 1
        return counts

    # -------------------------------------------------------------------------------------------------- runs
    def _of_run(self, store: Store, run: RecordedRun, present: Sequence[entities.Run]) -> TrackedRun:
        """Return the entry of a run; items of other scales stay from its earlier export."""
        record, fields = run.record, run.fields
        before = present[0].data.tags if present else {}
        items: dict[str, list[str]] = json.loads(before.get(_ITEMS, "{}"))
        items[self.scale] = list(self.memberships.get(run.run_id, ()))
        items = {scale: names for scale, names in items.items() if names}
        belongs = membership(items)
        of_items = belongs["items"].split() if items else []
        links = [f"[{item}]({_item_address(store, item)})" for item in of_items]
        first = of_items[0] if of_items else ""
        cell = cell_of(run, first.partition("/")[2], self.labels.get((run.run_id, first), ""))
        if first and first not in items.get(self.scale, ()):  # another scale has its labels
            cell = before.get("cell", cell)
        ended = fields["status"] == "diverged"
        note = "**Diverged**: its loss became infinite or not a number.\n\n" if ended else ""
        used = f"Used by {', '.join(links)}" if links else "No table or figure uses this run"
        files, weights = [record.folder / name for name in RECORD_FILES], record.folder / MODELS_FILE
        with_model = weights.is_file() and (self.models or _MODEL in before)
        # Records hold durations, no dates: the run ended when its last file was written.
        seconds, end = round(1000 * record.costs["seconds"]["total"]), int(1000 * record.written)
        return TrackedRun(
            experiment=belongs["paper"].split()[0],
            key=record.run_id,
            tags={
                **{key: value or NONE for key, value in {**fields, **belongs}.items()},
                # With a comma after each, `%flfa/table1,%` does not match `flfa/table10`.
                "items": "".join(f"{item}, " for item in of_items).strip() or NONE,
                "partition_id": run.spec.partition_id,
                "skew": skew(run),
                "cell": cell,
                "kind": "run",
                _ITEMS: json.dumps(items),
                NOTE: f"{note}{used}; record in `{fields['folder']}`.",
                "mlflow.source.name": "fltrain train",
                "mlflow.source.git.commit": str(record.provenance.get("commit") or NONE),
                **({_MODEL: weights.name} if with_model else {}),
            },
            sources=_digests(files),
            times=(end - seconds, end),
            params=parameters(run),
            metrics=[(key, step, _shown(key, y)) for key, curve in run.metrics.items() for step, y in curve],
            files=[*files, weights] if with_model else files,
            folder="record",
            status=_STATUS[fields["status"]],
        )

    # ------------------------------------------------------------------------------------ tables and figures
    def _export_item(self, store: Store, item: PlannedItem) -> Counter[str]:
        """Export a table or figure with its files, and the cells of a table; delete those that have gone."""
        place = self.results.root / self.scale / item.id
        files = [file for form in FORMS if (file := place.with_name(place.name + form)).is_file()]
        counts = Counter[str]()
        if not files:
            return counts
        present = store.present(f"{equals('item', item.id)} and {equals('scale', self.scale)}")
        for entry in self._entries(store, item, files):
            done = store.put(entry, present.pop(entry.key, ()))
            what = "tables and figures" if entry.experiment == TABLES else "cells"
            counts[f"{what} written"] += done != UNCHANGED
        for obsolete in (run for runs in present.values() for run in runs):
            store.delete(obsolete)
        return counts

    def _entries(self, store: Store, item: PlannedItem, files: Sequence[Path]) -> Iterator[TrackedRun]:
        """Yield the entry of a table or figure, and of its cells."""
        ended = max(int(1000 * max(file.stat().st_mtime for file in files)), 2)
        times = ended - 1, ended
        same = {"paper": item.paper.paper, "item": item.id, "scale": self.scale}
        homes = {_paper(items[0]) for items in self.memberships.values() if item.id in items}
        condition = f"tags.items LIKE '%{item.id},%'"
        links = [f"[{home}]({opened(store.experiment(home), condition)})" for home in sorted(homes)]
        behind = f"Runs behind it: {', '.join(links)}; its files are under *Artifacts*.\n\n" if links else ""
        note = f"{behind}**{item.item.title}**\n\n{item.item.caption}"
        yield TrackedRun(
            experiment=TABLES,
            key=f"{item.id} ({self.scale})",
            tags={**same, "kind": "item", NOTE: note},
            sources=_digests(files),
            times=times,
            params={"title": item.item.title},
            files=files,
        )
        names = {entry.spec.run_id: short_names(entry.spec) for entry in item.entries}
        forms = {file.suffix: file for file in files}
        for cell in read_csv(forms[".csv"]) if {".csv", ".html"} <= forms.keys() else ():
            name = _name(cell)
            links = [self._run_link(store, run) for run in cell.runs if self.memberships.get(run)]
            behind = f" Its runs: {', '.join(links)}." if links else ""
            note = f"{name} of [{item.id}]({_item_address(store, item.id)}), {item.item.title}.{behind}"
            yield TrackedRun(
                experiment=CELLS,
                key=f"{name}, {item.id} ({self.scale})",
                tags={**same, "kind": "cell", "cell": name, **_cell_tags(cell, names), NOTE: note},
                times=times,
                metrics=[(key, 0, value) for key, value in _numbers(cell).items()],
            )

    def _run_link(self, store: Store, run: str) -> str:
        """Return a link to a run in the list of its paper."""
        home = store.experiment(_paper(self.memberships[run][0]))
        place = opened(home, f"attributes.run_name = '{run}'")
        return f"[{run}]({place})"


def _cell_tags(cell: TableCell, names: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the tags of a cell; dataset, method and so on (``names`` by run) if all runs have the same."""
    every = [names[run] for run in cell.runs if run in names]
    common = {name: {one[name] for one in every} for name in _RUN_NAMES}
    return {
        **{key: value for key in _CELL_TAGS if (value := getattr(cell, key))},
        **{key: min(values) for key, values in common.items() if len(values) == 1},
        **({"diverged": f"{cell.diverged} of {cell.seeds} runs"} if cell.diverged else {}),
        **({"base_diverged": f"{lost} of {len(cell.gains)} runs"} if (lost := cell.base_diverged) else {}),
        "runs": " ".join(cell.runs) or NONE,
    }


def _digests(files: Iterable[Path]) -> list[str]:
    return [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def _paper(item: str) -> str:
    return item.partition("/")[0]


def _shown(metric: str, value: float) -> float:
    """Return a value as MLflow's lists show it, which do not round: accuracies in percent, two decimals."""
    return round(100 * value, 2) if factor(metric) == 100 else value


def parameters(run: RecordedRun) -> dict[str, str]:
    """Return the settings of a run; plug-ins and local test data have a value in every run."""
    local_test = run.settings.get("local_test.fraction", NONE)
    return {**run.settings, "plugins": run.fields["plugins"], "local_test": local_test}


def skew(run: RecordedRun) -> str:
    """Return the setting that decides how labels differ between clients, for example ``alpha 0.3``."""
    found = ((text, run.settings.get(f"partition.{key}")) for key, text in _SKEWS.items())
    return next((f"{text} {value}" for text, value in found if value), run.fields["partition"])


def by_seeds(plan: Plan) -> dict[str, list[str]]:
    """Return the items of each run; the one with the most seeds of its settings is first.

    Groups of runs in MLflow are thus the cells of this item: seeds of a pilot have their own.
    """
    settings = {run: _settings(spec.canonical) for run, spec in plan.runs.items()}
    seeds = Counter((settings[run], item) for run, items in plan.memberships.items() for item in items)
    return {
        run: sorted(items, key=lambda item: -seeds[settings[run], item])
        for run, items in plan.memberships.items()
    }


def _settings(spec: Mapping[str, Any]) -> str:
    """Return a digest of all settings but the seed."""
    return short_hash({key: value for key, value in spec.items() if key != "seed"})


def labels_of(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the labels of each run's first cell by run ID and item, without those that all cells share."""
    labels: dict[tuple[str, str], str] = {}
    for item in plan.items:
        several = [axis for axis, names in item.axes.items() if len(names) > 1]
        for entry in item.entries:
            text = ", ".join(named(axis, entry.labels[axis]) for axis in several if axis in entry.labels)
            labels.setdefault((entry.spec.run_id, item.id), text)
    return labels


def cell_of(run: RecordedRun, item: str, labels: str) -> str:
    """Return a name that all seeds of one setting in an item share, and no other run: MLflow groups by it.

    It begins with ``labels``, or with method and plug-ins without them, because lists cut its end off. The
    item comes without its paper, which names the experiment.
    """
    names = [labels or run.spec.composition.name, *filter(None, [item]), run.fields["dataset"], skew(run)]
    return f"{', '.join(names)} ({_settings(run.record.spec)[:4]})"


def _name(cell: TableCell) -> str:
    """Return the labels of a cell, which lists must not cut off, and its measure."""
    return ", ".join(filter(None, (cell.row, cell.column, cell.panel, cell.label)))


def _numbers(cell: TableCell) -> dict[str, float]:
    """Return the finite metrics of a cell that are measurements."""
    values = cell.measured(CELL_METRICS)
    finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return {name: round(value, 4) for name, value in finite.items()}  # MLflow's lists do not round


# ------------------------------------------------------------------------------------------------ addresses
def opened(experiment: str, condition: str = "", order: str = "tags.`cell`", rising: bool = True) -> str:
    """Return the address of an experiment's runs in MLflow's interface; pages of 100 keep groups together."""
    options = {"searchFilter": condition, "orderByKey": order, "orderByAsc": str(rising).lower()}
    chosen = "".join(f"&{key}={quote(value)}" for key, value in options.items() if value)
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning{chosen}"


def equals(tag: str, value: str) -> str:
    """Return the condition that a tag has this value."""
    return f"tags.`{tag}` = '{value}'"


def _item_address(store: Store, item: str) -> str:
    return opened(store.experiment(TABLES), equals("item", item))
