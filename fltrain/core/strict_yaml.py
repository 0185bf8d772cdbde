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

from fltrain.core.config import FileLine, Settings, suggest
from fltrain.core.errors import FltrainError, as_mistake

_TAG = "tag:yaml.org,2002:"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

AnySettings = TypeVar("AnySettings", bound=Settings)


class _Loader(_Base):  # type: ignore[misc]  # with or without libyaml
    yaml_implicit_resolvers: dict[str, Any] = {}

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Return an integer or a float."""
        text = self.construct_scalar(node).lower()
        if node.tag == f"{_TAG}int":
            return int(text, 0 if text[:2] in ("0x", "0o") else 10)
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))


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
    """Return the data of a YAML file, or of standard input if there is no path; None if it is empty."""
    return construct(compose(path))


def read_settings(path: Path | None, kind: type[AnySettings], ignored: Sequence[str] = ()) -> AnySettings:
    """Return the settings in a YAML file (standard input if there is no path), without ``ignored`` keys."""
    return validated(compose(path), kind, ignored=ignored)


def validated(
    tree: yaml.Node, kind: type[AnySettings], context: Any = None, ignored: Sequence[str] = ()
) -> AnySettings:
    """Return the settings in a tree, without ``ignored`` keys; validators read ``context``."""
    data = construct(tree)
    if data is None:
        required = [name for name, field in kind.model_fields.items() if field.is_required()]
        needed = ", ".join(required) or f"some of {', '.join(kind.model_fields)}"
        raise FltrainError(f"{tree.start_mark.name}: the file is empty; it needs {needed}")
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ignored}
    return kind.parse(data, tree.start_mark.name, partial(place_of, tree), context)


def compose(path: Path | None) -> yaml.Node:
    """Return the tree of a YAML file, or of standard input if there is no path."""
    where = "standard input" if path is None else str(path)
    with _refusing(where):
        text = sys.stdin.read() if path is None else path.read_text(encoding="utf-8")
    return compose_text(text, where)


def compose_text(text: str, where: str) -> yaml.Node:
    """Return the tree of a YAML text; messages name its origin, ``where``."""
    with _refusing(where):
        stream: Any = StringIO(text)
        stream.name = where  # of the marks
        tree: yaml.Node | None = _Loader(stream).get_single_node()
        if tree is None:
            return yaml.ScalarNode(f"{_TAG}null", "", yaml.Mark(where, 0, 0, 0, None, 0))
        _check(tree, {})
        return tree


def construct(tree: yaml.Node) -> Any:
    """Return the data of a tree; None if it is empty. Merge keys in the tree are resolved."""
    with _refusing(tree.start_mark.name):
        return _Loader("").construct_document(tree)


def link(tree: yaml.Node, blocks: Mapping[str, yaml.Node]) -> None:
    """Let ``use: name`` in a tree and in the blocks merge a block, like a merge key; the first name wins."""
    done: dict[yaml.Node, bool] = {}
    with _refusing(tree.start_mark.name):
        for node in (tree, *blocks.values()):
            _check(node, done, blocks)


def place_of(tree: yaml.Node, keys: Sequence[str]) -> FileLine:
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


def _check(
    node: yaml.Node, done: dict[yaml.Node, bool], blocks: Mapping[str, yaml.Node] | None = None
) -> None:
    """Refuse wrong keys and values that contain themselves; with blocks, turn ``use`` into a merge key.

    Args:
        node: a part of a tree.
        done: nodes that were visited; False for those that contain this one.
        blocks: mappings that ``use`` can name.
    """
    if node in done:
        if not done[node]:
            raise _fault(node, "it contains itself, by an alias (*name) or a block (use)")
        return
    done[node], names = False, set[str]()
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        _check(item, done, blocks)
    for place, (key, value) in enumerate(node.value if isinstance(node, yaml.MappingNode) else ()):
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            raise _fault(key, f"the key {key.value!r} is no text; write it in quotes")
        if key.value in names:
            raise _fault(key, f"the key {key.value!r} occurs twice; leave one out")
        names.add(key.value)
        if blocks is not None and key.value == "use":
            key, value = node.value[place] = _merging(key, value, blocks)
        _check(value, done, blocks)
    done[node] = True


def _merging(
    key: yaml.Node, value: yaml.Node, blocks: Mapping[str, yaml.Node]
) -> tuple[yaml.Node, yaml.Node]:
    """Return a merge key and the blocks that ``use`` names."""
    named = value.value if isinstance(value, yaml.SequenceNode) else [value]
    for name in named:
        if name.value not in blocks:
            near, known = suggest(str(name.value), blocks), ", ".join(blocks) or "none"
            raise _fault(name, f"use: unknown block {name.value!r}{near} (blocks: {known})")
    merged = yaml.SequenceNode(f"{_TAG}seq", [blocks[name.value] for name in named], value.start_mark)
    return yaml.ScalarNode(f"{_TAG}merge", "<<", key.start_mark), merged


def _fault(node: yaml.Node, what: str) -> ConstructorError:
    return ConstructorError(problem=what, problem_mark=node.start_mark)


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turn exceptions of the YAML library into messages with file and line."""
    try:
        yield
    except OSError as error:
        raise as_mistake(error) from None
    except UnicodeError:
        raise FltrainError(f"{where}: not YAML: not a text in UTF-8; save it as UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", error)
        place = f"{mark.name}: line {mark.line + 1}" if mark else where
        hint = "; indent with spaces, not with tabs" if "cannot start any token" in str(problem) else ""
        raise FltrainError(f"{place}: not YAML: {problem}{hint}") from None
    except RecursionError:
        raise FltrainError(f"{where}: not YAML: lists or mappings are nested too deeply") from None
