"""Remarks on the runs behind a table: damaged records, mixed conditions, changed code. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fltrain.core.errors import count
from fltrain.runs.record import Record
from fltrain.runs.sources import differing, named, source_digests


def remarks(records: Iterable[Record]) -> list[str]:
    """Return a line each for damaged records and mixed conditions, as far as there are any.

    Args:
        records: the records behind a table, complete or not, repeated or not.
    """
    complete = [record for record in {one.run_id: one for one in records}.values() if record.complete]
    usable = [record for record in complete if not record.damage]
    provenances = [record.provenance for record in usable]
    lines = (_damaged(complete), mixed_data(usable), mixed(provenances), mixed_code(provenances))
    return [line for line in lines if line]


def mixed_data(records: Iterable[Record]) -> str:
    """Name datasets and partitions that had different bytes under one name; empty without any."""
    digests: dict[tuple[str, str], Counter[str]] = {}
    for record in records:
        if spec := record.run_spec:
            used = record.summary.get("digests", {})
            for what, name in (("data", spec.dataset.id), ("partition", spec.partition_id)):
                if digest := used.get(what):
                    digests.setdefault((what, name), Counter())[str(digest)[:8]] += 1
    found = [
        f"{'dataset' if what == 'data' else 'partition'} {name} ("
        + ", ".join(f"{digest}: {count}" for digest, count in counts.most_common())
        + ")"
        for (what, name), counts in digests.items()
        if len(counts) > 1
    ]
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    what = "These runs were trained on different data under one name, so they are not comparable"
    return f"{what}: {', '.join(found[:2])}{more}." if found else ""


def mixed(provenances: Sequence[Mapping[str, Any]]) -> str:
    """Name the machines, packages and levels of determinism that differ between runs; empty if none differs.

    For example ``These runs mix processors (A: 2, B: 1), which may round differently.``
    """
    conditions: dict[str, list[Any]] = {
        "processors": [one.get("gpu") or one.get("processor") for one in provenances],
        "instruction sets": [_instructions(one) for one in provenances],
        "PyTorch versions": [one.get("packages", {}).get("torch") for one in provenances],
        "thread counts": [one.get("threads") for one in provenances],
        "determinism levels": [one.get("determinism") for one in provenances],
    }
    found = []
    for what, values in conditions.items():
        counts = Counter(str(value) for value in values if value)
        if len(counts) > 1:
            found.append(
                f"{what} ({', '.join(f'{value}: {count}' for value, count in counts.most_common())})"
            )
    return f"These runs mix {', '.join(found)}, which may round differently." if found else ""


def mixed_code(provenances: Sequence[Mapping[str, Any]]) -> str:
    """Name the modules whose code differs between runs; empty if none differs."""
    digests: dict[str, set[str]] = {}
    for one in provenances:
        # Records of older versions have no digests of sources.
        for module, digest in (one.get("sources") or {"commit": str(one.get("commit"))[:10]}).items():
            digests.setdefault(module, set()).add(digest)
    modules = [module for module, values in sorted(digests.items()) if len(values) > 1]
    partly = "commit" in digests and len(digests) > 1
    if not modules and not partly:
        return ""
    parts = ["Different versions of the code trained these runs, with equal revisions."]
    parts += [f"Modules that differ: {named(modules)}."] if modules else []
    parts += ["Some records lack the versions of their modules."] if partly else []
    return " ".join(parts)


def code_changes(records: Iterable[Record]) -> list[str]:
    """Return a line if the code of usable records differs from today's: number of runs, modules, remedy."""
    modules: set[str] = set()
    runs = 0
    for record in {one.run_id: one for one in records}.values():
        if not record.usable:
            continue
        sources, spec = record.provenance.get("sources"), record.run_spec
        if sources and spec and (changed := differing(sources, source_digests(spec))):
            modules.update(changed)
            runs += 1
    since = f"Code changed since {count(runs, 'run')}, but no revision: {named(sorted(modules))}"
    again = "`fltrain status --changed` lists the runs to train again if the change affects results"
    return [f"{since}; {again}."] if runs else []


def _damaged(records: Sequence[Record]) -> str:
    problems = [record.damage for record in records if record.damage]
    more = f" ({len(problems) - 1} more: `fltrain verify` lists them)" if len(problems) > 1 else ""
    return f"Damaged and left out: {problems[0]}{more}." if problems else ""


def _instructions(provenance: Mapping[str, Any]) -> str:
    limits = provenance.get("limits") or {}
    return " ".join(
        [provenance.get("cpu_capability", ""), *(f"{key}={limits[key]}" for key in sorted(limits))]
    )
