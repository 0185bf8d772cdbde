"""Comparison of runs: a table of ``fltrain.reporting`` whose layout follows from the chosen runs.

Runs that agree in everything except the seed are one line. The compared settings (``over``, by default method
and plug-ins) name the variant of a line. All other settings in which the chosen runs differ are conditions:
nothing is compared across, for example, two datasets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fltrain.core.config import VERY_CLOSE, check_known, hint, suggest
from fltrain.core.errors import FltrainError, count, listed
from fltrain.experiments.layout import Cell, ItemJob, Measured, Table
from fltrain.experiments.published import Published
from fltrain.reporting.frame import diverged
from fltrain.reporting.tables.cells import cells
from fltrain.reporting.tables.render import gain_text, value_text
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.runs.measures import MEASURES, lacking, measure
from fltrain.runs.where import NONE, begins, sortable
from fltrain.tracking.runs import RecordedRun

NUMBERS = (
    *("seeds", "diverged", "n", "mean", "std", "low", "high"),
    *("gain", "gain_std", "gain_low", "gain_high", "base_diverged"),
)
"""Columns of the data frame with numbers, named as in the CSV files of tables (``TableCell``)."""

OWN_BASE = "the table's base"

LONGEST_NAME = 40
"""Characters of a baseline in a heading; a longer one is always the first line."""

_METHOD = ("method", "plugins")
# Settings that change no number of a run, and names that are among the fields.
_NEUTRAL = (
    "seed",
    "revisions",
    *(f"evaluation.{name}" for name in ("statistics", "targets", "extra", "keep")),
)


@dataclass(frozen=True)
class Comparison:
    """Cells of a metric, by condition and variant, with gains over the variant ``baseline``.

    Attributes:
        metric: name of the measure.
        baseline: variant that the gains are over, in the same condition and paired by seed; ``OWN_BASE`` if
            the chosen table has another base in each condition, which is the first variant there.
        conditions: settings that distinguish the columns of the cells; by column, their values.
        dependent: further settings in which the columns differ.
        over: settings that the variants differ in, as they were chosen.
        cells: a cell per condition and variant; ``row`` is the variant, ``panel`` the dataset or block if the
            metric has several values.
        remarks: notes on the chosen runs.
    """

    metric: str
    baseline: str
    conditions: Mapping[str, Mapping[str, str]]
    dependent: Sequence[str]
    over: Sequence[str]
    cells: Sequence[TableCell]
    remarks: Sequence[str] = ()

    @property
    def shown(self) -> list[str]:
        """Names of the conditions."""
        return list(next(iter(self.conditions.values())))

    @property
    def notes(self) -> list[str]:
        """Notes below the table: conditions, intervals, and why there are no gains."""
        notes = [f"lines also differ in {', '.join(self.dependent)}"] if self.dependent else []
        several = len({cell.row for cell in self.cells}) > 1 or len(self.conditions) > 1
        if several and not any(cell.gains for cell in self.cells):
            notes.append(
                f"no differences: no two runs with a value agree with {self.baseline!r} in seed and "
                f"{', '.join([*self.shown, *self.dependent]) or 'all settings'}; restrict these settings "
                "with --where, or compare them with --over"
            )
        elif self.shown:
            *others, last = self.shown
            same = f"{', '.join(others)} and {last}" if others else last
            across = f"one of them, for example {last}" if others else "it"
            notes.append(
                f"differences are between lines with the same {same}; to compare across {across}: --over "
                f"{','.join(dict.fromkeys([*self.over, last]))}"
            )
        if len(self.baseline) > LONGEST_NAME and any(cell.gains for cell in self.cells):
            notes.append(f"the first line is {self.baseline}")
        if any(cell.diverged for cell in self.cells):
            counted = {"chance": "count as chance accuracy", "never": "never reach the target"}
            notes.append(f"diverged runs {counted.get(measure(self.metric).diverged or '', 'have no value')}")
        if any(cell.lost_gain and cell.gains for cell in self.cells):
            notes.append("no difference if all runs of a line, or of the baseline, diverged")
        if any(cell.interval("gain_") and not cell.lost_gain for cell in self.cells):
            notes.append("mean ± standard deviation; difference [90 % interval]")
        return [*notes, *self.remarks]

    def _places(self, cell: TableCell) -> dict[str, str]:
        """Return conditions and variant of a cell, by column."""
        dimension = measure(self.metric).dimension
        part = {dimension: cell.panel} if dimension else {}
        return {**self.conditions[cell.column], **part, "compared": cell.row}

    @property
    def frame(self) -> pd.DataFrame:
        """A row per cell: conditions, ``compared`` (the variant), ``NUMBERS`` and ``runs``, its run IDs."""
        rows = [
            {**self._places(cell), **cell.measured(NUMBERS), **cell.model_dump(include={"runs"})}
            for cell in self.cells
        ]
        names = [*self._places(self.cells[0]), *NUMBERS, "runs"]
        types = {"n": int, **dict.fromkeys(NUMBERS[3:], float)}
        return pd.DataFrame(rows, columns=names).fillna({"n": 0}).astype(types)

    def rows(self) -> list[dict[str, str]]:
        """Return the table as text, by heading: mean and deviation, gain and its 90 % interval."""
        base = self.baseline if len(self.baseline) <= LONGEST_NAME else "the first line"
        rows = []
        for cell in self.cells:
            pairs = len(cell.gains)
            few = f" ({count(pairs, 'pair')})" if 0 < pairs != cell.n and not cell.lost_gain else ""
            missed = "target missed" if cell.gain == math.inf else ""
            row = {
                **self._places(cell),
                "seeds": f"{cell.n} of {cell.seeds}" if cell.n < cell.seeds else str(cell.n),
                cell.label: value_text(cell),
                f"difference to {base}": missed or gain_text(cell, as_interval=True) + few,
            }
            rows.append(row)
        return rows


def compare(
    runs: Sequence[RecordedRun],
    metric: str | None = None,
    over: Sequence[str] = (),
    baseline: str | None = None,
) -> Comparison:
    """Return a comparison of runs.

    Args:
        runs: the chosen runs.
        metric: a measure of single runs without a target; default: the chosen table's first, or
            ``final_accuracy``.
        over: settings to compare, by dotted name or its beginning; default: those in which the chosen table's
            gains differ from their base, else method and plug-ins, or all settings in which the runs differ
            if they all have the same method.
        baseline: variant for the gains; default: the base of the chosen table, else FedAvg, or the first
            variant.

    Raises:
        FltrainError: if metric, setting or baseline is unknown, or runs with the same settings and seed have
            different values.
    """
    measured = _measured(runs, metric)
    metric = measured.measure
    settings = _differing(runs)
    differing = list(map(str, settings))
    for name in over:
        if not any(begins(key, [name]) for key in differing):
            near = hint(name, differing or ["nothing but their seeds"], "they differ in")
            raise FltrainError(f"over {name!r}: the chosen runs do not differ in it{near}")
    own = _own_bases(runs, metric) if not over and baseline is None else {}
    wanted = over or _differing_from(own, settings)
    wanted = wanted or (_METHOD if any(begins(key, _METHOD) for key in differing) else differing)
    compared = [key for key in differing if begins(key, wanted)]
    conditions = [key for key in differing if key not in compared]
    variants = _variants(runs, settings[compared])
    names = list(dict.fromkeys(variants.values()))
    shown = _distinguishing(settings[conditions])
    columns: dict[str, dict[str, str]] = {}
    column_of: dict[str, str] = {}
    for run, values in zip(runs, settings[shown].to_numpy().tolist(), strict=True):
        column = ", ".join(f"{key}={text}" for key, text in zip(shown, values, strict=True))
        columns[column] = dict(zip(shown, values, strict=True))
        column_of[run.run_id] = column
    first = _first_positions(runs, column_of)
    columns = dict(
        sorted(columns.items(), key=lambda pair: (first[pair[0]], [*map(sortable, pair[1].values())]))
    )
    of_columns = {(column_of[run], variants[run]) for run in own.values()}
    bases = dict(of_columns)
    if len(bases) < len(of_columns):  # several in one condition
        bases = {}
    base = baseline or (names[0] if not bases else min(bases.values()))
    if len({*bases.values()}) > 1:  # each condition has its own
        base = OWN_BASE
        variants |= {run: base for run in variants if variants[run] == bases.get(column_of[run])}
    elif base not in names:
        raise FltrainError(
            f"baseline {base!r}: there is none"
            + (suggest(base, names, VERY_CLOSE) or f"{suggest(base, names)} (there are: {'; '.join(names)})")
        )
    first = _first_positions(runs, variants)
    order = list(dict.fromkeys([base, *sorted(names, key=lambda name: first.get(name, 0))]))
    lines: dict[tuple[str, str, int], list[RecordedRun]] = {}
    for run in runs:
        lines.setdefault((column_of[run.run_id], variants[run.run_id], run.spec.seed), []).append(run)
    found = [
        cell.replace(row=bases[cell.column]) if cell.row == OWN_BASE else cell
        for cell in cells(
            _job(measured, {"condition": list(columns), "compared": order}, lines),
            {run.run_id: run.record for run in runs}.__getitem__,
            Published(),
        )
    ]
    if not any(cell.n for cell in found) and any(cell.seeds > cell.diverged for cell in found):
        lack = lacking(runs[0].spec, metric, "metric")
        why = f"; their specs lack {lack}" if lack else ""
        raise FltrainError(f"none of the chosen runs has {metric!r}{why}")
    dependent = [key for key in conditions if key not in shown]
    return Comparison(metric, base, columns, dependent, wanted, found, list(_remarks(runs, found, metric)))


def _remarks(runs: Sequence[RecordedRun], found: Sequence[TableCell], metric: str) -> Iterator[str]:
    """Yield notes on runs that end at a target accuracy, and on lines that mix seeds of several items."""
    stopped = sum(run.spec.evaluation.until is not None for run in runs)
    if stopped and measure(metric).accuracy:
        yield (
            f"{stopped} of {count(len(runs), 'run')} end at their target accuracy (evaluation.until), so "
            "accuracies do not rank them; name their table to compare rounds"
        )
    items = {run.run_id: run.fields["items"].split() for run in runs}
    mixed = [cell for cell in found if not set.intersection(*({*items[run]} for run in cell.runs))]
    if mixed:
        names = dict.fromkeys(name for cell in mixed for run in cell.runs for name in items[run])
        yield (
            f"{count(len(mixed), 'line')} with seeds of several items ({listed(list(names), 3)}); for one of "
            "them: --where items=NAME"
        )


def _measured(runs: Sequence[RecordedRun], metric: str | None) -> Measured:
    """Return the metric, by default the chosen table's first possible one, with the target that it states.

    Raises:
        FltrainError: if the metric is unknown or not possible for these runs.
    """
    shown = runs[0].measures
    target = next((one.printed_target for one in shown if one.printed_target and not one.target_of), None)

    def obstacle(name: str) -> str:
        what = MEASURES[name]
        if what.over_seeds != "mean":
            return f"it is the {what.over_seeds} over seeds, not a mean"
        needs_other = what.targeted and not (target and what.targeted == "accuracy")
        return "it needs a target, which only tables with 'printed_target' state" if needs_other else ""

    names = [one.measure for one in shown] or ["final_accuracy"]
    possible = [name for name in names if not obstacle(name)]
    metric = metric or (possible or names)[0]
    check_known("unknown metric", [metric], MEASURES)
    if why := obstacle(metric):
        raise FltrainError(
            f"compare cannot show {metric!r} of these runs: {why}; see their table's page or CSV file, or "
            f"choose another --metric ({', '.join(possible) or 'final_accuracy'})"
        )
    if not MEASURES[metric].targeted:
        return Measured(measure=metric)
    label = MEASURES[metric].label.replace("target", f"{target:g} %")
    return Measured(measure=metric, printed_target=target, label=label)


def _first_positions(runs: Sequence[RecordedRun], group_of: Mapping[str, str]) -> dict[str, int]:
    """Return each group's first position in the chosen table; ``group_of`` has the groups by run ID."""
    first: dict[str, int] = {}
    for run in runs:
        group = group_of[run.run_id]
        first[group] = min(run.position, first.get(group, run.position))
    return first


def _own_bases(runs: Sequence[RecordedRun], metric: str) -> dict[str, str]:
    """Return the base of each run in the chosen table, by ID, as far as it is among the runs.

    If the table does not show the metric, its first gain decides.
    """
    chosen = {run.run_id for run in runs}
    bases = {run.run_id: run.bases.get(metric) or next(iter(run.bases.values()), "") for run in runs}
    return {run: base for run, base in bases.items() if base in chosen and base != run}


def _differing_from(bases: Mapping[str, str], settings: pd.DataFrame) -> list[str]:
    """Return the settings in which runs differ from their bases; a method's name stands for its settings."""
    ours, theirs = settings.loc[list(bases)], settings.loc[list(bases.values())]
    varied = (ours.to_numpy() != theirs.to_numpy()).any(axis=0)
    names = [str(name) for name, differs in zip(settings, varied, strict=True) if differs]
    return [name for name in names if not any(begins(name, [root]) for root in names if root != name)]


def _job(
    measured: Measured,
    axes: Mapping[str, Sequence[str]],
    lines: Mapping[tuple[str, str, int], Sequence[RecordedRun]],
) -> ItemJob:
    """Return the table of a comparison with the first variant as base.

    Args:
        measured: the measure, with its target.
        axes: conditions and variants.
        lines: runs by condition, variant and seed.
    """
    columns, rows = axes.values()
    measured = measured.model_copy(update={"gain_over": {"compared": rows[0]}})
    made = []
    for place in sorted(lines, key=lambda line: (columns.index(line[0]), rows.index(line[1]), line[2])):
        column, variant, seed = place
        run = _one_of(lines[place], measured)
        made.append(
            Cell(
                labels={"condition": column, "compared": variant},
                seed=seed,
                run=run.run_id,
                methods=tuple(method.name for method in run.spec.composition.methods),
                family=run.family,
            )
        )
    return ItemJob(
        id="compare",
        reduced=True,
        axes={axis: tuple(labels) for axis, labels in axes.items()},
        table=Table(
            rows="compared",
            columns="condition",
            panels=measure(measured.measure).dimension,
            measures=(measured,),
        ),
        cells=tuple(made),
    )


def _one_of(runs: Sequence[RecordedRun], measured: Measured) -> RecordedRun:
    """Return a run with a value of several with the same settings and seed, which must have the same one."""
    target = [measured.printed_target / 100] if measured.printed_target else []
    found = [(run, diverged(run.record), measure(measured.measure).of(run.record, *target)) for run in runs]
    known = [(run, str((lost, value))) for run, lost, value in found if lost or value]
    if len({value for _, value in known}) > 1:
        raise FltrainError(
            f"{' and '.join(run.run_id for run in runs)} have the same settings and seed, but not the same "
            "value: they differ in revisions, or in time; choose with --where status=..., items=... or "
            "revisions.methods=..."
        )
    return known[0][0] if known else runs[0]


def _distinguishing(conditions: pd.DataFrame) -> list[str]:
    """Return the conditions that suffice to distinguish all lines; the others depend on them."""
    shown: list[str] = []
    distinct = 1
    for key in map(str, conditions):
        if (places := len(conditions[[*shown, key]].drop_duplicates())) > distinct:
            shown, distinct = [*shown, key], places
    return shown


def _differing(runs: Sequence[RecordedRun]) -> pd.DataFrame:
    """Return the settings that are not the same in all runs, method and plug-ins first: a row per run ID.

    Settings of methods and plug-ins count only if they differ between runs of one method.
    """
    names = [{key: run.fields[key] for key in _METHOD} for run in runs]
    rows = [{**name, **run.settings, **name} for name, run in zip(names, runs, strict=True)]
    frame = pd.DataFrame(rows, index=[run.run_id for run in runs]).fillna(NONE)
    inner = [key for key in map(str, frame) if begins(key, _METHOD) and key not in _METHOD]
    values = frame.nunique()
    values.update(frame.groupby([run.spec.composition.name for run in runs])[inner].nunique().max())
    return frame[[key for key in map(str, values[values > 1].index) if not begins(key, _NEUTRAL)]]


def _variants(runs: Sequence[RecordedRun], compared: pd.DataFrame) -> dict[str, str]:
    """Return the variant of each run by its ID, in order: FedAvg first, then by method and settings.

    A variant is named by method and plug-ins, if these are compared, and by the compared settings in which
    runs of the same method differ.
    """
    whole = "method" in compared or (
        "plugins" in compared and len({run.fields["method"] for run in runs}) == 1
    )
    compositions = [run.spec.composition.name for run in runs]
    varied = {
        str(composition): [key not in _METHOD and same[key].nunique() > 1 for key in same]
        for composition, same in compared.groupby(compositions)
    }
    ranked = []
    for run, composition, (_, values) in zip(runs, compositions, compared.iterrows(), strict=True):
        parts = [composition] if whole else [run.fields["plugins"]] if "plugins" in compared else []
        shown = values[varied[composition]] if parts else values
        name = ", ".join([*parts, *(f"{key}={value}" for key, value in shown.items())]) or composition
        rank = run.fields["method"] != "fedavg", composition, [sortable(value) for value in shown]
        ranked.append((rank, run.run_id, name))
    return {run_id: name for _, run_id, name in sorted(ranked)}
