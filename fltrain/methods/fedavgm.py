"""FedAvgM: momentum on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Aggregate, Footprint, Method, Server, State, Task, Update
from fltrain.methods.ops.vectors import data_weighted_mean


class FedAvgM(Method):
    """The server uses the clients' mean displacement as a gradient and takes a step with momentum.

    Attributes:
        beta: momentum.
        server_lr: learning rate of the server.
        form: ``heavy_ball`` adds displacements up undamped, as published; ``dampened`` multiplies them by
            1 - beta; ``nesterov`` looks ahead.
    """

    name: Literal["fedavgm"] = "fedavgm"
    citation: ClassVar[str] = (
        "Hsu et al., Measuring the effects of non-identical data distribution, arXiv 1909.06335, 2019"
    )
    footprint: ClassVar[Footprint] = Footprint(server=1)

    beta: float = Field(default=0.9, ge=0, lt=1)
    server_lr: float = Field(default=1.0, gt=0)
    form: Literal["heavy_ball", "dampened", "nesterov"] = "heavy_ball"

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"velocity": start.new_zeros(start.shape)}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        moved = data_weighted_mean(updates, [update.displacement for update in updates])
        share = 1 - self.beta if self.form == "dampened" else 1.0
        velocity = self.beta * state["velocity"] + share * moved
        step = moved + self.beta * velocity if self.form == "nesterov" else velocity
        return Aggregate(before.weights + self.server_lr * step, {"velocity": velocity})
