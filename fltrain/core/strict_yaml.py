"""YAML 1.2: ``no`` and ``1:30`` are texts, ``1e-5`` and ``010`` are numbers, no key occurs twice."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.constructor import ConstructorError

from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError

_NOT_UTF_8 = "not YAML: not a text in UTF-8; save it as UTF-8"
_TAG = "tag:yaml.org,2002:"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DEEPEST = 100
"""Maximum depth of nested lists and mappings; libyaml crashes on very deep ones."""

MOST_VALUES = 1_000_000
"""Maximum number of values, with aliases written out."""

AnySettings = TypeVar("AnySettings", bound=Settings)


class _Loader(_Base):  # type: ignore[misc]  # with or without libyaml
    yaml_implicit_resolvers: dict[str, Any] = {}

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        self._check_keys(node, set())
        return None if node is None else self.construct_document(node)

    def _check_keys(self, node: yaml.Node | None, seen: set[yaml.Node]) -> None:
        """Refuse keys that are no texts or occur twice in one mapping."""
        if node in seen or not isinstance(node, yaml.CollectionNode):
            return
        seen.add(node)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._check_keys(item, seen)
            return
        names: set[str] = set()
        for key, value in node.value:
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                what = f"the key {key.value!r} is no text; write it in quotes"
            elif key.value in names:
                what = f"the key {key.value!r} occurs twice; leave one out"
            else:
                names.add(key.value)
                self._check_keys(value, seen)
                continue
            raise ConstructorError(problem=what, problem_mark=key.start_mark)

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Return an integer or a float."""
        text = self.construct_scalar(node).lower()
        try:
            if node.tag == f"{_TAG}int":
                return int(text, 0 if text[:2] in ("0x", "0o") else 10)
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            shown = text if len(text) <= 25 else f"{text[:25]}..."
            raise ConstructorError(problem=f"{shown!r} is no number", problem_mark=node.start_mark) from None


_CORE = {
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": ("<<", "<"),
}
for _kind, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"({_pattern})\\Z"), _first)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"{_TAG}{_kind}", _Loader.number)


def read_plain(path: Path | None) -> Any:
    """Return the data of a YAML file, or of standard input if there is no path; None if it is empty.

    Raises:
        FltrainError: if it is missing, cannot be read, or is not valid YAML.
    """
    return parse_plain(*_text(path))


def read_settings(path: Path | None, kind: type[AnySettings], ignored: Sequence[str] = ()) -> AnySettings:
    """Return the settings in a YAML file (standard input if there is no path), without ``ignored`` keys.

    Raises:
        FltrainError: with all faults, each with its line and its path of keys.
    """
    text, where = _text(path)
    data = parse_plain(text, where)

    def line_of(keys: Sequence[str]) -> int:
        node, number = yaml.compose(text, _Loader), 1
        for key in keys:
            inside: dict[str, yaml.Node] = {}
            if isinstance(node, yaml.MappingNode):
                inside = {name.value: value for name, value in node.value}
            elif isinstance(node, yaml.SequenceNode):
                inside = {str(place): value for place, value in enumerate(node.value)}
            if key not in inside:
                break
            node = inside[key]
            number = node.start_mark.line + 1
        return number

    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ignored}
    return kind.parse(data, where, line_of)


def _text(path: Path | None) -> tuple[str, str]:
    """Return a text and its description."""
    where = "standard input" if path is None else str(path)
    try:
        return sys.stdin.read() if path is None else path.read_text(encoding="utf-8"), where
    except FileNotFoundError:
        raise FltrainError(f"{where}: no such file") from None
    except OSError as error:
        raise FltrainError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise FltrainError(f"{where}: {_NOT_UTF_8}") from None


def parse_plain(text: str, where: str) -> Any:
    """Return the data of a YAML document (JSON is YAML, too); None if it is empty.

    Raises:
        FltrainError: if it is not valid; the message begins with ``where`` and the line.
    """
    try:
        _check_depth(text, where)
        data = yaml.load(text, _Loader)  # noqa: S506  (a CSafeLoader)
        if _size(data, {}) <= MOST_VALUES:
            return data
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        tabs = "\t" in "".join(text.splitlines()[line : line + 1])
        hint = "; indent with spaces, not with tabs" if tabs else ""
        raise FltrainError(f"{where}: line {line + 1}: not YAML: {error.problem}{hint}") from None
    except RecursionError:
        raise FltrainError(
            f"{where}: an alias refers to itself, or aliases are nested too deeply; use fewer"
        ) from None
    except UnicodeEncodeError:
        raise FltrainError(f"{where}: {_NOT_UTF_8}") from None
    except yaml.YAMLError as error:
        raise FltrainError(f"{where}: not YAML: {error}") from None
    raise FltrainError(f"{where}: more than {MOST_VALUES:,} values with aliases written out; use fewer")


def _check_depth(text: str, where: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise FltrainError(f"{where}: more than {DEEPEST} lists and mappings in one another; use fewer")


def _size(data: Any, sizes: dict[int, int]) -> int:
    """Return the number of values, with aliases written out; an alias of itself is a RecursionError."""
    if not isinstance(data, dict | list):
        return 1
    if id(data) not in sizes:
        inner = data.values() if isinstance(data, dict) else data
        sizes[id(data)] = 1 + sum(_size(one, sizes) for one in inner)
    return sizes[id(data)]
