"""Scale files that hold a part of another scale. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.core.strict_yaml import read_plain
from fltrain.experiments.plan import Plan, PlannedItem

Yaml = dict[str, Any]


def scale_file(config: Path, path: Path) -> Path:
    """Return the path in ``config/scales`` for a new scale, from the name or path that a user gives.

    Raises:
        FltrainError: if the file exists or its name is not valid.
    """
    target = config / "scales" / f"{file_name(path.stem, 'scale')}.yaml"
    if path.parent != Path() and path.parent.resolve() != target.parent.resolve():
        raise FltrainError(f"--write-scale: {path} is not in {target.parent}, where scales are; use {target}")
    if target.exists():
        raise FltrainError(f"--write-scale: {target} exists; delete it or choose another name")
    return target


def write_scale(path: Path, config: Path, part: Plan, title: str) -> None:
    """Write a scale that has the items of ``part``, each with the seeds that it has there.

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
    scale = {
        **source,
        "scale": path.stem,
        "title": f"{part.scale.title}; {title}",
        "items": [
            {item.id: _reduction({**declared.get(item.paper.paper, {}), **declared.get(item.id, {})}, item)}
            for item in part.items
        ],
    }
    axes = {axis for item in part.items for axis in item.axes}
    write_text(path, yaml.safe_dump(_with_axes(scale, axes), sort_keys=False, allow_unicode=True, width=110))


def _reduction(declared: Mapping[str, Any], item: PlannedItem) -> Yaml:
    return {**_with_axes(declared, item.axes.keys()), "seeds": 1 + max(entry.seed for entry in item.entries)}


def _with_axes(declared: Mapping[str, Any], known: Set[str]) -> Yaml:
    """Return a declaration without the axes that its items do not have."""
    axes = {axis: points for axis, points in declared.get("axes", {}).items() if axis in known}
    return {
        **{key: value for key, value in declared.items() if key != "axes"},
        **({"axes": axes} if axes else {}),
    }
