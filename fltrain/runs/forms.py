"""Forms of the JSON files of a record: their keys and types, and strict parsing. No torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from fltrain.core.config import explain

Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Wall time: at most 32 years."""


class _Loose(BaseModel):
    """Keys that readers of records rely on; other keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class RowForm(_Loose):
    """Line of ``metrics.jsonl``."""

    round: int = Field(ge=1)
    kind: str


class _Diverged(_Loose):
    round: int = Field(ge=1)


class _Digests(_Loose):
    data: str
    partition: str
    metrics: str


class Summary(_Loose):
    """Content of ``summary.json``."""

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


class CostsForm(_Loose):
    """Content of ``costs.json``."""

    seconds: _Seconds
    round_seconds: list[Seconds]


class Provenance(_Loose):
    """Content of ``provenance.json``."""

    fltrain: str
    commit: str | None
    dirty: bool | None
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


def check_form(kind: type[BaseModel], data: Any, where: str) -> None:
    """Refuse data of another form; ``where`` names the file.

    Raises:
        ValueError: with the first fault.
    """
    try:
        kind.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain(error, data)}") from None


def read_strict(path: Path) -> Any:
    """Parse a JSON file, see ``parse_strict``."""
    return parse_strict(path.read_bytes(), path.name)


def parse_strict(text: bytes, where: str) -> Any:
    """Parse JSON with finite numbers and printable texts. Control characters could change the terminal.

    Raises:
        ValueError: with the fault; the message begins with ``where``.
    """
    try:
        data = from_json(text, allow_inf_nan=False)
        if not _is_plain(data):
            raise ValueError("control characters in a text, or a number that is not finite")
    except ValueError as error:
        raise ValueError(f"{where}: cannot be read ({error})") from None
    return data


def _is_plain(data: Any) -> bool:
    match data:
        case str():
            return data.isprintable()
        case float():
            return math.isfinite(data)
        case list():
            return all(map(_is_plain, data))
        case dict():
            return all(map(_is_plain, (*data, *data.values())))
    return True
