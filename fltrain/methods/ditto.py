"""Ditto: a personal model of each client in addition to the global one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Footprint, Local, Method, Needs, Schedule, State
from fltrain.methods.ops.vectors import pull


class Ditto(Method):
    """Federated averaging; each client also trains a personal model v, pulled to the received weights w.

    The personal model minimises F_k(v) + (lambda/2) ||v - w||^2. Clients are tested with it.

    Attributes:
        weight: lambda.
        passes: passes of the personal model over the images per epoch.
    """

    name: Literal["ditto"] = "ditto"
    citation: ClassVar[str] = (
        "Li et al., Ditto: fair and robust federated learning through personalization, ICML 2021"
    )
    footprint: ClassVar[Footprint] = Footprint(client=1)

    weight: float = Field(default=1.0, ge=0)
    passes: int = Field(default=1, ge=1)

    @property
    def needs(self) -> Needs:
        return Needs(second=_Personal(name=self.name, weight=self.weight, passes=self.passes))


class _Personal(Method):
    """Training of the personal models. It has no default name, so it is no method that a run can have."""

    weight: float
    passes: int

    @property
    def needs(self) -> Needs:
        return Needs(private="all", schedule=Schedule(passes=self.passes))

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + pull(weights, local.payload["global"], self.weight)
