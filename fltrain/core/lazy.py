"""PyTorch and SciPy, imported at their first use.

A plan of thousands of runs imports every method and every network, but computes nothing. Modules that a plan
or the workflow imports write ``from fltrain.core.lazy import Tensor, nn, torch``, so that neither is loaded.
Each takes a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    from scipy import optimize as optimize
    from scipy import special as special
    from scipy import stats as stats
    from torch import Tensor as Tensor
    from torch import nn as nn
    from torch.nn import functional as functional
else:

    class _LazyModule:
        """Stands for a module and imports it when an attribute is read."""

        def __init__(self, name: str) -> None:
            self._name = name
            self._module: Any = None

        def __getattr__(self, attribute: str) -> Any:
            if self._module is None:  # local steps come here: do not search for the module each time
                self._module = importlib.import_module(self._name)
            return getattr(self._module, attribute)

    torch = _LazyModule("torch")
    nn = _LazyModule("torch.nn")
    functional = _LazyModule("torch.nn.functional")
    optimize = _LazyModule("scipy.optimize")
    special = _LazyModule("scipy.special")
    stats = _LazyModule("scipy.stats")
    Tensor = Any  # for annotations; use torch.Tensor in isinstance
