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
    """Write the JSON schemas of the configuration, for editors."""
    for name, kind in SCHEMAS.items():
        write_json(config / "schemas" / f"{name}.json", kind.model_json_schema())
