"""The identity lock: all settings of a run with their defaults and revisions, as they were last published.

A run ID hashes settings. A new setting can therefore make all records stale, and a changed default can give
other numbers the same ID. ``make golden`` updates ``identity.json`` and refuses both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from fltrain.core.config import Settings, nested
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.core.hashing import canonical_json
from fltrain.core.registry import Component
from fltrain.runs.spec import ENGINE_REVISION, RunSpec

LOCK = Path(__file__).with_name("identity.json")

REQUIRED = "(required)"


class Locked(NamedTuple):
    """One class of settings: its revision, its settings with their defaults, and those marked ``added``."""

    revision: int
    defaults: dict[str, Any]
    added: frozenset[str] = frozenset()


def default(field: FieldInfo) -> Any:
    """Return the default of a setting as plain data; of nested settings, those that it sets."""
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Settings):
        return {type(value).__name__: value.model_dump(mode="json", exclude_unset=True)}
    return to_jsonable_python(value)


def key(settings: type[Settings]) -> str:
    """Name a class of settings; components by their kind and name."""
    if not issubclass(settings, Component):
        return settings.__name__
    kind = next(base for base in settings.__mro__ if Component in base.__bases__)
    return f"{kind.__name__} {settings.model_fields['name'].default}"


def current(root: type[Settings] = RunSpec) -> dict[str, Locked]:
    """Return every class of settings that a run can have, by key."""
    classes: dict[str, Locked] = {}
    pending = [root]
    while pending:
        settings = pending.pop()
        if key(settings) in classes:
            continue
        fields = settings.model_fields
        classes[key(settings)] = Locked(
            settings.revision if issubclass(settings, Component) else ENGINE_REVISION,
            {name: default(field) for name, field in fields.items()},
            frozenset(name for name, field in fields.items() if field.exclude_if is not None),
        )
        for field in fields.values():
            pending.extend(nested(field.annotation))
    return classes


def faults(old: Mapping[str, Locked], new: Mapping[str, Locked]) -> list[str]:
    """Return what changed without a raised revision: defaults, removed settings, and new unmarked ones."""
    messages = []
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        if before.revision != after.revision:
            continue
        revision = f"{name}.revision" if " " in name else "ENGINE_REVISION (fltrain.runs.spec)"
        for setting in sorted(before.defaults.keys() | after.defaults.keys()):
            if setting not in before.defaults:
                if setting not in after.added:
                    messages.append(
                        f"{name}.{setting} is new and changes the IDs of all its runs: declare it with "
                        f"`added(default)` (fltrain.core.config), or raise {revision}"
                    )
            elif setting not in after.defaults:
                messages.append(f"{name}.{setting} is gone, so its runs get other IDs: raise {revision}")
            elif before.defaults[setting] != after.defaults[setting]:
                messages.append(
                    f"the default of {name}.{setting} changed from {before.defaults[setting]!r} to "
                    f"{after.defaults[setting]!r}: raise {revision}, or restore the default"
                )
            elif (setting in before.added) != (setting in after.added):
                messages.append(
                    f"{name}.{setting} is no longer `added`, or is now: that changes the IDs of its runs; "
                    f"restore it, or raise {revision}"
                )
    return messages


def read() -> dict[str, Locked]:
    """Return the lock."""
    data = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    return {
        name: Locked(one["revision"], one["defaults"], frozenset(one.get("added", ())))
        for name, one in data.items()
    }


def update() -> None:
    """Bring the lock up to date.

    Raises:
        FltrainError: if there are faults.
    """
    found = current()
    if messages := faults(read(), found):
        raise FltrainError("\n".join(messages))
    lines = []
    for name, one in sorted(found.items()):
        data: dict[str, Any] = {"revision": one.revision, "defaults": one.defaults}
        if one.added:
            data["added"] = sorted(one.added)
        lines.append(f"{json.dumps(name)}: {canonical_json(data)}")
    write_text(LOCK, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    try:
        update()
    except FltrainError as refusal:
        sys.exit(f"error: {LOCK.name} is left as it was:\n{refusal}")
