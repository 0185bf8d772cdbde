"""SCAFFOLD (option II): control variates that cancel client drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fltrain.methods.base import Local, Method, Server, State, Task, Update

if TYPE_CHECKING:
    from torch import Tensor


def effective_steps(steps: int, momentum: float) -> float:
    """Accumulated step count of SGD with momentum: its displacement under a unit gradient, per unit lr.

    Equal to ``steps`` without momentum (Wang et al., FedNova, 2020, section 4.2).
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class Scaffold(Method):
    """Each local gradient is corrected by c - c_i; c_i is re-estimated from the client's displacement.

    ``normaliser`` is the step count by which a displacement is divided to get a mean gradient. ``plain``
    (the number of steps) is what the paper writes for SGD without momentum; with momentum it overestimates
    and diverges. ``effective`` counts the steps that momentum adds and agrees with it at momentum 0.
    """

    name: Literal["scaffold"] = "scaffold"
    citation: ClassVar[str] = "Karimireddy et al., SCAFFOLD: stochastic controlled averaging, ICML 2020"
    normaliser: Literal["effective", "plain"] = "effective"
    server_lr: float = Field(default=1.0, gt=0)

    def init_server(self, task: Task, start: Tensor) -> State:
        return {"control": start.new_zeros(start.shape)}

    def init_client(self, task: Task, start: Tensor) -> State:
        return {"control": start.new_zeros(start.shape)}

    def payload(self, state: State) -> State:
        return state

    def begin(self, local: Local) -> State:
        return {"correction": local.payload["control"] - local.state["control"]}

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, carry: State) -> Tensor:
        return gradient + carry["correction"]

    def finish(self, update: Update, local: Local, carry: State) -> tuple[Update, State]:
        momentum = local.task.momentum if self.normaliser == "effective" else 0.0
        mean_gradient = (local.start - update.weights) / (local.lr * effective_steps(local.steps, momentum))
        change = mean_gradient - local.payload["control"]
        extras = {**update.extras, self.name: {"control_change": change}}
        return replace(update, extras=extras), {"control": local.state["control"] + change}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Tensor:
        displacement = sum(update.displacement for update in updates) / len(updates)
        return server.weights + self.server_lr * displacement

    def server_step(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> State:
        change = sum(update.extras[self.name]["control_change"] for update in updates)
        return {"control": state["control"] + change / task.clients}
