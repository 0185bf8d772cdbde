"""Run records, tables and figures -> MLflow: a view for browsing; you can delete and recreate it at any time.

There is one experiment per paper, with one MLflow run per run ID and one per table or figure, which holds its
files. The experiment ``cells`` has one MLflow run per cell of every table, with mean, gain and verdict. Tags
and descriptions link runs, cells and tables; experiments have views (``fltrain.tracking.views``). An MLflow
run stays unchanged if it has ended and its tag ``fltrain.record`` is still the fingerprint of its files;
otherwise it is replaced. Tags are set in place.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeVar

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.experiments.plan import Plan
from fltrain.experiments.progress import duration
from fltrain.reporting.tables.table_cell import TableCell, read_csv
from fltrain.runs.record import MODELS_FILE, RECORD_FILES, Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import stale_records
from fltrain.runs.where import NONE, short_names
from fltrain.tracking.mlflow_store import (
    FINGERPRINT,
    RUN_ID,
    NewRun,
    Store,
    corrections,
    models_of,
    with_note,
    writing,
)
from fltrain.tracking.run_view import STALE, UNASSIGNED, RunView, membership, view_record
from fltrain.tracking.views import VIEW, cells_view, equals, opened, runs_view, search

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Run

REVISION = 7
"""Increase it if an MLflow run would be written differently: all runs are then replaced."""

FORMS = (".html", ".md", ".csv", ".png", ".pdf")
"""Files of a table or figure that become artifacts, in this order."""
INTERVAL = 10
"""Seconds between two looks at the files in ``follow``, and between two lines about progress."""
CELLS = "cells"
"""Experiment of the cells of all tables."""
OUTCOMES = ("diverged", "published", "published_gain")
CELL_METRICS = ("mean", "std", "n", "gain", "gain_low", "gain_high", *OUTCOMES)
"""Metrics of a cell: columns of the table's CSV file. If all runs diverged, it has the outcomes only."""

Item = TypeVar("Item")

_CELL_TAGS = ("row", "column", "panel", "measure", "gain_verdict", "side")
_RUN_NAMES = ("dataset", "partition", "model", "method", "plugins")
_ITEMS = "fltrain.items."  # tags with the items of a run, by scale
# MLflow marks these, so that nobody mistakes them for usable results.
_STATUS = {"completed": "FINISHED", "diverged": "FAILED", STALE: "KILLED"}


@dataclass(frozen=True)
class Page:
    """A table or figure: its ID (``flfa/table1``), title and caption, and its paper's title and citation."""

    id: str
    title: str
    caption: str
    paper: str = ""


@dataclass(frozen=True)
class Wanted:
    """Everything to export.

    Attributes:
        results: folder of records, tables and figures.
        scale: scale of the runs.
        memberships: paper items by run ID, such as ``flfa/table1``, of the whole scale: runs keep their items
            if only some of them are exported. A run belongs to the experiment of its first item's paper, or
            to ``unassigned``.
        runs: IDs; runs without a complete record are skipped, but their stale records are exported.
        pages: tables and figures; those without files are left out.
        models: also export the final weights of runs that keep them.
    """

    results: Results
    scale: str
    memberships: Mapping[str, Sequence[str]]
    runs: Collection[str]
    pages: Sequence[Page] = ()
    models: bool = False

    def records(self) -> Iterator[Record]:
        """Yield the records to export; each is read anew at every call."""
        current = (self.results.record(run) for run in self.runs)
        stale = stale_records(set(self.runs), {*self.runs, *self.memberships}, self.results)
        yield from (record for record in current if record.complete)
        yield from (one.record for one in stale)

    def files(self, page: Page) -> list[Path]:
        """Return the existing files of a table or figure."""
        folder, name = self.results.root / self.scale / Path(page.id).parent, Path(page.id).name
        files = [folder / f"{name}{form}" for form in FORMS]
        return [file for file in files if file.is_file()]


def pages_of(plan: Plan) -> list[Page]:
    """Return the tables and figures of a plan."""
    return [
        Page(item.id, item.item.title, item.item.caption, f"**{item.paper.title}**\n\n{item.paper.citation}")
        for item in plan.items
    ]


@dataclass
class Exported:
    """Numbers of runs created, unchanged, retagged or replaced, and of items, cells and models written.

    ``left_out`` counts records that are damaged or have settings of another version, and unreadable tables;
    ``reason`` explains the first one.
    """

    created: int = 0
    replaced: int = 0
    retagged: int = 0
    unchanged: int = 0
    items: int = field(default=0, compare=False)
    cells: int = field(default=0, compare=False)
    models: int = field(default=0, compare=False)
    left_out: int = 0
    reason: str = field(default="", compare=False)

    def __str__(self) -> str:
        names = {
            "left_out": f"left out (see `fltrain verify`): {self.reason}",
            "items": "tables and figures written",
            "cells": "cells written",
            "models": "models written",
        }
        counts = {
            names.get(name, name): count for name, count in asdict(self).items() if count and name != "reason"
        }
        return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to export"


def export(wanted: Wanted, uri: str) -> Exported:
    """Update an MLflow store to match records, tables and figures; do not change anything else in it.

    Args:
        wanted: what to export.
        uri: address of the store, ``sqlite:///path`` or that of a tracking server.

    Raises:
        FltrainError: if the store cannot be written to. The next export continues after the last run written.
    """
    prints = {record.run_id: _fingerprint(record) for record in wanted.records()}
    pages = {page: files for page in wanted.pages if (files := wanted.files(page))}
    papers = {_paper(item): "" for items in wanted.memberships.values() for item in items}
    papers |= {_paper(page.id): page.paper for page in wanted.pages if page.paper}
    with writing(uri, wanted.results.root) as store:
        # Restoring a deleted experiment restores its runs, so this precedes the search for runs.
        for paper, note in papers.items():
            note = _paper_note(note, store.experiment(paper))
            store.experiment(paper, with_note({VIEW: runs_view()}, note))
        exporter = _Exporter(wanted, store)
        exporter.export_runs(prints)
        exporter.export_pages(pages)
        if wanted.models:
            exporter.export_models(prints)
    return exporter.done


def _fingerprint(record: Record) -> str:
    # Not the metrics: the summary has their digest.
    files = [record.folder / name for name in RECORD_FILES if name != "metrics.jsonl"]
    return _digest(file for file in files if file.is_file()) + record.damage


def _digest(files: Iterable[Path]) -> str:
    contents = [[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files]
    return short_hash([REVISION, contents])


def _paper(item: str) -> str:
    return item.partition("/")[0]


class _Exporter:
    """One export to an open store."""

    def __init__(self, wanted: Wanted, store: Store) -> None:
        self.wanted, self.store, self.done = wanted, store, Exported()
        self.names: dict[str, Mapping[str, str]] = {}  # dataset, method ... by run ID
        self.homes: dict[str, str] = {}  # experiment by run ID

    def _put(
        self,
        present: Sequence[Run],
        experiment: str,
        fingerprint: str,
        tags: Mapping[str, str],
        make: Callable[[], NewRun],
    ) -> str:
        """Keep, retag, replace or create one MLflow run; return which, as a count of ``Exported``."""
        fitting = [
            run
            for run in present
            if run.info.status != "RUNNING"  # that of an interrupted export
            and run.info.experiment_id == experiment
            and run.data.tags.get(FINGERPRINT) == fingerprint
        ]
        kept = fitting[0] if fitting else None
        new = None if kept else make()  # before any deletion: a record can be damaged
        for run in present:
            if run is not kept:
                self.store.delete(run)
        if new:
            self.store.create(experiment, replace(new, tags={**new.tags, FINGERPRINT: fingerprint}))
            return "replaced" if present else "created"
        if kept and (changes := corrections(kept.data.tags, tags)):
            self.store.set_tags(kept, changes)
            return "retagged"
        return "unchanged"

    # -------------------------------------------------------------------------------------------------- runs
    def export_runs(self, fingerprints: Mapping[str, str]) -> None:
        """Export runs, given the fingerprints of their records."""
        present = self.store.with_tag(RUN_ID, fingerprints.keys())
        for run, fingerprint in _reported(fingerprints.items(), "runs"):
            try:
                count = self._export_run(run, fingerprint, present.get(run, ()))
            except FltrainError as error:  # the record is damaged or of another version
                count, self.done.reason = "left_out", self.done.reason or str(error)
            setattr(self.done, count, getattr(self.done, count) + 1)

    def _export_run(self, run: str, fingerprint: str, present: Sequence[Run]) -> str:
        record = self.wanted.results.record(run)
        spec = record.run_spec
        if spec is None:  # keep its earlier export
            raise FltrainError(f"{run}: its settings are from another version of fltrain")
        view = view_record(record, spec, {self.wanted.scale: self.wanted.memberships})
        tags = self._run_tags(view, present[0].data.tags if present else {})
        home = self.homes[run] = self.store.experiment(tags["paper"].split()[0])
        self.names[run] = {name: view.fields[name] for name in _RUN_NAMES}
        mark = short_hash([fingerprint, view.fields["status"]])
        return self._put(present, home, mark, tags, lambda: _new_run(record, spec, view, tags))

    def _run_tags(self, view: RunView, before: Mapping[str, str]) -> dict[str, str]:
        """Return all tags of a run, given those of its earlier export: items of other scales stay."""
        items = {
            key.removeprefix(_ITEMS): value.split() for key, value in before.items() if key.startswith(_ITEMS)
        }
        items[self.wanted.scale] = view.fields["items"].split() if view.fields["scale"] != NONE else []
        items = {scale: names for scale, names in items.items() if names}
        belongs = membership(items)
        tags = {
            **view.fields,
            **belongs,
            "items": listed(belongs["items"]),
            **{f"{_ITEMS}{scale}": " ".join(names) for scale, names in items.items()},
            "kind": "run",
            RUN_ID: view.run_id,
        }
        return with_note(tags, self._run_note(view, belongs))

    def _run_note(self, view: RunView, belongs: Mapping[str, str]) -> str:
        """Return the description of a run: its problems, and links to its tables."""
        notes = []
        if view.fields["status"] == STALE:
            notes.append(f"**Stale**: {view.fields['stale']}. Train it again.")
        if view.fields["status"] == "diverged":
            notes.append("**Diverged**: its loss became infinite or not a number.")
        if belongs["paper"] == UNASSIGNED:
            return "\n\n".join([*notes, "No table or figure uses this run."])
        links = [
            f"[{item}]({search([self.store.experiment(_paper(item))], equals('item', item))})"
            for item in belongs["items"].split()
        ]
        return "\n\n".join([*notes, f"Used by {', '.join(links)}; record in `{view.fields['folder']}`."])

    def export_models(self, runs: Collection[str]) -> None:
        """Export the final weights of these runs, if they keep them and their MLflow run has none yet."""
        files = {run: self.wanted.results.run(run) / MODELS_FILE for run in runs}
        kept = {run: file for run, file in files.items() if file.is_file()}
        for name, present in self.store.with_tag(RUN_ID, kept).items():
            for run in present:
                if not models_of(run):
                    self.store.add_model(run, name, kept[name])
                    self.done.models += 1

    # ------------------------------------------------------------------------------------ tables and figures
    def export_pages(self, pages: Mapping[Page, Sequence[Path]]) -> None:
        """Export tables and figures with these files, and the cells of tables."""
        for page, files in _reported(pages.items(), "tables and figures"):
            of_page = f"tags.item = '{page.id}' and tags.scale = '{self.wanted.scale}'"
            cells: dict[str, list[Run]] = {}
            items: list[Run] = []
            for run in self.store.search(of_page):
                if run.data.tags.get("kind") == "cell":
                    cells.setdefault(run.data.tags["cell"], []).append(run)
                else:
                    items.append(run)
            try:
                shown = _cells(files)
            except FltrainError as error:  # made by another version; keep its earlier export
                self.done.left_out, self.done.reason = self.done.left_out + 1, self.done.reason or str(error)
                continue
            self._export_item(page, files, shown, items)
            if shown:
                self._export_cells(page, shown, _written(files), cells)
            for obsolete in itertools.chain.from_iterable(cells.values()):
                self.store.delete(obsolete)

    def _export_item(
        self, page: Page, files: Sequence[Path], shown: Sequence[TableCell], present: Sequence[Run]
    ) -> None:
        memberships = self.wanted.memberships
        homes = {_paper(items[0]) for items in memberships.values() if page.id in items}
        note = _page_note(page, [self.store.experiment(home) for home in sorted(homes)])
        tags = with_note({"kind": "item", **self._page_tags(page)}, note)
        name, params = f"{page.id} ({self.wanted.scale})", {"title": page.title}
        table = _table(shown) if shown else ""
        make = partial(NewRun, name, "FINISHED", *_written(files), tags, params, files=files, table=table)
        mark = short_hash([page.title, _digest(files)])
        count = self._put(present, self.store.experiment(_paper(page.id)), mark, tags, make)
        self.done.items += count in ("created", "replaced")

    def _page_tags(self, page: Page) -> dict[str, str]:
        return {"paper": _paper(page.id), "item": page.id, "scale": self.wanted.scale}

    def _export_cells(
        self, page: Page, shown: Sequence[TableCell], written: tuple[int, int], present: dict[str, list[Run]]
    ) -> None:
        """Export the cells of a table, and take them out of those that are present."""
        tags = with_note({VIEW: cells_view()}, _cells_note(self.store.experiment(CELLS)))
        experiment = self.store.experiment(CELLS, tags)
        for one in shown:
            cell = _name(one)
            tags = {
                "kind": "cell",
                **self._page_tags(page),
                "cell": cell,
                **{name: value for name in _CELL_TAGS if (value := getattr(one, name))},
                **self._common_names(one.runs),
                **({"diverged": f"{one.diverged} of {one.seeds}"} if one.diverged else {}),
                "verdict": one.verdict or NONE,
                "runs": " ".join(one.runs),
            }
            tags = with_note(tags, self._cell_note(page, cell, one.runs))
            metrics = [(name, 0, value) for name, value in _numbers(one).items()]
            name = f"{page.id}: {cell} ({self.wanted.scale})"
            mark = short_hash([REVISION, name, metrics])
            make = partial(NewRun, name, "FINISHED", *written, tags, {}, metrics)
            count = self._put(present.pop(cell, []), experiment, mark, tags, make)
            self.done.cells += count in ("created", "replaced", "retagged")

    def _common_names(self, runs: Sequence[str]) -> dict[str, str]:
        """Return dataset, method, plug-ins and so on, if all runs of a cell have the same."""
        every = [names for run in runs if (names := self._names(run))]
        values = {name: {names[name] for names in every} for name in _RUN_NAMES}
        return {name: min(same) for name, same in values.items() if len(same) == 1}

    def _names(self, run: str) -> Mapping[str, str]:
        if run not in self.names:
            record = self.wanted.results.record(run)
            try:
                spec = record.run_spec if record.usable else None
            except FltrainError:  # damaged
                spec = None
            self.names[run] = short_names(spec) if spec else {}
        return self.names[run]

    def _cell_note(self, page: Page, cell: str, runs: Sequence[str]) -> str:
        """Return the description of a cell, with links to its table and its seeds."""
        item = search([self.store.experiment(_paper(page.id))], equals("item", page.id))
        links = [
            f"[{run}]({search([home], equals(RUN_ID, run))})" for run in runs if (home := self._home(run))
        ]
        return f"{cell} of [{page.id}]({item}), {page.title}.\n\nSeeds: {', '.join(links) or NONE}."

    def _home(self, run: str) -> str:
        """Return the experiment of a run; "" if unknown."""
        if run not in self.homes:
            items = self.wanted.memberships.get(run)
            self.homes[run] = self.store.experiment(_paper(items[0])) if items else ""
        return self.homes[run]


def _reported(items: Collection[Item], what: str) -> Iterator[Item]:
    """Yield items; print the number of exported ones and the time left to standard error now and then."""
    start = last = monotonic()
    for done, item in enumerate(items):
        if (now := monotonic()) - last >= INTERVAL:
            last = now
            left = duration((now - start) / done * (len(items) - done))
            print(f"exported {done} of {len(items)} {what}; about {left} left", file=sys.stderr, flush=True)
        yield item


def _new_run(record: Record, spec: RunSpec, view: RunView, tags: Mapping[str, str]) -> NewRun:
    # Records hold durations, no dates: the run ended when its last file was written. MLflow has no dates
    # before 1970, and takes 0 for none.
    duration = round(1000 * record.costs["seconds"]["total"])
    ended = max(int(1000 * record.written), duration + 1)
    curves = [(key, *point) for key, curve in view.curves.items() for point in curve]
    finals = [(key, view.rounds, value) for key, value in view.finals.items()]
    digests = record.summary["digests"]
    return NewRun(
        name=view.run_id,
        status=_STATUS[view.fields["status"]],
        started=ended - duration,
        ended=ended,
        tags={**tags, **_source(record)},
        params=view.settings,
        metrics=[*curves, *finals],
        inputs=[
            _input(spec.dataset.id, digests["data"], "data", "data set"),
            _input(spec.partition_id, digests["partition"], "partitions", "partition"),
        ],
        files=[record.folder / name for name in RECORD_FILES],
        folder="record",
    )


def _input(name: str, digest: str, folder: str, context: str) -> DatasetInput:
    """Return MLflow's entry of a file of the results folder behind a run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source, profile = {"uri": f"{folder}/{name}.safetensors"}, {"sha256": digest}
    file = Dataset(name, digest[:10], "local", json.dumps(source), profile=json.dumps(profile))
    return DatasetInput(file, [InputTag("mlflow.data.context", context)])


def _source(record: Record) -> dict[str, str]:
    """Return MLflow's tags for the program, commit and user that made a record, as far as known."""
    tags = {"mlflow.source.name": "fltrain train", "mlflow.source.type": "LOCAL"}
    if commit := record.provenance.get("commit"):
        tags["mlflow.source.git.commit"] = str(commit)
    with suppress(KeyError, NotImplementedError):  # an account without a name
        tags["mlflow.user"] = (record.folder / "summary.json").owner()
    return tags


def _written(files: Iterable[Path]) -> tuple[int, int]:
    """Return start and end, in milliseconds, of an MLflow run for files: when the last one was written."""
    now = max(int(1000 * max(file.stat().st_mtime for file in files)), 2)
    return now - 1, now


def _cells(files: Iterable[Path]) -> list[TableCell]:
    """Return the cells of a table from its CSV file; none of a figure."""
    forms = {file.suffix: file for file in files}
    return read_csv(forms[".csv"]) if {".csv", ".html"} <= forms.keys() else []


def _name(cell: TableCell) -> str:
    """Return the labels of a cell; a published value without a cell of ours has only its names."""
    labels = ", ".join(filter(None, (cell.panel, cell.row, cell.column, cell.label)))
    return labels or "; ".join(f"{key}={name}" for key, name in cell.names.items())


def _numbers(cell: TableCell) -> dict[str, float]:
    """Return the finite metrics of a cell. If all runs diverged, chance accuracy is no measurement."""
    lost = cell.diverged > 0 and cell.diverged == cell.complete
    names = OUTCOMES if lost else CELL_METRICS
    values = {name: getattr(cell, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _table(cells: Sequence[TableCell]) -> str:
    """Return cells as ``MlflowClient.log_table`` writes them; MLflow groups by the first column."""
    lines = [{"cell": _name(cell), **_numbers(cell), "verdict": cell.verdict or NONE} for cell in cells]
    columns = ["cell", *CELL_METRICS, "verdict"]
    return json.dumps({"columns": columns, "data": [[line.get(name) for name in columns] for line in lines]})


def listed(items: str) -> str:
    """Return items with a comma after each, so that ``%flfa/table1,%`` does not match ``flfa/table10``."""
    return items if items == NONE else ", ".join(items.split()) + ","


def _paper_note(note: str, home: str) -> str:
    """Return the description of a paper's experiment: its views, title and citation."""
    views = {
        "Runs": opened(home),
        "curves": opened(home, charts=True),
        "tables and figures": search([home], equals("kind", "item")),
    }
    links = " · ".join(f"[{name}]({address})" for name, address in views.items())
    return f"{links}\n\n{note}"


def _cells_note(home: str) -> str:
    return (
        f"One run per cell of every table: [by gain]({opened(home)}). For example, filter "
        "`tags.plugins = 'flfa'` to see where a plug-in helps."
    )


def _page_note(page: Page, homes: Sequence[str]) -> str:
    """Return the description of an item: its caption, and a link to its runs in all their experiments."""
    links = ""
    if homes:
        address = search(homes, f"tags.items LIKE '%{page.id},%'")
        links = f"[Runs behind it]({address}); its files are under *Artifacts*."
    return "\n\n".join(filter(None, [links, f"**{page.title}**", page.caption]))


# ---------------------------------------------------------------------------------------------------- follow
def follow(wanted: Wanted, uri: str, report: Callable[[str], object]) -> None:
    """Export everything that exists, then all changes, until an exception interrupts it.

    The process runs at low priority. If the store fails after the first export, it is tried again.

    Args:
        wanted: what to export; its runs need no record yet.
        uri: address of the store.
        report: is called with a line for every export that changed something, and for failures.

    Raises:
        FltrainError: if the first export fails.
    """
    os.nice(10)  # training goes first
    seen = _stamps(wanted)
    report(f"{uri}: {export(wanted, uri)}; following, Ctrl-C ends it")
    while True:
        sleep(INTERVAL)
        now = _stamps(wanted)
        changed = {name for name, stamp in now.items() if seen.get(name) != stamp}
        if not changed:
            continue
        runs = [run for run in wanted.runs if run in changed]
        part = replace(wanted, runs=runs, pages=[page for page in wanted.pages if page.id in changed])
        try:
            report(f"{uri}: {export(part, uri)}")
            seen = now
        except FltrainError as error:
            report(f"{error}; trying again in {INTERVAL} s")


def _stamps(wanted: Wanted) -> dict[str, list[tuple[int, int]]]:
    """Return dates and sizes of the existing files to export, by run or item."""
    files = {run: [wanted.results.run(run) / "summary.json"] for run in wanted.runs}
    files |= {page.id: wanted.files(page) for page in wanted.pages}
    stamps: dict[str, list[tuple[int, int]]] = {}
    for name, paths in files.items():
        for path in paths:
            with suppress(OSError):  # not there yet, or just removed
                status = path.stat()
                stamps.setdefault(name, []).append((status.st_mtime_ns, status.st_size))
    return stamps
