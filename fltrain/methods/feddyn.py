"""FedDyn: each client's objective gets a new regulariser in every round, so that the optima agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.config import added
from fltrain.core.lazy import Tensor
from fltrain.methods.base import Aggregate, Footprint, Local, Method, Server, State, Task, Update
from fltrain.methods.ops.vectors import clip_norm, mean, pull


class FedDyn(Method):
    """Clients minimise f_k(w) - <dual_k, w> + (alpha_k / 2) ||w - r||^2; displacements update the duals.

    The server adds to the clients' mean the mean, over all clients, of their accumulated displacements. (In
    the paper's letters this is -h / alpha; this form allows alpha = 0.)

    Attributes:
        alpha: weight of the regulariser.
        alpha_mode: ``uniform``: the same alpha for all clients; ``data`` (the authors' code) divides alpha by
            the client's relative size, which targets the objective weighted by data.
        server_correction: the server adds the accumulated displacements.
        clip: limit for the norm of a local gradient, or null for none.
        clipped: clip the gradient of the whole local ``objective``; or all of it ``except_decay``, alpha_k w,
            which the authors' code leaves to the optimiser's weight decay.
    """

    name: Literal["feddyn"] = "feddyn"
    citation: ClassVar[str] = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021"
    footprint: ClassVar[Footprint] = Footprint(client=1, server=1)

    alpha: float = Field(default=0.1, ge=0)
    alpha_mode: Literal["uniform", "data"] = "uniform"
    server_correction: bool = True
    clip: float | None = Field(default=10.0, gt=0)
    clipped: Literal["objective", "except_decay"] = added("objective")

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"collected": start.new_zeros(start.shape)}

    def client_init(self, local: Local) -> State:
        return local.state or {"dual": local.start.new_zeros(local.start.shape)}

    def _alpha(self, local: Local) -> float:
        return self.alpha / local.relative_size if self.alpha_mode == "data" else self.alpha

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        alpha, dual = self._alpha(local), step_state["dual"]
        if self.clip is None or self.clipped == "objective":
            gradient = gradient + (pull(weights, local.start, alpha) - dual)
            return gradient if self.clip is None else clip_norm(gradient, self.clip)
        return clip_norm(gradient - alpha * local.start - dual, self.clip) + alpha * weights

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        dual = step_state["dual"] - self._alpha(local) * (update.trained - update.start)
        return update, {"dual": dual}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        moved = mean([update.displacement for update in updates])
        collected = state["collected"] + moved * (len(updates) / task.clients)
        weights = before.weights + moved
        return Aggregate(weights + collected if self.server_correction else weights, {"collected": collected})
