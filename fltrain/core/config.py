"""Settings: the base class of everything that a user can write in a configuration file.

A *setting* is a field of a frozen, strict pydantic model. Components (a dataset, a partition scheme, a
network, a method ...) are settings chosen by name; see ``fltrain.core.registry``.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, to_jsonable_python

from fltrain.core.errors import FltrainError, problems

LARGEST = 3e38
"""Largest number that single precision holds, rounded down."""

FileLine = tuple[str, int]
"""A file and a line in it."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_TOO_DEEP = "lists or mappings are nested too deeply; use fewer within one another"
_WANTED = {
    "bool_type": " (true or false)",
    "tuple_type": " ([a, b], or [a] for a single one)",
    "list_type": " ([a, b], or [a] for a single one)",
}
"""Remedy by type of fault."""


def suggest(word: str, known: Iterable[str], closeness: float = 0.6) -> str:
    """Return a hint at the known word closest to ``word``, ``"; did you mean 'lr'?"``, or an empty text."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=closeness)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_known(problem: str, words: Iterable[str], known: Iterable[str], listed: str = "known") -> None:
    """Refuse words that are not among the known ones.

    Args:
        problem: beginning of the message; the word and the known words follow.
        words: the words to check.
        known: the possible words.
        listed: description of the known words in the message.
    """
    known = list(known)
    for word in words:
        if word not in known:
            raise FltrainError(f"{problem} {word!r}{suggest(word, known)} ({listed}: {', '.join(known)})")


def file_name(name: str, what: str = "name") -> str:
    """Return a name that becomes part of a path.

    Args:
        name: the text to check.
        what: its description in the error message.
    """
    if not _FILE_NAME.fullmatch(name):
        raise FltrainError(
            f"the {what} {name!r} becomes part of a path: use 1 to 100 letters (a to z), digits, '_', '.', "
            "'+' and '-', and begin with none of the last three"
        )
    return name


FileName = Annotated[
    str, AfterValidator(file_name), Field(json_schema_extra={"pattern": f"^{_FILE_NAME.pattern}$"})
]
"""A text that becomes part of a path."""


def added(default: Any, **constraints: Any) -> Any:
    """Field of a setting that was added after runs were recorded.

    Dumps omit the setting at its default, so the IDs of runs that do not use it do not change. Keyword
    arguments are those of ``pydantic.Field``.
    """

    def unused(value: Any) -> bool:
        return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)

    return Field(default=default, exclude_if=unused, **constraints)


class KnownNames(tuple[str, ...]):
    """Names of the components that a field accepts, in its annotation."""


class Settings(BaseModel):
    """Base of everything a user can write in a config: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _check_keys(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys, missing components and numbers that are too large with all other faults."""
        if not isinstance(value, Mapping):
            return handler(value)
        faults = cls._missing(value)
        for key, item in value.items():
            if fault := _size_fault(item) if key in cls.model_fields else cls._unknown(key):
                faults[key] = fault
        if not faults:
            return handler(value)
        errors = [_fault((key,), "refused", fault, value.get(key)) for key, fault in faults.items()]
        try:
            handler({key: item for key, item in value.items() if key not in faults})
        except ValidationError as error:
            errors += [
                _fault(one["loc"], one["type"], one["msg"], one["input"])
                for one in error.errors(include_url=False)
                if one["loc"][:1] not in [(key,) for key in faults]
            ]
        raise ValidationError.from_exception_data(cls.__name__, errors)

    @classmethod
    def _missing(cls, value: Mapping[str, Any]) -> dict[str, str]:
        """Return a message with the known names for each component that is required and missing."""
        return {
            key: f"field required (known: {', '.join(names)})"
            for key, field in cls.model_fields.items()
            if key not in value and field.is_required()
            for names in field.metadata
            if isinstance(names, KnownNames)
        }

    @classmethod
    def _unknown(cls, key: str) -> str:
        known = sorted(cls.model_fields)
        elsewhere = [
            f"{name}.{key}"
            for name, field in cls.model_fields.items()
            for inner in nested(field.annotation)
            if key in inner.model_fields
        ]
        alternatives = " or ".join(map(repr, dict.fromkeys(elsewhere)))
        hint = f"; did you mean {alternatives}?" if alternatives else suggest(key, known)
        return f"unknown key {key!r}{hint} (known: {', '.join(known)})"

    def all_settings(self) -> dict[str, Any]:
        """Plain data of all settings, including the ``added`` ones that ``model_dump`` omits."""
        return {name: _plain(getattr(self, name)) for name in type(self).model_fields}

    @classmethod
    def parse(
        cls,
        data: Any,
        where: str,
        place_of: Callable[[Sequence[str]], FileLine] | None = None,
        context: Any = None,
    ) -> Self:
        """Validate plain data (as read from YAML or JSON).

        Validation runs in JSON mode: lists become tuples, but numbers, texts and truth values are never
        converted into one another. ``place_of`` returns the file and line of a path of keys; validators read
        ``context``.

        Raises:
            FltrainError: with all faults; each has its path of keys and the allowed values.
        """
        try:
            # Here json refuses texts that UTF-8 cannot encode; numbers that are not finite are refused below.
            text = json.dumps(data, ensure_ascii=False).encode()
        except RecursionError:
            raise FltrainError(f"{where}: {_TOO_DEEP}") from None
        except (TypeError, ValueError) as error:
            raise FltrainError(f"{where}: not plain data ({error})") from None
        try:
            return cls.model_validate_json(text, context=context)
        except ValidationError as error:
            found = faults(error, data)
        if found[0][1].startswith("invalid JSON"):  # JSON from `json.dumps` can only be too deep
            raise FltrainError(f"{where}: {_TOO_DEEP}")
        if place_of is None:
            lines = [_line(keys, what) for keys, what in found]
        else:
            placed = sorted((*place_of(keys), _line(keys, what)) for keys, what in found)
            lines = [
                f"{'' if file == where else f'{file}: '}line {number}: {what}"
                for file, number, what in placed
            ]
        raise problems(where, lines)


def nested(annotation: Any) -> Iterator[type[Settings]]:
    """Yield the classes of settings that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from nested(argument)


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.all_settings()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_jsonable_python(value)


def _size_fault(value: Any) -> str:
    """Return a message if a number (or one in a list) is too large for the engine; else an empty text."""
    if isinstance(value, list):
        return next(filter(None, map(_size_fault, value)), "")
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"whole numbers must be below 2^63, got one of {len(str(value))} digits"
    if isinstance(value, float) and LARGEST < abs(value) < math.inf:
        return f"numbers must be at most {LARGEST:g} in size, got {value!r}"
    return ""


def _fault(keys: tuple[int | str, ...], kind: str, message: str, value: Any) -> InitErrorDetails:
    # Messages of custom errors are templates; without a context, pydantic leaves their braces unchanged.
    return InitErrorDetails(type=PydanticCustomError(kind, message), loc=keys, input=value)


def faults(error: ValidationError, data: Any) -> list[tuple[list[str], str]]:
    """Return the faults that pydantic found in ``data``: the path of the user's keys, and a message."""
    found = []
    for fault in error.errors(include_url=False):
        keys: list[str] = []
        place = data
        for part in fault["loc"]:
            # Discriminated unions add the chosen name to the location; it is not a key of the file.
            chosen = (
                isinstance(place, Mapping)
                and part not in place
                and part in (place.get("name"), place.get("kind"))
            )
            if chosen or part == place or str(part).startswith("function-"):
                continue
            keys.append(str(part))
            try:
                place = place[part]
            except (KeyError, IndexError, TypeError):  # a missing key, or the short form of a component
                place = None
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = "input should be a mapping"
        message = message[0].lower() + message[1:] + _WANTED.get(fault["type"], "")
        shown, complete = fault["input"], fault["type"] in ("value_error", "refused", "missing")
        if not complete and not isinstance(shown, Mapping | list | tuple):
            message += f", got {shown!r}"
            if fault["type"] == "int_type" and isinstance(shown, float) and shown.is_integer():
                message += f"; write {shown:.0f}"
        found.append((keys, message))
    return found


def _line(keys: Sequence[str], message: str) -> str:
    return f"{'.'.join(keys)}: {message}" if keys else message


def explain(error: ValidationError, data: Any) -> str:
    """Return the first fault that pydantic found in ``data`` and the number of other faults, in one line."""
    first, *others = faults(error, data)
    return _line(*first) + (f" (and {len(others)} more)" if others else "")
