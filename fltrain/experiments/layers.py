"""Layers of a cell's settings: paper, item, scale, cell; later ones win. Does not import torch.

A scale has its own settings, then the settings of its entry for the item. A cell has the points of the axes,
then the matching exceptions. Each patch has file and line, for messages and for ``fltrain explain``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from fltrain.core.config import FileLine
from fltrain.core.own import place_of_file
from fltrain.core.strict_yaml import construct, place_of
from fltrain.experiments.layout import Labels
from fltrain.experiments.schema import Axis, Item, Paper, Patch, Point, Reduction, Scale, Special, tree_of


class SettingsLayer(NamedTuple):
    """A patch of a cell's settings.

    Attributes:
        name: ``paper``, ``item``, ``scale``, ``cell`` or ``trial``.
        what: ``paper`` or ``scale``, or the name of another file in ``config``.
        keys: path of keys in this file.
        patch: the settings.
        source: the point or exception that declares it, if one does.
    """

    name: str
    what: str
    keys: tuple[str, ...]
    patch: Patch
    source: Point | Special | None = None


class SettingsLayers:
    """Patches of an item at a scale; ``cell`` selects the patches of one cell.

    Attributes:
        axes: patches by axis and label; a scale's axis replaces the item's of the same name.
    """

    def __init__(self, paper: Paper, name: str, scale: Scale, own: Reduction) -> None:
        item, entry = paper.items[name], f"{paper.paper}/{name}"
        in_scale = "items", entry if entry in scale.items else paper.paper
        sources: list[tuple[str, str, tuple[str, ...], Paper | Item | Reduction]] = [
            ("paper", "paper", (), paper),
            ("item", "paper", ("items", name), item),
            ("scale", "scale", (), scale),
            ("scale", "scale", in_scale, own),
        ]
        self.axes: dict[str, dict[str, SettingsLayer]] = {axis: {} for axis in item.axes}
        self._common: list[SettingsLayer] = []
        self._exceptions: list[tuple[Special, SettingsLayer]] = []
        for layer, what, keys, source in sources:
            self._common.append(SettingsLayer(layer, what, (*keys, "settings"), source.settings))
            for number, special in enumerate(source.exceptions):
                place = (*keys, "exceptions", str(number), "set")
                self._exceptions.append((special, SettingsLayer("cell", what, place, special.set, special)))
            axes: dict[str, Axis] = {} if isinstance(source, Paper) else source.axes
            for axis in axes.keys() & self.axes.keys():
                self.axes[axis] = {
                    label: SettingsLayer("cell", what, (*keys, "axes", axis, label, "set"), point.set, point)
                    for label, point in axes[axis].items()
                }

    def cell(self, labels: Labels) -> list[SettingsLayer]:
        """Return the patches of a cell and of the exceptions that match it; later ones win."""
        layers = self._common + [self.axes[axis][label] for axis, label in labels.items()]
        settings = merged(layers)
        return layers + [layer for special, layer in self._exceptions if special.matches(settings)]


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Patch:
    """Merge settings: mappings key by key, anything else replaced.

    A mapping whose ``name`` differs is another component and replaces the old one whole. A mapping that meets
    a short form (the name of a component, the fraction of a participation) is merged into its long form.
    """
    merged = dict(base)
    for key, value in patch.items():
        old = merged.get(key)
        if isinstance(value, Mapping):
            if isinstance(old, str) and "name" not in value:
                old = {"name": old}
            elif isinstance(old, int | float):
                old = {"fraction": old}
            if isinstance(old, Mapping) and value.get("name") in (None, old.get("name")):
                value = merge(old, value)
        merged[key] = value
    return merged


def merged(layers: Iterable[SettingsLayer]) -> Patch:
    """Return the settings of patches; later ones win."""
    return reduce(merge, (layer.patch for layer in layers), {})


def origins(layers: Iterable[SettingsLayer]) -> dict[tuple[str, ...], SettingsLayer]:
    """Return the patch that each setting comes from, by its path of keys, without a last ``name``."""
    settings: Patch = {}
    found: dict[tuple[str, ...], SettingsLayer] = {}
    for layer in layers:
        settings = merge(settings, layer.patch)
        own = {path for path, _ in leaves(layer.patch)}
        found = {path: layer if path in own else found[path] for path, _ in leaves(settings)}
    return found


def leaves(settings: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and value of each setting; a component's name has the path of the component."""
    for key, value in settings.items():
        path = above if key in ("name", "fraction") and above else (*above, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def place_in(
    config: Path, paper: Paper, scale: Scale, layers: Sequence[SettingsLayer], keys: Sequence[str]
) -> FileLine:
    """Return file and line of the patch that a setting comes from; of the first patch if none has it."""
    found = origins(layers)
    ends = [tuple(keys[:length]) for length in range(len(keys), 0, -1)]
    path = next((path for path in (*ends, *found) if path in found and path[:1] == tuple(keys[:1])), None)
    layer = found[path] if path else layers[0]
    if layer.what not in ("paper", "scale"):
        file = f"{layer.what}.yaml"
        return str(place_of_file(config, file) / file), 1
    tree = tree_of(config, layer.what, paper.paper if layer.what == "paper" else scale.scale)
    construct(tree)  # resolves merge keys
    return place_of(tree, (*layer.keys, *keys))
