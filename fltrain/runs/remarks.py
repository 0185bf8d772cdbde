"""Remarks on the runs behind a table: damaged records, mixed conditions, changed code. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fltrain.runs.record import Record
from fltrain.runs.sources import differing, named, source_digests


def remarks(records: Iterable[Record]) -> list[str]:
    """Return a line each for damaged records and mixed conditions, as far as there are any.

    Args:
        records: the records behind a table, complete or not, repeated or not.
    """
    complete = [record for record in {one.run_id: one for one in records}.values() if record.complete]
    usable = [record.provenance for record in complete if not record.damage]
    return [line for line in (_damaged(complete), mixed(usable)) if line]


def mixed(provenances: Sequence[Mapping[str, Any]]) -> str:
    """Name the conditions that differ between runs, from their provenance; empty if none differs.

    For example ``These runs mix processors (A: 2, B: 1), code (methods.fedprox).``
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
    digests: dict[str, set[str]] = {}
    for one in provenances:
        # Records of older versions have no digests of sources.
        for module, digest in (one.get("sources") or {"commit": str(one.get("commit"))[:10]}).items():
            digests.setdefault(module, set()).add(digest)
    modules = [module for module, values in sorted(digests.items()) if len(values) > 1]
    if "commit" in digests and len(digests) > 1:
        modules.insert(0, "not recorded for all runs")
    if modules:
        found.append(f"code ({named(modules)})")
    return f"These runs mix {', '.join(found)}." if found else ""


def code_changes(records: Iterable[Record]) -> list[str]:
    """Return a line if the code of usable records differs from today's; it names the modules."""
    modules: set[str] = set()
    runs = 0
    for record in {one.run_id: one for one in records}.values():
        if not record.usable:
            continue
        sources, spec = record.provenance.get("sources"), record.run_spec
        if sources and spec and (changed := differing(sources, source_digests(spec))):
            modules.update(changed)
            runs += 1
    return [f"The code of {named(sorted(modules))} changed since {runs} of these runs."] if runs else []


def _damaged(records: Sequence[Record]) -> str:
    problems = [record.damage for record in records if record.damage]
    more = f" ({len(problems) - 1} more: `fltrain verify` lists them)" if len(problems) > 1 else ""
    return f"Damaged and left out: {problems[0]}{more}." if problems else ""


def _instructions(provenance: Mapping[str, Any]) -> str:
    limits = provenance.get("limits") or {}
    return " ".join(
        [provenance.get("cpu_capability", ""), *(f"{key}={limits[key]}" for key in sorted(limits))]
    )
