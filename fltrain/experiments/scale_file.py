"""Scale files that hold a part of another scale. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.files import write_text
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import Plan
from fltrain.experiments.schema import Reduction


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


def write_scale(path: Path, part: Plan, title: str) -> None:
    """Write a scale with the items of ``part`` and their seeds.

    Args:
        path: file in ``config/scales``.
        part: plan of an existing scale, possibly with fewer items and seeds.
        title: addition to the scale's title.
    """
    items = []
    for item in part.items:
        seeds = 1 + max(entry.number for entry in item.entries)
        items.append({item.id: {**_applied(item.reduction, [item]), "seeds": seeds}})
    head = {"scale": path.stem, "title": f"{part.scale.title}; {title}"}
    scale = {**head, **_applied(part.scale, part.items), **head, "items": items}
    write_text(path, yaml.safe_dump(scale, sort_keys=False, allow_unicode=True, width=110))


def _applied(reduction: Reduction, items: Sequence[PlannedItem]) -> dict[str, Any]:
    """Return a reduction as plain data, without axes and exceptions that apply to none of the items."""
    axes = {axis for item in items for axis in item.axes}
    exceptions = [special for item in items for special in item.applied]
    used = {
        "axes": {axis: points for axis, points in reduction.axes.items() if axis in axes},
        "exceptions": tuple(special for special in reduction.exceptions if special in exceptions),
    }
    return reduction.model_copy(update=used).model_dump(mode="json", exclude_defaults=True)
