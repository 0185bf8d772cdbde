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


class Row(_Loose):
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


class Costs(_Loose):
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
    """Parse JSON as fltrain writes it: finite numbers, integers of 64 bits, printable texts.

    Control characters are refused because they would act on a terminal that shows them.

    Raises:
        ValueError: with the fault; the message begins with ``where``.
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
