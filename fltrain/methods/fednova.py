"""FedNova: divides displacements by their number of steps before averaging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.floats import total
from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Aggregate, Local, Method, Server, State, Task, Update
from fltrain.methods.ops.vectors import accumulated_steps, data_shares, mean, pull


class FedNova(Method):
    """Clients that take more steps do not pull the mean towards their optimum.

    Attributes:
        normaliser: a_k, the divisor of a client's displacement: ``momentum`` is the accumulated steps of
            momentum and proximal term, ``tau`` is the plain number of steps.
        tau_eff: number of steps that multiplies the mean direction: the mean by data size of the
            ``normalisers`` or of the plain ``steps`` (the authors' code with a proximal term).
        mu: weight of the proximal term (mu/2) ||w - r||^2 of the clients.
        server_momentum: heavy-ball momentum of the server.
        buffers: running statistics are ``averaged``; or ``normalised`` with the same update as the weights,
            which can make variances negative (for comparison with such code).
    """

    name: Literal["fednova"] = "fednova"
    citation: ClassVar[str] = (
        "Wang et al., Tackling the objective inconsistency problem in heterogeneous federated optimization, "
        "NeurIPS 2020"
    )
    normaliser: Literal["momentum", "tau"] = "momentum"
    tau_eff: Literal["normalisers", "steps"] = "normalisers"
    mu: float = Field(default=0.0, ge=0)
    server_momentum: float = Field(default=0.0, ge=0, lt=1)
    buffers: Literal["averaged", "normalised"] = "averaged"

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + pull(weights, local.start, self.mu) if self.mu else gradient

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        movement = local.task.training.momentum, local.lr * self.mu
        steps = accumulated_steps(local.steps, *(movement if self.normaliser == "momentum" else ()))
        return update.sending(self.name, {"normaliser": update.weights.new_full((), steps)}), local.state

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"velocity": start.new_zeros(start.shape)} if self.server_momentum else {}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Add the displacements, each times p_k tau_eff / a_k; the sum of these factors is at least one."""
        shares = data_shares(updates)
        normalisers = torch.stack([update.extras[self.name]["normaliser"] for update in updates]).tolist()
        counted = normalisers if self.tau_eff == "normalisers" else [update.steps for update in updates]
        effective = total(share * steps for share, steps in zip(shares, counted, strict=True))
        factors = [share * effective / steps for share, steps in zip(shares, normalisers, strict=True)]
        moved = mean([update.displacement for update in updates], factors)
        buffers = None
        if self.buffers == "normalised":
            buffers = before.buffers + mean([update.buffers - before.buffers for update in updates], factors)
        if self.server_momentum:
            moved = self.server_momentum * state["velocity"] + moved
            state = {"velocity": moved}
        return Aggregate(before.weights + moved, state, buffers)
