"""FedOpt: FedAdam, FedYogi and FedAdagrad, adaptive optimisers on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Aggregate, Footprint, Method, Server, State, Task, Update
from fltrain.methods.ops.vectors import data_weighted_mean


class FedOpt(Method):
    """The server uses the clients' mean displacement D as a gradient and takes an adaptive step.

    m = beta1 m + (1 - beta1) D; w = w + server_lr m / (sqrt(v) + tau). There is no bias correction; v begins
    with tau^2.

    Attributes:
        form: estimate v of D^2: ``adam`` v = beta2 v + (1 - beta2) D^2; ``yogi`` v = v - (1 - beta2) D^2
            sign(v - D^2); ``adagrad`` v = v + D^2.
        server_lr: learning rate of the server.
        beta1: momentum; the paper sets 0 for ``adagrad``.
        beta2: decay of v; without effect for ``adagrad``.
        tau: degree of adaptivity; larger values adapt less.
    """

    name: Literal["fedopt"] = "fedopt"
    citation: ClassVar[str] = "Reddi et al., Adaptive federated optimization, ICLR 2021"
    footprint: ClassVar[Footprint] = Footprint(server=2)

    form: Literal["adam", "yogi", "adagrad"] = "adam"
    server_lr: float = Field(default=0.01, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0)

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"momentum": torch.zeros_like(start), "second": torch.full_like(start, self.tau**2)}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        moved = data_weighted_mean(updates, [update.displacement for update in updates])
        momentum = self.beta1 * state["momentum"] + (1 - self.beta1) * moved
        second, square = state["second"], moved.square()
        if self.form == "adam":
            second = self.beta2 * second + (1 - self.beta2) * square
        elif self.form == "yogi":
            second = second - (1 - self.beta2) * square * (second - square).sign()
        else:
            second = second + square
        step = self.server_lr * momentum / (second.sqrt() + self.tau)
        return Aggregate(before.weights + step, {"momentum": momentum, "second": second})
