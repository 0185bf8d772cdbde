"""Plain data from YAML text, without what is easily misread in it or done with it. No torch here.

Plain data are mappings with texts for keys, lists, texts, numbers, truth values and None. What YAML 1.1 takes
for something else than is most likely meant is refused: keys that are no texts or are there twice (the last
would win), dates, and numbers to the base 60 (``1:30``) or 8 (``010``). So are tags, and texts that are small
but become large or endless when aliases are followed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from fltrain.core.errors import FltrainError

DEEPEST = 100
"""Lists and mappings within one another."""

MOST_NODES = 1_000_000
"""Values in a document, once those behind aliases are written out wherever they are referred to."""

_NO_TEXT = "not YAML: not a text in UTF-8; save it as one"
_TAG = "tag:yaml.org,2002:"
_LIST, _MAPPING, _INTEGER = f"{_TAG}seq", f"{_TAG}map", f"{_TAG}int"
_TEXTS = (f"{_TAG}str", f"{_TAG}merge", f"{_TAG}value")
_KINDS = {
    _INTEGER: "a number",
    f"{_TAG}float": "a number",
    f"{_TAG}bool": "a truth value",
    f"{_TAG}null": "nothing",
}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_plain(path: Path | None) -> Any:
    """Read a YAML file, or standard input if there is no path; None if it is empty.

    Raises:
        FltrainError: if it is missing, cannot be read, or is not plain data.
    """
    where = "standard input" if path is None else str(path)
    try:
        text = sys.stdin.read() if path is None else path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FltrainError(f"{where}: no such file") from None
    except OSError as error:
        raise FltrainError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise FltrainError(f"{where}: {_NO_TEXT}") from None
    return parse_plain(text, where)


def parse_plain(text: str, where: str) -> Any:
    """Parse a YAML document (JSON is YAML, too); None if it is empty.

    Raises:
        FltrainError: if it is not plain data; the message begins with ``where`` and the line.
    """
    try:
        loader = _Loader(text)
        try:
            return _Document(loader, where).read()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        written = "".join(text.splitlines()[line : line + 1])
        hint = "; indent with spaces, not with tabs" if "\t" in written else ""
        raise FltrainError(f"{where}: line {line + 1}: not YAML: {error.problem}{hint}") from None
    except UnicodeEncodeError:  # half a character, as there are in texts that were decoded carelessly
        raise FltrainError(f"{where}: {_NO_TEXT}") from None
    except yaml.YAMLError as error:
        raise FltrainError(f"{where}: not YAML: {error}") from None


class _Anchored(NamedTuple):
    """What an alias stands for: the data, how many values these are, and how deep they go."""

    data: Any
    nodes: int
    depth: int


class _Document:
    """A document, built from its events: the library's own way has no bound on depth (and in C no check)."""

    def __init__(self, loader: Any, where: str) -> None:
        self._loader = loader
        self._where = where
        self._anchors: dict[str, _Anchored | None] = {}
        self._nodes = 0
        self._deepest = 0

    def read(self) -> Any:
        """The data of the only document; None if there is none."""
        next_event = self._loader.get_event
        next_event()  # the stream begins
        if self._loader.check_event(yaml.StreamEndEvent):
            return None
        next_event()  # the document begins
        data = self._value(next_event(), 0)
        next_event()  # the document ends
        if not self._loader.check_event(yaml.StreamEndEvent):
            self._refuse(next_event(), "another document begins; a file holds one")
        return data

    def _value(self, event: Any, depth: int) -> Any:
        """The data that begin with an event; ``depth`` lists and mappings are around them."""
        if isinstance(event, yaml.AliasEvent):
            return self._followed(event, depth)
        nodes, deepest, self._deepest = self._nodes, self._deepest, depth
        self._grow(event, 1, depth)
        if event.anchor is not None:
            if event.anchor in self._anchors:
                self._refuse(event, f"the anchor &{event.anchor} is there twice; rename one")
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            data = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            data = self._list(event, depth + 1)
        else:
            data = self._mapping(event, depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(data, self._nodes - nodes, self._deepest - depth)
        self._deepest = max(deepest, self._deepest)
        return data

    def _followed(self, alias: Any, depth: int) -> Any:
        name = alias.anchor
        if name not in self._anchors:
            self._refuse(alias, f"no anchor &{name} comes before the alias *{name}")
        anchored = self._anchors[name]
        if anchored is None:
            self._refuse(alias, f"the alias *{name} is within what it stands for; write it out")
        self._grow(alias, anchored.nodes, depth + anchored.depth)
        return anchored.data

    def _grow(self, event: Any, nodes: int, depth: int) -> None:
        """Note what is added to the data, as if aliases were written out."""
        self._nodes += nodes
        self._deepest = max(depth, self._deepest)
        if self._nodes > MOST_NODES:
            self._refuse(event, f"more than {MOST_NODES:,} values once aliases are written out; use fewer")
        if self._deepest > DEEPEST:
            self._refuse(event, f"more than {DEEPEST} lists and mappings within one another; use fewer")

    def _list(self, start: Any, depth: int) -> list[Any]:
        self._check_tag(start, _LIST)
        items = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _mapping(self, start: Any, depth: int) -> dict[str, Any]:
        self._check_tag(start, _MAPPING)
        own: dict[str, Any] = {}
        merged: list[Any] | None = None
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            merges = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key = self._value(event, depth)
            if not isinstance(key, str):
                self._refuse_key(event)
            if key in own or (merges and merged is not None):
                self._refuse(event, f"the key {key!r} is there twice; leave one out")
            value = self._value(self._loader.get_event(), depth)
            if not merges:
                own[key] = value
                continue
            merged = value if isinstance(value, list) else [value]
            if not all(isinstance(one, dict) for one in merged):
                self._refuse(event, "what is merged by << must be a mapping, or a list of mappings")
        if merged is None:
            return own
        whole: dict[str, Any] = {}
        for mapping in (*reversed(merged), own):  # earlier ones win, own keys over all
            whole.update(mapping)
        return whole

    def _scalar(self, event: Any) -> Any:
        tag, text = self._tag(event), event.value
        if tag in _TEXTS:
            return text
        if tag == f"{_TAG}timestamp":
            self._refuse(event, f"YAML reads {text!r} as a date; write it in quotes")
        if tag not in _KINDS:
            self._refuse_tag(event)
        if _KINDS[tag] == "a number":
            digits = text.replace("_", "").lstrip("+-")
            octal = tag == _INTEGER and digits[:1] == "0" and digits[1:2].isdigit()
            if octal or ":" in digits:
                base = "8" if octal else "60"
                self._refuse(
                    event,
                    f"YAML reads {text!r} as a number to the base {base}; write it to the base 10, or in "
                    "quotes if it is a text",
                )
        try:
            return self._loader.yaml_constructors[tag](self._loader, yaml.ScalarNode(tag, text))
        except (LookupError, ValueError):
            self._refuse(event, f"{text!r} cannot be read as {_KINDS[tag]}; write another one")

    def _tag(self, scalar: Any) -> str:
        if scalar.tag in (None, "!"):
            tag: str = self._loader.resolve(yaml.ScalarNode, scalar.value, scalar.implicit)
            return tag
        return str(scalar.tag)

    def _refuse_key(self, event: Any) -> NoReturn:
        if isinstance(event, yaml.ScalarEvent):
            kind = _KINDS[self._tag(event)]
            self._refuse(event, f"YAML reads the key {event.value!r} as {kind}; write it in quotes")
        self._refuse(event, "a key must be a text")

    def _check_tag(self, collection: Any, own: str) -> None:
        if collection.tag not in (None, "!", own):
            self._refuse_tag(collection)

    def _refuse_tag(self, event: Any) -> NoReturn:
        self._refuse(event, f"the tag {event.tag.replace(_TAG, '!!')!r} is not allowed; leave it out")

    def _refuse(self, event: Any, why: str) -> NoReturn:
        raise FltrainError(f"{self._where}: line {event.start_mark.line + 1}: {why}")
