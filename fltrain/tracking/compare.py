"""Comparing runs: which settings they differ in, means over seeds, differences paired by seed, curves.

Runs come from records or from an MLflow store (``fltrain.tracking.run_view``). Runs that agree in everything
but the seed are one line of the table. What is compared (``over``, by default the methods) sets lines apart
within a condition; everything else in which the chosen runs differ makes conditions, so that nothing is
compared
across, say, two data sets. Means, intervals and tests are those of the papers' tables
(``fltrain.core.statistics``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pandas as pd

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError
from fltrain.core.statistics import Outcome, Statistic, against_point, holm, interval_text, known, p_text
from fltrain.reporting.numbers.values import DIVERGED, DONE, at_labels
from fltrain.tracking.run_view import CURVES, FIELDS, FINALS, NONE, SEVERAL, STALE, UNASSIGNED, Described

TABLES, PICTURES = (".csv", ".json"), (".png", ".pdf", ".svg")
"""How files end to which a comparison can be written."""

_METHOD = ("method", "plugins")
_NOT_COMPARED = ("seed", "revisions")
_GROUP = "settings of its own"  # what stands for a name that has settings below it
# What is measured or kept beside changes no number of a run.
_NEUTRAL = ("evaluation.statistics", "evaluation.targets", "evaluation.extra", "evaluation.keep")
_LISTED = 8
_COMMA = re.compile(r",(?![^\[{]*[\]}])")  # none inside of a list


# -------------------------------------------------------------------------------------------------- choosing
@dataclass(frozen=True)
class Condition:
    """A setting by its dotted name, and the values that it may have, or may not."""

    key: str
    values: tuple[str, ...]
    excluded: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``training.lr=0.01,0.1`` or ``method.mu!=0``.

        Raises:
            FltrainError: if it is neither.
        """
        key, sign, values = text.partition("=")
        wanted = tuple(value.strip() for value in _COMMA.split(values) if value.strip())
        if not sign or not key.strip("! ") or not wanted:
            raise FltrainError(f"where {text!r}: write KEY=VALUE or KEY!=VALUE, for example training.lr=0.01")
        return cls(key.rstrip("! "), wanted, key.endswith("!"))

    def check(self, runs: Sequence[Described]) -> None:
        """Refuse what is the name of no setting, or of several.

        Raises:
            FltrainError: with the names that there are.
        """
        keys = {key for run in runs for key in _named(run)}
        own = sorted(key for key in keys if _begins(key, [self.key]))
        if not own:
            raise FltrainError(f"unknown setting {self.key!r}{suggest(self.key, keys)}")
        several = _GROUP in {_setting(run, self.key) for run in runs}
        if several and not {*self.values} <= {NONE, "null"}:
            raise FltrainError(f"{self.key!r} stands for several settings; name one of {_listed(own)}")

    def meets(self, run: Described) -> bool:
        """Whether a run has one of the values, or none of the excluded ones."""
        found = _setting(run, self.key)
        return any(_same(found, value) for value in self.values) != self.excluded


@dataclass(frozen=True)
class Choice:
    """Runs to be chosen: by fields (a run has one of the names) and by settings.

    Stale runs are chosen only if ``status`` asks for them.
    """

    fields: Mapping[str, tuple[str, ...]]
    where: tuple[Condition, ...] = ()

    def of(self, runs: Iterable[Described]) -> list[Described]:
        """Choose among runs.

        Raises:
            FltrainError: if a setting is unknown, or no run is left; the message names what there is.
        """
        every = list(runs)
        if not every:
            raise FltrainError("there are no runs yet; train some, or name another folder or store")
        left = every
        for name, wanted in self.fields.items():
            if wanted:
                before, left = left, [run for run in left if set(_names(run, name)) & set(wanted)]
                if not left:
                    there = sorted({one for run in before for one in _names(run, name)})
                    hint = suggest(wanted[0], there)
                    if name in SEVERAL and set(there) <= {NONE, UNASSIGNED}:
                        hint = "; name the scale that the runs are of, for example --scale published"
                    said = ", ".join(wanted)
                    raise FltrainError(f"no run has {name} {said!r}{hint} (there are: {_listed(there)})")
        if not self.fields.get("status"):
            left = [run for run in left if run.fields["status"] != STALE]
        for condition in self.where:
            condition.check(every)
            before, left = left, [run for run in left if condition.meets(run)]
            if not left:
                there = sorted({_setting(run, condition.key) for run in before})
                said = f"{condition.key}{'!' if condition.excluded else ''}={','.join(condition.values)}"
                raise FltrainError(f"no run is left with {said} (there are: {_listed(there)})")
        if not left:
            raise FltrainError("no run is left: the chosen ones are stale; --status stale shows them")
        return left


def _names(run: Described, name: str) -> list[str]:
    if name not in FIELDS:
        raise FltrainError(f"unknown field {name!r}{suggest(name, FIELDS)} (known: {', '.join(FIELDS)})")
    return run.fields[name].split() if name in SEVERAL else [run.fields[name]]


def _named(run: Described) -> dict[str, str]:
    """All settings; ``method`` is the name of the base method, ``plugins`` are the names of all plug-ins."""
    return {**run.settings, "method": run.fields["method"], "plugins": run.fields["plugins"]}


def _setting(run: Described, key: str) -> str:
    """What a run has for a setting: of a component its name, of other groups ``_GROUP``, else ``NONE``."""
    settings = _named(run)
    found = settings.get(key, settings.get(f"{key}.name"))
    if found is None:
        return _GROUP if any(_begins(name, [key]) for name in settings) else NONE
    return found


def _same(found: str, wanted: str) -> bool:
    """Whether two texts are equal, or mean the same number; null is none."""
    found, wanted = (NONE if text == "null" else text for text in (found, wanted))
    if found == wanted:
        return True
    try:
        return float(found) == float(wanted)
    except ValueError:
        return False


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


# ------------------------------------------------------------------------------------------------- comparing
@dataclass(frozen=True)
class Line:
    """Runs that differ in their seeds only.

    Attributes:
        condition: settings under which it is compared, by dotted name.
        variant: what is compared, for example ``fedprox+flfa, method.mu=0.1``.
        methods: names of its method and plug-ins, in order.
        runs: ids, by seed; several if runs differ in nothing but what is measured beside.
        diverged: how many of them did.
        value: over the seeds that have one; of an accuracy in percent.
        difference: of the values to those of the baseline with the same seed and condition.
        test: the paired t test of the difference against zero.
        p_holm: its p corrected for all differences of the comparison.
    """

    condition: Mapping[str, str]
    variant: str
    methods: tuple[str, ...]
    runs: Mapping[int, tuple[str, ...]]
    diverged: int
    value: Statistic | None
    difference: Statistic | None
    test: Outcome
    p_holm: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Lines of a metric, in the order of their conditions; ``baseline`` is the variant of the differences.

    ``telling`` are the conditions that are enough to tell them apart; the others go with these.
    """

    metric: str
    conditions: tuple[str, ...]
    telling: tuple[str, ...]
    baseline: str
    lines: tuple[Line, ...]

    @property
    def label(self) -> str:
        """What heads the values."""
        return _with_unit(self.metric)

    @property
    def decimals(self) -> int:
        """Decimals of the values."""
        return 2 if _is_accuracy(self.metric) else {"seconds": 2, "bytes": 0}.get(self.metric, 4)

    @property
    def _paired(self) -> bool:
        """Whether any run has one of the baseline with the same seed and condition."""
        bases = [line for line in self.lines if line.variant == self.baseline]
        others = [line for line in self.lines if line.variant != self.baseline]
        return any(
            line.condition == base.condition and line.runs.keys() & base.runs.keys()
            for line in others
            for base in bases
        )

    @cached_property
    def remarks(self) -> list[str]:
        """What the table does not show: conditions that go with others, and why there are no differences."""
        hidden = [key for key in self.conditions if key not in self.telling]
        said = [f"lines also differ in {', '.join(hidden)}"] if hidden else []
        if len(self.lines) < 2 or any(line.difference for line in self.lines):
            return said
        if self._paired:
            return [*said, "no differences: of each pair of runs one has no number"]
        differing = ", ".join(self.conditions) or "the seed"
        return [
            *said,
            f"no differences: no run agrees with one of {self.baseline!r} in all but what is compared; they "
            f"also differ in {differing}; restrict these with --where, or compare them, too, with --over",
        ]

    def rows(self) -> list[dict[str, str]]:
        """The table as people read it, by heading."""
        return [
            {
                **{key: line.condition[key] for key in self.telling},
                "compared": line.variant,
                "seeds": str(len(line.runs)) + (f" ({line.diverged} diverged)" if line.diverged else ""),
                self.label: line.value.text(self.decimals) if line.value else "none",
                f"difference to {self.baseline}": self._difference(line),
                "95 % interval": interval_text(line.test.interval, self.decimals, "+")
                if line.test.interval
                else "",
                "p (Holm)": "" if line.p_holm is None else p_text(line.p_holm).removeprefix("p "),
            }
            for line in self.lines
        ]

    def _difference(self, line: Line) -> str:
        """With the number of pairs, where it is another one than that of the values."""
        if line.difference is None:
            return ""
        pairs = line.difference.n
        note = f" ({pairs} pair{'s' if pairs != 1 else ''})" if line.value and pairs != line.value.n else ""
        return line.difference.text(self.decimals, "+") + note

    def plain(self) -> list[dict[str, Any]]:
        """The table as numbers, a flat dictionary for each line, as CSV and JSON files have it."""
        rows: list[dict[str, Any]] = []
        for line in self.lines:
            low, high = line.test.interval or (None, None)
            row = {
                **line.condition,
                "compared": line.variant,
                "metric": self.metric,
                "baseline": self.baseline,
                **_numbers("", line.value),
                "diverged": line.diverged,
                **_numbers("difference_", line.difference),
                "difference_low": low,
                "difference_high": high,
                "p": line.test.p,
                "p_holm": line.p_holm,
                "runs": " ".join(run for runs in line.runs.values() for run in runs),
            }
            rows.append(row)
        return rows

    def write(self, path: Path) -> None:
        """Write ``plain`` to a .csv or .json file.

        Raises:
            FltrainError: if the name ends otherwise, or the file cannot be written.
        """
        from fltrain.core.files import write_text

        check_ending(path, TABLES)
        if path.suffix == ".csv":
            text = pd.DataFrame(self.plain()).to_csv(index=False)
        else:
            text = json.dumps(self.plain(), indent=2) + "\n"
        write_text(path, text)


def _numbers(prefix: str, statistic: Statistic | None) -> dict[str, Any]:
    if statistic is None:
        return {f"{prefix}mean": None, f"{prefix}std": None, f"{prefix}n": 0}
    return {f"{prefix}{name}": value for name, value in asdict(statistic).items()}


def _is_accuracy(metric: str) -> bool:
    return "accuracy" in metric


def _with_unit(metric: str) -> str:
    return f"{metric}, %" if _is_accuracy(metric) else metric


def compare(
    runs: Sequence[Described],
    metric: str = "final_accuracy",
    over: Sequence[str] = (),
    baseline: str | None = None,
) -> Comparison:
    """Compare runs.

    Args:
        runs: those chosen.
        metric: one of ``FINALS``, or the last value of one of ``CURVES``.
        over: settings that are compared, by dotted names or their beginnings; method and plug-ins if not
            given, or everything in which the runs differ if that is all the same.
        baseline: the variant, or the beginning of its name, that others are compared with; FedAvg if not
            given, or the first one.

    Raises:
        FltrainError: if the metric or baseline is unknown, or two runs are told apart by nothing.
    """
    _check_metric(metric, runs)
    compared, conditions = _roles(_differing(runs), over)
    variants = _variants(runs, compared)
    base = _baseline(list(dict.fromkeys(variants.values())), baseline)
    frame = _frame(runs, metric, conditions, variants)
    frame["difference"] = frame["value"] - at_labels(frame, {"compared": base})
    lines = _lines(frame, conditions, base, {run.run_id: run for run in runs})
    corrected = holm([line.test.p for line in lines])
    lines = [replace(line, p_holm=p) for line, p in zip(lines, corrected, strict=True)]
    order = list(dict.fromkeys(variants.values()))
    lines.sort(key=lambda line: (_condition_key(line), line.variant != base, order.index(line.variant)))
    return Comparison(metric, conditions, _telling(conditions, lines), base, tuple(lines))


def _check_metric(metric: str, runs: Sequence[Described]) -> None:
    there = {*FINALS, *CURVES, *(name for run in runs for name in run.finals)}
    if metric not in there:
        raise FltrainError(
            f"unknown metric {metric!r}{suggest(metric, there)} (known: {', '.join(sorted(there))})"
        )
    whole = [run for run in runs if run.fields["status"] not in (DIVERGED, STALE)]
    if whole and all(run.value(metric) is None for run in whole):
        raise FltrainError(f"none of the chosen runs has {metric!r}; does its spec ask for it?")


def _settings(run: Described) -> dict[str, str]:
    """Settings that can differ, method and plug-ins first."""
    named = _named(run)
    return {key: named[key] for key in _METHOD} | {
        key: value
        for key, value in named.items()
        if not _begins(key, (*_NOT_COMPARED, *_NEUTRAL)) and not _is_name(key)
    }


def _is_name(key: str) -> bool:
    return _begins(key, _METHOD) and key.endswith(".name")


def _composition(run: Described) -> str:
    plugins = run.fields["plugins"]
    return run.fields["method"] + (f"+{plugins}" if plugins != NONE else "")


def _differing(runs: Sequence[Described]) -> list[str]:
    """Settings that are not the same in all runs, in the order of the spec.

    Those of methods and plug-ins differ if they do so between runs of one method.
    """
    found: dict[str, dict[str, set[str | None]]] = {}
    settings = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    for run, one in zip(runs, settings, strict=True):
        for key in keys:
            own = _begins(key, _METHOD) and key not in _METHOD
            values = found.setdefault(key, {}).setdefault(_composition(run) if own else "", set())
            values.add(one.get(key))
    return [key for key in keys if any(len(values) > 1 for values in found[key].values())]


def _begins(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _roles(differing: Sequence[str], over: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Settings that set variants apart, and those that make conditions."""
    for name in over:
        if not any(_begins(key, [name]) for key in differing):
            raise FltrainError(
                f"over {name!r}: the chosen runs do not differ in it{suggest(name, differing)} (they differ "
                f"in: {', '.join(differing) or 'nothing but their seeds'})"
            )
    wanted = over or (_METHOD if any(_begins(key, _METHOD) for key in differing) else differing)
    compared = tuple(key for key in differing if _begins(key, wanted))
    return compared, tuple(key for key in differing if key not in compared)


def _variants(runs: Sequence[Described], compared: Sequence[str]) -> dict[str, str]:
    """Name of each run's variant, in order: FedAvg first, then by method and settings.

    It is method and plug-ins, as far as these are compared, and settings in which others of these differ.
    """
    bases = {run.fields["method"] for run in runs}
    whole = "method" in compared or (len(bases) == 1 and "plugins" in compared)
    values_of: dict[tuple[str, str], set[str | None]] = {}
    for run in runs:
        for key in compared:
            values_of.setdefault((_composition(run), key), set()).add(_settings(run).get(key))
    named: dict[str, tuple[Any, str]] = {}
    for run in runs:
        own, composition = _settings(run), _composition(run)
        told = [key for key in compared if key not in _METHOD]
        first = [composition] if whole else [own["plugins"]] if "plugins" in compared else []
        if first:
            told = [key for key in told if len(values_of[composition, key]) > 1]
        values = [own.get(key, NONE) for key in told]
        named_as = ", ".join([*first, *(f"{key}={value}" for key, value in zip(told, values, strict=True))])
        plain = own["method"] != "fedavg", own["plugins"] != NONE
        place = (plain, composition, [_sortable(value) for value in values])
        named[run.run_id] = (place, named_as or composition)
    return {run: name for run, (_, name) in sorted(named.items(), key=lambda item: item[1][0])}


def _sortable(text: str) -> tuple[float, str]:
    """Numbers by size, then texts."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text


def _telling(conditions: Sequence[str], lines: Sequence[Line]) -> tuple[str, ...]:
    """Of the conditions, in order, those that tell lines apart which the ones before do not."""
    telling: list[str] = []
    for key in conditions:
        with_it = {tuple(line.condition[one] for one in (*telling, key)) for line in lines}
        without = {tuple(line.condition[one] for one in telling) for line in lines}
        if len(with_it) > len(without):
            telling.append(key)
    return tuple(telling)


def _condition_key(line: Line) -> list[tuple[float, str]]:
    return [_sortable(value) for value in line.condition.values()]


def _baseline(variants: Sequence[str], wanted: str | None) -> str:
    if wanted is None:
        return variants[0]
    exact = [name for name in variants if name == wanted]
    found = exact or [name for name in variants if name.startswith(wanted)]
    if len(found) != 1:
        which = "several begin so" if found else f"there is none{suggest(wanted, variants)}"
        raise FltrainError(f"baseline {wanted!r}: {which} (there are: {'; '.join(found or variants)})")
    return found[0]


def _frame(
    runs: Sequence[Described], metric: str, conditions: Sequence[str], variants: Mapping[str, str]
) -> pd.DataFrame:
    """A line for each place and seed, as ``fltrain.reporting.numbers.values`` has it, with all runs in it."""
    factor = 100 if _is_accuracy(metric) else 1
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        settings, seed = _settings(run), int(run.fields["seed"])
        place = {**{key: settings.get(key, NONE) for key in conditions}, "compared": variants[run.run_id]}
        # A run that diverged counts as such, whatever its last rounds were.
        diverged = run.fields["status"] == DIVERGED
        value = None if diverged else run.value(metric)
        line = {
            **place,
            "seed": seed,
            "run": run.run_id,
            "state": DIVERGED if diverged else DONE,
            "names": {},
            "value": math.nan if value is None else factor * value,
        }
        there = lines.setdefault((*place.values(), seed), line)
        if there is not line:
            _join(there, line)
    return pd.DataFrame(list(lines.values()))


def _join(there: dict[str, Any], line: Mapping[str, Any]) -> None:
    """Let a line stand for a further run, which has to have the same value, or none."""
    if math.isnan(there["value"]):
        there["value"] = line["value"]
    elif not math.isnan(line["value"]) and there["value"] != line["value"]:
        raise FltrainError(
            f"{there['run']} and {line['run']} have the same settings and seed, but not the same value: they "
            "differ in revisions, or in time; choose by --status, --item or --where revisions.methods=..."
        )
    there["run"] += f" {line['run']}"


def _lines(
    frame: pd.DataFrame, conditions: Sequence[str], base: str, runs: Mapping[str, Described]
) -> list[Line]:
    lines: list[Line] = []
    for _, group in frame.groupby([*conditions, "compared"], sort=False):
        first = group.iloc[0]
        example = runs[first["run"].partition(" ")[0]]
        differences = [] if first["compared"] == base else known(group["difference"])
        same = (tuple(names.split()) for names in group["run"])
        lines.append(
            Line(
                condition={key: str(first[key]) for key in conditions},
                variant=str(first["compared"]),
                methods=tuple(_composition(example).split("+")),
                runs=dict(sorted(zip(group["seed"], same, strict=True))),
                diverged=int((group["state"] == DIVERGED).sum()),
                value=Statistic.of(group["value"]),
                difference=Statistic.of(differences),
                test=against_point(differences, 0.0, "paired t"),
            )
        )
    return lines


# ---------------------------------------------------------------------------------------------------- curves
def curves_of(comparison: Comparison, runs: Sequence[Described], metric: str) -> pd.DataFrame:
    """Curves of a metric: rounds down, a column per (line, seed); accuracies in percent.

    Raises:
        FltrainError: if it is no curve, or no run has it.
    """
    if metric not in CURVES:
        raise FltrainError(f"unknown curve {metric!r}{suggest(metric, CURVES)} (known: {', '.join(CURVES)})")
    by_id = {run.run_id: run for run in runs}
    factor = 100 if _is_accuracy(metric) else 1
    columns: dict[tuple[str, int], pd.Series] = {}
    for line, name in zip(comparison.lines, line_names(comparison), strict=True):
        for seed, same in line.runs.items():
            curve = next(filter(None, (by_id[run].curves.get(metric) for run in same)), None)
            if curve:
                columns[name, seed] = pd.Series(dict(curve)) * factor
    if not columns:
        raise FltrainError(f"none of the chosen runs has {metric!r}; does its spec ask for it?")
    return pd.DataFrame(columns).sort_index()


def line_names(comparison: Comparison) -> list[str]:
    """What tells each line from all others: its variant, and its condition if there are several.

    Settings go by the last part of their names, if that is enough.
    """
    names = [
        ", ".join([line.variant, *(f"{key}={line.condition[key]}" for key in comparison.telling)])
        for line in comparison.lines
    ]
    short = [re.sub(r"[\w.]*?(\w+)(?:\.name)?=", r"\1=", name) for name in names]
    return short if len(set(short)) == len(short) else names


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """Refuse a file whose name ends otherwise.

    Raises:
        FltrainError: with the endings that are known.
    """
    if path.suffix not in endings:
        raise FltrainError(f"{path}: name a file that ends in {', '.join(endings[:-1])} or {endings[-1]}")


def plot(comparison: Comparison, runs: Sequence[Described], metric: str, path: Path) -> None:
    """Draw curves, mean and range over seeds, in the style of the papers' figures, to .png, .pdf or .svg.

    Raises:
        FltrainError: if there is no such curve, or the file name ends otherwise.
    """
    check_ending(path, PICTURES)
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    from fltrain.core.files import replacing
    from fltrain.experiments.layout import Cell
    from fltrain.reporting.figures import style
    from fltrain.reporting.figures.draw import THIN_LINES, draw_lines

    curves = curves_of(comparison, runs, metric)
    names = line_names(comparison)
    cells = [
        Cell(
            labels={"line": name},
            reported={},
            seed=seed,
            run=run[0],
            partition="",
            methods=line.methods,
        )
        for line, name in zip(comparison.lines, names, strict=True)
        for seed, run in line.runs.items()
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


_WIDE = 50  # characters of a name that a narrow figure has room for
BARS = "▁▂▃▄▅▆▇█"


def sketch(comparison: Comparison, runs: Sequence[Described], metric: str, width: int = 48) -> list[str]:
    """Curves for a terminal: a line of text for each, mean over seeds, all on one scale and the same rounds.

    A mean ends where the first of its runs does.

    Raises:
        FltrainError: if there is no such curve.
    """
    frame = curves_of(comparison, runs, metric)
    names = dict.fromkeys(frame.columns.get_level_values(0))
    means = {name: frame[name].dropna(how="all").mean(axis=1, skipna=False).dropna() for name in names}
    every = pd.concat(list(means.values()))
    low, high = float(every.min()), float(every.max())
    room, last = max(map(len, means)), frame.index[-1]
    rounds = [frame.index[round(place)] for place in _places(len(frame), width)]
    lines = [f"{_with_unit(metric)}: {low:.4g} to {high:.4g}, rounds {frame.index[0]} to {last}"]
    for name, curve in means.items():
        # Other lines can have values at other rounds; between its own, a line keeps the last one.
        levels = (curve.reindex(rounds, method="ffill") - low) / ((high - low) or 1.0)
        ended = curve.index[-1] if len(curve) else 0
        bars = "".join(
            " " if math.isnan(level) or at > ended else BARS[min(int(level * len(BARS)), len(BARS) - 1)]
            for at, level in levels.items()
        )
        value = f"{curve.iloc[-1]:.4g}" if len(curve) else "none"
        lines.append(f"{name:{room}}  {bars}  {value}" + (f" (round {ended})" if 0 < ended < last else ""))
    return lines


def _places(count: int, width: int) -> list[float]:
    """Evenly spaced places in a sequence, first and last among them; all if it is short."""
    if count <= width:
        return [float(place) for place in range(count)]
    return [place * (count - 1) / (width - 1) for place in range(width)]
