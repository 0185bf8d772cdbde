"""Settings: the base class of everything that a user can write in a configuration file.

A *setting* is a field of a frozen, strict pydantic model. Components (a dataset, a partition scheme, a
network, a method ...) are settings chosen by name; see ``fltrain.core.registry``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PydanticUserError, Strict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_json, to_jsonable_python

from fltrain.core.errors import FltrainError, listed, place_of_class, together
from fltrain.core.located import place_of

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_ALTERNATIVE = re.compile(r"(constrained-)?(bool|int|float|str)|(literal|tuple|function-[\w-]+)\[.*")
"""Pydantic's names of the alternatives of a setting, as parts of the place of a fault."""
_LIST = "input should be a list ([a, b], or [a] for a single one)"
_MAPPING = "input should be a mapping ({key: value})"
_WANTED = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "input should be true or false"),
    "tuple_type": _LIST,
    "list_type": _LIST,
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type", "is_instance_of"), _MAPPING),
    "union_tag_not_found": _MAPPING,
}
"""Message by type of fault, for faults whose message by pydantic names types of Python."""
_SYNONYMS = {
    "learning_rate": "lr",
    "batchsize": "batch_size",
    "local_epochs": "epochs",
    "num_clients": "clients",
    "num_rounds": "rounds",
}
"""Settings by their names elsewhere."""


NO_COMMA = "numbers have a decimal point, as in 0.05, and no comma"
"""Remedy for numbers such as ``0,05``."""

VERY_CLOSE = 0.8
"""Closeness from which a suggestion replaces the list of known words."""
MOST_KNOWN = 60
"""Longest list of known words."""


def suggest(
    word: str,
    choices: Iterable[str],
    closeness: float = 0.6,
    text: str = "did you mean {}?",
    before: str = "",
) -> str:
    """Return a hint at the known word closest to ``word``, ``"; did you mean 'lr'?"``, or an empty text.

    Case does not count. The only known word that begins or ends with ``word``, up to ``_``, is close, too.
    Below ``VERY_CLOSE``, the hint names all such words, and only without one a less similar word. The hint
    has the text ``before`` each word, such as a folder.
    """
    lower, query = {name.lower(): name for name in choices}, str(word).lower()
    close = difflib.get_close_matches(query, lower, n=1, cutoff=max(closeness, VERY_CLOSE))
    longer = [name for name in lower if name.startswith(f"{query}_") or name.endswith(f"_{query}")]
    close = close or longer * (len(longer) == 1 or closeness < VERY_CLOSE)
    close = close or difflib.get_close_matches(query, lower, n=1, cutoff=closeness)
    return f"; {text.format(', '.join(repr(before + lower[name]) for name in close))}" if close else ""


def similar(path: Path) -> str:
    """Return a hint at the closest name in the folder of a path, or an empty text if the path exists."""
    names = [] if path.exists() else [other.name for other in path.parent.glob("*")]
    return suggest(path.name, names, VERY_CLOSE)


def hint(
    word: str, choices: Iterable[str], described: str = "known", remedy: str = "", before: str = ""
) -> str:
    """Return a hint at the known word that is very close to ``word``, or a list of all known words.

    If the closest word is less close, it comes before the list. ``described`` describes the list, of which
    the message has the first ``MOST_KNOWN`` words. ``remedy`` follows the list. Suggested words
    have the text ``before`` before them, such as a folder.
    """
    choices = list(choices)
    if close := suggest(word, choices, VERY_CLOSE, before=before):
        return close
    return f"{suggest(word, choices, before=before)} ({described}: {listed(choices, MOST_KNOWN)}){remedy}"


def unknown(
    problem: str, words: Iterable[str], choices: Iterable[str], described: str = "known", remedy: str = ""
) -> Iterator[str]:
    """Yield a message on each word that is not among the known ones.

    Args:
        problem: beginning of the message; the word and the known words follow.
        words: the words to check.
        choices: the possible words.
        described: description of the known words in the message.
        remedy: end of the message if no known word is very close.
    """
    choices = list(choices)
    for word in words:
        if word not in choices:
            yield f"{problem} {word!r}{hint(word, choices, described, remedy)}"


def check_known(
    problem: str, words: Iterable[str], choices: Iterable[str], described: str = "known", remedy: str = ""
) -> None:
    """Refuse a word that is not among the known ones; ``unknown`` describes the arguments."""
    for message in unknown(problem, words, choices, described, remedy):
        raise FltrainError(message)


def file_name(name: str, noun: str = "name") -> str:
    """Return a name that becomes part of a path.

    Args:
        name: the text to check.
        noun: its description in the error message.
    """
    if not _FILE_NAME.fullmatch(name):
        raise FltrainError(
            f"the {noun} {name!r} becomes part of a path: use 1 to 100 letters (a to z), digits, '_', '.', "
            "'+' and '-', and begin with none of the last three"
        )
    return name


Element = TypeVar("Element")
ListOf = Annotated[tuple[Element, ...], Strict(False)]
"""A tuple that is written as a list."""

FileName = Annotated[
    str, AfterValidator(file_name), Field(json_schema_extra={"pattern": f"^{_FILE_NAME.pattern}$"})
]
"""A text that becomes part of a path."""


def added(default: Any, **constraints: Any) -> Any:
    """Field of a setting that was added after runs were recorded.

    Dumps omit the setting at its default, so the IDs of runs that do not use it do not change. Keyword
    arguments are passed to ``pydantic.Field``.
    """

    def unused(value: Any) -> bool:
        return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)

    return Field(default=default, exclude_if=unused, **constraints)


class Conflicts(ValueError):
    """Settings that do not fit together: messages that begin with the path of a setting."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages


class KnownNames(tuple[str, ...]):
    """Names of the components that a field accepts, in its annotation."""


_UNTYPED = re.compile(
    "A non-annotated attribute was detected: `(.*?) = .*|Field '(.*?)' defined on .*", re.DOTALL
)
"""Messages of pydantic on an attribute without a type, new or of a base class."""


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _Typed(ModelMetaclass):
    """Makes classes whose attributes have types."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        try:
            return super().__new__(cls, name, bases, namespace, **options)
        except PydanticUserError as error:
            if not (match := _UNTYPED.fullmatch(str(error))):
                raise
            key = match[1] or match[2]
            value, kind = namespace[key], type(namespace[key]).__name__
            types = (
                {f"Literal[{value!r}]": ""}
                if key == "name"
                else {f"ClassVar[{kind}]": " (a constant)", kind: " (a setting)"}
            )
            forms = " or ".join(f"`{key}: {text} = {value!r}`{remark}" for text, remark in types.items())
            raise FltrainError(
                f"{place_of_class(namespace['__module__'], name)}: {key!r} has no type; write {forms}"
            ) from None


class Settings(BaseModel, metaclass=_Typed):
    """Base of everything a user can write in a config: frozen, strict, unknown keys refused.

    ``HINTS`` has the remedy for a key that users try, but that is none.
    """

    HINTS: ClassVar[Mapping[str, str]] = {}
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def all_settings(self) -> dict[str, Any]:
        """Plain data of all settings, including the ``added`` ones that ``model_dump`` omits."""
        return {name: plain(getattr(self, name)) for name in type(self).model_fields}

    @classmethod
    def parse(cls, data: Any, where: str, context: Any = None) -> Self:
        """Validate plain data (as read from YAML or JSON).

        Numbers, texts and truth values are never converted into one another. Validators read ``context``.

        Raises:
            FltrainError: with all faults; each has its path of keys and the allowed values, and file and line
                if the data carry them.
        """
        if data is None:
            required = [name for name, field in cls.model_fields.items() if field.is_required()]
            needed = ", ".join(required) or f"some of {', '.join(cls.model_fields)}"
            raise FltrainError(f"{where}: is empty; it needs {needed}")
        try:
            return cls.model_validate(data, context=context)
        except ValidationError as error:
            texts = faults(error, cls)
        lines = [(*(place_of(data, keys) or ("", 0)), _line(keys, text)) for keys, text in texts.items()]
        parts = []
        for file, number, line in sorted(lines, key=lambda line: line[:2]):
            inside = bool(file) and where.startswith(file)
            line = f"line {number}: {line}" if number else line
            parts.append(("", f"{where}: {line}") if inside else (where, f"{file}: {line}" if file else line))
        raise together(where, parts)


def nested(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the classes of settings that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from nested(argument)


def _depth(annotation: Any) -> int:
    """Return the number of keys that lead to the values of nested mappings; 0 for other settings."""
    return (get_origin(annotation) is dict) + max(map(_depth, get_args(annotation)), default=0)


def plain(value: Any) -> Any:
    """Return a setting as plain data, including ``added`` settings at their default."""
    if isinstance(value, Settings):
        return value.all_settings()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return to_jsonable_python(value)


def faults(error: ValidationError, kind: type[BaseModel]) -> dict[tuple[str, ...], str]:
    """Return a message on each fault that pydantic found in settings, by the path of the user's keys."""
    texts: dict[tuple[str, ...], str] = {}
    wrong_types: dict[tuple[str, ...], str] = {}
    for fault in error.errors(include_url=False):
        keys: tuple[str, ...] = ()
        kinds, fields, depth = [kind], list[FieldInfo](), 0
        for part in fault["loc"]:
            if depth and not _ALTERNATIVE.fullmatch(str(part)):  # the key of an item or axis is no field
                keys, depth = (*keys, str(part)), depth - 1
                continue
            fields = [model.model_fields[str(part)] for model in kinds if part in model.model_fields]
            chosen = [model for model in kinds if part in _names(model)]
            if chosen and not fields:  # discriminated unions add the chosen name to the location
                kinds = chosen
            elif not _ALTERNATIVE.fullmatch(str(part)):
                kinds = [inner for field in fields for inner in nested(field.annotation)] if fields else kinds
                depth = max((_depth(field.annotation) for field in fields), default=0)
                keys = (*keys, str(part))
        conflicts = fault.get("ctx", {}).get("error")
        if isinstance(conflicts, Conflicts):
            for message in conflicts.messages:
                path, _, text = message.partition(": ")
                if not re.fullmatch(r"[\w.]+", path):  # an own component's check may name no setting
                    path, text = "", message
                place = (*keys, *filter(None, path.split(".")))
                texts[place] = f"{texts[place]}; {text}" if place in texts else text
        elif fault["type"].endswith(("_type", "literal_error")):
            message = _message(fault, kinds, fields)
            if keys in wrong_types:
                others = wrong_types[keys].partition(", got ")[0]
                message = f"{others} or {message.removeprefix('input should be ')}"
            wrong_types[keys] = message
        else:
            texts.setdefault(keys, _message(fault, kinds, fields))
    # If the type fits one of a setting's alternatives, only this one's faults count.
    fitting = {keys[:length] for keys in (*texts, *wrong_types) for length in range(len(keys))} | texts.keys()
    return texts | {keys: message for keys, message in wrong_types.items() if keys not in fitting}


def _names(kind: type[BaseModel]) -> list[Any]:
    """Return the values of the field by which a class is chosen."""
    fields = [kind.model_fields[key] for key in ("name", "kind") if key in kind.model_fields]
    return [name for field in fields for name in get_args(field.annotation)]


def _message(fault: ErrorDetails, kinds: Sequence[type[BaseModel]], fields: Sequence[FieldInfo]) -> str:
    """Return a message on a fault; an unknown key is one of ``kinds``, a missing one has a field."""
    value, kind = fault["input"], fault["type"]
    if kind == "extra_forbidden":
        return _unknown(str(fault["loc"][-1]), value, kinds)
    names = [entry for field in fields for entry in field.metadata if isinstance(entry, KnownNames)]
    if kind == "missing" and names:
        return f"field required (known: {', '.join(names[0])})"
    if kind == "union_tag_invalid":
        key, tag, expected = (fault["ctx"][name] for name in ("discriminator", "tag", "expected_tags"))
        tags = re.findall("'(.*?)'", expected)
        return f"unknown {key[1:-1]} {tag!r}{hint(tag, tags)}"
    message = _WANTED.get(kind) or fault["msg"].removeprefix("Value error, ")
    if names and message == _MAPPING:
        message = "input should be one name, or a mapping with 'name'"
    message = re.sub("^(Tuple|Dictionary) (should have .* items?).*", r"input \2", message)
    message = message[0].lower() + message[1:]
    if kind not in ("value_error", "missing") and not isinstance(value, Mapping | list | tuple):
        message += f", got {value!r}"
        if kind in ("less_than", "less_than_equal") and 1 in fault["ctx"].values() and 2 <= value <= 100:
            message += f"; {value:g} % is {value / 100:g}"
        if kind == "int_type" and isinstance(value, float) and value.is_integer():
            message += f"; write {value:.0f}"
        if kind in ("int_type", "float_type") and re.fullmatch(r"[-+]?[0-9]*,[0-9.,eE+-]+", str(value)):
            message += f"; {NO_COMMA}"
    elif isinstance(value, list | tuple) and kind.endswith(("_type", "_tag_not_found")) and message != _LIST:
        message += ", got a list"
    return message


def _unknown(key: str, value: Any, kinds: Sequence[type[BaseModel]]) -> str:
    """Return a message on an unknown key with the known ones, and the place of a setting of that name."""
    fields = {name: field for kind in kinds for name, field in kind.model_fields.items()}
    for kind in kinds:
        if issubclass(kind, Settings) and key in kind.HINTS:
            return f"unknown key {key!r}; {kind.HINTS[key]}"
    first, *rest = key.split(".")
    if first in fields and all(rest) and rest:
        return f"unknown key {key!r}; write `{_nested_form([first, *rest], value, kinds)}`"
    word = _SYNONYMS.get(key, key)
    elsewhere = []
    for name, field in fields.items() if word not in fields else ():
        if models := [model for model in nested(field.annotation) if word in model.model_fields]:
            owners = sorted(owner for model in models for owner in _names(model))
            elsewhere.append(f"'{name}.{word}'" + f" of {listed(owners, 4)}" * (0 < len(owners) < 5))
    if elsewhere:
        return f"unknown key {key!r}; did you mean {' or '.join(elsewhere)}?"
    if word in fields:
        return f"unknown key {key!r}; did you mean {word!r}?"
    bases = {base for kind in kinds if _names(kind) for base in kind.__bases__ if issubclass(base, BaseModel)}
    others = {model for base in bases for model in base.__subclasses__() if word in model.model_fields}
    holders = sorted(name for model in others for name in _names(model))
    has = f"; {listed(holders, 4)} {'has' if len(holders) == 1 else 'have'} it" * bool(holders)
    return f"unknown key {key!r}{hint(word, sorted(fields))}{has}"


def _nested_form(keys: Sequence[str], value: Any, kinds: Iterable[type[BaseModel]]) -> str:
    """Return a dotted key with its value in the form of files, ``method: {name: ..., mu: 0.1}``."""
    first, *rest = keys
    if not rest:
        return f"{first}: {to_json(value).decode()}"
    fields = [kind.model_fields[first] for kind in kinds if first in kind.model_fields]
    models = [model for field in fields for model in nested(field.annotation)]
    several = len(rest) > 1 and any(get_origin(field.annotation) is tuple for field in fields)
    name = rest.pop(0) if several else "..."  # components of a list go by their names
    named = rest[0] != "name" and any("name" in model.model_fields for model in models)
    text = f"{{{f'name: {name}, ' if named else ''}{_nested_form(rest, value, models)}}}"
    return f"{first}: {f'[{text}]' if several else text}"


def _line(keys: Sequence[str], message: str) -> str:
    return f"{'.'.join(keys)}: {message}" if keys else message
