"""YAML 1.2: ``no`` and ``1:30`` are texts, ``1e-5`` and ``010`` are numbers, no key occurs twice."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.constructor import ConstructorError

from fltrain.core.config import Place, Settings, suggest
from fltrain.core.errors import FltrainError

_NOT_UTF_8 = "not YAML: not a text in UTF-8; save it as UTF-8"
_TAG = "tag:yaml.org,2002:"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DEEPEST = 100
"""Maximum depth of nested lists and mappings; libyaml crashes on very deep ones."""

MOST_VALUES = 1_000_000
"""Maximum number of values, with aliases written out."""

AnySettings = TypeVar("AnySettings", bound=Settings)


class _Named(StringIO):
    """A text whose marks have the name of its file."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


class _Loader(_Base):  # type: ignore[misc]  # with or without libyaml
    yaml_implicit_resolvers: dict[str, Any] = {}

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Return an integer or a float."""
        text = self.construct_scalar(node).lower()
        try:
            if node.tag == f"{_TAG}int":
                return int(text, 0 if text[:2] in ("0x", "0o") else 10)
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            shown = text if len(text) <= 25 else f"{text[:25]}..."
            raise ConstructorError(
                problem=f"{shown!r} is not a number", problem_mark=node.start_mark
            ) from None


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
    return construct(compose(path))


def read_settings(path: Path | None, kind: type[AnySettings], ignored: Sequence[str] = ()) -> AnySettings:
    """Return the settings in a YAML file (standard input if there is no path), without ``ignored`` keys.

    Raises:
        FltrainError: with all faults, each with its line and its path of keys.
    """
    return validated(compose(path), kind, ignored=ignored)


def validated(
    tree: yaml.Node,
    kind: type[AnySettings],
    where: str = "",
    context: Any = None,
    ignored: Sequence[str] = (),
) -> AnySettings:
    """Return the settings in a tree; ``where`` describes it in messages (default: its file).

    Raises:
        FltrainError: with all faults, each with its file, line and path of keys.
    """
    data = construct(tree)
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ignored}
    return kind.parse(data, where or place_of(tree, ())[0], partial(place_of, tree), context)


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


def compose(path: Path | None) -> yaml.Node:
    """Return the tree of a YAML file, or of standard input if there is no path.

    Raises:
        FltrainError: if it is missing, cannot be read, or is not YAML.
    """
    return _compose(*_text(path))


def parse_plain(text: str, where: str) -> Any:
    """Return the data of a YAML document (JSON is YAML, too); None if it is empty.

    Raises:
        FltrainError: if it is not valid; the message begins with ``where`` and the line.
    """
    return construct(_compose(text, where))


def construct(tree: yaml.Node) -> Any:
    """Return the data of a tree; None if it is empty. Merge keys in the tree are resolved.

    Raises:
        FltrainError: if values are not valid.
    """
    where = place_of(tree, ())[0]
    with _refusing(where):
        data = _Loader("").construct_document(tree)
        if _size(data, {}) <= MOST_VALUES:
            return data
    raise FltrainError(f"{where}: more than {MOST_VALUES:,} values with aliases written out; use fewer")


def link(tree: yaml.Node, blocks: Mapping[str, yaml.Node]) -> None:
    """Let ``use: name`` in a tree and in the blocks merge a block, like a merge key; later names win.

    Raises:
        FltrainError: if a block is unknown, or a key occurs twice.
    """
    with _refusing(place_of(tree, ())[0]):
        seen: set[yaml.Node] = set()
        for node in (tree, *blocks.values()):
            _check_keys(node, seen, blocks)


def place_of(tree: yaml.Node, keys: Sequence[str]) -> Place:
    """Return file and line of the value at a path of keys, as far as the path exists.

    A list is entered by position, or by the key of a mapping in it.
    """
    node = tree
    for key in keys:
        inside: dict[str, yaml.Node] = {}
        if isinstance(node, yaml.MappingNode):
            inside = {name.value: value for name, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            pairs = [pair for item in node.value if isinstance(item, yaml.MappingNode) for pair in item.value]
            inside = {name.value: value for name, value in pairs}
            inside |= {str(place): value for place, value in enumerate(node.value)}
        if key not in inside:
            break
        node = inside[key]
    return node.start_mark.name, node.start_mark.line + 1


def _compose(text: str, where: str) -> yaml.Node:
    with _refusing(where, text):
        _check_depth(_Named(text, where))
        tree = _Loader(_Named(text, where)).get_single_node()
        _check_keys(tree, set())
    return tree or yaml.ScalarNode(f"{_TAG}null", "", yaml.Mark(where, 0, 0, 0, None, 0))


def _check_keys(node: yaml.Node, seen: set[yaml.Node], blocks: Mapping[str, yaml.Node] | None = None) -> None:
    """Refuse keys that are no texts or occur twice in one mapping; turn ``use`` into a merge key."""
    if node in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(node)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, seen, blocks)
        return
    names: set[str] = set()
    for place, (key, value) in enumerate(node.value):
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            what = f"the key {key.value!r} is no text; write it in quotes"
        elif key.value in names:
            what = f"the key {key.value!r} occurs twice; leave one out"
        else:
            names.add(key.value)
            if blocks is not None and key.value == "use":
                node.value[place] = _merging(key, value, blocks)
            else:
                _check_keys(value, seen, blocks)
            continue
        raise ConstructorError(problem=what, problem_mark=key.start_mark)


def _merging(
    key: yaml.Node, value: yaml.Node, blocks: Mapping[str, yaml.Node]
) -> tuple[yaml.Node, yaml.Node]:
    """Return a merge key and the blocks that ``use`` names."""
    named = value.value if isinstance(value, yaml.SequenceNode) else [value]
    for name in named:
        if name.value not in blocks:
            near, known = suggest(str(name.value), blocks), ", ".join(blocks) or "none"
            what = f"use: unknown block {name.value!r}{near} (blocks: {known})"
            raise ConstructorError(problem=what, problem_mark=name.start_mark)
    merged = [blocks[name.value] for name in named]
    return (
        yaml.ScalarNode(f"{_TAG}merge", "<<", key.start_mark),
        yaml.SequenceNode(f"{_TAG}seq", merged, value.start_mark),
    )


@contextmanager
def _refusing(where: str, text: str = "") -> Iterator[None]:
    """Turn exceptions of the YAML library into messages with file and line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line if mark else 0
        tabs = "\t" in "".join(text.splitlines()[line : line + 1])
        hint = "; indent with spaces, not with tabs" if tabs else ""
        place = f"{mark.name if mark else where}: line {line + 1}"
        raise FltrainError(f"{place}: not YAML: {error.problem}{hint}") from None
    except RecursionError:
        raise FltrainError(
            f"{where}: an alias refers to itself, or aliases are nested too deeply; use fewer"
        ) from None
    except UnicodeEncodeError:
        raise FltrainError(f"{where}: {_NOT_UTF_8}") from None
    except yaml.YAMLError as error:
        raise FltrainError(f"{where}: not YAML: {error}") from None


def _check_depth(stream: _Named) -> None:
    depth = 0
    for event in yaml.parse(stream, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise FltrainError(
                f"{stream.name}: more than {DEEPEST} lists and mappings in one another; use fewer"
            )


def _size(data: Any, sizes: dict[int, int]) -> int:
    """Return the number of values, with aliases written out; an alias of itself is a RecursionError."""
    if not isinstance(data, dict | list):
        return 1
    if id(data) not in sizes:
        inner = data.values() if isinstance(data, dict) else data
        sizes[id(data)] = 1 + sum(_size(one, sizes) for one in inner)
    return sizes[id(data)]
