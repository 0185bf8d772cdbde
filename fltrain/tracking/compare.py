"""Comparison of runs: means over seeds, differences paired by seed.

Runs that agree in everything except the seed are one line of the table. The compared settings (``over``, by
default method and plug-ins) name the variant of a line. All other settings in which the chosen runs differ
are conditions: nothing is compared across, for example, two datasets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fltrain.core.config import check_known, suggest
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.core.statistics import Sample, SeedSummary, contrast, known, moderated
from fltrain.data.datasets import registry
from fltrain.reporting.frame import DIVERGED, DONE, at_labels
from fltrain.reporting.text import interval_text, markdown_table, number_text
from fltrain.runs.measures import CURVES, factor
from fltrain.runs.where import NONE, begins
from fltrain.tracking.runs import FINALS, STALE, RecordedRun

NUMBERS = (
    *("seeds", "diverged", "mean", "std", "n"),
    *("difference_mean", "difference_std", "difference_n", "difference_low", "difference_high"),
    *("spread_cells", "runs"),
)
"""Columns of a comparison after its conditions and ``compared``, the variant.

``seeds`` and ``diverged`` count runs; diverged ones count as chance accuracy. ``mean`` and ``std`` are over
``n`` seeds, accuracies in percent; ``difference_...`` is the paired difference to the baseline with its
interval, and ``spread_cells`` the number of lines that moderate its spread. ``runs`` has the run IDs.
"""

_METHOD = ("method", "plugins")
# Settings that change no number of a run, and names that are among the fields.
_NEUTRAL = (
    "seed",
    "revisions",
    *(f"evaluation.{name}" for name in ("statistics", "targets", "extra", "keep")),
)
_DECIMALS = {"seconds": 2, "traffic_bytes": 0, "peak_memory_bytes": 0}


@dataclass(frozen=True)
class Comparison:
    """Lines of a metric, by condition, with differences to the variant ``baseline``.

    Attributes:
        metric: name of the metric.
        baseline: variant that the differences are over.
        conditions: settings within which lines are compared, by dotted name.
        frame: a row per line: the conditions, ``compared`` and ``NUMBERS``.
    """

    metric: str
    baseline: str
    conditions: tuple[str, ...]
    frame: pd.DataFrame

    @cached_property
    def shown(self) -> list[str]:
        """Conditions that suffice to distinguish all lines; the other conditions depend on them."""
        shown: list[str] = []
        distinct = 1
        for key in self.conditions:
            if (places := len(self.frame[[*shown, key]].drop_duplicates())) > distinct:
                shown, distinct = [*shown, key], places
        return shown

    @property
    def remarks(self) -> list[str]:
        """Notes below the table: conditions, and why there are no differences."""
        hidden = [key for key in self.conditions if key not in self.shown]
        remarks = [f"lines also differ in {', '.join(hidden)}"] if hidden else []
        if len(self.frame) > 1 and self.frame["difference_mean"].isna().all():
            remarks.append(
                f"no differences: no two runs with a value agree with {self.baseline!r} in seed and "
                f"{', '.join(self.conditions) or 'all settings'}; restrict these settings with --where, or "
                "compare them with --over"
            )
        elif self.shown:
            remarks.append(
                f"only lines with the same {', '.join(self.shown)} are compared; to compare across one of "
                f"these settings, name it in --over, for example --over method,plugins,{self.shown[-1]}"
            )
        if self.frame["diverged"].any():
            counted = "count as chance accuracy" if factor(self.metric) == 100 else "have no value"
            remarks.append(f"diverged runs {counted}")
        if (self.frame["spread_cells"] > 1).any():
            remarks.append(
                "intervals use spreads over seeds that lines with the same dataset and plug-ins moderate"
            )
        return remarks

    def rows(self) -> list[dict[str, str]]:
        """Return the table as text, by heading."""
        percent = ", %" if factor(self.metric) == 100 else ""
        decimals = _DECIMALS.get(self.metric, 2 if percent else 4)

        def number(line: Mapping[Any, Any], prefix: str = "", sign: str = "") -> str:
            values = (line[prefix + name] for name in ("mean", "std"))
            mean, std = (None if math.isnan(value) else value for value in values)
            return number_text(mean, decimals, sign, std)

        rows = []
        for line in self.frame.to_dict("records"):
            interval, pairs = (line["difference_low"], line["difference_high"]), line["difference_n"]
            few = f" ({pairs} pair{'s' if pairs != 1 else ''})" if 0 < pairs != line["n"] else ""
            row = {
                **{key: line[key] for key in self.shown},
                "compared": line["compared"],
                "seeds": f"{line['seeds']}" + (f" ({n} diverged)" if (n := line["diverged"]) else ""),
                self.metric + percent: number(line) or "none",
                f"difference to {self.baseline}": number(line, "difference_", "+") + few,
                "90 % interval": "" if math.isnan(interval[0]) else interval_text(interval, decimals, "+"),
            }
            rows.append(row)
        return rows

    def write(self, path: Path) -> None:
        """Write ``frame`` to a .csv file, or ``rows`` as Markdown to another file.

        Raises:
            FltrainError: if the file cannot be written.
        """
        if path.suffix == ".csv":
            named = self.frame.assign(metric=self.metric, baseline=self.baseline)
            write_text(path, named.to_csv(index=False))
            return
        rows = self.rows()
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        write_text(path, f"{markdown_table(lines, numbers=False)}\n")


# ------------------------------------------------------------------------------------------------- comparing
def compare(
    runs: Sequence[RecordedRun],
    metric: str = "final_accuracy",
    over: Sequence[str] = (),
    baseline: str | None = None,
) -> Comparison:
    """Return a comparison of runs.

    Args:
        runs: the chosen runs.
        metric: one of ``FINALS``, or the last value of one of ``CURVES``.
        over: settings to compare, by dotted name or its beginning; default: method and plug-ins, or all
            settings in which the runs differ if they all have the same method.
        baseline: variant, or the beginning of its name, for the differences; default: FedAvg, or the first
            variant.

    Raises:
        FltrainError: if metric, setting or baseline is unknown, or runs with the same settings and seed have
            different values.
    """
    _check_metric(metric, runs)
    settings = _differing(runs)
    differing = list(map(str, settings))
    for name in over:
        if not any(begins(key, [name]) for key in differing):
            raise FltrainError(
                f"over {name!r}: the chosen runs do not differ in it{suggest(name, differing)} (they differ "
                f"in: {', '.join(differing) or 'nothing but their seeds'})"
            )
    wanted = over or (_METHOD if any(begins(key, _METHOD) for key in differing) else differing)
    compared = [key for key in differing if begins(key, wanted)]
    conditions = [key for key in differing if key not in compared]
    variants = _variants(runs, settings[compared])
    order = list(dict.fromkeys(variants.values()))
    base = _baseline(order, baseline)
    values = _values(runs, metric, settings[conditions], variants, base)
    lines = _lines(values, [*conditions, "compared"], base)

    def rank(line: Mapping[Any, Any]) -> list[Any]:
        place = [_sortable(line[key]) for key in conditions]
        return [*place, line["compared"] != base, order.index(line["compared"])]

    ranked = sorted(lines.to_dict("records"), key=rank)
    return Comparison(metric, base, tuple(conditions), pd.DataFrame(ranked, columns=lines.columns))


def _values(
    runs: Sequence[RecordedRun], metric: str, conditions: pd.DataFrame, variants: dict[str, str], base: str
) -> pd.DataFrame:
    """Return the values and gains of the runs: a row per condition, variant and seed, as in tables."""
    frame = conditions.assign(
        compared=[variants[run.run_id] for run in runs],
        seed=[run.spec.seed for run in runs],
        run=pd.Series(runs, dtype=object),
    )
    frame = frame.groupby([*conditions, "compared", "seed"], sort=False)["run"].agg(list).reset_index()
    frame = frame.sort_values("seed", kind="stable", ignore_index=True)
    frame["value"] = [_value(same, metric) for same in frame["run"]]
    frame["gain"] = frame["value"] - at_labels(frame, {"compared": base})
    frame["state"] = [
        DIVERGED if any(run.fields["status"] == DIVERGED for run in same) else DONE for same in frame["run"]
    ]
    lost = at_labels(frame, {"compared": base}, "state") == DIVERGED
    images = [run.record.test_images for same in frame["run"] for run in same[:1]]
    return frame.assign(
        lost=lost | (frame["state"] == DIVERGED),
        floor=[factor(metric) == 100 and 100 / number if number else 0.0 for number in images],
    )


def _lines(values: pd.DataFrame, place_of: list[str], base: str) -> pd.DataFrame:
    """Return the lines of a comparison: statistics over seeds and contrasts with the baseline."""
    groups = {place: seeds for place, seeds in values.groupby(place_of)}
    samples: dict[Any, Sample] = {
        place: Sample(known(seeds["gain"]), float(seeds["floor"].max()), bool(seeds["lost"].any()))
        for place, seeds in groups.items()
        if place[-1] != base
    }
    first: list[RecordedRun] = [groups[place]["run"].iloc[0][0] for place in samples]
    families = [(run.fields["dataset"], run.fields["plugins"]) for run in first]
    gains = moderated([*samples.values()], families, [place[:-1] for place in samples])
    contrasts = dict(zip(samples, map(contrast, gains), strict=True))
    lines = []
    for place, seeds in groups.items():
        value = SeedSummary.of(seeds["value"])
        gain = SeedSummary.of(seeds["gain"]) if place in samples else None
        found = contrasts.get(place)
        low, high = found.interval if found else (math.nan, math.nan)
        numbers = [
            len(seeds),
            int((seeds["state"] == DIVERGED).sum()),
            *_three(value),
            *_three(gain),
            low,
            high,
        ]
        ids = " ".join(run.run_id for same in seeds["run"] for run in same)
        lines.append([*place, *numbers, found.spread.cells if found else 0, ids])
    return pd.DataFrame(lines, columns=[*place_of, *NUMBERS])


def _three(statistic: SeedSummary | None) -> tuple[float, float, int]:
    """Return mean, deviation and number of seeds; NaN if there is none."""
    if statistic is None:
        return math.nan, math.nan, 0
    return statistic.mean, math.nan if statistic.std is None else statistic.std, statistic.n


def _check_metric(metric: str, runs: Sequence[RecordedRun]) -> None:
    possible = {*FINALS, *CURVES, *(name for run in runs for name in run.finals)}
    check_known("unknown metric", [metric], sorted(possible))
    whole = [run for run in runs if run.fields["status"] not in (DIVERGED, STALE)]
    if whole and all(run.value(metric) is None for run in whole):
        raise FltrainError(
            f"none of the chosen runs has {metric!r}; add it to evaluation.statistics of their specs"
        )


def _differing(runs: Sequence[RecordedRun]) -> pd.DataFrame:
    """Return the settings that are not the same in all runs, method and plug-ins first: a row per run.

    Settings of methods and plug-ins count only if they differ between runs of one method.
    """
    names = [{key: run.fields[key] for key in _METHOD} for run in runs]
    frame = pd.DataFrame([{**name, **run.settings, **name} for name, run in zip(names, runs, strict=True)])
    frame = frame.fillna(NONE)
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
        rank = run.fields["method"] != "fedavg", composition, [_sortable(value) for value in shown]
        ranked.append((rank, run.run_id, name))
    return {run_id: name for _, run_id, name in sorted(ranked)}


def _sortable(text: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size, then texts."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text


def _baseline(variants: Sequence[str], wanted: str | None) -> str:
    if wanted is None or wanted in variants:
        return wanted or variants[0]
    candidates = [name for name in variants if name.startswith(wanted)]
    if len(candidates) != 1:
        problem = "several begin with it" if candidates else f"there is none{suggest(wanted, variants)}"
        raise FltrainError(f"baseline {wanted!r}: {problem} (there are: {'; '.join(candidates or variants)})")
    return candidates[0]


def _value(runs: Sequence[RecordedRun], metric: str) -> float:
    """Return the value of runs with the same settings and seed; NaN if they have none.

    A diverged run has chance accuracy.
    """
    values: dict[str, float | None] = {}
    for run in runs:
        values[run.run_id] = run.value(metric)
        if run.fields["status"] == DIVERGED:
            entry = registry().get(run.fields["dataset"]) if factor(metric) == 100 else None
            values[run.run_id] = 1 / entry.classes if entry and entry.classes else None
    different = {value for value in values.values() if value is not None}
    if len(different) > 1:
        raise FltrainError(
            f"{' and '.join(values)} have the same settings and seed, but not the same value: they differ in "
            "revisions, or in time; choose with --where status=..., items=... or revisions.methods=..."
        )
    return factor(metric) * different.pop() if different else math.nan
