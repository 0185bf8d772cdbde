"""Local-only training: what clients reach without one another."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.methods.base import Method
from fltrain.methods.types import Footprint, Needs


class LocalOnly(Method):
    """Every client trains a model of its own; nothing is exchanged."""

    name: Literal["local"] = "local"
    citation: ClassVar[str] = "baseline without communication"
    needs: ClassVar[Needs] = Needs(private="all")
    footprint: ClassVar[Footprint] = Footprint(client=1)
