"""Layers of a cell's settings: paper, item, scale, cell; later ones win. Does not import torch.

A scale has its own settings, then the settings of its entry for the item. A cell has the points of the axes,
then the matching exceptions. Merged settings have file and line of each value, for messages and for
``fltrain explain``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from fltrain.core.located import LocatedMapping, place_of
from fltrain.experiments.layout import Labels
from fltrain.experiments.schema import Item, Paper, Patch, Point, Reduction, Scale, Special
from fltrain.runs.spec import ALONE, RunSpec
from fltrain.runs.where import cell_text


class SettingsLayer(NamedTuple):
    """A patch of a cell's settings.

    Attributes:
        name: ``paper``, ``item``, ``scale``, ``cell`` or ``trial``.
        patch: the settings.
        source: the point or exception that declares it, if one does.
    """

    name: str
    patch: Patch
    source: Point | Special | None = None


class SettingsLayers:
    """Patches of an item at a scale; ``cell`` selects the patches of one cell.

    Attributes:
        axes: points by axis and label; a scale's axis replaces the item's of the same name.
    """

    def __init__(self, paper: Paper, item: Item, scale: Scale, cut: Reduction) -> None:
        parts: list[tuple[str, Paper | Item | Reduction]]
        parts = [("paper", paper), ("item", item), ("scale", scale), ("scale", cut)]
        self.axes = {
            axis: cut.axes.get(axis) or scale.axes.get(axis) or points for axis, points in item.axes.items()
        }
        self._common = [SettingsLayer(name, part.settings) for name, part in parts]
        self._base = merged(self._common)
        self._exceptions = [special for _, part in parts for special in part.exceptions]

    def cell(self, labels: Labels, where: str) -> tuple[list[SettingsLayer], LocatedMapping]:
        """Return the patches of a cell and of the exceptions that match it, and the merged settings.

        Raises:
            FltrainError: if there are exceptions, and the settings are wrong; ``where`` names the cell. They
                need not fit together, because exceptions can change them or leave the cell out.
        """
        chosen = [self.axes[axis][label] for axis, label in labels.items()]
        points = [SettingsLayer("cell", point.set, point) for point in chosen]
        settings, matching = merged(points, self._base), list[Special]()
        if self._exceptions:
            names = set[str]().union(*(special.settings for special in self._exceptions))
            texts = cell_text(RunSpec.parse(settings, where, ALONE), names)
            matching = [special for special in self._exceptions if special.matches(texts)]
        exceptions = [SettingsLayer("cell", special.set, special) for special in matching]
        return [*self._common, *points, *exceptions], merged(exceptions, settings)


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> LocatedMapping:
    """Merge settings: mappings key by key, anything else replaced.

    Another ``name`` is another component and replaces the old one whole; the same name alone keeps its
    options. A mapping that meets a short form (the name of a component, the fraction of a participation) is
    merged into its long form.
    """
    merged = LocatedMapping(base, place_of(base) or place_of(patch), getattr(base, "places", ()))
    places = getattr(patch, "places", {})
    for key, value in patch.items():
        old, place = merged.get(key), places.get(key)
        if isinstance(value, Mapping):
            if isinstance(old, str) and "name" not in value:
                old = {"name": old}
            elif isinstance(old, int | float):
                old = {"fraction": old}
            if isinstance(old, Mapping) and value.get("name") in (None, old.get("name")):
                if not {"name", "fraction"} & value.keys():
                    place = merged.places.get(key)  # of the component
                value = merge(old, value)
        elif isinstance(old, Mapping) and value is not None and value == old.get("name"):
            value = old
        merged[key], merged.places[key] = value, place
    return merged


def merged(layers: Iterable[SettingsLayer], base: LocatedMapping | None = None) -> LocatedMapping:
    """Return settings (default: none) with patches; later ones win."""
    return reduce(merge, (layer.patch for layer in layers), base or LocatedMapping())


def leaves(settings: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and value of each setting; a component's name has the path of the component."""
    for key, value in settings.items():
        path = above if key in ("name", "fraction") and above else (*above, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value
