"""Networks, flat parameter vectors and feedback layers.

Modules that a plan imports write ``from fltrain import models`` and, in functions, for example
``models.feedback.feedback(...)``: the submodule, which needs PyTorch, is imported at that moment.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fltrain.models import chain as chain
    from fltrain.models import decoupled as decoupled
    from fltrain.models import feedback as feedback
    from fltrain.models import network as network
    from fltrain.models import parts as parts
    from fltrain.models import valve as valve
else:
    LAZY = ("chain", "decoupled", "feedback", "network", "parts", "valve")

    def __getattr__(name: str) -> object:
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")
