"""Arguments of Python functions: an error names the argument, its value and the wanted kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from fltrain.core.errors import FltrainError

Kind = TypeVar("Kind")


def path(name: str, value: Any) -> Path:
    """Return a path that is given as a text or path object."""
    return _checked(name, value, isinstance(value, str | PathLike), "a path", Path)


def text(name: str, value: Any) -> str:
    """Return a text."""
    return _checked(name, value, isinstance(value, str), "a text", str)


def texts(name: str, value: Any, wanted: str = "a text or a list of texts") -> list[str]:
    """Return several texts; a single one is a list of one."""
    single = isinstance(value, str | Mapping) or not isinstance(value, Iterable)
    values = [value] if single else [*value]
    return _checked(
        name,
        value,
        all(isinstance(item, str) for item in values),
        wanted,
        lambda _: values,
    )


def positive(name: str, value: Any) -> int:
    """Return a whole number from 1, also of NumPy."""
    fits = issubclass(type(value), Integral) and not isinstance(value, bool) and value > 0
    return _checked(name, value, fits, "a whole number from 1", int)


def plain(value: Any) -> Any:
    """Return settings with Python's whole numbers for NumPy's."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(plain, value)]
    return int(value) if issubclass(type(value), Integral) and not isinstance(value, int) else value


def _checked(name: str, value: Any, fits: bool, wanted: str, convert: Callable[[Any], Kind]) -> Kind:
    """Return a value after its conversion.

    Raises:
        FltrainError: if it does not fit.
    """
    if not fits:
        raise FltrainError(f"{name} should be {wanted}, got {value!r}")
    return convert(value)
