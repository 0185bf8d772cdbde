"""Settings, components and their catalogues: how everything that has a name in a config is declared.

A *setting* is a frozen, strict pydantic model. A *component* is a setting that is chosen by name (a data
set, a partition scheme, a network, a method ...) and carries a revision. A *catalogue* is made of the
components found in the modules of one package, so that adding one takes one file and no registration.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, to_jsonable_python

from fltrain.core.errors import FltrainError

_NUMBER_AS_TEXT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_TOO_DEEP = "lists or mappings are nested too deeply; use fewer within one another"
_TEXT_WANTED = ("string_type", "literal_error", "model_type", "model_attributes_type")
"""Faults that pydantic finds in a truth value where a text, or a name for a mapping, should be."""
_WANTED = {
    "bool_type": " (true or false)",
    "tuple_type": " ([a, b], or [a] for a single one)",
    "list_type": " ([a, b], or [a] for a single one)",
}
"""What is to be written where something else was found."""


def suggest(word: str, known: Iterable[str], closeness: float = 0.6) -> str:
    """Say which of the known words was probably meant: ``"; did you mean 'lr'?"`` or nothing."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=closeness)
    return f"; did you mean {close[0]!r}?" if close else ""


def misread(value: Any) -> str:
    """Say of a truth value where a text is wanted how it came about: a hint, or nothing for other values."""
    if not isinstance(value, bool):
        return ""
    return "; YAML reads no, off, yes and on as truth values: write a text in quotes"


def file_name(name: str, what: str = "name") -> str:
    """Return a name that becomes a part of a path, if it can be one.

    Raises:
        FltrainError: if it could lead elsewhere; ``what`` is what the message calls it.
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
"""A text that becomes a part of a path."""


def added(default: Any, **constraints: Any) -> Any:
    """Field of a setting that was added after runs had been recorded.

    Dumps omit the setting at its default, so the IDs of runs that do not use it stay as they were. Keyword
    arguments are those of ``pydantic.Field``.
    """

    def unused(value: Any) -> bool:
        return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)

    return Field(default=default, exclude_if=unused, **constraints)


class Settings(BaseModel):
    """Base of everything a user can write in a config: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        known = sorted(cls.model_fields)
        for key in value:
            if key not in cls.model_fields:
                raise ValueError(f"unknown key {key!r}{suggest(key, known)} (known: {', '.join(known)})")
        return {key: _meant(item, key, cls.model_fields[key].annotation) for key, item in value.items()}

    def all_settings(self) -> dict[str, Any]:
        """Plain data of all settings, including the ``added`` ones that ``model_dump`` omits."""
        return {name: _plain(getattr(self, name)) for name in type(self).model_fields}

    @classmethod
    def parse(cls, data: Any, where: str) -> Self:
        """Validate plain data (as read from YAML or JSON).

        Validation runs in JSON mode, so lists become tuples while numbers, texts and truth values are
        never turned into one another.

        Raises:
            FltrainError: with one line that says what is wrong, where, and what is allowed.
        """
        try:
            # What is not finite is refused below, by its key; texts without an encoding (surrogates) here.
            text = json.dumps(data, ensure_ascii=False).encode()
        except RecursionError:
            raise FltrainError(f"{where}: {_TOO_DEEP}") from None
        except (TypeError, ValueError) as error:
            raise FltrainError(f"{where}: not plain data ({error})") from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            if error.errors(include_url=False)[0]["type"] == "json_invalid":  # only its depth can be at fault
                raise FltrainError(f"{where}: {_TOO_DEEP}") from None
            raise FltrainError(f"{where}: {explain(error, data)}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.all_settings()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_jsonable_python(value)


def _meant(value: Any, key: str, annotation: Any) -> Any:
    """A value of a key, with texts that are numbers as numbers.

    Raises:
        ValueError: if it is a whole number of more than 64 bits.
    """
    if isinstance(value, str):
        # YAML 1.1 reads `1e-5` (no dot) as text. Where a number is wanted, it is what is meant.
        number = _NUMBER_AS_TEXT.fullmatch(value) and _admits_numbers(annotation)
        return float(value) if number else value
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{key}: whole numbers must be below 2^63, got one of {len(str(value))} digits")
    if isinstance(value, list):
        return [_meant(item, key, annotation) for item in value]
    return value


def _admits_numbers(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_admits_numbers, get_args(annotation)))


def explain(error: ValidationError, data: Any) -> str:
    """One line for the first fault that pydantic found in ``data``, and a count of the others."""
    faults = error.errors(include_url=False)
    first = faults[0]
    # All keys that are missing at one place are one fault.
    place = first["loc"][:-1]
    missing = [
        str(fault["loc"][-1])
        for fault in faults
        if fault["type"] == "missing" == first["type"] and fault["loc"][:-1] == place
    ]
    keys: list[str] = []
    for part in place if len(missing) > 1 else first["loc"]:
        # Discriminated unions put the chosen name into the location; it is no key of the user's.
        chosen = isinstance(data, Mapping) and part not in data and data.get("name") == part
        if chosen or part == data or str(part).startswith("function-"):
            continue
        keys.append(str(part))
        data = _at(data, part)
    message = f"fields required: {', '.join(missing)}" if len(missing) > 1 else _told(first)
    shown = first["input"]
    said = first["type"] == "value_error" or isinstance(shown, Mapping | list | tuple)
    got = "" if said else f", got {shown!r}"
    if first["type"] in _TEXT_WANTED:
        got += misread(shown)
    others = len(faults) - max(len(missing), 1)
    more = f" (and {others} more)" if others else ""
    return f"{'.'.join(keys)}{': ' if keys else ''}{message}{got}{more}"


def _told(fault: ErrorDetails) -> str:
    """What pydantic says of a fault, and what is wanted instead."""
    message = fault["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:] + _WANTED.get(fault["type"], "")


def _at(data: Any, part: int | str) -> Any:
    """What stands at a key or position of plain data; None where short forms have no such place."""
    if isinstance(data, Mapping):
        return data.get(part)
    if isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
        return data[part]
    return None
