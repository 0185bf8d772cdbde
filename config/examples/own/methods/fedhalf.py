"""FedHalf: local training with smaller gradients, an example of a method of your own."""

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Local, Method, State


class FedHalf(Method):
    """Every gradient is multiplied by a factor.

    Attributes:
        factor: the factor.
    """

    name: Literal["fedhalf"] = "fedhalf"
    citation: ClassVar[str] = "an example"
    neutral: ClassVar = {"factor": 1.0}

    factor: float = Field(default=0.5, gt=0)

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return self.factor * gradient
