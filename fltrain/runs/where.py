"""Conditions on runs: of options (``dataset=cifar10 method=fedavg,fedprox``), and of exceptions (``when``).

A condition is ``KEY=VALUE`` or ``KEY!=VALUE``. Several values with commas between them are alternatives;
all conditions have to hold. Keys are short names (``dataset``, ``method``, ``plugins``, ``seed`` ...) and
settings by dotted name (``training.lr``, ``plugins.flfa.n_fa``). No torch here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fltrain.core.config import NO_COMMA, VERY_CLOSE, KnownNames, plain, suggest
from fltrain.core.errors import FltrainError, listed
from fltrain.core.hashing import canonical_json
from fltrain.runs.spec import RunSpec

NONE = "none"
"""Value of a setting that a run does not have, and of ``plugins`` without any."""

CONDITIONS = "a text such as 'method=fedavg,fedprox training.lr!=0.1', or a list of such texts"
"""Form of conditions, for errors."""

Run = TypeVar("Run")

_GROUP = "(settings)"  # value of a key that has settings below it
_COMMA = re.compile(r",(?![^\[{]*[\]}])")  # not inside a list
_CONDITION = re.compile(r"([^\s=!]+)(!?)=([^\s=]\S*)")


def begins(key: str, names: Iterable[str]) -> bool:
    """Return True if a dotted name is one of the names or lies below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def alternatives(text: str) -> list[str]:
    """Return the values in a text, which have commas between them; a list in brackets is one value."""
    if re.search("[0-9],0[0-9]+(,|$)", text):
        raise FltrainError(f"{text!r}: {NO_COMMA}; commas stand between alternatives")
    return _COMMA.split(text)


# ------------------------------------------------------------------------------------------ settings as text
def flat_settings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings as text by dotted name; components of a list go by their names."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {item["name"]: item for item in value}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from flat_settings(item, f"{key}.{name}" if key else name)
    else:
        yield key, text_of(value)


def text_of(value: Any) -> str:
    """Return a value of a setting as text."""
    return value if isinstance(value, str) else canonical_json(value)


def short_names(spec: RunSpec) -> dict[str, str]:
    """Return names of a run's components by short key; plug-ins are joined by ``+`` in their order."""
    return {
        "dataset": spec.dataset.name,
        "partition": spec.partition.name,
        "model": spec.model.name,
        "method": spec.method.name,
        "plugins": "+".join(plugin.name for plugin in spec.plugins) or NONE,
        "seed": str(spec.seed),
    }


def settings_text(spec: RunSpec) -> dict[str, str]:
    """Return everything that conditions can name in a run's spec, with all defaults, as text."""
    return dict(flat_settings(spec.canonical | spec.all_settings())) | short_names(spec)


def cell_text(spec: RunSpec, settings: Iterable[str]) -> dict[str, str]:
    """Return some settings of a cell's run as text by dotted name, with all defaults, and its short names.

    ``plugins`` has the names of all plug-ins, with spaces between them.
    """
    chosen, names = {name: plain(getattr(spec, name)) for name in settings}, short_names(spec)
    return {**dict(flat_settings(chosen)), **names, "plugins": names["plugins"].replace("+", " ")}


# ------------------------------------------------------------------------------------------------ conditions
@dataclass(frozen=True)
class Condition:
    """A condition: a key and allowed values, or excluded values if ``excluded``."""

    key: str
    values: tuple[str, ...]
    excluded: bool = False

    def __str__(self) -> str:
        return f"{self.key}{'!' if self.excluded else ''}={','.join(self.values)}"

    def meets(self, settings: Mapping[str, str]) -> bool:
        """Return True if settings, as text by dotted name, fulfil the condition.

        A value with spaces holds several names (``items``, ``paper``, ``scale``): one of them is enough.
        """
        value = value_of(settings, self.key)
        names = value.split() or [value]
        return any(_same(name, wanted) for name in names for wanted in self.values) != self.excluded


def parse_where(where: str | Iterable[str]) -> tuple[Condition, ...]:
    """Read conditions such as ``dataset=cifar10 method=fedavg,fedprox training.lr!=0.1``."""
    text = where if isinstance(where, str) else " ".join(where)
    conditions = []
    for part in re.sub(r"\s*(!?=|,)\s*", r"\1", text).split():
        match = _CONDITION.fullmatch(part)
        values = tuple(value for value in alternatives(match[3]) if value) if match else ()
        if not match or not values:
            raise FltrainError(
                f"where: {part!r} is not a condition; write KEY=VALUE or KEY!=VALUE, such as training.lr=0.01"
            )
        conditions.append(Condition(match[1], values, bool(match[2])))
    return tuple(conditions)


def keys_below(key: str, keys: Collection[str], option: str) -> list[str]:
    """Return the keys that are ``key`` or lie below it; refuse an option's key that no run has."""
    if below := [name for name in keys if begins(name, [key])]:
        return below
    ends = sorted(name for name in keys if name.endswith(f".{key}"))
    top_keys = listed(sorted({name.partition(".")[0] for name in keys}), 40)
    near = suggest(key, keys) or f" (known: {top_keys}, and settings below them such as training.lr)"
    near = f"; did you mean {listed(map(repr, ends), 3)}?" if ends else near
    raise FltrainError(f"{option}: unknown key {key!r}{near}")


def choose(
    runs: Sequence[Run],
    conditions: Iterable[Condition],
    settings_of: Callable[[Run], Mapping[str, str]],
    place: str = "",
    part: Callable[[Run], bool] = lambda _: True,
) -> list[Run]:
    """Return the runs of a part that meet all conditions; refuse a key or a wanted value that no run has.

    The error lists only values of runs that meet the conditions before.
    """
    conditions = list(conditions)
    pairs = [(run, settings_of(run)) for run in runs] if conditions else [(run, {}) for run in runs]
    remaining = [(run, settings) for run, settings in pairs if part(run)]
    for condition in conditions:
        key = condition.key
        keys = {name for _, settings in pairs for name in settings}
        below = keys_below(key, keys, "where")
        present = {value_of(settings, key) for _, settings in pairs}
        if _GROUP in present and not {*condition.values} <= {NONE, "null"}:
            names = listed(sorted(below), 8)
            raise FltrainError(f"where: {key!r} stands for several settings; name one of {names}")
        values = {value_of(settings, key) for _, settings in remaining}
        for wanted in () if condition.excluded else condition.values:
            if not any(Condition(key, (wanted,)).meets(settings) for _, settings in pairs):
                raise _nothing_left(Condition(key, (wanted,)), values, place)
        remaining = [(run, settings) for run, settings in remaining if condition.meets(settings)]
        if not remaining:
            raise _nothing_left(condition, values, place)
    return [run for run, _ in remaining]


def _nothing_left(condition: Condition, values: Iterable[str], place: str) -> FltrainError:
    names = sorted({name for value in values for name in value.split() or [""]}, key=sortable)
    problem, word = f"{place and f'{place}: '}no run is left with {condition}", condition.values[0]
    note = f" (values of {condition.key}: {listed(map(repr, names), 8)})"
    field = RunSpec.model_fields.get(condition.key)
    words = [name for tag in (field.metadata if field else ()) if isinstance(tag, KnownNames) for name in tag]
    if condition.excluded or word in words or math.isfinite(sortable(word)[0]):  # no misspelt name
        return FltrainError(problem + note)
    near = suggest(word, names, VERY_CLOSE)
    return FltrainError(problem + (near or suggest(word, [*names, *words]) + note))


def value_of(settings: Mapping[str, str], key: str) -> str:
    """Return a setting's value: a component's name, a group's fraction, or ``none`` if the run lacks it."""
    value = settings.get(key, settings.get(f"{key}.name", settings.get(f"{key}.fraction")))
    if value is None:
        return _GROUP if any(begins(name, [key]) for name in settings) else NONE
    return value


def _same(value: str, wanted: str) -> bool:
    """Return True for equal texts and for texts of the same number; null is none.

    If a setting is not set, it is null in some runs, and other runs, such as runs of another method, lack it.
    """
    value, wanted = (NONE if text == "null" else text for text in (value, wanted))
    if value == wanted:
        return True
    try:
        return float(value) == float(wanted)
    except ValueError:
        return False


def sortable(text: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size, then texts."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text
