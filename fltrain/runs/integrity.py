"""What a record has to be: checked when it comes from elsewhere, and when results are verified. No torch."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from fltrain.core.config import explain
from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.runs.record import BROKEN, check_format, metrics_digest, reason, summarise
from fltrain.runs.spec import RunSpec
from fltrain.runs.status import revised, slug

_DIGITS = bytes.maketrans(b"123456789", 9 * b"0")
_ODD = (b"\\", b"NaN", b"Infinity", 19 * b"0", b"e000", b"e+000", b"E000", b"E+000")
"""What JSON that needs a closer look has, once all digits are zeros."""


class _Loose(BaseModel):
    """What readers of records rely on; further keys are theirs to ignore."""

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
    bytes: dict[str, int]
    layers: list[str]
    digests: _Digests


class _Seconds(_Loose):
    total: float


class _Costs(_Loose):
    seconds: _Seconds
    round_seconds: list[float]


class _Provenance(_Loose):
    fltrain: str
    commit: str | None
    dirty: bool
    packages: dict[str, str]
    processor: str
    device: str
    gpu: str | None
    cuda: str | None


class Damaged(FltrainError):
    """A record is not what training wrote."""


@dataclass(frozen=True)
class Checked:
    """A record that is whole.

    Attributes:
        spec: what its settings are to today's code; None if that does not know them.
        stale: in what its spec differs from what is trained today; empty if in nothing.
        digests: of its ``data``, ``partition`` and ``metrics``.
    """

    spec: RunSpec | None
    stale: str
    digests: dict[str, str]


def check_record(folder: Path) -> Checked:
    """Check that a complete record is what its run id says, and that its files fit together.

    Raises:
        Damaged: with the run id and what is wrong.
        FltrainError: if it is of another format.
    """
    try:
        return _checked(folder)
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
    content = (folder / "metrics.jsonl").read_bytes()
    if metrics_digest(content) != summary["digests"]["metrics"]:
        raise ValueError("metrics.jsonl does not have the digest that summary.json gives")
    rows = _rows(content)
    _valid(_Costs, _read(folder / "costs.json"), "costs.json")
    _valid(_Provenance, _read(folder / "provenance.json"), "provenance.json")
    if spec is not None:
        follows = summarise(spec, rows, summary["diverged"], {})
        for key, value in {**follows, "run_id": folder.name}.items():  # another one, if it is stale
            if summary.get(key) != value:
                raise ValueError(f"summary.json: {key!r} does not follow from spec.json and metrics.jsonl")
        if late := [row["round"] for row in rows if row["round"] > spec.rounds]:
            raise ValueError(f"metrics.jsonl: has round {late[0]} of {spec.rounds}")
    return Checked(spec, stale, summary["digests"])


def _spec(folder: Path) -> tuple[RunSpec | None, str]:
    """What the settings of a record are today, and in what they or their revisions differ from that.

    That it is the spec of the run is known by the digits of the run id, also if today's code would write it
    otherwise.
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
    named = f"{slug(spec.run_id if spec else folder.name)}-{short_hash(data)}"
    if named != folder.name:
        raise ValueError(unknown or f"spec.json is that of {named}")
    if spec is None or spec.run_id == named:
        return spec, unknown
    return spec, revised(data, spec.canonical)


def _rows(content: bytes) -> list[Any]:
    """Parse and check the rows of a record."""
    rows, plain = [], _plain(content)
    for number, line in enumerate(content.decode().splitlines(), start=1):
        row = _plain_row(line) if plain or _plain(line.encode()) else None
        if row is None:
            where = f"metrics.jsonl, line {number}"
            row = _json(line, where)
            _valid(_Row, row, where)
        rows.append(row)
    return rows


def _plain(text: bytes) -> bool:
    """Whether JSON has nothing that needs a closer look, as far as a quick one can tell.

    Without backslashes, texts are what can be seen of them. So many digits may also be those of a fraction.
    """
    shape = text.translate(_DIGITS)
    return not any(odd in shape for odd in _ODD)


def _plain_row(line: str) -> Any:
    """What is in a line of plain JSON, None if that is no row: ``_json`` and ``_Row`` find out what it is."""
    with suppress(ValueError):
        row = from_json(line)
        if (
            type(row) is dict
            and type(row.get("round")) is int
            and row["round"] >= 1
            and type(row.get("kind")) is str
            and line.isprintable()
        ):
            return row
    return None


def _valid(kind: type[BaseModel], data: Any, where: str) -> None:
    try:
        kind.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain(error, data)}") from None


def _read(path: Path) -> Any:
    return _json(path.read_bytes(), path.name)


def _json(text: str | bytes, where: str) -> Any:
    """Parse what this program writes.

    It has no infinities (which 1e999 is, too), no integers beyond 64 bits, and texts that have an encoding
    and no control characters: these would do something to a terminal that shows them.
    """
    try:
        data = json.loads(text, parse_int=_integer)
        again = json.dumps(data, allow_nan=False, ensure_ascii=False)
        again.encode()
    except ValueError as error:
        raise ValueError(f"{where}: cannot be read ({error})") from None
    # Of the backslashes, those are left that stand for control characters.
    if "\\" in again.replace("\\\\", "").replace('\\"', "") or not again.isprintable():
        raise ValueError(f"{where}: holds control characters")
    return data


def _integer(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"an integer of {len(digits)} characters is beyond 64 bits")
    return number
