"""What became of a run: trained, damaged, or trained before one of its components was revised. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from fltrain.core.errors import FltrainError
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec


def slug(run_id: str) -> str:
    """The readable part of a run id, before its digits."""
    return run_id.rpartition("-")[0]


def revised(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What was revised between two specs as records hold them, for example ``methods 1 -> 2``.

    It is ``settings`` if there is no such revision: then settings have been added or renamed.
    """

    def shown(spec: Mapping[str, Any], name: str) -> str:
        revisions = spec.get("revisions")
        found = revisions.get(name) if isinstance(revisions, Mapping) else None
        return ", ".join(map(str, found)) if isinstance(found, list) else str(found)

    changes = [
        f"{name} {before} -> {after}"
        for name in new["revisions"]
        if (before := shown(old, name)) != (after := shown(new, name))
    ]
    return "; ".join(changes) or "settings"


@dataclass(frozen=True)
class Stale:
    """A record with the settings of a run, made before some of its components were revised.

    Attributes:
        record: the record.
        run: id of the run that its settings make today.
        revised: what was revised since, see ``revised``.
    """

    record: Record
    run: str
    revised: str

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """How a record is stale; None if it is not, or if today's code does not know its settings."""
        try:
            spec = RunSpec.parse(record.settings, record.run_id)
        except FltrainError:
            return None
        if spec.run_id == record.run_id:
            return None
        return cls(record, spec.run_id, revised(record.spec, spec.canonical))

    def __str__(self) -> str:
        return f"{self.revised} ({self.record.run_id})"


def stale_runs(runs: Mapping[str, RunSpec], results: Results) -> dict[str, Stale]:
    """Of these runs (by id) without a record, those that have a stale one; of several, the one written last.

    Only records whose names begin like those of the runs are read.
    """
    missing = {run for run in runs if not results.record(run).complete}
    slugs = {slug(run) for run in missing}
    candidates = [
        record for record in results.records() if slug(record.run_id) in slugs and record.run_id not in runs
    ]
    candidates.sort(key=lambda record: record.written)
    found = [stale for record in candidates if (stale := Stale.of(record)) is not None]
    return {stale.run: stale for stale in found if stale.run in missing}


def held(lock: Path) -> bool:
    """Whether a process holds a lock."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True


@dataclass(frozen=True)
class State:
    """What became of a run.

    Attributes:
        name: ``completed``, ``diverged``, ``damaged``, ``training``, ``stopped``, ``started`` (and ended
            before a checkpoint was due), ``stale`` or ``not trained``.
        detail: what there is to say about it, if anything.
        final: final accuracy, from 0 to 1; None if there is none.
        seconds: that training took; None if it has not ended.
    """

    name: str
    detail: str = ""
    final: float | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, run_id: str, results: Results, stale: Stale | None) -> Self:
        """Look at a run's record, complete or not, and at the stale one in its place, if there is one."""
        record = results.record(run_id)
        if record.complete:
            try:
                final, seconds = record.summary["accuracy"]["final"], record.costs["seconds"]["total"]
                return cls(
                    str(record.summary["status"]), "", None if final is None else float(final), float(seconds)
                )
            except FltrainError as error:
                return cls("damaged", str(error))
            except (KeyError, TypeError, ValueError) as error:
                return cls("damaged", f"{record.folder}: not a record ({error!r}); train the run again")
        if held(results.lease(run_id)):
            return cls("training")
        if finished := results.saved_rounds(run_id):
            return cls("stopped", f"after round {finished}, and goes on from there")
        if (record.folder / "train.log").exists():
            return cls("started")
        return cls("stale", str(stale)) if stale else cls("not trained")


def settings_of(record: Record) -> RunSpec | None:
    """The settings of a record as today's code understands them; None if it does not know them any more."""
    settings = record.settings
    try:
        return RunSpec.parse(settings, record.run_id)
    except FltrainError:
        return None
