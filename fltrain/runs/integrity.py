"""Complete check of a record, for imports and ``fltrain verify``. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from fltrain.core.config import explain
from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.runs.record import BROKEN, Damaged, check_digests, check_format, check_summary, reason
from fltrain.runs.spec import RunSpec
from fltrain.runs.status import revised, slug

Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Wall time: at most 32 years."""


class _Loose(BaseModel):
    """Keys that readers of records rely on; other keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Row(_Loose):
    round: int = Field(ge=1)
    kind: str


class _Diverged(_Loose):
    round: int = Field(ge=1)


class _Digests(_Loose):
    data: str
    partition: str
    metrics: str


class _Summary(_Loose):
    format: int
    run_id: str
    status: Literal["completed", "diverged"]
    diverged: _Diverged | None
    rounds: int
    accuracy: dict[str, float | None]
    loss: dict[str, float | None]
    bytes: dict[str, Annotated[int, Field(ge=0)]]
    layers: list[str]
    digests: _Digests


class _Seconds(_Loose):
    total: Seconds


class _Costs(_Loose):
    seconds: _Seconds
    round_seconds: list[Seconds]


class _Provenance(_Loose):
    fltrain: str
    commit: str | None
    dirty: bool
    packages: dict[str, str]
    processor: str
    device: str
    gpu: str | None
    cuda: str | None
    # Missing in records of older versions:
    sources: dict[str, str] = {}
    cpu_capability: str = ""
    limits: dict[str, str] = {}
    blas: str = ""


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
    summary = _read(folder / "summary.json")
    check_format(summary if isinstance(summary, dict) else {})
    _valid(_Summary, summary, "summary.json")
    check_digests(folder)
    rows = []
    for number, line in enumerate((folder / "metrics.jsonl").read_bytes().splitlines(), start=1):
        where = f"metrics.jsonl, line {number}"
        rows.append(_json(line, where))
        _valid(_Row, rows[-1], where)
    _valid(_Costs, _read(folder / "costs.json"), "costs.json")
    _valid(_Provenance, _read(folder / "provenance.json"), "provenance.json")
    if spec is not None:
        check_summary(spec, rows, summary, folder.name)
        if late := [row["round"] for row in rows if row["round"] > spec.rounds]:
            raise ValueError(f"metrics.jsonl: has round {late[0]} of {spec.rounds}")
    return Checked(spec, stale, summary["digests"])


def _spec(folder: Path) -> tuple[RunSpec | None, str]:
    """Return the settings of a record and the difference to the spec that the current code would record.

    The hash in the run ID proves that the spec belongs to the run, even if the record is stale.
    """
    data = _read(folder / "spec.json")
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
        raise ValueError(unknown or f"spec.json is that of {run_id}")
    if spec is None or spec.run_id == run_id:
        return spec, unknown
    return spec, revised(data, spec.canonical)


def _valid(kind: type[BaseModel], data: Any, where: str) -> None:
    try:
        kind.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain(error, data)}") from None


def _read(path: Path) -> Any:
    return _json(path.read_bytes(), path.name)


def _json(text: bytes, where: str) -> Any:
    """Parse JSON as fltrain writes it: finite numbers, integers of 64 bits, printable texts.

    Control characters are refused because they would act on a terminal that shows them.
    """
    try:
        data = from_json(text, allow_inf_nan=False)
        _check_values(data)
    except ValueError as error:
        raise ValueError(f"{where}: cannot be read ({error})") from None
    return data


def _check_values(data: Any) -> None:
    match data:
        case str() if not data.isprintable():
            raise ValueError(f"control characters in {data[:50]!a}")
        case bool() | None | str():
            pass
        case int() if not -(2**63) <= data < 2**63:
            raise ValueError(f"an integer of {len(str(data))} characters is beyond 64 bits")
        case float() if not math.isfinite(data):
            raise ValueError("a number is not finite")
        case list():
            for value in data:
                _check_values(value)
        case dict():
            for key, value in data.items():
                _check_values(key)
                _check_values(value)
