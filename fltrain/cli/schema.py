"""The command `fltrain schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fltrain.cli.options import ConfigOption
from fltrain.core.files import write_json
from fltrain.experiments.claims import Claim
from fltrain.experiments.schema import DisplayLabels, Item, Paper, Register, Scale
from fltrain.experiments.tuning import Search
from fltrain.runs.spec import RunSpec

SCHEMAS: dict[str, Any] = {
    **{"run": RunSpec, "scale": Scale, "register": Register, "labels": DisplayLabels, "search": Search},
    **{"paper": Paper, "item": Item, "claims": tuple[Claim, ...]},
}
"""Kinds of files by the name of their schema."""

PARTS = ("paper", "item", "claims")
"""Schemas of the files of a paper, in which ``use`` merges blocks."""


def schema(config: ConfigOption = Path("config")) -> None:
    """Write the JSON schemas of the configuration and of verdicts.csv."""
    # A table's cells import pandas, which no other command at this level needs.
    from fltrain.reporting.tables.table_cell import TableCell

    for name, kind in SCHEMAS.items():
        described = TypeAdapter(kind).json_schema()
        if name in PARTS:
            described = _with_blocks(described)
        if name == "paper":
            described["properties"]["blocks"] = {"type": "object"}
        write_json(config / "schemas" / f"{name}.json", described)
    write_json(config / "schemas" / "verdicts.json", TableCell.model_json_schema(mode="serialization"))


def _with_blocks(described: Any) -> Any:
    """Allow ``use`` in all mappings of a schema; required keys may come from a block or another file."""
    if isinstance(described, list):
        return [_with_blocks(part) for part in described]
    if not isinstance(described, dict):
        return described
    parts = {("anyOf" if key == "oneOf" else key): _with_blocks(part) for key, part in described.items()}
    if parts.get("type") == "object":
        names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        parts["properties"] = {**parts.get("properties", {}), "use": names}
        parts.pop("required", None)
    return parts
