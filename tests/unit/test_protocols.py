"""Pages of papers: the protocol's table or the register names each setting that decides a run."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fltrain.core.config import Settings
from fltrain.core.strict_yaml import read_settings
from fltrain.experiments.schema import Register
from fltrain.methods.base import Method

from .helpers import shipped

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"

IDLE = {
    "partition.max_draws": (["flfa", "fed2", "fedfcd", "fedimpro"], "only bounds the search"),
    "partition.choice": (["fedimpro"], "all writers are clients"),
    "training.augmentation.padding_mode": (["ecgr", "fedfcd", "fedavg"], "no images are padded"),
    "training.last_batch": (["fedavg"], "600 images fill the batches of 10, 50 and 600"),
    "batchnorm": (["fedavg"], "networks without BatchNorm"),
    "model.norm_groups": (["flfa"], "of GroupNorm"),
    "fedamp.sigma": (["fedfcd"], "of the form with a kernel"),
    "perfedavg.delta": (["fedfcd"], "of the form with Hessians"),
}
"""Settings without effect in all runs of some papers: the papers, and the reason."""

OFF = {"None", "False", "0.0", "()", "nothing", "given"}
"""Values that switch something off; ``given`` is a component, whose settings are named instead."""

OURS = {"evaluation", "precision"}
"""Kinds whose defaults are ours for all papers: measures, and single precision."""

every_page = pytest.mark.parametrize("paper", ["ecgr", "flfa", "fed2", "fedfcd", "fedimpro", "fedavg"])


@cache
def protocol(paper: str) -> str:
    """The section of the page up to the next heading."""
    page = (ROOT / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")
    return page.partition("## Protocol: text and ours\n")[2].partition("\n## ")[0]


def stated(paper: str) -> list[tuple[str, Any]]:
    """The settings in backticks, each with its value (None without one) and the numbers that follow it."""
    pairs: list[tuple[str, Any]] = []
    for code, more in re.findall(r"`([\w./]+(?:: [^`]+)?)`((?:, [\d.]+\b)*)", protocol(paper)):
        path, _, value = code.partition(": ")
        values = [value, *more.split(", ")[1:]] if value else [None]
        pairs += [(path, yaml.safe_load(raw) if raw else None) for raw in values]
    return pairs


def settings_of(settings: Settings, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, value and default of every setting; the value of a component is its name.

    A method's settings follow its name (``flfa.scale``), as in the register.
    """

    def label(value: Any) -> Any:
        return None if value is None else getattr(value, "name", "given")

    for name, described in type(settings).model_fields.items():
        if name not in ("name", "seed"):
            value, default = getattr(settings, name), described.get_default(call_default_factory=True)
            nested = [
                sub for sub in (value if isinstance(value, tuple) else [value]) if isinstance(sub, Settings)
            ]
            for sub in nested:
                yield path + name, label(sub), label(default)
                yield from settings_of(sub, f"{sub.name}." if isinstance(sub, Method) else f"{path}{name}.")
            if not nested:
                yield path + name, value, default


def text(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(float(value) if number else value)


@dataclass
class Declared:
    """A paper at full scale: changed settings, targets of items, assumptions.

    ``values`` has the settings by path: each value, and the items whose runs have it.
    """

    values: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(dict))
    changed: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)
    assumptions: set[str] = field(default_factory=set)


@cache
def declared(paper: str) -> Declared:
    result = Declared()
    for item in shipped("paper").items:
        if item.paper.paper == paper:
            result.targets.add(item.id)
            result.assumptions.update(item.paper.assumptions, item.item.assumptions)
            for entry in item.entries:
                for path, value, default in settings_of(entry.spec):
                    result.values[path].setdefault(text(value), set()).add(item.id)
                    if value != default:
                        result.changed.add(path)
    return result


@cache
def registered(paper: str) -> list[tuple[str, Any]]:
    """The settings that the paper's assumptions name, each with its value (None without one).

    In parentheses, settings belong to the method or component before them: ``(moon.mu: 0.1, tau: 0.5)``,
    ``(partition: dirichlet_topup, min_size: 256)``.
    """
    values = declared(paper).values
    register = read_settings(CONFIG / "register.yaml", Register).entries
    assumed = "; ".join(register[key].assumed for key in sorted(declared(paper).assumptions))
    bare = re.findall(r"(?<![\w./])\w+(?:\.\w+)+(?![\w.]*: )", assumed)
    pairs: list[tuple[str, Any]] = [(path, None) for path in bare]
    for group in re.findall(r"\(([^()]*)\)", assumed):
        owner = ""
        for code in re.findall(r"[\w.]+(?:: [^,;]+)?", group):
            path, _, value = code.partition(": ")
            if "." in path:
                owner = path.rpartition(".")[0]
            elif f"{owner}.{path}" in values:
                path = f"{owner}.{path}"
            elif value and any(key.startswith(f"{path}.") for key in values):
                owner = path
            pairs.append((path, yaml.safe_load(value) if value else None))
    return pairs


def unnamed(paper: str, paths: Iterable[str]) -> dict[str, list[str]]:
    """Values of the settings that neither the protocol's table nor the register names.

    If they name a setting only with values, they have to name each value that does not switch something off,
    unless only items have it that the table names.
    """
    pairs = [*stated(paper), *registered(paper)]
    missing: dict[str, list[str]] = {}
    for path in paths:
        values, named = declared(paper).values[path], {value for name, value in pairs if name == path}
        if named and None not in named:
            listed = OFF | {text(value) for value in named}
            special = {name for name, _ in pairs}
            values = {key: items for key, items in values.items() if not (key in listed or items <= special)}
        elif any(f"{name}.".startswith(f"{path}.") for name, _ in pairs):
            continue
        if values:
            missing[path] = sorted(values)
    return missing


@every_page
def test_every_deciding_setting_is_named(paper: str) -> None:
    """Settings that items change, and defaults that do not switch something off."""
    result = declared(paper)
    defaults = {
        path
        for path, values in result.values.items()
        if values.keys() - OFF and path.partition(".")[0] not in OURS
    }
    idle = {path for path, (papers, _) in IDLE.items() if paper in papers}
    missing = unnamed(paper, result.changed | defaults)
    assert idle <= missing.keys(), "remove them from IDLE"
    assert not {path: values for path, values in missing.items() if path not in idle}, (
        f"name them in docs/papers/{paper}.md or in the register, with text, code or assumption"
    )


@every_page
def test_values_of_the_register_are_those_of_the_runs(paper: str) -> None:
    values = declared(paper).values
    for path, value in registered(paper):
        if value is not None:
            assert path in values, path
            assert text(value) in values[path], f"{path} has {sorted(values[path])}, not {value}"


@every_page
def test_settings_and_values_of_the_page_are_those_of_the_runs(paper: str) -> None:
    values = declared(paper).values
    for path, value in stated(paper):
        assert path in values or path in declared(paper).targets, path
        assert value is None or text(value) in values[path], f"{path} has {sorted(values[path])}, not {value}"


@every_page
def test_each_row_is_complete_and_each_assumption_in_a_row(paper: str) -> None:
    lines = [line for line in protocol(paper).splitlines() if line.startswith("|")]
    assert lines[:2] == ["| text | ours | why |", "| --- | --- | --- |"]
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 3 and all(cells), line
    rows = "\n".join(lines)
    named = set(re.findall(r"\b[AF]-\d+b?\b", rows))
    for letter, first, last in re.findall(r"\b([AF])-(\d+) to \1-(\d+)\b", rows):
        named.update(f"{letter}-{number}" for number in range(int(first), int(last) + 1))
    assert declared(paper).assumptions - named == set(), "assumptions without a row"
    assert named - declared(paper).assumptions == set(), "assumptions of no item of the paper"
