"""FedProx: a proximal pull towards the received weights."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Local, Method, State
from fltrain.methods.ops.vectors import pull


class FedProx(Method):
    """Adds (mu/2) ||w - r||^2 to the local loss, as its gradient mu (w - r); r are the received weights.

    Attributes:
        mu: weight of the proximal term; papers use 0.001 to 1.
    """

    name: Literal["fedprox"] = "fedprox"
    citation: ClassVar[str] = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020"
    neutral: ClassVar = {"mu": 0.0}
    mu: float = Field(default=0.01, ge=0)

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + pull(weights, local.start, self.mu)
