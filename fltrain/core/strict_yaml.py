"""YAML 1.2: ``no`` and ``1:30`` are texts, ``1e-5`` and ``010`` are numbers, no key occurs twice."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.constructor import ConstructorError
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from fltrain.core.config import NO_COMMA, Settings, hint, similar
from fltrain.core.errors import FltrainError, Problems, as_mistake
from fltrain.core.located import FileLine, LocatedList, LocatedMapping

_TAG = "tag:yaml.org,2002:"
_CIRCLE = "it contains itself, by an alias (*name) or a block (use)"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

AnySettings = TypeVar("AnySettings", bound=Settings)


class _Loader(_Base):  # type: ignore[misc]  # with or without libyaml
    """Makes mappings and lists that carry the lines of their values; ``use: name`` merges a block."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def __init__(self, stream: Any, blocks: Mapping[str, yaml.Node] | None = None) -> None:
        super().__init__(stream)
        self._blocks = blocks
        self._merged: dict[yaml.Node, bool] = {}  # False: in the course of it
        self.repeated: list[yaml.Node] = []

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Return an integer or a float."""
        text = self.construct_scalar(node).lower()
        if node.tag == f"{_TAG}int":
            return int(text, 0 if text[:2] in ("0x", "0o") else 10)
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))

    def mapping(self, node: yaml.MappingNode) -> LocatedMapping:
        """Return a mapping."""
        values = self.construct_mapping(node, deep=True)
        return LocatedMapping(values, _place(node), {key.value: _place(value) for key, value in node.value})

    def sequence(self, node: yaml.SequenceNode) -> LocatedList:
        """Return a list."""
        places = {str(place): _place(item) for place, item in enumerate(node.value)}
        return LocatedList(self.construct_sequence(node, deep=True), _place(node), places)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node in self.recursive_objects:
            raise _fault(node, _CIRCLE)
        return super().construct_object(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check the keys of a mapping and merge other mappings into it."""
        if node in self._merged:
            if not self._merged[node]:
                raise _fault(node, _CIRCLE)
            return
        self._merged[node], names = False, set[str]()
        for place, (key, value) in enumerate(node.value):
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                remark = f" ({NO_COMMA})" * (value.value == "")  # {lr: 0,05} has the key 05
                raise _fault(key, f"the key {key.value!r} is no text; write it in quotes{remark}")
            if key.value in names:
                self.repeated.append(key)
            names.add(key.value)
            if key.value == "use" and self._blocks is not None:
                named = value.value if isinstance(value, yaml.SequenceNode) else [value]
                blocks = [_block(name, self._blocks) for name in named]
                merged = yaml.SequenceNode(f"{_TAG}seq", blocks, value.start_mark)
                node.value[place] = yaml.ScalarNode(f"{_TAG}merge", "<<", key.start_mark), merged
        super().flatten_mapping(node)
        self._merged[node] = True


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
for _kind, _maker in (("int", "number"), ("float", "number"), ("map", "mapping"), ("seq", "sequence")):
    _Loader.add_constructor(f"{_TAG}{_kind}", getattr(_Loader, _maker))


def read_plain(path: Path | None) -> Any:
    """Return the data of a YAML file, or of standard input if there is no path; None if it is empty."""
    return _data([_tree(path)])[0]


def read_settings(path: Path, kind: type[AnySettings]) -> AnySettings:
    """Return the settings in a YAML file."""
    return kind.parse(read_plain(path), str(path))


def read_linked(paths: Sequence[Path]) -> list[Any]:
    """Return the data of YAML files.

    ``use: name`` in a mapping merges a block, like a merge key: an entry of the first file's ``blocks``, or
    another file. If it lists several, the first one wins.
    """
    first, *others = trees = list(map(_tree, paths))
    blocks = {Path(tree.start_mark.name).stem: tree for tree in others if isinstance(tree, yaml.MappingNode)}
    for key, value in first.value if isinstance(first, yaml.MappingNode) else ():
        if key.value == "blocks" and isinstance(value, yaml.MappingNode):
            blocks |= {name.value: block for name, block in value.value}
    return _data(trees, blocks)


def read_text(text: str, where: str) -> Any:
    """Return the data of a YAML text that is no file; messages name its origin, ``where``, and no lines."""
    return _data([_tree_of(text, where, "")], where=where)[0]


def _tree(path: Path | None) -> yaml.Node:
    where = "standard input" if path is None else str(path)
    if path is not None and (path.is_dir() or not path.exists()):
        remedy = similar(path)
        remedy = remedy or "; name an existing YAML or JSON file (config/examples has a run)"
        raise FltrainError(f"{path}: {'a folder' if path.is_dir() else 'no such file'}{remedy}")
    with _refusing(where):
        text = sys.stdin.read() if path is None else path.read_text(encoding="utf-8-sig")
    return _tree_of(text, where, where)


def _tree_of(text: str, where: str, name: str) -> yaml.Node:
    stream: Any = StringIO(text)
    stream.name = name  # of the marks; without one, they are no places
    with _refusing(where, text):
        tree: yaml.Node | None = _Loader(stream).get_single_node()
    return tree or yaml.ScalarNode(f"{_TAG}null", "", yaml.Mark(name, 0, 0, 0, None, 0))


def _data(
    trees: Sequence[yaml.Node], blocks: Mapping[str, yaml.Node] | None = None, where: str = ""
) -> list[Any]:
    where = where or trees[0].start_mark.name
    with _refusing(where):
        loader = _Loader("", blocks)
        data = [loader.construct_object(tree, deep=True) for tree in trees]
    mistakes = Problems()
    for key in loader.repeated:
        with mistakes.collected(), _refusing(where):
            raise _fault(key, f"the key {key.value!r} occurs twice; leave one out")
    mistakes.refuse(where)
    return data


def _block(name: yaml.Node, blocks: Mapping[str, yaml.Node]) -> yaml.Node:
    if str(name.value) not in blocks:
        suggestion = hint(str(name.value), blocks or ["none"], "blocks")
        raise _fault(name, f"use: unknown block {name.value!r}{suggestion}")
    return blocks[name.value]


def _place(node: yaml.Node) -> FileLine | None:
    return (node.start_mark.name, node.start_mark.line + 1) if node.start_mark.name else None


def _fault(node: yaml.Node, problem: str) -> ConstructorError:
    return ConstructorError(problem=problem, problem_mark=node.start_mark)


@contextmanager
def _refusing(where: str, text: str = "") -> Iterator[None]:
    """Turn exceptions of the YAML library about a text into messages with file and line."""
    try:
        yield
    except OSError as error:
        raise as_mistake(error) from None
    except UnicodeError:
        raise FltrainError(f"{where}: not YAML: not a text in UTF-8; save it as UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:
        late = str(getattr(error, "context", "")).endswith(("a simple key", "scanning a quoted scalar"))
        mark = getattr(error, "context_mark" if late else "problem_mark", None)
        problem = getattr(error, "problem", error)
        place = f"{mark.name}: line {mark.line + 1}" if mark and mark.name else where
        lines = " of this line and the line before" * (place != where)
        remedy = f"; check indentation, colons, quotes and brackets{lines}"
        remedy *= isinstance(error, ParserError | ScannerError)
        if mark and "cannot start any token" in str(problem):
            letter = text[mark.index : mark.index + 1]
            remedy = f"; write a text that begins with {letter!r} in quotes"
            remedy = "; indent with spaces, not with tabs" if letter == "\t" else remedy
        raise FltrainError(f"{place}: not YAML: {problem}{remedy}") from None
    except RecursionError:
        raise FltrainError(f"{where}: not YAML: lists or mappings are nested too deeply") from None
