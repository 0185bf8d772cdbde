"""Comparison of runs: means over seeds, differences paired by seed, curves.

Runs that agree in everything except the seed are one line of the table. The compared settings (``over``, by
default method and plug-ins) name the variant of a line. All other settings in which the chosen runs differ
are conditions: nothing is compared across, for example, two datasets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fltrain.core.config import check_known, suggest
from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing, write_text
from fltrain.core.statistics import Contrast, Sample, Statistic, contrast, known
from fltrain.data.datasets import registry
from fltrain.reporting.frame import DIVERGED, DONE, at_labels
from fltrain.reporting.text import interval_text, markdown_table, number_text
from fltrain.reporting.verdict import apart, families_of
from fltrain.runs.curves import CURVES
from fltrain.runs.where import NONE, begins
from fltrain.tracking.run_view import FINALS, STALE, RunView

TABLES, PICTURES = (".csv", ".md"), (".png", ".pdf", ".svg")
"""File endings of tables and of pictures."""
BARS = "▁▂▃▄▅▆▇█"

_METHOD = ("method", "plugins")
# Settings that change no number of a run, and names that are among the fields.
_NEUTRAL = (
    "seed",
    "revisions",
    "evaluation.statistics",
    "evaluation.targets",
    "evaluation.extra",
    "evaluation.keep",
)
_WIDE = 50  # longest name of a line, in characters, that fits into a narrow figure


@dataclass(frozen=True)
class Line:
    """Runs that differ only in their seeds.

    Attributes:
        condition: settings under which they are compared, by dotted name.
        variant: values of the compared settings, for example ``fedprox+flfa, method.mu=0.1``.
        methods: names of base method and plug-ins.
        runs: IDs by seed; several IDs if runs differ only in their measurements.
        diverged: number of seeds that diverged; they count as chance accuracy.
        value: statistic over seeds; accuracies in percent.
        difference: statistic of the differences to the baseline with the same seed and condition.
        contrast: the difference with its interval; None with too few seeds.
    """

    condition: Mapping[str, str]
    variant: str
    methods: tuple[str, ...]
    runs: Mapping[int, tuple[str, ...]]
    diverged: int
    value: Statistic | None
    difference: Statistic | None
    contrast: Contrast | None = None


@dataclass(frozen=True)
class Comparison:
    """Lines of a metric, by condition; differences are those to the variant ``baseline``."""

    metric: str
    conditions: tuple[str, ...]
    baseline: str
    lines: tuple[Line, ...]

    @property
    def decimals(self) -> int:
        """Decimals of the values."""
        return {"seconds": 2, "traffic_bytes": 0, "peak_memory_bytes": 0}.get(
            self.metric, 2 if _factor(self.metric) == 100 else 4
        )

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """Conditions that suffice to distinguish all lines; the other conditions depend on them."""
        shown: tuple[str, ...] = ()
        distinct = 1
        for key in self.conditions:
            places = {tuple(line.condition[name] for name in (*shown, key)) for line in self.lines}
            if len(places) > distinct:
                shown, distinct = (*shown, key), len(places)
        return shown

    @property
    def remarks(self) -> list[str]:
        """Notes below the table: conditions, and why there are no differences."""
        hidden = [key for key in self.conditions if key not in self.shown]
        remarks = [f"lines also differ in {', '.join(hidden)}"] if hidden else []
        if len(self.lines) > 1 and not any(line.difference for line in self.lines):
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
        if any(line.diverged for line in self.lines):
            counted = "count as chance accuracy" if _factor(self.metric) == 100 else "have no value"
            remarks.append(f"diverged runs {counted}")
        if any(line.contrast and line.contrast.spread.cells > 1 for line in self.lines):
            remarks.append(
                "intervals use spreads over seeds that lines with the same dataset and plug-ins moderate"
            )
        return remarks

    def rows(self) -> list[dict[str, str]]:
        """Return the table as text, by heading."""
        return [
            {
                **{key: line.condition[key] for key in self.shown},
                "compared": line.variant,
                "seeds": str(len(line.runs)) + (f" ({line.diverged} diverged)" if line.diverged else ""),
                _with_unit(self.metric): _text(line.value, self.decimals) or "none",
                f"difference to {self.baseline}": self._difference_text(line),
                "90 % interval": interval_text(line.contrast.interval, self.decimals, "+")
                if line.contrast
                else "",
            }
            for line in self.lines
        ]

    def _difference_text(self, line: Line) -> str:
        """Return the mean difference, with the number of pairs if some values have no partner."""
        if line.difference is None:
            return ""
        pairs = line.difference.n
        note = f" ({pairs} pair{'s' if pairs != 1 else ''})" if line.value and pairs != line.value.n else ""
        return _text(line.difference, self.decimals, "+") + note

    def numbers(self) -> list[dict[str, Any]]:
        """Return the table as numbers, a flat dictionary per line."""
        rows = []
        for line in self.lines:
            low, high = line.contrast.interval if line.contrast else (None, None)
            row = {
                **line.condition,
                "compared": line.variant,
                "metric": self.metric,
                "baseline": self.baseline,
                **_columns("", line.value),
                "diverged": line.diverged,
                **_columns("difference_", line.difference),
                "difference_low": low,
                "difference_high": high,
                "runs": " ".join(run for runs in line.runs.values() for run in runs),
            }
            rows.append(row)
        return rows

    def write(self, path: Path) -> None:
        """Write ``numbers`` to a .csv file, or ``rows`` as Markdown to another file.

        Raises:
            FltrainError: if the file cannot be written.
        """
        if path.suffix == ".csv":
            write_text(path, pd.DataFrame(self.numbers()).to_csv(index=False))
            return
        rows = self.rows()
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        write_text(path, f"{markdown_table(lines, numbers=False)}\n")


def _text(statistic: Statistic | None, decimals: int, sign: str = "") -> str:
    return number_text(statistic.mean, decimals, sign, statistic.std) if statistic else ""


def _columns(prefix: str, statistic: Statistic | None) -> dict[str, Any]:
    mean, std, n = (statistic.mean, statistic.std, statistic.n) if statistic else (None, None, 0)
    return {f"{prefix}mean": mean, f"{prefix}std": std, f"{prefix}n": n}


def _factor(metric: str) -> int:
    """Return 100 for accuracies, which are shown in percent, else 1."""
    return 100 if "accuracy" in metric else 1


def _with_unit(metric: str) -> str:
    return f"{metric}, %" if _factor(metric) == 100 else metric


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """Refuse a file name with another ending.

    Raises:
        FltrainError: with the endings that are possible.
    """
    if path.suffix not in endings:
        raise FltrainError(f"{path}: name a file that ends in {', '.join(endings[:-1])} or {endings[-1]}")


# ------------------------------------------------------------------------------------------------- comparing
def compare(
    runs: Sequence[RunView],
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
    frame = settings[conditions].assign(
        variant=[variants[run.run_id] for run in runs],
        seed=[int(run.fields["seed"]) for run in runs],
        run=pd.Series(runs, dtype=object),
    )
    frame = frame.groupby([*conditions, "variant", "seed"], sort=False)["run"].agg(list).reset_index()
    frame = frame.sort_values("seed", kind="stable", ignore_index=True)
    frame["value"] = [_value(same, metric) for same in frame["run"]]
    frame["gain"] = frame["value"] - at_labels(frame, {"variant": base})
    frame["state"] = [
        DIVERGED if any(run.fields["status"] == DIVERGED for run in same) else DONE for same in frame["run"]
    ]
    lost = (frame["state"] == DIVERGED) | (at_labels(frame, {"variant": base}, "state") == DIVERGED)
    samples: dict[tuple[Hashable, ...], Sample] = {}
    gains: list[tuple[Hashable, Hashable]] = []
    for place, seeds in frame.groupby([*conditions, "variant"]):
        first = seeds["run"].iloc[0][0]
        family = (first.fields["dataset"], first.fields["plugins"])
        diverged = bool(lost[seeds.index].any())
        sample = Sample(known(seeds["gain"]), _floor(seeds["run"], metric), diverged)
        if place[-1] != base:
            samples[place] = sample
            gains.append((family, place[:-1]))
    families = dict(zip(samples, apart(gains), strict=True))
    priors = families_of((families[place], sample) for place, sample in samples.items())
    lines = []
    for place, seeds in frame.groupby([*conditions, "variant"]):
        *condition, variant = map(str, place)
        same_seed = dict(sorted(zip(seeds["seed"].tolist(), seeds["run"], strict=True)))
        line = Line(
            condition=dict(zip(conditions, condition, strict=True)),
            variant=variant,
            methods=tuple(_composition(seeds["run"].iloc[0][0]).split("+")),
            runs={seed: tuple(run.run_id for run in same) for seed, same in same_seed.items()},
            diverged=int((seeds["state"] == DIVERGED).sum()),
            value=Statistic.of(seeds["value"]),
            difference=Statistic.of(seeds["gain"]) if variant != base else None,
            contrast=contrast(samples[place], family=priors[families[place]]) if place in samples else None,
        )
        lines.append(line)
    lines.sort(
        key=lambda line: (
            [_sortable(value) for value in line.condition.values()],
            line.variant != base,
            order.index(line.variant),
        )
    )
    return Comparison(metric, tuple(conditions), base, tuple(lines))


def _check_metric(metric: str, runs: Sequence[RunView]) -> None:
    possible = {*FINALS, *CURVES, *(name for run in runs for name in run.finals)}
    check_known("unknown metric", [metric], sorted(possible))
    whole = [run for run in runs if run.fields["status"] not in (DIVERGED, STALE)]
    if whole and all(run.value(metric) is None for run in whole):
        raise FltrainError(_without(metric))


def _without(metric: str) -> str:
    return f"none of the chosen runs has {metric!r}; add it to evaluation.statistics of their specs"


def _composition(run: RunView) -> str:
    plugins = run.fields["plugins"]
    return run.fields["method"] + (f"+{plugins}" if plugins != NONE else "")


def _differing(runs: Sequence[RunView]) -> pd.DataFrame:
    """Return the settings that are not the same in all runs, method and plug-ins first: a row per run.

    Settings of methods and plug-ins count only if they differ between runs of one method.
    """
    names = [{key: run.fields[key] for key in _METHOD} for run in runs]
    frame = pd.DataFrame([{**name, **run.settings, **name} for name, run in zip(names, runs, strict=True)])
    frame = frame.fillna(NONE)
    inner = [key for key in map(str, frame) if begins(key, _METHOD) and key not in _METHOD]
    values = frame.nunique()
    values.update(frame.groupby([_composition(run) for run in runs])[inner].nunique().max())
    return frame[[key for key in map(str, values[values > 1].index) if not begins(key, _NEUTRAL)]]


def _variants(runs: Sequence[RunView], compared: pd.DataFrame) -> dict[str, str]:
    """Return the variant of each run by its ID, in order: FedAvg first, then by method and settings.

    A variant is named by method and plug-ins, if these are compared, and by the compared settings in which
    runs of the same method differ.
    """
    whole = "method" in compared or (
        "plugins" in compared and len({run.fields["method"] for run in runs}) == 1
    )
    compositions = [_composition(run) for run in runs]
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


def _floor(runs: Iterable[Sequence[RunView]], metric: str) -> float:
    """Return the smallest believable spread of a metric: one test image."""
    if _factor(metric) != 100:
        return 0.0
    images = next((run.images for same in runs for run in same if run.images), None)
    return 100 / images if images else 0.0


def _value_of(run: RunView, metric: str) -> float | None:
    """Return the value of a run; a diverged one has chance accuracy."""
    if run.fields["status"] != DIVERGED:
        return run.value(metric)
    entry = registry().get(run.fields["dataset"]) if _factor(metric) == 100 else None
    return 1 / entry.classes if entry and entry.classes else None


def _value(runs: Sequence[RunView], metric: str) -> float:
    """Return the value of runs with the same settings and seed; NaN if they have none."""
    values = {run.run_id: _value_of(run, metric) for run in runs}
    different = {value for value in values.values() if value is not None}
    if len(different) > 1:
        raise FltrainError(
            f"{' and '.join(values)} have the same settings and seed, but not the same value: they differ in "
            "revisions, or in time; choose with --where status=..., items=... or revisions.methods=..."
        )
    return _factor(metric) * different.pop() if different else math.nan


# ---------------------------------------------------------------------------------------------------- curves
def curves_of(comparison: Comparison, runs: Sequence[RunView], metric: str) -> pd.DataFrame:
    """Return curves of a metric: a row per round, a column per (line, seed); accuracies in percent.

    Raises:
        FltrainError: if the metric is no curve, or no run has it.
    """
    check_known("unknown curve", [metric], CURVES)
    by_id = {run.run_id: run for run in runs}
    columns: dict[tuple[str, int], pd.Series] = {}
    for line, name in zip(comparison.lines, line_names(comparison), strict=True):
        for seed, same in line.runs.items():
            curve = next(filter(None, (by_id[run].curves.get(metric) for run in same)), None)
            if curve:
                columns[name, seed] = pd.Series(dict(curve)) * _factor(metric)
    if not columns:
        raise FltrainError(_without(metric))
    return pd.DataFrame(columns).sort_index()


def line_names(comparison: Comparison) -> list[str]:
    """Return a distinct name of each line; settings go by the last part of their names if that is enough."""
    names = [
        ", ".join([line.variant, *(f"{key}={line.condition[key]}" for key in comparison.shown)])
        for line in comparison.lines
    ]
    short = [re.sub(r"[\w.]*?(\w+)(?:\.name)?=", r"\1=", name) for name in names]
    return short if len(set(short)) == len(short) else names


def plot(comparison: Comparison, runs: Sequence[RunView], metric: str, path: Path) -> None:
    """Draw curves, mean and range over seeds, in the style of the papers' figures, to one of ``PICTURES``.

    Raises:
        FltrainError: if there is no such curve, or the file cannot be written.
    """
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    from fltrain.experiments.layout import Cell
    from fltrain.reporting.figures import style
    from fltrain.reporting.figures.draw import THIN_LINES, draw_lines

    curves, names = curves_of(comparison, runs, metric), line_names(comparison)
    cells = [
        Cell(labels={"line": name}, reported={}, seed=seed, run=same[0], partition="", methods=line.methods)
        for line, name in zip(comparison.lines, names, strict=True)
        for seed, same in line.runs.items()
    ]
    seeds = len({seed for line in comparison.lines for seed in line.runs})
    with matplotlib.rc_context(style.STYLE):
        canvas, ((axes,),) = style.canvas(1)
        if max(map(len, names)) > _WIDE:
            canvas.set_figwidth(style.PAGE * style.MILLIMETRE)
        draw_lines(axes, curves, style.looks(names, "line", cells), 1)
        axes.set_xlabel("communication round")
        axes.set_ylabel(_with_unit(metric).replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        style.legend(canvas, [axes])
        if seeds > 1:
            thin = f" {THIN_LINES}" if any(line.diverged for line in comparison.lines) else ""
            style.footnote(canvas, f"Mean and range over {seeds} seeds.{thin}")
        with replacing(path) as temporary:
            canvas.savefig(temporary, format=path.suffix[1:], dpi=200)


def sketch(comparison: Comparison, runs: Sequence[RunView], metric: str, width: int = 48) -> list[str]:
    """Return curves as lines of text: means over seeds, all on one scale and at the same rounds.

    A mean ends at the last round that all of its runs have.

    Raises:
        FltrainError: if there is no such curve.
    """
    frame = curves_of(comparison, runs, metric)
    names = dict.fromkeys(frame.columns.get_level_values(0))
    means = {name: frame[name].mean(axis=1, skipna=False).dropna() for name in names}
    every = pd.concat(list(means.values()))
    low, high, last = float(every.min()), float(every.max()), frame.index[-1]
    count = min(len(frame), width)
    rounds = [frame.index[round(place * (len(frame) - 1) / max(count - 1, 1))] for place in range(count)]
    lines = [f"{_with_unit(metric)}: {low:.4g} to {high:.4g}, rounds {frame.index[0]} to {last}"]
    for name, curve in means.items():
        # Other lines can have values at other rounds; between its own rounds, a line keeps its last value.
        levels = (curve.reindex(rounds, method="ffill") - low) / ((high - low) or 1.0)
        ended = curve.index[-1]
        bars = "".join(
            " " if math.isnan(level) or at > ended else BARS[min(int(level * len(BARS)), len(BARS) - 1)]
            for at, level in levels.items()
        )
        ending = f" (round {ended})" if ended < last else ""
        lines.append(f"{name:{max(map(len, means))}}  {bars}  {curve.iloc[-1]:.4g}{ending}")
    return lines
