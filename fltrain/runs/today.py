"""Differences between records and today's code: changed sources, stale records, notes for tables. No torch.

A digest of a source covers its syntax tree: comments, docstrings and formatting do not change it, and it is
equal under all versions of Python. A changed digest does not make a record stale. If your change alters
numbers, increase the revision of the component: then its runs get new IDs, and their records are stale.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from fltrain.core.errors import FltrainError, listed
from fltrain.core.hashing import sha256, short_hash
from fltrain.core.registry import Component
from fltrain.runs.record import Record, Results, held
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import begins

# --------------------------------------------------------------------------------------- digests of sources
PARTS = ("data", "engine", "methods", "metrics", "models", "core.floats", "core.rng", "runtime.determinism")
"""Packages and modules of fltrain whose code decides numbers."""

OTHERS = (
    *("data.fetch", "engine.checkpoint", "engine.synthetic", "engine.train"),
    *("methods.checks", "methods.workload"),
)
"""Modules among them that decide none: checksums cover the files of ``data.fetch``, for example."""

_PACKAGE = Path(__file__).parents[1]


def source_digests(spec: RunSpec) -> dict[str, str]:
    """Return a digest of each module that decides the numbers of a run, by its name without ``fltrain.``.

    These are the modules of its components (``methods.fedprox``), and all modules in ``PARTS`` that define no
    component. Of an external component, they are the loaded modules of its package.
    """
    return dict(_digests(frozenset(map(type, components(spec)))))


def components(spec: RunSpec) -> list[Component]:
    """Return the components of a run: methods, network, schedule, partition scheme, readers of datasets."""
    readers = [dataset.entry.reader for dataset in (spec.dataset, *spec.evaluation.extra)]
    return [*spec.composition.methods, spec.model, spec.training.lr_schedule, spec.partition, *readers]


def outside_files(spec: RunSpec) -> list[Path]:
    """Return the source files of components that are not part of fltrain."""
    modules = {type(component).__module__ for component in components(spec)}
    return [Path(_file(name)) for name in sorted(modules) if _file(name) and not name.startswith("fltrain.")]


@cache
def _digests(chosen: frozenset[type[Component]]) -> dict[str, str]:
    """Return the digests for runs with the chosen components."""
    concrete = [kind for kind in _subclasses(Component) if isinstance(kind.model_fields["name"].default, str)]
    used = {base.__module__ for kind in chosen for base in kind.__mro__}
    unused = {kind.__module__ for kind in concrete} - used
    packages = {kind.__module__.partition(".")[0] for kind in chosen} - {"fltrain"}
    files = {name: _file(name) for name in sys.modules if name.partition(".")[0] in packages}
    for file in _PACKAGE.rglob("*.py"):  # without importing them; not copies in .ipynb_checkpoints
        parts = file.relative_to(_PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if all(map(str.isidentifier, parts)) and begins(name, PARTS) and not begins(name, OTHERS):
            files[f"fltrain.{name}"] = str(file)
    return {
        name.removeprefix("fltrain."): _digest(Path(file))
        for name, file in sorted(files.items())
        if file and name not in unused
    }


def _subclasses(kind: type[Component]) -> Iterator[type[Component]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _file(name: str) -> str:
    """Return the source file of a loaded module; empty if it has none."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file if file.endswith(".py") else ""


@cache
def _digest(file: Path) -> str:
    texts: list[str] = []
    _add_texts(ast.parse(file.read_bytes()), texts.append)
    return sha256("".join(f"{text}\0" for text in texts))[:12]


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
    return sorted(name for name in recorded.keys() & today.keys() if recorded[name] != today[name])


IF_CHANGED = "if a change of yours affects results, increase `revision` (docs/records.md#changed-code)"
"""Remark on records of the current revisions whose code changed."""

UNRECORDED = "code not recorded"
"""Remark on a record without digests of the code, such as an older one."""


def changed_code(record: Record, spec: RunSpec) -> str:
    """Return, for example, ``methods.fedprox changed after this run``; empty if none changed."""
    if not record.provenance.get("sources"):
        return UNRECORDED
    modules = changed_modules(record, spec)
    return f"{listed(modules, 2)} changed after this run" if modules else ""


def already_trained(record: Record, spec: RunSpec, again: str) -> str:
    """Return the line on a run that is not trained again; ``again`` is the option that would retrain it."""
    remark = changed_code(record, spec)
    if not changed_modules(record, spec):
        return f"{spec.run_id}: already trained ({again} retrains it){remark and f'; {remark}'}"
    return f"{spec.run_id}: already trained; {remark}; {IF_CHANGED}; {again} retrains it"


def changed_runs(runs: Mapping[str, RunSpec], results: Results) -> dict[str, list[str]]:
    """Return the modules whose code changed since each of these runs (by ID) was trained."""
    changed = {
        run: changed_modules(record, spec)
        for run, spec in runs.items()
        if (record := results.record(run)).usable
    }
    return {run: modules for run, modules in changed.items() if modules}


# -------------------------------------------------------------------------------------------- stale records
def stale_runs(runs: Collection[str], results: Results) -> dict[str, Record]:
    """Return the latest stale record of each of these runs (by ID) that has no record.

    Only records with the slug of such a run (its ID without the hash) are read.
    """
    missing = {run for run in runs if not results.record(run).complete}
    slugs = {run.rpartition("-")[0] for run in missing}
    records = [record for record in results.records() if record.run_id.rpartition("-")[0] in slugs]
    stale: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: record.written):
        with suppress(FltrainError):  # damaged
            if record.run_spec and record.stale and record.run_spec.run_id in missing:
                stale[record.run_spec.run_id] = record
    return stale


# --------------------------------------------------------------------------------------------------- status
STATUSES = (
    *("completed", "diverged", "damaged", "training", "failed", "stopped", "started"),
    *("stale", "unknown", "not trained"),
)
"""Names of statuses."""


class RunStatus(NamedTuple):
    """Status of a run.

    Attributes:
        name: one of ``STATUSES``. A ``started`` run has saved nothing yet; the code lacks settings of an
            ``unknown`` one.
        detail: explanation, empty if there is none.
        final: final accuracy, from 0 to 1; None if there is none.
        seconds: wall time of the training; None unless it has ended.
    """

    name: str
    detail: str = ""
    final: float | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, run: str, spec: RunSpec | None, results: Results, stale: Record | None = None) -> Self:
        """Return the status of a run, which may have a stale record of another ID.

        ``spec`` is None if today's code cannot read it, and has another ID if the run's own record is stale.
        """
        record = results.record(run)
        if record.complete:
            try:
                summary, seconds = record.summary, record.costs["seconds"]["total"]
                if spec is None:
                    return cls("unknown", record.lacking)
                if spec.run_id != run:
                    return cls("stale", record.stale)
                record.check_settings(spec)
                change = changed_code(record, spec)
                return cls(summary["status"], change, summary["accuracy"]["final"], seconds)
            except FltrainError as error:
                return cls("damaged", str(error))
        if held(results.lease(run)):
            return cls("training")
        text, log = "", record.folder / "train.log"
        with suppress(OSError):
            text = log.read_text(errors="replace")
        if last := re.search(r"(?ms)^[\d:]{8} failed: ([^\n]*)(?!.*^[\d:]{8} )", text):  # the last message
            return cls("failed", last[1].removeprefix(f"{run}: "))
        if finished := results.saved_rounds(run):
            return cls("stopped", f"after round {finished}; the next start resumes there")
        if os.path.exists(log):
            return cls("started")
        return cls("stale", f"{stale.stale} ({stale.run_id})") if stale else cls("not trained")


# ------------------------------------------------------------------------------- notes on the runs of a table
MIXED = "These runs mix"
"""Start of the note on processors and packages."""

OTHER_CODE = "Different versions of the code trained these runs."
"""First sentence of the note on code."""


def notes_on(records: Iterable[Record]) -> list[str]:
    """Return a line each for damaged records, different data, mixed conditions and different code, if any.

    Args:
        records: the records behind a table, complete or not, repeated or not.
    """
    complete = [record for record in {entry.run_id: entry for entry in records}.values() if record.complete]
    damages = [damage for record in complete if (damage := record.damage)]
    facts = defaultdict[tuple[str, str], Counter[str]](Counter)
    for record in complete:
        for kind, name, value in () if record.damage else _facts(record):
            facts[kind, name] += Counter([str(value)] if value else [])  # in the order of the facts
    different = {key: counts for key, counts in facts.items() if len(counts) > 1}

    def differences(kind: str) -> list[str]:
        """Return, for example, ``processors (A: 2, B: 1)``."""
        texts = {
            name: ", ".join(f"{value}: {number}" for value, number in counts.most_common())
            for (fact_kind, name), counts in different.items()
            if fact_kind == kind
        }
        return [f"{name} ({values})" for name, values in texts.items()]

    notes = []
    if damages:
        more = f" ({len(damages) - 1} more: `fltrain verify` lists them)" if len(damages) > 1 else ""
        notes.append(f"Damaged and left out: {damages[0]}{more}.")
    if data := differences("data"):
        problem = "These runs were trained on different data under one name, so they are not comparable"
        notes.append(f"{problem}: {listed(data, 2)}.")
    if conditions := differences("condition"):
        notes.append(f"{MIXED} {', '.join(conditions)}, which may round differently.")
    modules = sorted(name for kind, name in different if kind == "code")
    partly = ("code", "commit") in facts and len({name for kind, name in facts if kind == "code"}) > 1
    if modules or partly:
        parts = [OTHER_CODE]
        parts += ["The developers declared, by equal revisions, that the changes alter no number."]
        parts += ["So results count as comparable (docs/records.md#changed-code)."]
        parts += [f"Modules that differ: {listed(modules, 2)}."] if modules else []
        parts += ["Some records lack the versions of their modules."] if partly else []
        parts += ["Runs that differ only in plug-ins share a version."] if _pairs_share_code(complete) else []
        notes.append(" ".join(parts))
    return notes


def serious(notes: Iterable[str]) -> list[str]:
    """Return the notes on damaged records and different data."""
    return [note for note in notes if not note.startswith((MIXED, OTHER_CODE))]


def _pairs_share_code(records: Iterable[Record]) -> bool:
    """Return True if some runs differ only in their plug-ins, and the code of such runs never differs."""

    def equal(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
        modules = {*first} & {*second}
        return bool(modules) and all(first[module] == second[module] for module in modules)

    versions = defaultdict[str, list[dict[str, str]]](list)
    for record in records:
        if not record.damage:
            settings = {key: record.spec[key] for key in record.spec if key not in ("plugins", "revisions")}
            code = {module: value for kind, module, value in _facts(record) if kind == "code"}
            versions[short_hash(settings)].append(code)
    pairs = [(first, second) for first, *others in versions.values() for second in others]
    return bool(pairs) and all(equal(*pair) for pair in pairs)


def _facts(record: Record) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and value of the facts that should not differ between the runs of a table."""
    about = record.provenance
    if spec := record.run_spec:
        digests = record.summary["digests"]
        names = {"data": f"dataset {spec.dataset.id}", "partition": f"partition {spec.partition_id}"}
        for key, name in names.items():
            yield "data", name, digests.get(key, "")[:8]
    limits = (f"{name}={value}" for name, value in sorted((about.get("limits") or {}).items()))
    yield "condition", "processors", about.get("gpu") or about.get("processor")
    yield "condition", "instruction sets", " ".join([about.get("cpu_capability", ""), *limits])
    yield "condition", "PyTorch versions", about.get("packages", {}).get("torch")
    yield "condition", "thread counts", about.get("threads")
    yield "condition", "determinism levels", about.get("determinism")
    # Records of older versions have no digests of sources.
    for module, digest in (about.get("sources") or {"commit": str(about.get("commit"))[:10]}).items():
        yield "code", module, digest
