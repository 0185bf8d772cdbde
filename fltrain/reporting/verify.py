"""Verification of a results folder: data, partitions, records, and tables against the records. No torch.

It changes nothing. It does not check figures, claims and overview pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fltrain.core.errors import FltrainError, count, listed
from fltrain.core.files import read_arrays
from fltrain.core.shell import command, workflow
from fltrain.data.datasets import Dataset
from fltrain.data.prepared import changed
from fltrain.experiments.items import FORMS, PlannedItem
from fltrain.experiments.plan import Plan, plan, unplanned
from fltrain.experiments.schema import folders_of
from fltrain.reporting.tables import write as tables
from fltrain.reporting.tables.table_cell import from_csv, read_csv
from fltrain.reporting.version import outdated_pages
from fltrain.runs.record import BROKEN, MODELS_FILE, RECORD_FILES, Record, Results, held, reason

_UNREADABLE = (*BROKEN, OSError)


@dataclass(frozen=True)
class Problem:
    """One line about a file; ``harmless`` if it is not a problem."""

    text: str
    harmless: bool = False


class Verification:
    """Check of a results folder; iterate over ``findings`` to run it.

    Attributes:
        results: the folder.
        config: folder with ``papers/``, ``scales/`` and ``reported/``.
        chosen: the scale whose tables are checked; None for all scales that have tables.
        problems: number of problems so far.
        unchecked: number of tables that could not be checked.
    """

    def __init__(self, results: Results, config: Path, scale: str | None = None) -> None:
        self.results = results.existing()
        self.config = config
        self.chosen = None if scale is None else plan(config, scale)
        self.problems = self.unchecked = 0
        self._counts = dict.fromkeys(("record", "partition", "dataset", "table"), 0)
        self._digests: dict[str, str] = {}
        self._damaged: set[str] = set()
        self._lacking = defaultdict[str, list[str]](list)

    def findings(self) -> Iterator[Problem]:
        """Yield a finding for each fault. Files are checked after the files that they depend on."""
        root = self.results.root
        parts = (
            self._each("dataset", sorted(root.glob("data/*.safetensors")), self._check_data),
            self._each("partition", sorted(root.glob("partitions/*.safetensors")), self._check_partition),
            self._each("record", self._finished(), self._check_record),
            self._unknown(),
            self._tables(),
            self._leftovers(),
        )
        for part in parts:
            for finding in part:
                self.problems += not finding.harmless
                yield finding

    @property
    def empty(self) -> bool:
        """True if nothing was checked, and nothing was found."""
        return not (self.problems or any(self._counts.values()))

    @property
    def summary(self) -> str:
        """Counts of checked files, of problems, and of unknown records and tables that were not checked."""
        unknown = sum(map(len, self._lacking.values()))
        numbers = self._counts | {"record": self._counts["record"] - unknown}
        checked = ", ".join(count(number, kind) for kind, number in numbers.items())
        if not (self.problems or unknown or self.unchecked or numbers["table"]):
            remedy = f"make them with {workflow('scale=NAME train=false', self.results.root)}"
            return f"{checked.removesuffix(', 0 tables')}: all consistent; no tables yet: {remedy}"
        left_out = {"unknown record": unknown, "table": self.unchecked}
        unchecked = " and ".join(count(number, kind) for kind, number in left_out.items() if number)
        unchecked += " not checked" * bool(unchecked)
        if self.problems:
            return f"{checked}: {count(self.problems, 'problem')}" + f"; {unchecked}" * bool(unchecked)
        return f"{checked}: {f'{unchecked}, all others consistent' if unchecked else 'all consistent'}"

    @property
    def failed(self) -> bool:
        """True if there are problems, or if there are tables and none could be checked."""
        return bool(self.problems or (self.unchecked and not self._counts["table"]))

    def _not_checked(self, path: Path, why: str) -> Problem:
        """Return the line on a table that is left out of the counts of checked files."""
        self._counts["table"] -= 1
        self.unchecked += 1
        return Problem(f"{path}: not checked: {why}", harmless=True)

    def _each(
        self, kind: str, paths: Iterable[Path], check: Callable[[Path], Iterator[Problem]]
    ) -> Iterator[Problem]:
        """Yield the findings of a check on each path; an unreadable file is a finding, too."""
        for path in paths:
            self._counts[kind] += 1
            try:
                yield from check(path)
            except FltrainError as error:
                yield Problem(str(error))
            except _UNREADABLE as error:
                yield Problem(f"{path}: cannot be read ({reason(error)})")

    # ------------------------------------------------------------------------------ data and partitions
    def _check_data(self, path: Path) -> Iterator[Problem]:
        _, about = read_arrays(path, "prepared dataset")
        self._digests[path.stem] = about["digest"]
        sheet = path.with_suffix(".png")
        if not sheet.exists():
            yield Problem(f"{sheet}: no such contact sheet; delete {path}, the next run makes both again")
        try:
            dataset = Dataset.parse(about["dataset"], "its settings")
        except FltrainError as error:
            yield Problem(f"{path}: stale: {error}", harmless=True)
            return
        if dataset.id != path.stem:
            yield Problem(f"{path}: holds {dataset.id!r}; delete it, the next run makes it again")
        elif about["revision"] != dataset.revision:
            revisions = f"dataset {about['revision']} -> {dataset.revision}"
            yield Problem(f"{path}: stale: {revisions}", harmless=True)
        elif difference := changed(dataset.entry, about):
            yield Problem(f"{path}: {difference}")

    def _check_partition(self, path: Path) -> Iterator[Problem]:
        _, about = read_arrays(path, "partition")
        self._digests[path.stem] = about["digest"]
        return iter(())

    # ------------------------------------------------------------------------------ records
    def _finished(self) -> Iterator[Path]:
        """Yield the folders of complete records, and of records whose summary is missing."""
        for folder in self.results.folders():
            run = folder.name
            try:
                files = {path.name for path in folder.iterdir()}
            except PermissionError:
                files = {*RECORD_FILES}
            stopped = self.results.saved_rounds(run) or held(self.results.lease(run))
            if "summary.json" in files or (files.intersection(RECORD_FILES) and not stopped):
                yield folder

    def _check_record(self, folder: Path) -> Iterator[Problem]:
        record, run = Record(folder), folder.name
        try:
            record.check()
        except FltrainError as error:
            self._damaged.add(run)
            yield Problem(str(error))
            return
        spec, digests = record.run_spec, record.summary["digests"]
        names = {*RECORD_FILES, "train.log"}
        if spec is None or spec.evaluation.keep != "nothing":
            names.add(MODELS_FILE)
        for path in sorted(folder.iterdir()):
            if path.name not in names and not path.match(".*.part"):
                yield Problem(f"{run}: {path.name} is not a file of a record; delete it")
        if MODELS_FILE in names and (folder / MODELS_FILE).exists():
            record.models()
        if spec is None:
            self._lacking[record.lacking].append(run)
            return
        if record.stale:
            yield Problem(f"{run}: stale: {record.stale}", harmless=True)
            return
        for kind, name in {"data": spec.dataset.id, "partition": spec.partition_id}.items():
            if self._digests.get(name, digests[kind]) != digests[kind]:
                yield Problem(f"{run}: trained on other {kind} than in {self.results.root}; retrain the run")

    def _unknown(self) -> Iterator[Problem]:
        """Yield a line for each setting that the code lacks."""
        for cause, runs in self._lacking.items():
            yield Problem(f"{count(len(runs), 'unknown record')}: {cause} ({listed(runs, 1)})", harmless=True)

    # ------------------------------------------------------------------------------ tables
    def _tables(self) -> Iterator[Problem]:
        if self.chosen:
            folder = self.results.root / self.chosen.scale.scale
            if not any(folder.glob("*/*.csv")):
                remake = self._remake(folder, "; make them with {}")
                yield Problem(f"{folder}: no tables to verify{remake}")
            yield from self._tables_of(self.chosen)
            return
        for path in sorted(
            path for place in folders_of(self.config, "scale") for path in place.glob("*.yaml")
        ):
            if tables := [*(self.results.root / path.stem).glob("*/*.csv")]:
                try:
                    planned = plan(self.config, path.stem)
                except FltrainError as error:
                    self.unchecked += len(tables)
                    yield Problem(unplanned(path.stem, error))
                else:
                    yield from self._tables_of(planned)

    def _tables_of(self, planned: Plan) -> Iterator[Problem]:
        folder = self.results.root / planned.scale.scale
        made = {item.id: item for item in planned.items if item.item.table}
        made = {name: item for name, item in made.items() if (folder / f"{name}.csv").exists()}
        pages = outdated_pages(folder)
        if outdated := [name for name in made if f"{name}.html" in pages]:
            self.unchecked += len(outdated)
            text = "made by another version of the rule or of the reporting code, not checked"
            remedy = self._remake(folder, "; run {}, then verify again")
            yield Problem(f"{folder}: {count(len(outdated), 'table')} {text}: {listed(outdated, 3)}{remedy}")
        for name, item in made.items():
            if name not in outdated:
                yield from self._each("table", [folder / f"{name}.csv"], partial(self._check_table, item))

    def _remake(self, folder: Path, text: str) -> str:
        """Return a text with the command that makes the tables of a scale, which has one results folder."""
        remake = command(f"snakemake --config scale={folder.name} train=false")
        return text.format(remake) if self.results.root == Path("results") else ""

    def _check_table(self, item: PlannedItem, path: Path) -> Iterator[Problem]:
        """Make the table again from the plan's runs; a part of the plan makes another table."""
        cells = read_csv(path)
        runs = {run for cell in cells for run in cell.runs}
        others = runs - set(item.run_ids)
        if unknown := [run for run in sorted(others) if not self.results.record(run).complete]:
            remedy = "delete the table and run snakemake again"
            yield Problem(f"{path}: names {unknown[0]}, which is neither planned nor trained; {remedy}")
            return
        if damaged := {*item.run_ids} & self._damaged:
            yield self._not_checked(path, f"made from {min(damaged)}, which is damaged")
            return
        forms = {form: path.with_suffix(f".{form}") for form in FORMS["table"] if form != "html"}
        files = {form: file for form, file in forms.items() if file.is_file()}
        again = tables.texts(item.sheet, self.results.record, item.published(self.config), files)
        made = from_csv(again["csv"])
        # With `best_of`, lost records can change the best label: other runs of a cell, but as many.
        before, after = (sorted(len(cell.runs) for cell in table) for table in (cells, made))
        same_runs = runs == {run for cell in made for run in cell.runs}
        if runs and not same_runs and (others or before != after):
            yield self._not_checked(path, "made from another selection")
            return
        for form, text in again.items():
            if files[form].read_bytes().decode() != text:
                yield Problem(f"{files[form]}: differs from its records; delete it and run snakemake again")

    # ------------------------------------------------------------------------------ leftovers
    def _leftovers(self) -> Iterator[Problem]:
        """Yield files of processes that were killed."""
        root = self.results.root
        paths = {path for pattern in ("**/.*.part", "runs/.import-*") for path in root.glob(pattern)}
        paths |= {path for path in root.glob("checkpoints/*/") if self.results.record(path.name).complete}
        for path in sorted(paths):
            yield Problem(
                f"{path}: left by an interrupted process; can be deleted unless one is running", harmless=True
            )
