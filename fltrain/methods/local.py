"""Local-only training: a reference without federation."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.methods.base import Footprint, Method, Needs


class LocalOnly(Method):
    """Every client trains its own model; clients exchange nothing."""

    name: Literal["local"] = "local"
    citation: ClassVar[str] = "baseline without communication"
    needs: ClassVar[Needs] = Needs(private="all")
    footprint: ClassVar[Footprint] = Footprint(client=1)
