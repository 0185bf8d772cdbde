"""One tidy frame behind tables, claims and figures, read from records.

It has one line for each run and place of a sheet. Its columns are the sheet's axes (and the dimension of the
measure), ``seed``, ``run``, ``state`` (done, late, diverged, damaged or missing), ``value``, ``gain`` and the
``base_state`` of the run that the gain is over, ``names`` (of the cell in the published table),
``composition`` (names of method and plug-ins), ``spread_family``, which is equal for cells that moderate each
other's spreads over seeds, and ``floor``, the smallest believable spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from fltrain.core.config import hint
from fltrain.core.errors import FltrainError
from fltrain.core.floats import total
from fltrain.experiments.claims import LabelChoice, Quantity
from fltrain.experiments.layout import COLUMNS, Cell, ItemJob, Labels, Measured, named
from fltrain.experiments.published import Published
from fltrain.experiments.schema import TRIAL
from fltrain.runs.measures import best_accuracy, measure, points, training_seconds
from fltrain.runs.record import Record

Runs = Callable[[str], Record]
"""Returns the record of a run id, complete or not."""


def finished(sheet: ItemJob, runs: Runs) -> Iterator[tuple[Cell, Record]]:
    """Yield the cells whose runs have ended, with their records."""
    for cell in sheet.cells:
        record = runs(cell.run)
        if record.usable:
            yield cell, record


def first_of_each(sheet: ItemJob, axis: str, runs: Runs) -> Iterator[tuple[str, Record]]:
    """Yield for each label of an axis, in order, the record with the first seed that has one."""
    ended = list(finished(sheet, runs))
    for label in sheet.axes[axis]:
        records = [record for cell, record in ended if cell.labels[axis] == label]
        if records:
            yield label, records[0]


def diverged(record: Record) -> bool:
    """Return True if a run ended early because its loss was not finite."""
    return bool(record.summary["status"] == "diverged")


def curve(record: Record, name: str) -> pd.DataFrame:
    """Return ``kind.field`` of a record's rows over the rounds; rows without a value are left out.

    There is one column, or one per layer or block if the field holds several numbers.

    Raises:
        FltrainError: if the record has no such rows.
    """
    by_round = points(record, name)
    if not by_round and not diverged(record):
        kind = name.partition(".")[0]
        rows = record.rows(kind) or record.metrics
        fields = {f"{row['kind']}.{field}" for row in rows for field in row.keys() - {"kind", "round"}}
        raise FltrainError(f"{record.run_id} has no {name!r}{hint(name, sorted(fields))}")
    return pd.DataFrame.from_dict(by_round, orient="index", dtype=float)


# ---------------------------------------------------------------- tables and claims
NumbersByLabel = Mapping[str, float]
"""Label of a dimension (empty if there is none) -> number."""

CellKey = tuple[tuple[str, str], ...]
"""Labels of a cell, in the order of the axes."""

DONE, LATE, DIVERGED, DAMAGED, MISSING = "done", "late", "diverged", "damaged", "missing"
STATES = (DONE, LATE, DIVERGED, DAMAGED, MISSING)
"""From best to worst. In claims, a run that misses its target is late."""

UNKNOWN = "—"
"""Label on a dimension while its labels are unknown, because no run is complete."""


def values_of(
    sheet: ItemJob,
    runs: Runs,
    read: Callable[[Record, Cell], NumbersByLabel | None],
    name: str,
    dimension: str | None = None,
    diverged_as: Callable[[Record], float] = lambda _: math.nan,
) -> pd.DataFrame:
    """Return the numbers of all runs of a sheet, one line for each run and place.

    Args:
        sheet: the cells.
        runs: returns the record of a run id; runs without a record have no number (NaN).
        read: returns the numbers of a complete record; None or nothing if it has none.
        name: name of the measure or curve.
        dimension: name of the axis whose labels the numbers have.
        diverged_as: returns the number that stands for a run that diverged.
    """
    records = [runs(cell.run) for cell in sheet.cells]
    readings = [
        (read(record, cell) or {}) if record.usable else {}
        for record, cell in zip(records, sheet.cells, strict=True)
    ]
    # A run without numbers stands in all places that other runs have.
    no_numbers = dict.fromkeys((label for numbers in readings for label in numbers), math.nan)
    no_numbers = no_numbers or {UNKNOWN if dimension else "": math.nan}
    lines: list[dict[str, Any]] = []
    for cell, record, numbers in zip(sheet.cells, records, readings, strict=True):
        state = DAMAGED if record.complete else MISSING
        if record.usable:
            state = DIVERGED if diverged(record) else DONE
        dataset = (str(record.spec["dataset"]["name"]),) if record.usable else ()
        for label, value in (numbers or no_numbers).items():
            place = {dimension: label} if dimension else {}
            names = {key: text.format(**place) if place else text for key, text in cell.reported.items()}
            line = {
                **cell.labels,
                **place,
                "seed": cell.seed,
                "run": cell.run,
                "state": state,
                "names": names,
                "spread_family": (*dataset, label, *cell.family),
                "composition": cell.methods,
                "floor": resolution([record], name) if record.usable else math.nan,
                "value": diverged_as(record) if state == DIVERGED else value,
            }
            lines.append(line)
    return pd.DataFrame(lines)


def resolution(records: Iterable[Record], name: str) -> float:
    """Return the smallest believable spread of a measure or curve over seeds: for accuracies, one test image.

    Curves of other numbers have none.
    """
    images = next((record.test_images for record in records if record.usable), None)
    if "." in name:
        return 1 / images if images and name == "evaluation.accuracy" else 0.0
    definition = measure(name)
    return definition.resolution(None if definition.dimension else images)


def measured_values(sheet: ItemJob, runs: Runs, measured: Measured, published: Published) -> pd.DataFrame:
    """Return the numbers of a measure as a table shows them: as multiples if it says so, and with gains."""
    definition = measure(measured.measure)
    targets = _targets(sheet, runs, measured, published) if definition.targeted else {}

    def read(record: Record, cell: Cell) -> NumbersByLabel | None:
        if not definition.targeted:
            return definition.of(record)
        target = targets.get(tuple({**cell.labels, **measured.target_of}.items()))
        return None if target is None else definition.of(record, target)

    frame = values_of(sheet, runs, read, measured.measure, definition.dimension, definition.of_diverged)
    if sheet.table and sheet.table.best_of:
        frame = at_best(frame, sheet.table.best_of, definition.margin.relative, measured.place)
    if measured.relative_to:
        frame["value"] = frame["value"] / at_labels(frame, measured.relative_to)["value"]
    frame["gain"] = math.nan
    if measured.gain_over:
        base = at_labels(frame, measured.gain_over)
        gain = frame["value"] - base["value"]
        frame["gain"] = gain.replace(-math.inf, math.inf)  # if only one side reaches its target
        frame["base_state"] = base["state"].fillna(MISSING)
    return frame


def at_best(
    frame: pd.DataFrame, axis: str, least: bool, place_of: Literal["best", "median"] = "best"
) -> pd.DataFrame:
    """Return the lines with the best (or median) label of an axis, which becomes the column ``best``.

    The best label of a place has the largest (or ``least``) number with the first seed. Without any number,
    it is the first label. Lines of the first seed are left out if a place has others. Trials have no order,
    so that none is at the end of a grid.
    """
    best_lines: list[pd.DataFrame] = []
    other_axes = [name for name in places(frame) if name != axis]
    for place in (part for _, part in frame.groupby(other_axes, sort=False)) if other_axes else [frame]:
        tuning = place["seed"] == place["seed"].iloc[0]
        numbers = place[tuning].set_index(axis)["value"]
        ranked = numbers.dropna().sort_values(ascending=least, kind="stable").index
        rank = len(ranked) // 2 if place_of == "median" else 0
        chosen = ranked[rank] if len(ranked) else place[axis].iloc[0]
        at_end = chosen in (numbers.index[0], numbers.index[-1]) and axis != TRIAL
        lines = place[(place[axis] == chosen) & (~tuning | tuning.all())]
        best_lines.append(lines.assign(best=chosen, best_at_end=at_end))
    return pd.concat(best_lines).drop(columns=axis)


def has_labels(frame: pd.DataFrame, labels: Mapping[str, str | Collection[str]]) -> pd.Series:
    """Return a mask of the lines that have one of the labels on each axis."""
    mask = pd.Series(True, index=frame.index)
    for axis, wanted in labels.items():
        mask &= frame[axis].isin([wanted] if isinstance(wanted, str) else list(wanted))
    return mask


def places(frame: pd.DataFrame) -> list[str]:
    """Return the columns that identify the place of a value, without the seed."""
    return [name for name in frame.columns if name not in COLUMNS]


def combined(frame: pd.DataFrame, axes: Collection[str]) -> pd.DataFrame:
    """Return the mean over the points of some axes, one line per other label and seed.

    It is NaN if a number is missing. The state is the worst one, the names are those that all lines share,
    and ``averaged`` is the number of lines.
    """
    keys = [name for name in (*places(frame), "seed") if name not in axes]

    def shared(names: pd.Series) -> dict[str, str]:
        first, *others = names
        return {key: text for key, text in first.items() if all(other.get(key) == text for other in others)}

    worst, mean = partial(max, key=STATES.index), partial(pd.Series.mean, skipna=False)
    summaries: dict[str, Any] = {
        "run": " ".join,
        "state": worst,
        "base_state": worst,
        "names": shared,
        "spread_family": partial(max, key=len),
        "composition": "first",
        "floor": "max",
        "averaged": "size",
        "value": mean,
        "gain": mean,
    }
    frame = frame.assign(averaged=1)
    summaries = {column: summary for column, summary in summaries.items() if column in frame}
    return frame.groupby(keys, sort=False).agg(summaries).reset_index()


def at_labels(frame: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    """Return for every line the one at its place and seed but with the given labels; NaN if there is none."""
    keys = [*places(frame), "seed"]
    wanted = pd.MultiIndex.from_frame(frame[keys].assign(**labels))
    return frame.set_index(keys).reindex(wanted).set_axis(frame.index)


def _targets(sheet: ItemJob, runs: Runs, measured: Measured, published: Published) -> dict[CellKey, float]:
    """Target by the labels of the cell that sets it, from its runs without diverged ones.

    A target in seconds is the median of their training times. A target accuracy (FedImpro, tables 2 and 9) is
    the lowest of their best accuracies. At full scale it is the published target: from the paper's text, else
    from the file (metric ``target_acc``, printed for a row, not for a method).
    """
    timed = measure(measured.measure).targeted == "seconds"
    printed: dict[CellKey, float] = {}
    by_place: dict[CellKey, list[float]] = {}
    for cell in sheet.cells:
        if measured.target_of.items() <= cell.labels.items():
            place, record = tuple(cell.labels.items()), runs(cell.run)
            if record.usable and not diverged(record):
                value = training_seconds(record) if timed else best_accuracy(record)
                by_place.setdefault(place, []).append(value)
            reduced = sheet.reduced and bool(measured.target_of)
            target = None if reduced or timed else _printed_target(measured, cell, published)
            if target is not None:
                printed[place] = target / 100
    if timed:
        return {key: statistics.median(values) for key, values in by_place.items()}
    our_targets = {key: math.floor(100 * min(values) + 1e-9) / 100 for key, values in by_place.items()}
    return {**our_targets, **printed}


def targets_text(sheet: ItemJob, runs: Runs, published: Published) -> str:
    """Return a sentence with the target accuracies that runs of a table set; empty if there are none."""
    texts: dict[str, None] = {}
    for measured in sheet.table.measures if sheet.table else ():
        if measured.target_of and measure(measured.measure).targeted == "accuracy":
            for key, target in _targets(sheet, runs, measured, published).items():
                varied = [
                    named(axis, label)
                    for axis, label in key
                    if axis not in measured.target_of and len(sheet.axes[axis]) > 1
                ]
                texts[f"{100 * target:g} %" + (f" ({', '.join(varied)})" if varied else "")] = None
    return f"Target accuracy: {', '.join(texts)}." if texts else ""


def _printed_target(measured: Measured, cell: Cell, published: Published) -> float | None:
    if measured.printed_target is not None:
        return measured.printed_target
    target = published.find("target_acc", {**cell.reported, "method": ""})
    return target.value if target else None


# ---------------------------------------------------------------- claims
ROUNDS = ("rounds_to_target", "interpolated_rounds_to_target")
"""Measures of which a run that misses the target has a number in claims: one round more than it was to do."""


def claimed_values(
    sheet: ItemJob, test: Quantity, runs: Runs, published: Published
) -> tuple[pd.DataFrame, pd.Series]:
    """Return the numbers per place and seed of the whole item, and a mask of those that the claim names.

    They are values, or differences from other labels. The whole item moderates the spreads.
    """
    frame = _item_values(sheet, test, runs, published)
    for labels in filter(None, (test.over, test.minus)):
        frame = differences(frame, labels, test.relative and labels is test.over)
        frame = frame[~has_labels(frame, labels)]
    frame = frame.assign(value=-frame["value"]) if test.reverse else frame
    merged_labels = {axis: names for axis, names in test.at.items() if axis in (*test.minus, *test.mean_over)}
    frame = frame[has_labels(frame, merged_labels)]
    frame = combined(frame, test.mean_over) if test.mean_over else frame
    other_labels = {axis: names for axis, names in test.at.items() if axis not in test.mean_over}
    return frame, has_labels(frame, other_labels)


def _item_values(sheet: ItemJob, test: Quantity, runs: Runs, published: Published) -> pd.DataFrame:
    """Return the measure or curve of all runs of the item, or of some parts of their networks."""
    if test.measure is None:
        return values_of(sheet, runs, lambda record, _: _over_rounds(record, test), test.curve or "")
    definition, parts = measure(test.measure), test.part or ()
    if definition.dimension and parts:

        def added(record: Record, _: Cell) -> NumbersByLabel | None:
            numbers = definition.of(record) or {}  # of another network at a reduced scale
            return {"": total(numbers[part] for part in parts)} if {*parts} <= {*numbers} else None

        return values_of(sheet, runs, added, test.measure, diverged_as=definition.of_diverged)
    frame = measured_values(sheet, runs, _as_shown(sheet, test.measure), published)
    never = np.isinf(frame["value"])
    if test.measure not in ROUNDS:
        return frame.assign(value=frame["value"].mask(never))
    ended = zip(frame["run"], never, strict=True)
    late = [1.0 + runs(run).spec["rounds"] if missed else math.nan for run, missed in ended]
    state = frame["state"].mask(never & (frame["state"] == DONE), LATE)
    return frame.assign(value=frame["value"].mask(never, late), state=state)


def _as_shown(sheet: ItemJob, name: str) -> Measured:
    """Return the measure in the form of the item's table, if the table shows it."""
    if measure(name).over_seeds == "max":
        raise FltrainError(
            f"{name!r} is one number over all seeds, which no test over runs can use; choose another"
        )
    measures = sheet.table.measures if sheet.table else ()
    form = next((measured for measured in measures if measured.measure == name), None)
    if form is None and measure(name).targeted:
        raise FltrainError(f"{sheet.id} has no table that shows {name!r}, so there is no target")
    return form or Measured(measure=name)


def _over_rounds(record: Record, test: Quantity) -> NumbersByLabel | None:
    """Return the mean of a curve over a share of the rounds, or its change; None if there is no curve."""
    assert test.curve is not None
    try:
        frame = curve(record, test.curve)
    except FltrainError:  # a scale can leave a statistic out
        return None
    parts = test.part or ("",)
    if not set(parts) <= set(frame):  # at a reduced scale, the network can be another one
        return None
    values = frame[list(parts)].sum(axis=1, skipna=False)

    def mean(share: tuple[float, float]) -> float:
        first, last = (end * record.summary["rounds"] + 1e-9 for end in share)
        later = values[values.index > first]
        within = later[later.index <= last]
        return float((later[:1] if within.empty else within).mean())

    return {"": mean(test.rounds) - (mean(test.minus_rounds) if test.minus_rounds else 0.0)}


def differences(frame: pd.DataFrame, labels: LabelChoice, relative: bool) -> pd.DataFrame:
    """Return values minus the mean of those with the given labels, at the same place and seed.

    ``relative`` differences are in per cent of that mean. The state is the worse one. If all runs of a side
    diverged at a place, their difference is no measurement (NaN), as in tables (``TableCell.lost_gain``).
    """
    other = combined(frame[has_labels(frame, labels)], labels.keys())
    keys = [*places(other), "seed"]
    pairs = frame.merge(other[[*keys, "value", "state"]], how="left", on=keys, suffixes=("", " of other"))
    base = pairs["value of other"]
    value = pairs["value"] - base
    if relative:
        value = 100 * value / base.abs().where(base != 0)
        frame = frame.assign(floor=0.0)
    ranks = pairs[["state", "state of other"]].fillna(MISSING).map(STATES.index)
    place = [pairs[axis] for axis in places(frame)] or [pd.Series("all", index=pairs.index)]
    best = ranks.groupby(place, sort=False).transform("min")
    lost = (best == STATES.index(DIVERGED)).any(axis=1)  # no run of a side is done, at least one diverged
    state = [STATES[rank] for rank in ranks.max(axis=1)]
    return frame.assign(value=value.mask(lost).to_numpy(), state=state)
