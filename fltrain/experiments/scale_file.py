"""Scale files that hold a part of another scale. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.core.strict_yaml import read_plain
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import Plan
from fltrain.experiments.schema import Reduction

Yaml = dict[str, Any]


def scale_file(config: Path, path: Path) -> Path:
    """Return the path in ``config/scales`` of a new scale, from the user's name or path.

    Raises:
        FltrainError: if the file exists or its name is not valid.
    """
    target = config / "scales" / f"{file_name(path.stem, 'scale')}.yaml"
    if path.parent != Path() and path.parent.resolve() != target.parent.resolve():
        raise FltrainError(f"--write-scale: {path}: scales must be in {target.parent}; use {target}")
    if target.exists():
        raise FltrainError(f"--write-scale: {target} exists; delete it or choose another name")
    return target


def write_scale(path: Path, config: Path, part: Plan, title: str) -> None:
    """Write a scale with the items of ``part`` and their seeds.

    Args:
        path: file in ``config/scales``.
        config: folder of ``part``'s own scale.
        part: plan of an existing scale, possibly with fewer items and seeds.
        title: addition to the scale's title.
    """
    source: Yaml = read_plain(config / "scales" / f"{part.scale.scale}.yaml")
    declared: Yaml = {}
    for entry in source["items"]:
        declared |= {entry: {}} if isinstance(entry, str) else entry
    scale = _applied(source, part.scale, part.items) | {
        "scale": path.stem,
        "title": f"{part.scale.title}; {title}",
        "items": [{item.id: _reduction(declared, item)} for item in part.items],
    }
    write_text(path, yaml.safe_dump(scale, sort_keys=False, allow_unicode=True, width=110))


def _reduction(declared: Mapping[str, Yaml], item: PlannedItem) -> Yaml:
    """Return the declaration of an item in a scale (the last by its ID or its paper), with fewer seeds."""
    names = [name for name in declared if name in (item.id, item.paper.paper)]
    seeds = 1 + max(entry.number for entry in item.entries)
    return _applied(declared[names[-1]], item.reduction, [item]) | {"seeds": seeds}


def _applied(declared: Mapping[str, Any], parsed: Reduction, items: Sequence[PlannedItem]) -> Yaml:
    """Return a declaration without axes and exceptions that apply to none of the items."""
    axes = {axis for item in items for axis in item.axes}
    restricted: Yaml = dict(declared)
    if "axes" in declared:
        restricted["axes"] = {axis: points for axis, points in declared["axes"].items() if axis in axes}
    if "exceptions" in declared:
        pairs = zip(declared["exceptions"], parsed.exceptions, strict=True)
        restricted["exceptions"] = [
            raw for raw, special in pairs if any(special in item.applied for item in items)
        ]
    return restricted
