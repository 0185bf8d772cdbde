"""Run records, tables and figures -> MLflow: a view for browsing; you can delete and recreate it at any time.

Each paper has an experiment for each scale, such as ``ecgr (published)``, with an MLflow run for each run ID
of its tables and figures: a run that two papers use is in both. The experiment ``tables`` has an MLflow run
per table or figure, with its numbers and files, and ``cells`` one per cell of every table, with mean, gain
and verdict. Tags and descriptions link runs, cells and tables. The tag ``order`` sorts every list.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from rich.console import Console
from rich.progress import track

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json
from fltrain.core.hashing import short_hash
from fltrain.experiments.claims import LabelChoice, cited_paper, quantities
from fltrain.experiments.items import BASE, FORMS, PlannedItem, cell_of
from fltrain.experiments.layout import named
from fltrain.experiments.plan import Plan
from fltrain.experiments.schema import Paper
from fltrain.reporting.claims import ClaimVerdict, full_verdict, result_lines
from fltrain.reporting.tables.render import DROPPED_CELLS, entries_of
from fltrain.reporting.tables.render import FORMS as IN_HEADINGS
from fltrain.reporting.tables.table_cell import TableCell, read_csv
from fltrain.reporting.text import markdown_table, number_text
from fltrain.runs.measures import COSTS, CURVES, TARGET_MISSED, factor, measure, metrics_of, recorded_curves
from fltrain.runs.record import RECORD_FILES, Record, Results
from fltrain.runs.where import NONE, flat_settings, short_names
from fltrain.tracking.runs import UNASSIGNED, RecordedRun
from fltrain.tracking.store import NOTE, UNCHANGED, Present, Store, TrackedRun, writing

TABLES, CELLS = "tables", "cells"
"""Experiments of all tables and figures, and of the cells of all tables."""
ORDER = "tags.`order`"
"""MLflow's key of the tag that sorts all lists."""
NOTES = {
    TABLES: "One row per table or figure, with claims on it. The column result has the number of a claim, "
    "or of one cell if no claim has one. Open a row for its numbers, page and runs.",
    CELLS: "One row per cell of a table, papers and decided verdicts first. Difference: mean minus published "
    "value. Gain: paired difference to the base. Both over n seeds, with 90 % intervals.",
    UNASSIGNED: "Runs that no exported table or figure uses.",
}
"""Descriptions of these experiments, in MLflow's order.

MLflow shows the first line above runs, and its beginning, as source, in a list.
"""
ROWS = 40
"""Longest table in a description, of which MLflow keeps 8,000 characters."""
ACCURACIES = ("final_accuracy", "last_accuracy", "best_accuracy")
"""Measures of all runs, except those that end at a target accuracy."""
CELL_METRICS = (
    *("mean", "std", "published", "difference", "difference_low", "difference_high"),
    *("gain", "gain_low", "gain_high", "published_gain", "diverged", "base_diverged"),
)
"""Metrics of a cell in addition to ``n``: columns of the table's CSV file."""

_RUN_NAMES = ("dataset", "partition", "model", "method", "plugins")
# MLflow marks these, so that nobody mistakes them for usable results.
_STATUS = {"completed": "FINISHED", "diverged": "FAILED"}
# In the list of tables, all other scales are between these.
_PLACES = {"published": 0, "demo": 2}
_SKEWS = {
    "alpha": "alpha {}",
    "classes_per_client": "{} classes per client",
    "shards_per_client": "{} shards per client",
}

TaggedCell = tuple[Mapping[str, str], TableCell]
"""A cell of a table with its tags, see ``cell_tags``."""

Claims = Sequence[Mapping[str, Any]]

Groups = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Tags ``cell`` and ``order`` of a run by run ID and item, such as ``flfa/table1``.

The first item of a paper decides a run's group in the paper's experiment.
"""


def groups_of(plan: Plan) -> dict[str, dict[str, dict[str, str]]]:
    """Return the groups of all runs of a plan.

    ``cell`` has the name of the cell, then the item: all seeds of a cell share it, and MLflow groups by it. A
    run's first item is the one with most seeds of its cell, so that seeds of a pilot have a group of their
    own. ``order`` begins with items of many seeds: searches and pilots are last. It ends with the seed.
    """
    groups: dict[str, dict[str, dict[str, str]]] = {}
    for item in plan.items:
        numbers: dict[str, int] = {}
        seeds = len({entry.spec.seed for entry in item.entries})
        for entry in item.entries if item.trains else ():
            cell = f"{cell_of(entry, item.axes)} · {item.name}"
            order = f"{1000 - seeds} {item.name} {numbers.setdefault(cell, len(numbers)):04}"
            tags = {"cell": cell, "order": f"{order} {entry.spec.seed:06}"}
            groups.setdefault(entry.spec.run_id, {}).setdefault(item.id, tags)
    counts = Counter((item, tags["cell"]) for items in groups.values() for item, tags in items.items())
    return {
        run: dict(sorted(items.items(), key=lambda item: -counts[item[0], item[1]["cell"]]))
        for run, items in groups.items()
    }


def measures_of(plan: Plan) -> dict[str, dict[str, float | None]]:
    """Return the measures that tables of a plan show of each run, by run ID, with the targets of papers.

    Measures whose target other runs set are left out.
    """
    measures: dict[str, dict[str, float | None]] = {}
    for item in plan.items:
        for measured in item.item.table.measures if item.item.table else ():
            target = measured.printed_target / 100 if measured.printed_target else None
            for run in () if measured.target_of else item.run_ids:
                measures.setdefault(run, {}).setdefault(measured.measure, target)
    return measures


@dataclass(frozen=True)
class Export:
    """Everything to export.

    Attributes:
        results: folder of records, tables and figures.
        scale: scale of the runs.
        groups: of the whole scale: runs keep their items if only some of them are exported.
        runs: IDs; runs without a complete record are skipped. Those without a group belong to the experiment
            ``unassigned``, unless another scale has exported them; so do runs that have left all tables.
        items: tables and figures with all of their runs; those without files are left out.
        measures: of the tables of the whole scale, by run ID.
    """

    results: Results
    scale: str
    groups: Groups
    runs: Collection[str]
    items: Sequence[PlannedItem] = ()
    measures: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

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
            listed = sorted(self.items, key=lambda item: place_of(item, True))
            homes = [TABLES, CELLS] if listed else []
            if self.scale != "published":
                homes += [name for name in store.experiments if name.endswith("(published)")]
            homes += [self._home(item.paper.paper) for item in listed]
            homes += sorted(self._settings, key=lambda home: home == UNASSIGNED)
            store.arrange([*dict.fromkeys(homes)], NOTES)
            for item in {item.paper.paper: item for item in self.items}.values():
                paper = item.paper
                place = f"tags.paper = '{paper.paper}' and tags.scale = '{self.scale}'"
                tables = link(store, TABLES, TABLES, place)
                page = self._page(store, "Page", f"{paper.paper}/index.html")
                # The list is too narrow to show the links.
                rows = "One row per training run, grouped by table cell"
                note = f"{paper.title}. {rows}. {page}, {tables}"
                texts = "\n".join(f"* {name}: {text}" for name, text in conclusions_of(item).items())
                parts = filter(None, [note, texts.removeprefix("* : "), paper.citation])
                store.experiment(self._home(paper.paper), "\n\n".join(parts))
            present = store.present("tags.kind = 'run'") if self.runs else {}
            runs = [*self.runs, *(run for run, copies in present.items() if self._has_left(run, copies))]
            records = [record for record in map(self.results.record, runs) if record.complete]
            steps: list[Callable[[], Counter[str]]] = [
                partial(self._put_run, store, record, present.get(record.run_id, ())) for record in records
            ]
            steps += [partial(self._put_item, store, item) for item in self.items]
            console = Console(stderr=True)
            for step in track(
                steps, "export", console=console, transient=True, disable=not console.is_terminal
            ):
                try:
                    counts += step()
                except FltrainError as error:
                    logging.getLogger(__name__).warning("left out: %s", error)
                    counts["left out"] += 1
        return counts

    def _has_left(self, run: str, present: Present) -> bool:
        """Return True if no table of the scale uses a run any more that an earlier export put there."""
        scales = {copy.data.tags.get("scale") for copy in present}
        return run not in self.groups and run not in self.runs and self.scale in scales

    def _home(self, paper: str) -> str:
        """Return the name of a paper's experiment."""
        return f"{paper} ({self.scale})"

    def _homes(self, run: str) -> dict[str, Mapping[str, str]]:
        """Return the experiments of a run, one per paper, with the tags of its group there."""
        homes: dict[str, Mapping[str, str]] = {}
        for item, tags in self.groups.get(run, {}).items():
            homes.setdefault(self._home(item.partition("/")[0]), tags)
        return homes

    @cached_property
    def _settings(self) -> dict[str, set[str]]:
        """Return the names of the settings of recorded runs by experiment."""
        names: dict[str, set[str]] = {}
        for run in dict.fromkeys([*self.groups, *self.runs]):
            record = self.results.record(run)
            with suppress(FltrainError):
                for home in (self._homes(run) or (UNASSIGNED,)) if record.complete else ():
                    names.setdefault(home, set()).update(params_of(record))
        return names

    def _item_link(self, store: Store, item: str) -> str:
        return link(store, item, TABLES, f"attributes.run_name = '{item} ({self.scale})'")

    def _page(self, store: Store, text: str, place: str) -> str:
        """Return a link to a page of the results, which only ``fltrain ui`` serves, else its path."""
        path = f"{self.scale}/{place}"
        return f"[{text}](pages/{path})" if store.local else f"{text} (`{self.results.root.name}/{path}`)"

    # -------------------------------------------------------------------------------------------------- runs
    def _put_run(self, store: Store, record: Record, present: Present) -> Counter[str]:
        """Export a run to the experiment of each of its papers."""
        scales = [copy.data.tags.get("scale", NONE) for copy in present]
        if record.run_id not in self.groups and {*scales} - {NONE, self.scale}:
            return Counter([UNCHANGED])  # the export of its own scale updates it
        ours = [copy for copy, scale in zip(present, scales, strict=True) if scale in (self.scale, NONE)]
        counts, obsolete = Counter[str](), {copy.info.run_id: copy for copy in ours}
        for entry in self._run_entries(store, record):
            home = store.experiment(entry.experiment, NOTES.get(entry.experiment, ""))
            copies = [copy for copy in ours if copy.info.experiment_id == home]
            counts[store.put(entry, copies)] += 1
            for copy in copies:
                del obsolete[copy.info.run_id]
        for copy in obsolete.values():
            store.delete(copy)
        return counts

    def _run_entries(self, store: Store, record: Record) -> Iterator[TrackedRun]:
        """Yield the entries of a run, which differ in experiment, group and the settings that it lacks."""
        groups = self.groups.get(record.run_id, {})
        run = RecordedRun.of(record, {self.scale: {record.run_id: list(groups)}} if groups else {})
        fields, data = run.fields, run.spec.dataset.id
        links = ", ".join(self._item_link(store, item) for item in groups)
        note = "**Diverged**: its loss became infinite or not a number.\n\n" * (
            fields["status"] == "diverged"
        )
        note += f"Used by {links}" if links else "No table or figure uses this run"
        variant = short_hash({key: value for key, value in record.spec.items() if key != "seed"})
        measures = dict(self.measures.get(record.run_id, {}))
        if not (measures and run.spec.evaluation.until):  # otherwise, it would be the target
            measures |= dict.fromkeys(ACCURACIES)
        numbers = metrics_of(record, {**measures, **dict.fromkeys(COSTS)})
        if fields["status"] == "diverged" or numbers.get(TARGET_MISSED):
            # MLflow would show the mean of the other seeds.
            lost = (name for name in measures if name not in numbers and not measure(name).dimension)
            numbers |= dict.fromkeys(lost, math.nan)
        # MLflow draws bars only of metrics at step 0, and shows all digits of a run. Means of seeds need more
        # digits than lists show. Both measures of rounds have the same heading in tables.
        metrics = [
            (key.removeprefix("interpolated_"), 0, rounded(value, 4 if key in COSTS else 6))
            for key, value in numbers.items()
            if key not in CURVES
        ]
        metrics += [
            (key, step, rounded(factor(key) * y, 4 if factor(key) == 100 else 5))
            for key, curve in recorded_curves(record).items()
            for step, y in curve
        ]
        label = f"{run.spec.composition.name} · {fields['dataset']}, {skew(run)} ({variant[:4]})"
        homes = self._homes(record.run_id) or {UNASSIGNED: {"cell": label, "order": label}}
        for home, group in homes.items():
            yield TrackedRun(
                experiment=home,
                key=record.run_id,
                tags={
                    **{key: value or NONE for key, value in fields.items()},
                    # With a comma after each, `%flfa/table1,%` does not match `flfa/table10`.
                    "items": " ".join(f"{item}," for item in groups) or NONE,
                    "partition_id": run.spec.partition_id,
                    "skew": skew(run),
                    **group,
                    "kind": "run",
                    NOTE: f"{note}; record in `{fields['folder']}`.",
                    "mlflow.source.name": "fltrain train",
                    "mlflow.source.git.commit": str(record.provenance.get("commit") or NONE),
                },
                made=record.written,
                seconds=record.costs["seconds"]["total"],
                # Without a value, MLflow's plots draw a number that is a little above the largest one.
                params=dict.fromkeys(self._settings.get(home, ()), NONE) | params_of(record),
                dataset=(data, record.summary["digests"]["data"], f"data/{data}.safetensors"),
                metrics=metrics,
                files=[record.folder / name for name in RECORD_FILES],
                folder="record",
                status=_STATUS[fields["status"]],
            )

    # ------------------------------------------------------------------------------------ tables and figures
    def _put_item(self, store: Store, item: PlannedItem) -> Counter[str]:
        """Export a table or figure with its files, and its cells; delete those that have gone."""
        stem = self.results.root / self.scale / item.id
        forms = [form for form in FORMS[item.rule] if form not in ("tex", "svg")]
        files = [file for form in forms if (file := stem.with_name(f"{stem.name}.{form}")).is_file()]
        counts = Counter[str]()
        if not files:
            return counts
        claims = claims_on(item, files[0].with_name("summary.json"))
        csv = [file for file in files if file.suffix == ".csv" and item.item.table]
        cells = [(cell_tags(cell, item, claims), cell) for file in csv for cell in read_csv(file)]
        has_page = any(file.suffix == ".html" for file in files)
        page = f"{item.id if has_page else f'{item.paper.paper}/index'}.html"
        made = max(file.stat().st_mtime for file in files)
        place = place_of(item, bool(claims) or any("verdict" in tags for tags, _ in cells))
        entries = [self._item_entry(store, item, page, files, cells, claims, place, made)]
        entries += self._cell_entries(store, item, page, cells, place, made)
        present = store.present(f"tags.item = '{item.id}' and tags.scale = '{self.scale}'")
        for entry in entries:
            kind = "tables and figures" if entry.experiment == TABLES else "cells"
            counts[f"{kind} written"] += store.put(entry, present.pop(entry.key, ())) != UNCHANGED
        for obsolete in itertools.chain.from_iterable(present.values()):
            store.delete(obsolete)
        return counts

    def _item_entry(
        self,
        store: Store,
        item: PlannedItem,
        page: str,
        files: Sequence[Path],
        cells: Sequence[TaggedCell],
        claims: Claims,
        listed: str,
        made: float,
    ) -> TrackedRun:
        """Return the entry of a table or figure, which is ``listed`` at a place."""
        links = [self._page(store, "Page", page)]
        if cells:
            place = f"tags.item = '{item.id}' and tags.scale = '{self.scale}'"
            links.append(link(store, CELLS, CELLS, place))
        if item.trains:
            home = store.experiment(self._home(item.paper.paper))
            address = opened(home, f"tags.items LIKE '%{item.id},%'")
            links += [f"[runs]({address})", f"[charts]({address}&compareRunsMode=CHART)"]
        reduced = bool(cells) and item.scale.reduces(item.paper)
        conclusions = conclusions_of(item)
        cited_papers = [cited_paper(claim["where"]) for claim in claims]
        image = next((file.name for file in files if file.suffix == ".png" and store.local), "")
        parts = [
            f"**{item.item.title}**: {', '.join(links)}",
            "!" + self._page(store, item.item.title, f"{item.paper.paper}/{image}") if image else "",
            *dict.fromkeys(conclusions.get(cited, conclusions.get("", "")) for cited in cited_papers),
            numbers_of(cells, reduced) if cells else "",
            in_full(claims),
            item.item.caption,
        ]
        verdicts = Counter(text for tags, _ in cells for text in tags.get("verdict", "").split("; ") if text)
        unjudged = "none at reduced scale" if reduced else ""
        # Without details in parentheses, which MLflow refuses in names of metrics.
        counted = [f"claims {claim['verdict']}" for claim in claims]
        counted += [
            f"verdicts {text}" for _, cell in cells for text in (cell.verdict, cell.gain_verdict) if text
        ]
        records = sum(self.results.record(run).complete for run in item.run_ids)
        counts = {"cells": len(cells), "runs": records} | Counter(name.replace(" ", "_") for name in counted)
        key = f"{item.id} ({self.scale})"
        tags = {
            **{"paper": item.paper.paper, "item": item.id, "scale": self.scale, "kind": "item"},
            "claims": in_short(claims),
            "verdicts": "; ".join(f"{number} {text}" for text, number in verdicts.most_common()) or unjudged,
            "result": result(cells, claims),
            "order": f"{_PLACES.get(self.scale, 1)} {listed} {key}",
            NOTE: "\n\n".join(filter(None, parts)),
        }
        return TrackedRun(
            experiment=TABLES,
            key=key,
            tags={tag: text for tag, text in tags.items() if text},
            made=made,
            params={"title": item.item.title},
            metrics=[(name, 0, number) for name, number in sorted(counts.items())],
            files=files,
        )

    def _cell_entries(
        self,
        store: Store,
        item: PlannedItem,
        page: str,
        cells: Sequence[TaggedCell],
        listed: str,
        made: float,
    ) -> Iterator[TrackedRun]:
        """Yield the entries of the cells of a table, which is ``listed`` at a place."""
        home, key = self._home(item.paper.paper), f"{item.id} ({self.scale})"
        for number, (tags, cell) in enumerate(cells):
            runs = [run for run in cell.runs if run in self.groups]
            links = [link(store, run, home, f"attributes.run_name = '{run}'") for run in runs[:10]]
            over = f", gain over {tags['base']}" if "base" in tags else ""
            seeds = self._page(store, "its seeds on the page", f"{page}#{cell.anchor}")
            note = f"**{tags['cell']}**{over}: {seeds}; {self._item_link(store, item.id)}, {item.item.title}."
            note += f" Its runs: {', '.join(links)}{', and others' * (len(runs) > 10)}." if runs else ""
            yield TrackedRun(
                experiment=CELLS,
                key=f"{tags['cell']} · {key}",
                tags={
                    **{"paper": item.paper.paper, "item": item.id, "scale": self.scale, "kind": "cell"},
                    **tags,
                    "order": f"{listed.split()[1]} {rank_of((tags, cell))} {tags.get('verdict', '-')} "
                    f"{_PLACES.get(self.scale, 1)} {listed} {key} {number:04}",
                    NOTE: f"{note}\n\n{tags.get(NOTE, '')}".strip(),
                },
                made=made,
                metrics=[(name, 0, value) for name, value in _numbers(cell).items()],
            )


def numbers_of(cells: Sequence[TaggedCell], reduced: bool = False) -> str:
    """Return the numbers of cells, of a ``reduced`` scale or not, as a Markdown table.

    It leaves out empty columns. A measure that all cells share is the heading of their values, not a part of
    their names.
    """
    measures = {cell.label for _, cell in cells}
    value = measures.pop() if len(measures) == 1 else "value"
    columns: dict[str, list[str]] = {"cell": [], "n": []}
    for tags, cell in cells:
        columns["cell"].append(tags["cell"].removesuffix(f", {value}"))
        columns["n"].append(str(_numbers(cell)["n"]))
        for heading, entry in entries_of(cell, as_interval=False, reduced=reduced).items():
            ours = entry.kind == "own"
            columns.setdefault(value if ours else heading, []).append(our_value(cell) if ours else entry.text)
    forms = {
        heading: next((form for mark, form in IN_HEADINGS.items() if mark in "".join(texts)), "")
        for heading, texts in columns.items()
    }
    used_columns = [[key + forms[key], *texts[:ROWS]] for key, texts in columns.items() if any(texts)]
    notes = [f"The first {ROWS} of {len(cells)} cells."] * (len(cells) > ROWS)
    notes += [DROPPED_CELLS] * any(cell.dropped for _, cell in cells)
    return "\n\n".join([markdown_table([*zip(*used_columns, strict=True)]), *notes])


def place_of(item: PlannedItem, judged: bool) -> str:
    """Return the place of an item in lists: papers, comparisons, controls, each as the scale declares them.

    Pilots, searches and other items without a verdict come after all judged ones.
    """
    kind = get_args(Paper.model_fields["kind"].annotation).index(item.paper.kind)
    papers = [*dict.fromkeys(name.partition("/")[0] for name in item.scale.items)]
    number = [*item.paper.items].index(item.name)
    return f"{not judged:d} {kind} {papers.index(item.paper.paper):02} {number:02}"


def rounded(value: float, digits: int) -> float:
    """Round a number to significant digits."""
    return float(f"{value:.{digits}g}")


def rank_of(tagged: TaggedCell) -> int:
    """Return the rank of a cell in lists: decided verdicts, other verdicts, gains, other cells."""
    _, cell = tagged
    verdicts = {cell.verdict, cell.gain_verdict} - {None}
    decided = verdicts - {"inconclusive", "not run"}
    return (bool(decided), bool(verdicts), cell.gain is not None, True).index(True)


def result(cells: Sequence[TaggedCell], claims: Claims) -> str:
    """Return the number of the first claim that has one, else of the first cell by rank, with its name.

    If a claim is about each case, the weakest one decides it and stands for the average.
    """
    for claim in claims:
        if claim["number"]:
            first, _, others = claim["number"].partition("; ")
            weakest = others.partition("; ")[0] if others.startswith("weakest of") else ""
            return f"{first.rpartition(', average of')[0]}, {weakest}" if weakest else first
    for tags, cell in sorted(cells, key=rank_of):
        if cell.mean is not None:
            names = {"gain": f", gain over {tags.get('base')}", "difference": ", minus published"}
            key = next(key for key in (*names, "value") if key in tags)
            return f"{tags['cell']}{names.get(key, '')}: {tags[key]}"
    return ""


def our_value(cell: TableCell) -> str:
    """Return our value as on pages; if its spread is large, with the lowest and the highest seed."""
    text = entries_of(cell, as_interval=False, reduced=False)[cell.label].text
    if cell.lost or not cell.values or 2 * (cell.std or 0) <= abs(cell.mean or 0):
        return text
    low, high = (number_text(end(cell.values), cell.decimals) for end in (min, max))
    return f"{text} ({low} to {high})"


def claims_on(item: PlannedItem, summary: Path) -> Claims:
    """Return the claims that rest on an item, from the summary of its paper; decided ones first."""
    claims = read_json(summary)["claims"] if summary.is_file() else []
    matches = [claim for claim in claims if item.name in claim["item"].split(", ")]
    verdicts = get_args(ClaimVerdict)  # an earlier version may have written another one
    return sorted(matches, key=lambda claim: [*verdicts, claim["verdict"]].index(claim["verdict"]))


def conclusions_of(item: PlannedItem) -> dict[str, str]:
    """Return our conclusions on the paper of an item, by cited paper (empty: on the paper itself)."""
    keys = ((key.partition("/"), text) for key, text in item.scale.conclusions.items())
    return {cited: text for (paper, _, cited), text in keys if paper == item.paper.paper}


def claims_about(cell: TableCell, item: PlannedItem, claims: Claims) -> Claims:
    """Return the claims for whose tests a cell is a place, not only the base."""
    axes = {getattr(item.item.table, f"{key}s"): getattr(cell, key) for key in ("row", "column", "panel")}

    def within(chosen: LabelChoice) -> bool:
        return all(axes.get(axis) in (None, "", *labels) for axis, labels in chosen.items())

    about = {
        (claim.where, claim.claim)
        for claim in item.paper.claims
        for part in quantities(claim.test)
        if part.item == item.name and part.measure in (None, cell.measure) and within(part.at)
        if not (part.over and within(part.over))
    }
    return [claim for claim in claims if (claim["where"], claim["claim"]) in about]


def in_short(claims: Claims) -> str:
    """Return the numbers of verdicts on claims, of which exploratory ones contain a comma."""
    counts = Counter(
        full_verdict(claim).replace("reduced scale", "without verdict (reduced scale)") for claim in claims
    )
    return "; ".join(f"{number} {verdict}" for verdict, number in counts.items())


def in_full(claims: Claims) -> str:
    """Return claims with verdicts and numbers as a Markdown table."""
    rows = [(claim["claim"], full_verdict(claim), "; ".join(result_lines(claim))) for claim in claims]
    return markdown_table([("claim", "verdict", "our runs"), *rows], numbers=False) if rows else ""


def cell_tags(cell: TableCell, item: PlannedItem, claims: Claims) -> dict[str, str]:
    """Return the tags of a cell: labels, base of the gain, numbers with intervals, verdicts, and runs.

    Dataset, method and so on are tags if all runs have the same. ``cell`` has the labels that vary in the
    table, and the measure.
    """
    table = item.item.table
    assert table
    axes = {"row": table.rows, "column": table.columns, "panel": table.panels}
    place = {key: named(axis, label) for key, axis in axes.items() if (label := getattr(cell, key))}
    fixed = {axis for axis, labels in item.axes.items() if len(labels) == 1}
    varying = [label for key, label in place.items() if axes[key] not in fixed]
    gains_over = {part.heading: part.gain_over for part in table.measures}
    over = gains_over[cell.label] if cell.gain is not None else {}
    labels = next((entry.labels for entry in item.entries if entry.spec.run_id in cell.runs), {})
    bases = (entry.spec.composition.name for entry in item.entries if entry.labels == {**labels, **over})
    if varying == [BASE]:
        varying = [labels.get("method", BASE)]
    base = ", ".join(
        labels.get("method") or next(bases, label) if label == BASE else named(axis, label)
        for axis, label in over.items()
    )
    names = [short_names(entry.spec) for entry in item.entries if entry.spec.run_id in cell.runs]
    texts = entries_of(cell, as_interval=True, reduced=False)
    about = claims_about(cell, item, claims)
    common = {key: {run[key] for run in names} for key in _RUN_NAMES}
    tags = {
        **place,
        **{key: min(values) for key, values in common.items() if len(values) == 1},
        "cell": ", ".join([*varying, cell.label]),
        "measure": cell.measure,
        "base": base,
        **{key: texts[key].text for key in ("difference", "gain")},
        "value": our_value(cell),
        **{"claims": in_short(about), NOTE: in_full(about)},
        "verdict": "; ".join(filter(None, (texts[key].text for key in ("verdict", "verdict on the gain")))),
        "runs": " ".join(cell.runs) or NONE,
    }
    return {key: text for key, text in tags.items() if text}


def _numbers(cell: TableCell) -> dict[str, float]:
    """Return the finite metrics of a cell that are measurements, two decimals finer than its table."""
    values = {"n": len(cell.gains) or cell.n, **cell.measured(CELL_METRICS)}
    return {
        name: round(value, cell.decimals + 2)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }


def params_of(record: Record) -> dict[str, str]:
    """Return the parameters of a run in MLflow: its settings, with names of components by short key.

    The first differing parameters by name are the axes of MLflow's plots.
    """
    settings = dict(flat_settings(record.spec))
    plugins = [plugin["name"] for plugin in record.spec["plugins"]]
    return {
        **{re.sub(r"^(\w+)\.name$", r"\1", key): text for key, text in settings.items()},
        "plugins": "+".join(plugins) or NONE,
        "local_test": settings.get("local_test.fraction", NONE),
    }


def skew(run: RecordedRun) -> str:
    """Return the setting that decides how labels differ between clients, for example ``alpha 0.3``."""
    pairs = ((text, run.settings.get(f"partition.{key}")) for key, text in _SKEWS.items())
    return next((text.format(value) for text, value in pairs if value), run.fields["partition"])


def opened(experiment: str, condition: str) -> str:
    """Return the address of an experiment's runs that meet a condition in MLflow's interface."""
    place = f"#/experiments/{experiment}/runs?searchFilter={quote(condition)}"
    return f"{place}&orderByKey={quote(ORDER)}&orderByAsc=true"


def link(store: Store, text: str, experiment: str, condition: str) -> str:
    """Return a link to these runs in Markdown."""
    return f"[{text}]({opened(store.experiment(experiment), condition)})"
