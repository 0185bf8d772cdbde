"""Networks that a run can name: one file each, found by name."""

from fltrain.core.registry import catalogue
from fltrain.models.base import Model

MODELS: dict[str, type[Model]] = catalogue(Model, package="fltrain.models.networks", own="models")  # type: ignore[type-abstract]
"""Every network by name."""
