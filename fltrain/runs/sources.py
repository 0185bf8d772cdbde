"""Digests of the source code that decides the numbers of a run. No torch.

A digest covers syntax trees: comments, docstrings and formatting do not change it, and it is equal under all
versions of Python. A changed digest does not make a record stale. If your change alters numbers, increase the
revision of the component.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from fltrain.core.registry import Component
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import begins

PARTS = ("data", "engine", "methods", "metrics", "models", "core.floats", "core.rng", "runtime.determinism")
"""Packages and modules of fltrain whose code decides numbers.

``data.medmnist`` is one of them: it states the number of classes, hence the size of the network's output.
"""

CHECKED = ("data.fetch",)
"""A module among them that does not: checksums cover the files that it makes."""

ENTRY = ("fltrain.engine.simulation", "fltrain.engine.cuda_graph", "fltrain.data.prepared")
"""Modules whose imports are followed, in addition to those of the run's components."""

_PACKAGE = Path(__file__).parents[1]


def source_digests(spec: RunSpec) -> dict[str, str]:
    """Return a digest of each module that decides the numbers of a run, by its name without ``fltrain.``.

    These are the modules of its components (``methods.fedprox``), the engine and the preparation of data, and
    their imports from fltrain or, for an external component, from its own package. A module with several
    components counts only with those of the run: ``data.partition.dirichlet (dirichlet)``.
    """
    return dict(_digests(frozenset(map(type, components(spec)))))


def components(spec: RunSpec) -> list[Component]:
    """Return the components of a run: methods, network, schedule, partition scheme, readers of datasets."""
    readers = [dataset.entry.reader for dataset in (spec.dataset, *spec.evaluation.extra)]
    return [*spec.composition.methods, spec.model, spec.training.lr_schedule, spec.partition, *readers]


def outside_files(spec: RunSpec) -> list[Path]:
    """Return the source files of components that are not part of fltrain."""
    names = sorted({type(component).__module__ for component in components(spec)})
    files = [_file(name) for name in names if not name.startswith("fltrain.")]
    return [file for file in files if file is not None]


def changed_code(provenance: Mapping[str, Any], spec: RunSpec) -> str:
    """Describe the difference between the code that trained a run and today's code.

    For example ``the code of methods.fedprox changed since this run``; empty if nothing changed.
    """
    recorded = provenance.get("sources")
    if not recorded:
        return "code not recorded"
    modules = differing(recorded, source_digests(spec))
    return f"the code of {named(modules)} changed since this run" if modules else ""


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the keys whose values differ, sorted."""
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


def named(modules: Sequence[str]) -> str:
    """List modules, the first two by name."""
    more = f" and {len(modules) - 2} more" if len(modules) > 2 else ""
    return ", ".join(modules[:2]) + more


@cache
def _digests(chosen: frozenset[type[Component]]) -> dict[str, str]:
    """Follow the static imports from the chosen components and the engine, past all other components."""
    modules = {kind.__module__ for kind in chosen}
    outside = {name.partition(".")[0] for name in modules} - {"fltrain"}
    concrete = [kind for kind in _subclasses(Component) if isinstance(_name(kind), str)]
    others = {kind.__module__ for kind in concrete} - modules
    needed = {base for kind in chosen for base in kind.__mro__}
    digests: dict[str, str] = {}
    seen: set[str] = set()
    pending = [(name, True) for name in (*modules, *ENTRY)]
    while pending:
        name, from_component = pending.pop()
        if name in seen or (name in others and not from_component):
            continue
        seen.add(name)
        unused = frozenset(one.__name__ for one in concrete if one.__module__ == name and one not in needed)
        if module := _module(name, unused):
            digest, imports = module
            used = sorted(_name(one) for one in chosen if one.__module__ == name)
            label = f"{name} ({', '.join(used)})" if unused and used else name
            digests[label.removeprefix("fltrain.")] = digest[:12]
            component = name in modules | others
            pending += [(target, component) for target in imports if _decides(target, outside)]
    return dict(sorted(digests.items()))


def _name(kind: type[Component]) -> Any:
    return kind.model_fields["name"].default


def _subclasses(kind: type[Component]) -> Iterator[type[Component]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _decides(name: str, outside: set[str]) -> bool:
    """Return True if a module can decide numbers."""
    package, _, module = name.partition(".")
    ours = package == "fltrain" and begins(module, PARTS) and not begins(module, CHECKED)
    return ours or package in outside


def _file(name: str) -> Path | None:
    """Return the source file of a module; None if it is not a module or has no source."""
    if name.startswith("fltrain."):  # without importing its packages
        place = _PACKAGE.joinpath(*name.split(".")[1:])
        candidates = (place.with_suffix(".py"), place / "__init__.py")
        return next((path for path in candidates if path.is_file()), None)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


@cache
def _module(name: str, unused: frozenset[str]) -> tuple[str, list[str]] | None:
    """Return the digest of a module without its unused classes, and the names of everything it imports.

    Returns None if it has no source file.
    """
    file = _file(name)
    if file is None:
        return None
    tree = ast.parse(file.read_bytes())
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name in unused)]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    texts: list[str] = []
    _add_texts(tree, texts.append)
    digest = hashlib.sha256("".join(f"{text}\0" for text in texts).encode()).hexdigest()
    return digest, list(_imports(tree, package))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of imported modules; some are names inside a module, which have no file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            yield from chain([base], (f"{base}.{alias.name}" for alias in node.names))


def _add_texts(node: Any, add: Callable[[str], None]) -> None:
    """Add a syntax tree as texts that do not depend on the version of Python, without docstrings."""
    if isinstance(node, list):
        for item in node:
            if not (isinstance(item, ast.Expr) and isinstance(getattr(item.value, "value", None), str)):
                _add_texts(item, add)
        add("]")
    elif isinstance(node, ast.AST):
        add(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if value not in (None, []) and field not in ("ctx", "kind", "type_comment"):
                add(field)
                _add_texts(value, add)
        add(")")
    else:
        add(repr(node))
