"""Status of runs: trained, damaged, stopped, or trained before a component was revised. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from fltrain.core.errors import FltrainError
from fltrain.runs.record import BROKEN, Record, Results, held, reason, slug
from fltrain.runs.sources import changed_code, differing, source_digests
from fltrain.runs.spec import RunSpec


def revised(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe the revisions between two recorded specs, for example ``methods 1 -> 2``.

    Returns ``settings`` if all revisions are equal: then a setting was added or renamed.
    """

    def revisions(spec: Mapping[str, Any]) -> Mapping[str, Any]:
        found = spec.get("revisions")
        return found if isinstance(found, Mapping) else {}

    def shown(spec: Mapping[str, Any], name: str) -> str:
        # A normalisation is recorded if it is not that of this project's registry.
        revision = revisions(spec).get(name, "as shipped" if name == "normalisation" else 1)
        return ", ".join(map(str, revision)) if isinstance(revision, list) else str(revision)

    changes = [
        f"{name} {before} -> {after}"
        for name in dict.fromkeys([*new["revisions"], *revisions(old)])
        if (before := shown(old, name)) != (after := shown(new, name))
    ]
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
            settings = record.settings
        except FltrainError:
            return None
        try:
            spec = RunSpec.parse(settings, "spec.json")
        except FltrainError as unknown:
            return cls(record, "", str(unknown))
        return (
            None
            if spec.run_id == record.run_id
            else cls(record, spec.run_id, revised(record.spec, spec.canonical))
        )

    def __str__(self) -> str:
        return f"{self.revised} ({self.record.run_id})"


def stale_records(runs: Collection[str], current: Collection[str], results: Results) -> list[Stale]:
    """Return the stale records with the current settings of these runs (by ID), the latest last.

    Only records with the slug of such a run are read, and none in ``current``.
    """
    slugs = {slug(run) for run in runs}
    candidates = [
        record
        for record in results.records()
        if slug(record.run_id) in slugs and record.run_id not in current
    ]
    candidates.sort(key=lambda record: record.written)
    return [stale for stale in map(Stale.of, candidates) if stale and stale.run in runs]


def stale_runs(runs: Collection[str], results: Results) -> dict[str, Stale]:
    """Return the latest stale record of each of these runs (by ID) that has no record."""
    missing = {run for run in runs if not results.record(run).complete}
    return {stale.run: stale for stale in stale_records(missing, runs, results)}


def changed_runs(runs: Mapping[str, RunSpec], results: Results) -> dict[str, list[str]]:
    """Return the modules whose code changed since each of these runs (by ID) was trained."""
    changed: dict[str, list[str]] = {}
    for run, spec in runs.items():
        record = results.record(run)
        if record.usable and (recorded := record.provenance.get("sources")):
            changed[run] = differing(recorded, source_digests(spec))
    return {run: modules for run, modules in changed.items() if modules}


@dataclass(frozen=True)
class State:
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
    def of(cls, run_id: str, results: Results, stale: Stale | None, spec: RunSpec | None = None) -> Self:
        """Return the status of a run.

        Args:
            run_id: the run.
            results: the results folder.
            stale: the stale record of the run, if it has one.
            spec: the run, to compare the code of the record with the current code; None: no comparison.
        """
        record = results.record(run_id)
        if record.complete:
            try:
                if spec:
                    record.check_settings(spec)
                final, seconds = record.summary["accuracy"]["final"], record.costs["seconds"]["total"]
                change = changed_code(record.provenance, spec) if spec else ""
                accuracy = None if final is None else float(final)
                return cls(str(record.summary["status"]), change, accuracy, float(seconds))
            except FltrainError as error:
                return cls("damaged", str(error))
            except BROKEN as error:
                return cls("damaged", f"{record.folder}: {reason(error)}; retrain the run")
        if held(results.lease(run_id)):
            return cls("training")
        if finished := results.saved_rounds(run_id):
            return cls("stopped", f"after round {finished}; the next start resumes there")
        if (record.folder / "train.log").exists():
            return cls("started")
        return cls("stale", str(stale)) if stale else cls("not trained")
