"""The command `fltrain schema`."""

from __future__ import annotations

from pathlib import Path

from fltrain.cli.options import ConfigOption
from fltrain.core.config import Settings
from fltrain.core.files import write_json
from fltrain.experiments.schema import Paper, Register, Scale
from fltrain.runs.spec import RunSpec

SCHEMAS: dict[str, type[Settings]] = {"run": RunSpec, "paper": Paper, "scale": Scale, "register": Register}


def schema(config: ConfigOption = Path("config")) -> None:
    """Write the JSON schemas of the configuration and of verdicts.csv."""
    # A table's cells import pandas, which no other command at this level needs.
    from fltrain.reporting.tables.cells import TableCell

    for name, kind in SCHEMAS.items():
        write_json(config / "schemas" / f"{name}.json", kind.model_json_schema())
    write_json(config / "schemas" / "verdicts.json", TableCell.model_json_schema(mode="serialization"))
