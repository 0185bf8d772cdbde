"""Differences between records and today's code: changed sources, stale records, notes for tables. No torch.

A digest of a source covers its syntax tree: comments, docstrings and formatting do not change it, and it is
equal under all versions of Python. A changed digest does not make a record stale. If your change alters
numbers, increase the revision of the component: then its runs get new IDs, and their records are stale.
"""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

from fltrain.core.errors import FltrainError, listed
from fltrain.core.hashing import sha256
from fltrain.core.registry import Component
from fltrain.runs.record import Record, Results, held
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import begins

# --------------------------------------------------------------------------------------- digests of sources
PARTS = ("data", "engine", "methods", "metrics", "models", "core.floats", "core.rng", "runtime.determinism")
"""Packages and modules of fltrain whose code decides numbers."""

CHECKED = ("data.fetch",)
"""A module among them that does not: checksums cover the files that it makes."""

ENTRY = ("fltrain.engine.simulation", "fltrain.engine.cuda_graph", "fltrain.data.prepared")
"""Modules whose imports are followed, in addition to the run's components."""

_PACKAGE = Path(__file__).parents[1]


def source_digests(spec: RunSpec) -> dict[str, str]:
    """Return a digest of each module that decides the numbers of a run, by its name without ``fltrain.``.

    These are the modules of its components (``methods.fedprox``), the engine and the preparation of data, and
    their imports from fltrain or, for an external component, from its own package. A module with several
    components counts only with the run's own: ``data.partition.dirichlet (dirichlet)``.
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
    return sha256("".join(f"{text}\0" for text in texts)), list(_imports(tree, package))


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


# --------------------------------------------------------------------------------------------- changed code
def changed_modules(record: Record, spec: RunSpec) -> list[str]:
    """Return the modules whose code changed since a run was trained; none if the record has no digests."""
    recorded, today = record.provenance.get("sources") or {}, source_digests(spec)
    names = {*recorded, *today} if recorded else set()
    return sorted(name for name in names if recorded.get(name) != today.get(name))


def changed_code(record: Record, spec: RunSpec) -> str:
    """Return, for example, ``the code of methods.fedprox changed since this run``; empty if none changed."""
    if not record.provenance.get("sources"):
        return "code not recorded"
    modules = changed_modules(record, spec)
    return f"the code of {listed(modules, 2)} changed since this run" if modules else ""


def changed_runs(runs: Mapping[str, RunSpec], results: Results) -> dict[str, list[str]]:
    """Return the modules whose code changed since each of these runs (by ID) was trained."""
    records = [record for record in map(results.record, runs) if record.usable]
    changed = {record.run_id: changed_modules(record, runs[record.run_id]) for record in records}
    return {run: modules for run, modules in changed.items() if modules}


# -------------------------------------------------------------------------------------------- stale records
def revised(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe the revisions between two recorded specs, for example ``methods 1 -> 2``.

    Returns ``settings`` if all revisions are equal: then a setting was added or renamed.
    """
    # A normalisation is recorded if it differs from this project's registry, a skew if there is one.
    absent = dict.fromkeys([*new["revisions"], "feature_skew"], 1) | {"normalisation": "as shipped"}
    recorded = old.get("revisions")
    before, after = (
        absent | revisions for revisions in (recorded if isinstance(recorded, dict) else {}, new["revisions"])
    )

    def shown(revision: Any) -> str:
        return ", ".join(map(str, revision)) if isinstance(revision, list) else str(revision)

    changed = [name for name in absent if before[name] != after[name]]
    changes = [f"{name} {shown(before[name])} -> {shown(after[name])}" for name in changed]
    return "; ".join(changes) or "settings"


@dataclass(frozen=True)
class Stale:
    """A record whose settings have another run ID today, because a component was revised.

    Attributes:
        record: the record.
        run: the run ID of its settings today; empty if the current code lacks one of them.
        revised: the revisions since, see ``revised``, or the setting that is lacking.
    """

    record: Record
    run: str
    revised: str

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """Return None if the record is not stale, or if its settings or files cannot be read."""
        try:
            recorded = record.spec
        except FltrainError:
            return None
        try:
            spec = RunSpec.recorded(recorded)
        except FltrainError as unknown:
            return cls(record, "", str(unknown))
        stale = spec.run_id != record.run_id
        return cls(record, spec.run_id, revised(recorded, spec.canonical)) if stale else None

    def __str__(self) -> str:
        return f"{self.revised} ({self.record.run_id})"


def stale_records(runs: Collection[str], current: Collection[str], results: Results) -> list[Stale]:
    """Return the stale records with the current settings of these runs (by ID), the latest last.

    Only records with the slug of such a run (its ID without the hash) are read, and none in ``current``.
    """
    slugs = {run.rpartition("-")[0] for run in runs}
    candidates = [
        record
        for record in results.records()
        if record.run_id.rpartition("-")[0] in slugs and record.run_id not in current
    ]
    candidates.sort(key=lambda record: record.written)
    return [stale for stale in map(Stale.of, candidates) if stale and stale.run in runs]


def stale_runs(runs: Collection[str], results: Results) -> dict[str, Stale]:
    """Return the latest stale record of each of these runs (by ID) that has no record."""
    missing = {run for run in runs if not results.record(run).complete}
    return {stale.run: stale for stale in stale_records(missing, runs, results)}


# --------------------------------------------------------------------------------------------------- status
class RunStatus(NamedTuple):
    """Status of a run.

    Attributes:
        name: ``completed``, ``diverged``, ``damaged``, ``training``, ``stopped``, ``started`` (ended before
            its first checkpoint), ``stale`` or ``not trained``.
        detail: explanation, empty if there is none.
        final: final accuracy, from 0 to 1; None if there is none.
        seconds: wall time of the training; None unless it has ended.
    """

    name: str
    detail: str = ""
    final: float | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, spec: RunSpec, results: Results, stale: Stale | None = None) -> Self:
        """Return the status of a run, which may have a stale record."""
        record = results.record(spec.run_id)
        if record.complete:
            try:
                record.check_settings(spec)
                summary, seconds = record.summary, record.costs["seconds"]["total"]
                change = changed_code(record, spec)
                return cls(summary["status"], change, summary["accuracy"]["final"], seconds)
            except FltrainError as error:
                return cls("damaged", str(error))
        if held(results.lease(spec.run_id)):
            return cls("training")
        if finished := results.saved_rounds(spec.run_id):
            return cls("stopped", f"after round {finished}; the next start resumes there")
        if (record.folder / "train.log").exists():
            return cls("started")
        return cls("stale", str(stale)) if stale else cls("not trained")


# ------------------------------------------------------------------------------- notes on the runs of a table
def notes_on(records: Iterable[Record]) -> list[str]:
    """Return a line each for damaged records, different data, mixed conditions and different code, if any.

    Args:
        records: the records behind a table, complete or not, repeated or not.
    """
    complete = [record for record in {one.run_id: one for one in records}.values() if record.complete]
    damages = [damage for record in complete if (damage := record.damage)]
    found = defaultdict[tuple[str, str], Counter[str]](Counter)
    for record in complete:
        for kind, what, value in () if record.damage else _facts(record):
            found[kind, what] += Counter([str(value)] if value else [])  # in the order of the facts
    different = {key: counts for key, counts in found.items() if len(counts) > 1}

    def shown(kind: str) -> list[str]:
        """Return, for example, ``processors (A: 2, B: 1)``."""
        texts = {
            what: ", ".join(f"{value}: {number}" for value, number in counts.most_common())
            for (one, what), counts in different.items()
            if one == kind
        }
        return [f"{what} ({values})" for what, values in texts.items()]

    notes = []
    if damages:
        more = f" ({len(damages) - 1} more: `fltrain verify` lists them)" if len(damages) > 1 else ""
        notes.append(f"Damaged and left out: {damages[0]}{more}.")
    if data := shown("data"):
        what = "These runs were trained on different data under one name, so they are not comparable"
        notes.append(f"{what}: {listed(data, 2)}.")
    if conditions := shown("condition"):
        notes.append(f"These runs mix {', '.join(conditions)}, which may round differently.")
    modules = sorted(what for kind, what in different if kind == "code")
    partly = ("code", "commit") in found and len({what for kind, what in found if kind == "code"}) > 1
    if modules or partly:
        parts = ["Different versions of the code trained these runs, with equal revisions."]
        parts += [f"Modules that differ: {listed(modules, 2)}."] if modules else []
        parts += ["Some records lack the versions of their modules."] if partly else []
        notes.append(" ".join(parts))
    return notes


def _facts(record: Record) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and value of the facts that should not differ between the runs of a table."""
    about = record.provenance
    if spec := record.run_spec:
        digests = record.summary["digests"]
        names = {"data": f"dataset {spec.dataset.id}", "partition": f"partition {spec.partition_id}"}
        for what, name in names.items():
            yield "data", name, digests.get(what, "")[:8]
    limits = (f"{name}={value}" for name, value in sorted((about.get("limits") or {}).items()))
    yield "condition", "processors", about.get("gpu") or about.get("processor")
    yield "condition", "instruction sets", " ".join([about.get("cpu_capability", ""), *limits])
    yield "condition", "PyTorch versions", about.get("packages", {}).get("torch")
    yield "condition", "thread counts", about.get("threads")
    yield "condition", "determinism levels", about.get("determinism")
    # Records of older versions have no digests of sources.
    for module, digest in (about.get("sources") or {"commit": str(about.get("commit"))[:10]}).items():
        yield "code", module, digest
