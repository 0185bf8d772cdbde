"""Run records, tables and figures -> MLflow: a view for browsing; you can delete and recreate it at any time.

Each paper has an experiment for each scale, such as ``ecgr (published)``, with an MLflow run for each run ID.
The experiment ``tables`` has an MLflow run per table or figure, which holds its files, and ``cells`` one per
cell of every table, with mean, gain and verdict. Tags and descriptions link runs, cells and tables. The tag
``order`` sorts every list.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from rich.console import Console
from rich.progress import track

from fltrain.core.errors import FltrainError, count
from fltrain.core.hashing import short_hash
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.layout import named
from fltrain.experiments.plan import Plan
from fltrain.reporting.tables.table_cell import TableCell, read_csv
from fltrain.runs.measures import factor, measure
from fltrain.runs.record import BROKEN, MODELS_FILE, RECORD_FILES, Record, Results
from fltrain.runs.where import NONE, short_names
from fltrain.tracking.runs import UNASSIGNED, RecordedRun
from fltrain.tracking.store import NOTE, UNCHANGED, Present, Store, TrackedRun, writing

TABLES, CELLS = "tables", "cells"
"""Experiments of all tables and figures, and of the cells of all tables."""
ORDER = "tags.`order`"
"""MLflow's key of the tag that sorts all lists."""
NOTES = {
    TABLES: "All tables and figures. Their files are under *Artifacts*.",
    CELLS: "All cells of tables, those with a verdict first. A gain is a paired difference to *base*, "
    "over *n* seeds, with its 90 % interval.",
}
FORMS = (".html", ".md", ".csv", ".png", ".pdf")
"""Files of a table or figure that become artifacts, in this order."""
CELL_METRICS = (
    *("mean", "std", "gain", "gain_low", "gain_high"),
    *("diverged", "base_diverged", "published", "published_gain"),
)
"""Metrics of a cell in addition to ``n``: columns of the table's CSV file."""

_RUN_NAMES = ("dataset", "partition", "model", "method", "plugins")
_MODEL = "fltrain.model"  # tag: file with the final weights
# MLflow marks these, so that nobody mistakes them for usable results.
_STATUS = {"completed": "FINISHED", "diverged": "FAILED"}
_SKEWS = {"alpha": "alpha", "classes_per_client": "classes a client", "shards_per_client": "shards a client"}

Groups = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Tags ``cell`` and ``order`` of a run by run ID and item, such as ``flfa/table1``.

The first item of a run decides its group and, by its paper, its experiment.
"""


def in_words(counts: Mapping[str, int]) -> str:
    """Return the numbers of an export as text."""
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "nothing to export"


def groups_of(plan: Plan) -> dict[str, dict[str, dict[str, str]]]:
    """Return the groups of all runs of a plan.

    ``cell`` has the labels that vary in the item, then its name: all seeds of a cell share it, and MLflow
    groups by it. A run's first item is the one with most seeds of its cell, so that seeds of a pilot have a
    group of their own. ``order`` begins with items of many seeds: searches and pilots are last.
    """
    groups: dict[str, dict[str, dict[str, str]]] = {}
    for item in plan.items:
        numbers: dict[str, int] = {}
        seeds = len({entry.spec.seed for entry in item.entries})
        for entry in item.entries if item.trains else ():
            labels = [named(axis, entry.labels[axis]) for axis in _several(item) if axis in entry.labels]
            cell = f"{', '.join(labels) or entry.spec.composition.name} · {item.name}"
            order = f"{1000 - seeds} {item.name} {numbers.setdefault(cell, len(numbers)):04}"
            tags = {"cell": cell, "order": order}
            groups.setdefault(entry.spec.run_id, {}).setdefault(item.id, tags)
    counts = Counter((item, tags["cell"]) for items in groups.values() for item, tags in items.items())
    return {
        run: dict(sorted(items.items(), key=lambda one: -counts[one[0], one[1]["cell"]]))
        for run, items in groups.items()
    }


def _several(item: PlannedItem) -> list[str]:
    """Return the axes of an item with more than one label."""
    return [axis for axis, labels in item.axes.items() if len(labels) > 1]


@dataclass(frozen=True)
class Export:
    """Everything to export.

    Attributes:
        results: folder of records, tables and figures.
        scale: scale of the runs.
        groups: of the whole scale: runs keep their items if only some of them are exported.
        runs: IDs; runs without a complete record are skipped. Those without a group belong to the experiment
            ``unassigned``, unless a scale has exported them.
        items: tables and figures with all of their runs; those without files are left out.
        models: also export the final weights of runs that keep them.
    """

    results: Results
    scale: str
    groups: Groups
    runs: Collection[str]
    items: Sequence[PlannedItem] = ()
    models: bool = False

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
        counts = Counter[str]()
        with writing(uri, self.results.root) as store:
            # Restoring a deleted experiment restores its runs, so this precedes the search for runs.
            for home in dict.fromkeys(self._home(run) for run in self.runs if run in self.groups):
                store.experiment(home)
            for paper in {item.paper.paper: item.paper for item in self.items}.values():
                place = f"tags.paper = '{paper.paper}' and tags.scale = '{self.scale}'"
                tables = f"[tables and figures]({opened(store.experiment(TABLES), place)})"
                page = f"`{self.results.root.name}/{self.scale}/{paper.paper}/index.html`"
                note = f"{paper.title}: {tables}, page {page}\n\n{paper.citation}"
                store.experiment(f"{paper.paper} ({self.scale})", note)
            for name, note in NOTES.items() if self.items else ():
                store.experiment(name, note)
            present = store.present("tags.kind = 'run'") if self.runs else {}
            items = store.present(f"tags.scale = '{self.scale}' and tags.kind != 'run'") if self.items else {}
            records = (record for record in map(self.results.record, self.runs) if record.complete)
            parts: list[Callable[[], str]] = [
                partial(self._put_run, store, record, present.get(record.run_id, ())) for record in records
            ]
            parts += [partial(self._put_item, store, item, items, counts) for item in self.items]
            console = Console(stderr=True)
            for part in track(
                parts, "export", console=console, transient=True, disable=not console.is_terminal
            ):
                try:
                    counts[part()] += 1
                except (FltrainError, *BROKEN) as error:
                    logging.getLogger(__name__).warning("left out: %s", error)
                    counts["left out"] += 1
        del counts[""]
        return counts

    def _home(self, run: str) -> str:
        """Return the name of a run's experiment."""
        first = next(iter(self.groups.get(run, ())), "")
        return f"{first.partition('/')[0]} ({self.scale})" if first else UNASSIGNED

    def _item_link(self, store: Store, item: str) -> str:
        condition = f"attributes.run_name = '{item} ({self.scale})'"
        return f"[{item}]({opened(store.experiment(TABLES), condition)})"

    # -------------------------------------------------------------------------------------------------- runs
    def _put_run(self, store: Store, record: Record, present: Present) -> str:
        """Export a run; return what happened to it."""
        groups = self.groups.get(record.run_id, {})
        scales = {one.info.run_id: one.data.tags.get("scale", NONE).split() for one in present}
        if not groups and any(found != [NONE] for found in scales.values()):
            return UNCHANGED  # the export of its own scale updates it
        present = [one for one in present if {self.scale, NONE} & {*scales[one.info.run_id]}]
        run = RecordedRun.of(record, {self.scale: {record.run_id: list(groups)}} if groups else {})
        fields, links = run.fields, ", ".join(self._item_link(store, item) for item in groups)
        diverged = "**Diverged**: its loss became infinite or not a number.\n\n"
        note = diverged if fields["status"] == "diverged" else ""
        note += f"Used by {links}" if links else "No table or figure uses this run"
        settings = short_hash({key: value for key, value in record.spec.items() if key != "seed"})
        alone = f"{run.spec.composition.name}, {fields['dataset']}, {skew(run)} ({settings[:4]})"
        files, weights = [record.folder / name for name in RECORD_FILES], record.folder / MODELS_FILE
        with_model = weights.is_file() and (self.models or any(_MODEL in one.data.tags for one in present))
        entry = TrackedRun(
            experiment=self._home(record.run_id),
            key=record.run_id,
            tags={
                **{key: value or NONE for key, value in fields.items()},
                # With a comma after each, `%flfa/table1,%` does not match `flfa/table10`.
                "items": " ".join(f"{item}," for item in groups) or NONE,
                "partition_id": run.spec.partition_id,
                "skew": skew(run),
                **next(iter(groups.values()), {"cell": alone, "order": alone}),
                "kind": "run",
                NOTE: f"{note}; record in `{fields['folder']}`.",
                "mlflow.source.name": "fltrain train",
                "mlflow.source.git.commit": str(record.provenance.get("commit") or NONE),
                **({_MODEL: weights.name} if with_model else {}),
            },
            sources=_digests(files),
            made=record.written,
            params=parameters(run),
            metrics=[(key, step, _shown(key, y)) for key, curve in run.metrics.items() for step, y in curve],
            files=[*files, weights] if with_model else files,
            folder="record",
            status=_STATUS[fields["status"]],
        )
        return store.put(entry, present)

    # ------------------------------------------------------------------------------------ tables and figures
    def _put_item(
        self, store: Store, item: PlannedItem, present: dict[str, Present], counts: Counter[str]
    ) -> str:
        """Export and count a table or figure with its files, and its cells; delete those that have gone."""
        place = self.results.root / self.scale / item.id
        files = [file for form in FORMS if (file := place.with_name(place.name + form)).is_file()]
        for entry in self._entries(store, item, files) if files else ():
            done = store.put(entry, present.pop(entry.key, ()))
            what = "tables and figures" if entry.experiment == TABLES else "cells"
            counts[f"{what} written"] += done != UNCHANGED
        for obsolete in (run for runs in present.values() for run in runs if files):
            if obsolete.data.tags["item"] == item.id:
                store.delete(obsolete)
        return ""

    def _entries(self, store: Store, item: PlannedItem, files: Sequence[Path]) -> Iterator[TrackedRun]:
        """Yield the entry of a table or figure, and of its cells."""
        made = max(file.stat().st_mtime for file in files)
        same = {"paper": item.paper.paper, "item": item.id, "scale": self.scale}
        homes = {self._home(run) for run, groups in self.groups.items() if item.id in groups}
        condition = f"tags.items LIKE '%{item.id},%'"
        links = [f"[{home}]({opened(store.experiment(home), condition)})" for home in sorted(homes)]
        behind = f"Runs behind it: {', '.join(links)}; its files are under *Artifacts*.\n\n" if links else ""
        yield TrackedRun(
            experiment=TABLES,
            key=(key := f"{item.id} ({self.scale})"),
            tags={
                **{**same, "kind": "item", "order": key},
                NOTE: f"{behind}**{item.item.title}**\n\n{item.item.caption}",
            },
            sources=_digests(files),
            made=made,
            params={"title": item.item.title},
            files=files,
        )
        csv = next((file for file in files if file.suffix == ".csv"), None)
        for number, cell in enumerate(read_csv(csv) if csv and item.item.table else ()):
            tags = cell_tags(cell, item)
            rank = tags.get("verdict") or "~" * (1 if "base" in tags else 2)  # verdicts, gains, other cells
            homes = {self._home(run) for run in cell.runs if run in self.groups}
            condition = f"attributes.run_name IN ({', '.join(map(repr, cell.runs))})"
            links = [f"[{home}]({opened(store.experiment(home), condition)})" for home in sorted(homes)]
            over = f", gain over {tags['base']}" if "base" in tags else ""
            link = self._item_link(store, item.id)
            runs = f" {count(len(cell.runs), 'run')} in {', '.join(links)}." if links else ""
            yield TrackedRun(
                experiment=CELLS,
                key=f"{tags['cell']} · {key}",
                tags={
                    **{**same, **tags, "kind": "cell", "order": f"{rank} {key} {number:04}"},
                    NOTE: f"{tags['cell']}{over}: {link}, {item.item.title}.{runs}",
                },
                made=made,
                metrics=[(key, 0, value) for key, value in _numbers(cell).items()],
            )


def cell_tags(cell: TableCell, item: PlannedItem) -> dict[str, str]:
    """Return the tags of a cell: its labels, the base of its gain, its verdict, and its runs.

    Dataset, method and so on are tags if all runs have the same. ``cell`` has the labels that vary in the
    table, and the measure.
    """
    table = item.item.table
    assert table
    places = {"row": (table.rows, cell.row), "column": (table.columns, cell.column)}
    places |= {"panel": (table.panels, cell.panel)}
    shown = {key: named(axis, label) for key, (axis, label) in places.items() if label}
    fixed = {axis for axis in item.axes if axis not in _several(item)}
    varying = [label for key, label in shown.items() if places[key][0] not in fixed]
    headings = {(one.measure, one.label or measure(one.measure).label): one for one in table.measures}
    over = headings[cell.measure, cell.label].gain_over if cell.gain is not None else {}
    labels = next((entry.labels for entry in item.entries if entry.spec.run_id in cell.runs), {})
    bases = (entry.spec.composition.name for entry in item.entries if entry.labels == {**labels, **over})
    base = ", ".join(
        next(bases, label) if label == "base" else named(axis, label) for axis, label in over.items()
    )
    names = [short_names(entry.spec) for entry in item.entries if entry.spec.run_id in cell.runs]
    common = {key: {one[key] for one in names} for key in _RUN_NAMES}
    tags = {
        **shown,
        **{key: min(values) for key, values in common.items() if len(values) == 1},
        "cell": ", ".join([*varying, cell.label]),
        "measure": cell.measure,
        "base": base,
        "verdict": ", ".join(filter(None, [cell.full_verdict, cell.gain_verdict])),
        "runs": " ".join(cell.runs) or NONE,
    }
    return {key: text for key, text in tags.items() if text}


def _numbers(cell: TableCell) -> dict[str, float]:
    """Return the finite metrics of a cell that are measurements, with the decimals of the table."""
    values = {"n": len(cell.gains) or cell.n, **cell.measured(CELL_METRICS)}
    return {
        name: round(value, cell.decimals)  # MLflow's lists do not round
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }


def _digests(files: Iterable[Path]) -> list[str]:
    return [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


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


def opened(experiment: str, condition: str) -> str:
    """Return the address of an experiment's runs that meet a condition in MLflow's interface."""
    order = f"orderByKey={quote(ORDER)}&orderByAsc=true"
    return f"#/experiments/{experiment}/runs?searchFilter={quote(condition)}&{order}"
