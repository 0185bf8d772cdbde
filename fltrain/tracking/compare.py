"""Comparisons of runs: the cells of a table or figure, or a table whose layout follows from the chosen runs.

In the second case, runs that agree in everything except the seed are one line. The compared settings
(``over``, by default method and plug-ins) name the variant of a line. All other settings in which the chosen
runs differ are conditions: nothing is compared across, for example, two datasets.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from fltrain.core.config import VERY_CLOSE, check_known, hint, suggest
from fltrain.core.errors import FltrainError, count, listed
from fltrain.core.floats import average
from fltrain.core.shell import command
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.layout import (
    Cell,
    Curves,
    ItemJob,
    Labels,
    Measured,
    Points,
    Ranking,
    Table,
    measures_of,
)
from fltrain.experiments.plan import plan
from fltrain.experiments.published import Published, read_claims
from fltrain.experiments.schema import reported_folder
from fltrain.experiments.selection import Request, Selection
from fltrain.reporting.claims import Judge, confirmatory_first
from fltrain.reporting.frame import Runs, diverged, targets_text
from fltrain.reporting.tables.cells import cells, layout_of
from fltrain.reporting.tables.render import DROPPED_CELLS, EXPLORATORY, Notes, entries_of, own_margins
from fltrain.reporting.tables.table_cell import OF_GAIN, OF_VALUE, GainVerdict, TableCell, Verdict
from fltrain.reporting.text import number_text
from fltrain.runs.measures import MEASURES, lacking_in_all, measure
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import (
    NONE,
    Condition,
    begins,
    choose,
    keys_below,
    parse_where,
    settings_text,
    sortable,
)
from fltrain.tracking.runs import RECORDED, RecordedRun, as_numbers, find_runs, untrained

_METHOD = ("method", "plugins")
# Settings that change only the costs of a run.
_NEUTRAL = tuple(f"evaluation.{name}" for name in ("statistics", "targets", "extra", "keep"))
_COSTS = ("seconds", "round_seconds", "peak_memory")


COLUMNS = (
    *("paper", "item", "panel", "row", "column", "measure", "unit", "n", "diverged"),
    *("mean", "std", "low", "high", "gain", "gain_low", "gain_high", "gain_verdict"),
    *("published", "published_std", "difference", "difference_low", "difference_high", "verdict"),
    *("value_seeds", "values", "runs"),
)
"""First columns of the data frame, which ``fltrain.compare`` returns by default."""

_TYPES: dict[Any, Any] = {
    float | None: "float64",
    int | None: "float64",
    **{kind | None: pd.CategoricalDtype([*get_args(kind)]) for kind in (Verdict, GainVerdict)},
}
"""Types of columns in which values can be missing, by the annotation of a cell."""


class CellFrame(pd.DataFrame):
    """Data frame of cells, whose display leaves out empty columns, names, values and run IDs.

    A selection of columns shows all of them.
    """

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return CellFrame

    def _display(self, form: Callable[[pd.DataFrame], str], note: str) -> str:
        frame = pd.DataFrame(self)
        if self.empty or not {*COLUMNS} <= {*self}:
            return form(frame)
        left_out = {"paper", "item", "measure", "unit", "value_seeds", "values", "runs"}
        left_out |= set() if frame["diverged"].any() else {"diverged"}
        names = [key for key in COLUMNS if key not in left_out and frame[key].replace("", None).notna().any()]
        measure, unit = frame[["measure", "unit"]].iloc[0]
        number = ("{:z.2f}" if unit else "{:.4g}").format
        with pd.option_context("display.max_columns", None, "display.float_format", number):
            text = form(frame[names])
        title = f"{measure}, {unit}" if unit else measure
        return text + note.format(f"{title}; {len(frame.columns) - len(names)} more columns")

    def __repr__(self) -> str:
        return self._display(repr, "\n({})")

    def _repr_html_(self) -> str:
        return self._display(lambda frame: frame.to_html(max_rows=60, na_rep=""), "<p>{}</p>")


@dataclass(frozen=True)
class Comparison:
    """A table of one measure.

    Attributes:
        job: layout and runs of the table.
        cells: the cells of the measure, as in the CSV file of a table.
        remarks: notes on the runs.
        targets: sentence on the target accuracies that runs set.
        heading: the item with its title and scale, or the items of the runs, if they have several.
        items: of the runs, if they have several and are not chosen by item.
        example: command that shows one of these items.
        conditions: by panel, the settings that it stands for; empty for an item.
    """

    job: ItemJob
    cells: Sequence[TableCell]
    remarks: Sequence[str]
    targets: str = ""
    heading: str = ""
    items: Sequence[str] = ()
    example: str = ""
    conditions: Mapping[str, Labels] = field(default_factory=dict)

    @cached_property
    def _page(self) -> Notes:
        return Notes.of(self.job, self.cells, targets=self.targets)

    @property
    def _gain(self) -> str:
        """Heading of the differences from the base: more is not better of all measures."""
        return "gain" if measure(self.cells[0].measure).accuracy else "change"

    @property
    def grouping(self) -> set[str]:
        """Headings of the labels that several lines share: conditions, or the panels of an item."""
        return set().union(*self.conditions.values()) or {layout_of(self.job).panels or ""}

    @property
    def notes(self) -> list[str]:
        """Notes below the table; the page's notes come first."""
        notes = ["Difference: our value minus the published one, with a 90 % interval."]
        notes *= any(cell.interval("difference_") for cell in self.cells)
        if any(cell.gains and not cell.interval("gain_") for cell in self.cells):
            notes.append(f"A {self._gain} has no interval if fewer than three seeds have both runs.")
        notes += own_margins(self.cells)
        notes += [DROPPED_CELLS] if any(cell.dropped for cell in self.cells) else []
        notes += [EXPLORATORY] if any(cell.judged and cell.exploratory for cell in self.cells) else []
        seeds = self._page.seeds.replace("Gains are", f"{self._gain.capitalize()}s are")
        return [seeds, *self._page.numbered, *notes, *self.remarks]

    @property
    def frame(self) -> pd.DataFrame:
        """A row per cell: ``COLUMNS``, the other columns of a table's CSV file, and conditions.

        If all runs of a side diverged, numbers are missing, because chance accuracy is no measurement.
        """
        kinds = {name: about.annotation for name, about in TableCell.model_fields.items()}
        types = {name: _TYPES[kind] for name, kind in kinds.items() if kind in _TYPES}
        lines = [dict(cell) | cell.measured((*OF_VALUE, *OF_GAIN)) for cell in self.cells]
        frame = pd.DataFrame(lines).fillna({"n": 0}).astype({**types, "n": "int64"})
        frame["unit"] = frame["measure"].map(lambda name: measure(name).unit)
        conditions = pd.DataFrame([self.conditions.get(cell.panel, {}) for cell in self.cells])
        return frame[[*dict.fromkeys((*COLUMNS, *kinds))]].join(conditions.apply(as_numbers))

    def rows(self) -> list[dict[str, str]]:
        """Return the table as text by heading, panel after panel, with the texts of the page.

        It leaves out empty columns, and labels of columns and panels that all cells share.
        """
        table, panels = layout_of(self.job), list(dict.fromkeys(cell.panel for cell in self.cells))
        several = len({cell.label for cell in self.cells}) > 1
        lines = []
        for cell in sorted(self.cells, key=lambda cell: panels.index(cell.panel)):
            line = dict(
                self.conditions.get(cell.panel) or ({table.panels: cell.panel} if table.panels else {})
            )
            line |= {table.rows: cell.row} | ({table.columns: cell.column} if table.columns else {})
            entries = entries_of(cell, False, self.job.reduced, self._page.marks)
            texts = {heading: entry.marked for heading, entry in entries.items()}
            if several:
                texts = {"measure": cell.label, "value": texts.pop(cell.label), **texts}
            unpaired = [other.n for other in self.cells if other.panel == cell.panel and not other.gains]
            if 0 < len(cell.gains) < max([cell.n, *unpaired]):
                texts["gain"] += f" ({count(len(cell.gains), 'pair')}{_paired_means(cell)})"
            n = max(cell.n, len(cell.gains))  # an average of gains has no values
            for name, text in texts.items():
                line[self._gain if name == "gain" else name] = text
                if name == "gain":
                    line["seeds"] = f"{n} of {cell.seeds}" if n < cell.seeds else str(n)
            lines.append(line)
        common = {name for name in lines[0] if len({line[name] for line in lines}) == 1}
        empty = {name for name in common if name in (table.panels, table.columns) or not lines[0][name]}
        return [{name: text for name, text in line.items() if name not in empty} for line in lines]


def _paired_means(cell: TableCell) -> str:
    """Return the means of the runs behind a gain, for example ``: 70.26 - 69.02``; empty for an average."""
    paired = [x for seed, x in zip(cell.value_seeds, cell.values, strict=True) if seed in cell.gain_seeds]
    if not (paired and cell.base_values):
        return ""
    return ": " + " - ".join(
        number_text(average(values), cell.decimals) for values in (paired, cell.base_values)
    )


def compare(
    results: str | Path,
    config: str | Path,
    items: Sequence[str] = (),
    scale: str | None = None,
    where: str | Iterable[str] = (),
    metric: str | None = None,
    over: Sequence[str] = (),
    baseline: str | None = None,
) -> Comparison:
    """Return the cells of the named item, or a comparison of the chosen runs by their settings.

    The layout of an item has no meaning if settings, a baseline or several items are named, or conditions
    that only a record meets, such as ``status=diverged``.

    Raises:
        FltrainError: if a name is unknown, a metric is not possible, or no run is left.
    """
    where = (where,) if isinstance(where, str) else tuple(where)
    keys = [condition.key for condition in parse_where(where)]
    if items and "scale" not in keys:
        scale = scale or Request().scale  # the workflow's default
    if len(items) == 1 and scale:
        planned = plan(Path(config), scale)
        named = [item for item in planned.items if items[0] in item.names - {item.paper.paper}]
        if named and not (over or baseline or any(begins(key, RECORDED) for key in keys)):
            (item,) = planned.restricted(Selection(items=tuple(items))).items
            return compare_item(item, Results(Path(results)), Path(config), metric, where)
        measures = [name for item in named for name in measures_of(item.layout) if _of_runs(name)]
        metric = metric or next(iter(measures), None)
    where += (f"items={','.join(items)}",) if items else ()
    where += (f"scale={scale}",) if scale else ()
    runs = find_runs(results, where, config)
    compared = compare_runs(runs, metric, over, baseline)
    counts = Counter(
        (item, run.fields["scale"].split()[0])
        for run in runs
        for item in run.fields["items"].split()
        if item != NONE and not (items or over)
    )
    if len(counts) > 1:
        ((name, item_scale), _), *_ = counts.most_common()
        names = list(dict.fromkeys(item for (item, _), _ in counts.most_common()))
        example = command(f"fltrain compare {name} --scale {item_scale}", results, config)
        heading = f"Runs of {listed(names, 4)}. For one table or figure: {example}"
        return replace(compared, heading=heading, items=names, example=example)
    return compared


def _ended_early(specs: Collection[RunSpec], metric: str) -> list[str]:
    """Return a note if the metric is an accuracy and runs end at a target accuracy."""
    stopped = sum(spec.evaluation.until is not None for spec in specs)
    note = (
        f"{stopped} of {count(len(specs), 'run')} end at their target accuracy (evaluation.until), so "
        "accuracies do not rank them; their table compares rounds"
    )
    return [note] if stopped and measure(metric).accuracy else []


def _of_runs(metric: str) -> bool:
    """Return True if single runs have a metric: it needs no target, and seeds have a mean."""
    return not measure(metric).targeted and measure(metric).over_seeds == "mean"


# ----------------------------------------------------------------------------------------- claims of a paper
@dataclass(frozen=True)
class PaperSummary:
    """Verdicts on a paper.

    Attributes:
        paper: name of the paper.
        claims: judged claims, confirmatory ones first, without those that were not run or not judged.
        unjudged: number of these.
        items: title of each table and figure with runs, and the number of its cells by verdict, by ID.
    """

    paper: str
    claims: Sequence[Mapping[Any, Any]]
    unjudged: int
    items: Mapping[str, tuple[str, str]]


def summarise_papers(
    results: str | Path, config: str | Path, names: Sequence[str], scale: str
) -> list[PaperSummary]:
    """Return the verdicts on papers; nothing if a name is not a paper of the scale.

    Raises:
        FltrainError: if a paper has no run.
    """
    planned, folder = plan(Path(config), scale), Results(Path(results))
    if not {*names} <= {item.paper.paper for item in planned.items}:
        return []
    runs = cache(folder.record)
    return [
        _summary(planned.restricted(Selection(items=(name,))).items, runs, folder, Path(config))
        for name in dict.fromkeys(names)
    ]


def _summary(chosen: Sequence[PlannedItem], runs: Runs, results: Results, config: Path) -> PaperSummary:
    """Return the verdicts on the paper of these items."""
    paper, scale = chosen[0].paper, chosen[0].scale
    published = {item.id: Published.read(item.published(config)) for item in chosen}
    tables = {item.id: cells(item.sheet, runs, published[item.id]) for item in chosen if item.item.table}
    items: dict[str, tuple[str, str]] = {}
    for item in chosen:
        if any(runs(run).complete for run in item.run_ids):
            verdicts = Counter(cell.full_verdict for cell in tables.get(item.id, ()) if cell.verdict)
            counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
            items[item.id] = (item.sheet.title, counts)
    if not items:
        raise untrained(results, paper.paper, scale.scale)
    sheets = [item.sheet for item in chosen]
    judge = Judge(sheets, runs, lambda sheet: published[sheet.id], scale.reduces(paper), tables)
    file = reported_folder(config, paper.paper) / f"{paper.paper}_claims.csv"
    judged = judge.judge(paper.claims, read_claims(file)).to_dict("records") if paper.claims else []
    claims = [claim for claim in judged if claim["verdict"] not in ("not run", "not judged")]
    return PaperSummary(paper.paper, confirmatory_first(claims), len(judged) - len(claims), items)


# ---------------------------------------------------------------------------------------- cells of an item
def compare_item(
    item: PlannedItem,
    results: Results,
    config: Path,
    metric: str | None = None,
    where: Iterable[str] = (),
) -> Comparison:
    """Return the cells of a table or figure.

    Args:
        item: the item, complete or a part of it.
        results: folder with the records.
        config: folder of the declarations, with the published values.
        metric: name of a measure; default: the first one that the item shows, or ``final_accuracy``.
        where: conditions that all runs of a shown cell meet. They change no number and no verdict.

    Raises:
        FltrainError: if the item cannot show the metric, none of its runs has a record, or no cell is left.
    """
    runs, scale = cache(results.record), item.scale.scale
    if not item.trains:
        raise FltrainError(f"{item.id} shows partitions, without runs to compare")
    if not any(runs(run).complete for run in item.run_ids):
        raise untrained(results, item.id, scale)
    names = list(dict.fromkeys(measures_of(item.layout)))
    metric = metric or [*names, "final_accuracy"][0]
    declared = item.item.table if metric in names else None
    table = declared or _table(item, metric)
    job = item.sheet.model_copy(update={"table": table})
    published = Published.read(item.published(config) if declared else None)
    # All measures: the cells of a table share the correction for several verdicts.
    all_cells = [cell for cell in cells(job, runs, published) if cell.measure == metric]
    conditions = parse_where(where)
    visible = _meeting(item, all_cells, conditions)
    # Means have their deviations here, even if the page shows intervals.
    parts = [part.model_copy(update={"interval": False}) for part in table.measures if part.measure == metric]
    table = table.model_copy(update={"measures": tuple(parts)})
    job = job.model_copy(update={"table": table})
    others = ", ".join(name for name in names if name != metric)
    page = results.root / scale / item.paper.paper / f"{item.name}.html"
    remarks = _ended_early([entry.spec for entry in item.entries], metric)
    if len(visible) < len(all_cells):
        remarks.append(
            f"{len(visible)} of {count(len(all_cells), 'cell')}; gains, intervals and verdicts come from the "
            "whole table"
        )
    remarks += [f"further measures: --metric {others}"] if others else []
    remarks += [f"page: {page}"] if page.exists() else []
    quantity, title = measure(metric), job.title
    if not (item.item.table or metric in names):  # such as a figure of curves
        title = f"{quantity.label.removesuffix(f', {quantity.unit}')} of the runs behind “{title}”"
    heading = f"{item.id} at scale {scale}: {title} ({job.scale})"
    heading += f", only {' '.join(map(str, conditions))}" if conditions else ""
    return Comparison(job, visible, remarks, targets_text(job, runs, published), heading)


def _meeting(
    item: PlannedItem, all_cells: Sequence[TableCell], conditions: Collection[Condition]
) -> list[TableCell]:
    """Return the cells whose runs all meet the conditions; refuse conditions that no cell meets."""
    specs = {entry.spec.run_id: entry.spec for entry in item.entries}
    place = f"{item.id} at scale {item.scale.scale}"
    chosen = {spec.run_id for spec in choose(list(specs.values()), conditions, settings_text, place)}
    visible_cells = [cell for cell in all_cells if chosen.issuperset(cell.runs)]
    if not visible_cells:
        raise FltrainError(
            f"{item.id}: in no cell do all runs meet {' '.join(map(str, conditions))}; drop a condition, or "
            "compare single runs with --over"
        )
    return visible_cells


def _table(item: PlannedItem, metric: str) -> Table:
    """Return a table for a figure, or for a measure that the item's table does not declare.

    Gains are over the base of the table's other measures, or over the first point of a figure's series. A
    target is taken from another measure.

    Raises:
        FltrainError: if the item cannot show the measure.
    """
    check_known("unknown metric", [metric], MEASURES)
    quantity, layout, table = measure(metric), item.layout, item.item.table
    declared = table.measures if table else ()
    over = next((measured.gain_over for measured in declared if measured.gain_over), {})
    if isinstance(layout, Ranking):
        over = {layout.rows: layout.difference_from}
    elif isinstance(layout, Curves | Points) and layout.series in item.axes:
        over = {layout.series: item.axes[layout.series][0]}
    similar = [measured for measured in declared if measure(measured.measure).targeted == quantity.targeted]
    target = similar[0].model_dump(include={"target_of", "printed_target"}) if similar else {}
    measured = Measured(measure=metric, gain_over=over if quantity.over_seeds != "max" else {}, **target)
    if not table:
        axes = [axis for axis, labels in item.axes.items() if len(labels) > 1] or list(item.axes)[:1]
        places = (("rows",), ("rows", "columns"), ("panels", "rows", "columns"))[len(axes) - 1]
        table = Table.model_validate({**dict(zip(places, axes, strict=True)), "measures": (measured,)})
    changes: dict[str, Any] = {"measures": (measured,), "order_by": None}
    free = [place for place in ("panels", "columns") if getattr(table, place) not in item.axes]
    changes |= dict.fromkeys(free) | ({free[0]: quantity.dimension} if quantity.dimension and free else {})
    table = table.model_copy(update=changes)
    lack = lacking_in_all((entry.spec for entry in item.entries), metric, "metric")
    for fault in [f"the runs lack {lack}"] if lack else table.faults(item.axes):
        raise FltrainError(f"{item.id} cannot show {metric!r}: {fault}")
    return table


# ------------------------------------------------------------------------------------------ runs by settings
def compare_runs(
    runs: Sequence[RecordedRun],
    metric: str | None = None,
    over: Sequence[str] = (),
    baseline: str | None = None,
) -> Comparison:
    """Return a comparison of runs by their settings: variants below one another, conditions as panels.

    Args:
        runs: the chosen runs.
        metric: a measure of single runs without a target; default: ``final_accuracy``.
        over: settings to compare, by dotted name or its beginning; default: method and plug-ins, or all
            settings in which the runs differ if they all have the same method.
        baseline: variant for the gains; default: FedAvg, or the first variant.

    Raises:
        FltrainError: if metric, setting or baseline is unknown, or runs with the same settings and seed have
            different values.
    """
    metric = metric or "final_accuracy"
    check_known("unknown metric", [metric], MEASURES)
    quantity = measure(metric)
    if not _of_runs(metric):
        raise FltrainError(
            f"compare shows {metric!r} only of a table that declares it; name this table, without --over and "
            "--baseline, or choose another --metric"
        )
    if lack := lacking_in_all((run.spec for run in runs), metric, "metric"):
        raise FltrainError(f"none of the chosen runs has {metric!r}: the runs lack {lack}")
    settings = _differing(runs, () if metric in _COSTS else _NEUTRAL)
    differing, over = list(map(str, settings)), [name.removesuffix(".name") for name in over]
    for name in over:
        keys_below(name, {key for run in runs for key in run.named}, "over")
        if not any(begins(key, [name]) for key in differing):
            near = hint(name, differing, "they differ in") if differing else ""
            near = near or " (they differ only in their seeds)"
            raise FltrainError(f"over {name!r}: the chosen runs do not differ in it{near}")
    wanted = over or (_METHOD if any(begins(key, _METHOD) for key in differing) else differing)
    variants = _variants(runs, settings[[key for key in differing if begins(key, wanted)]])
    names = list(dict.fromkeys(variants.values()))
    base = baseline or names[0]
    having = [name for name in names if base in (part.partition("=")[2] for part in name.split(", "))]
    if base not in names and len(having) == 1:  # a value alone is enough
        base = having[0]
    if base not in names:
        near = suggest(base, names, VERY_CLOSE) or f" (variants: {', '.join(map(repr, names))})"
        raise FltrainError(f"baseline: unknown variant {base!r}{near}")
    others = [key for key in differing if not begins(key, wanted)]
    columns = _distinguishing(settings[others])
    order = sorted(settings[columns].itertuples(name=None), key=lambda line: [*map(sortable, line[1:])])
    conditions = {run: dict(zip(columns, texts, strict=True)) for run, *texts in order}
    condition = {run: ", ".join(map("=".join, texts.items())) for run, texts in conditions.items()}
    axes = {
        "condition": tuple(dict.fromkeys(condition.values())),
        "variant": tuple(dict.fromkeys([base, *names])),
    }
    groups = defaultdict[tuple[str, ...], dict[int, list[RecordedRun]]](lambda: defaultdict(list))
    for run in runs:
        groups[condition[run.run_id], variants[run.run_id]][run.spec.seed].append(run)
    job = ItemJob(
        id="compare",
        reduced=True,
        axes=axes,
        table=Table(
            rows="variant",
            columns=quantity.dimension,
            panels="condition",
            measures=(Measured(measure=metric, gain_over={"variant": base}),),
        ),
        cells=tuple(
            _cell(dict(zip(axes, place, strict=True)), seed, members, metric)
            for place in itertools.product(*axes.values())
            for seed, members in sorted(groups[place].items())
        ),
    )
    table_cells = cells(job, {run.run_id: run.record for run in runs}.__getitem__, Published())
    remarks = _ended_early([run.spec for run in runs], metric)
    if dependent := [key for key in others if key not in columns]:
        remarks.append(f"conditions also differ in {listed(dependent, 3)}")
    if len(names) > 1 and not any(cell.gains for cell in table_cells):
        remarks.append(
            "no gains: no run with a value has the seed and the other settings of a run of the baseline; "
            "choose the compared settings with --over"
        )
    elif columns:
        remarks.append(
            f"gains compare runs with equal {', '.join(columns)}; to compare values of {columns[-1]}, "
            f"use --over {columns[-1]}"
        )
    remarks += _mixed(runs, table_cells)
    panels = {condition[run]: conditions[run] for run in condition}
    return Comparison(job, table_cells, remarks, conditions=panels)


def _mixed(runs: Sequence[RecordedRun], visible_cells: Sequence[TableCell]) -> Iterator[str]:
    """Yield a note on lines that combine runs of several items."""
    items = {run.run_id: run.fields["items"].split() for run in runs}
    mixed = [cell for cell in visible_cells if not set.intersection(*({*items[run]} for run in cell.runs))]
    if mixed:
        names = dict.fromkeys(name for cell in mixed for run in cell.runs for name in items[run])
        yield (
            f"{count(len(mixed), 'line')} {'combines' if len(mixed) == 1 else 'combine'} runs of several "
            f"tables or figures, whose seeds differ ({listed(list(names), 3)}); for one of them: --where "
            "items=NAME"
        )


def _cell(labels: Labels, seed: int, runs: Sequence[RecordedRun], metric: str) -> Cell:
    """Return the cell of runs with the same settings and seed, which must have the same value."""
    results = [(run, diverged(run.record), measure(metric).of(run.record)) for run in runs]
    values = [(run, str((lost, value))) for run, lost, value in results if lost or value]
    if len({value for _, value in values}) > 1:
        raise FltrainError(
            f"{' and '.join(run.run_id for run in runs)} have the same settings and seed, but not the same "
            "value: they differ in revisions; choose with --where status=..., items=... or "
            "revisions.methods=..."
        )
    run = values[0][0] if values else runs[0]
    methods = tuple(method.name for method in run.spec.composition.methods)
    return Cell(labels=labels, seed=seed, run=run.run_id, methods=methods)


def _distinguishing(conditions: pd.DataFrame) -> list[str]:
    """Return the fewest conditions, in order, that distinguish all lines; the others depend on them.

    Method and plug-ins are always among them.
    """
    names = list(map(str, conditions))
    distinct = len({*conditions.itertuples(index=False)})
    for key in [key for key in reversed(names) if key not in _METHOD]:  # the first ones are the most telling
        fewer = [other for other in names if other != key]
        if len({*conditions[fewer].itertuples(index=False)}) == distinct:  # without columns, all are equal
            names = fewer
    return names


def _differing(runs: Sequence[RecordedRun], neutral: Collection[str]) -> pd.DataFrame:
    """Return the settings that are not the same in all runs, method and plug-ins first: a row per run ID.

    Settings of methods and plug-ins count only if they differ between runs of one method; settings that only
    one network, for example, has, only if they differ between its runs. ``neutral`` ones do not count.
    """
    names = [{key: run.fields[key] for key in _METHOD} for run in runs]
    rows = [{**name, **run.settings, **name} for name, run in zip(names, runs, strict=True)]
    raw_frame = pd.DataFrame(rows, index=[run.run_id for run in runs])
    frame = raw_frame.fillna(NONE)
    inner = [key for key in map(str, frame) if begins(key, _METHOD) and key not in _METHOD]
    values = frame.nunique()
    values.update(frame.groupby([run.spec.composition.name for run in runs])[inner].nunique().max())
    for key in map(str, values[values > 1].index):
        name = f"{key.rpartition('.')[0]}.name"
        if name in frame and key not in (name, *inner):
            values[key] = max(raw_frame[key].nunique(), frame.groupby(name)[key].nunique().max())
    neutral = ("seed", "revisions", *neutral)
    columns = [key for key in map(str, values[values > 1].index) if not begins(key, neutral)]
    return frame[columns].rename(columns=lambda key: key.removesuffix(".name"))


def _variants(runs: Sequence[RecordedRun], compared: pd.DataFrame) -> dict[str, str]:
    """Return the variant of each run by its ID, in order: FedAvg first, then by method and settings.

    A variant is named by method and plug-ins, if these are compared, and by the compared settings in which
    runs of the same method differ.
    """
    has_method = "method" in compared or (
        "plugins" in compared and len({run.fields["method"] for run in runs}) == 1
    )
    compositions = [run.spec.composition.name for run in runs]
    varied = {
        str(composition): [key not in _METHOD and group[key].nunique() > 1 for key in group]
        for composition, group in compared.groupby(compositions)
    }
    ranked = []
    for run, composition, (_, values) in zip(runs, compositions, compared.iterrows(), strict=True):
        parts = [composition] if has_method else [run.fields["plugins"]] if "plugins" in compared else []
        named_values = values[varied[composition]] if parts else values
        name = ", ".join([*parts, *(f"{key}={value}" for key, value in named_values.items())]) or composition
        rank = run.fields["method"] != "fedavg", composition, [sortable(value) for value in named_values]
        ranked.append((rank, run.run_id, name))
    return {run_id: name for _, run_id, name in sorted(ranked)}
