"""Plain data that carry the file and line of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FileLine = tuple[str, int]
"""A file and a line in it."""


class Located:
    """Base of the mappings and lists of a file.

    Attributes:
        place: file and line of the whole; None if unknown.
        places: file and line of each value, by key or by position, as text.
    """

    def __init__(self, values: Any = (), place: FileLine | None = None, places: Any = ()) -> None:
        super().__init__(values)  # type: ignore[call-arg]  # of dict or list
        self.place = place
        self.places: dict[str, FileLine | None] = dict(places)


class LocatedMapping(Located, dict[str, Any]):
    """A mapping with the place of each value."""


class LocatedList(Located, list[Any]):
    """A list with the place of each value."""


def located(data: Any, place: FileLine | None) -> Any:
    """Return data in which mappings without places have this one, for all their values."""
    if isinstance(data, Located) or not isinstance(data, Mapping):
        return data
    values = {key: located(value, place) for key, value in data.items()}
    return LocatedMapping(values, place, dict.fromkeys(values, place))


def place_of(data: Any, keys: Sequence[str] = ()) -> FileLine | None:
    """Return file and line of the value at a path of keys, as far as the path exists; None if unknown.

    A list is entered by position, or by the key of a mapping in it.
    """
    place = data.place if isinstance(data, Located) else None
    for key in keys:
        if isinstance(data, LocatedList) and key not in data.places:
            data = next((item for item in data if isinstance(item, LocatedMapping) and key in item), None)
        if not isinstance(data, Located) or key not in data.places:
            break
        place = data.places[key]
        data = data[int(key)] if isinstance(data, LocatedList) else data[key]  # type: ignore[index]
    return place
