"""Complete check of a record, for imports and ``fltrain verify``. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.runs.forms import CostsForm, Provenance, RowForm, Summary, check_form, parse_strict, read_strict
from fltrain.runs.record import BROKEN, Damaged, check_digests, check_summary, reason
from fltrain.runs.spec import RunSpec
from fltrain.runs.status import revised, slug


@dataclass(frozen=True)
class Checked:
    """An undamaged record.

    Attributes:
        spec: its settings; None if the current code lacks one of them.
        stale: difference between its spec and the spec that the current code would record; empty if none.
        digests: digests of its ``data``, ``partition`` and ``metrics``.
    """

    spec: RunSpec | None
    stale: str
    digests: dict[str, str]


def check_record(folder: Path) -> Checked:
    """Check that a complete record belongs to its run ID, and that its files are valid and fit together.

    Raises:
        Damaged: with the run ID and the problem.
        FltrainError: if it has another format.
    """
    try:
        return _checked(folder)
    except Damaged:
        raise
    except FltrainError as error:
        raise FltrainError(f"{folder.name}: {error}") from None
    except BROKEN as error:
        raise Damaged(f"{folder.name}: {reason(error)}") from None
    except OSError as error:
        raise Damaged(f"{folder.name}: {Path(error.filename).name}: {error.strerror}") from None


def _checked(folder: Path) -> Checked:
    spec, stale = _spec(folder)
    check_digests(folder)
    summary = read_strict(folder / "summary.json")
    check_form(Summary, summary, "summary.json")
    check_form(CostsForm, read_strict(folder / "costs.json"), "costs.json")
    check_form(Provenance, read_strict(folder / "provenance.json"), "provenance.json")
    rows = []
    for number, line in enumerate((folder / "metrics.jsonl").read_bytes().splitlines(), start=1):
        where = f"metrics.jsonl, line {number}"
        rows.append(parse_strict(line, where))
        check_form(RowForm, rows[-1], where)
    if spec is not None:
        check_summary(spec, rows, summary, folder.name)
        if late := [row["round"] for row in rows if row["round"] > spec.rounds]:
            raise ValueError(f"metrics.jsonl: has round {late[0]} of {spec.rounds}")
    return Checked(spec, stale, summary["digests"])


def _spec(folder: Path) -> tuple[RunSpec | None, str]:
    """Return the settings of a record and the difference to the spec that the current code would record.

    The hash in the run ID proves that the spec belongs to the run, even if the record is stale.
    """
    data = read_strict(folder / "spec.json")
    settings = (
        {key: value for key, value in data.items() if key != "revisions"} if isinstance(data, dict) else data
    )
    spec, unknown = None, ""
    try:
        spec = RunSpec.parse(settings, "spec.json")
    except FltrainError as error:
        unknown = str(error)
    run_id = f"{slug(spec.run_id if spec else folder.name)}-{short_hash(data)}"
    if run_id != folder.name:
        raise ValueError(unknown or f"spec.json belongs to {run_id}")
    if spec is None or spec.run_id == run_id:
        return spec, unknown
    return spec, revised(data, spec.canonical)
