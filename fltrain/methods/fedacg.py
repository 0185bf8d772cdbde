"""FedACG: clients start from a lookahead along the server's momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Aggregate, Footprint, Local, Method, Server, State, Task, Update
from fltrain.methods.ops.vectors import data_shares, mean, pull


class FedACG(Method):
    """Clients start from the lookahead w + lam m and stay near it; w are the global weights.

    The server adds the clients' mean displacement from the lookahead to its momentum m. Clients are tested
    with w.

    Attributes:
        lam: distance of the lookahead along the server's momentum m, and decay of m per round (lambda).
        beta: weight of the clients' penalty beta ||w - r||^2, without the half that FedProx has.
        mean: of the clients' displacements, by ``data`` size or ``uniform`` (the authors' code).
    """

    name: Literal["fedacg"] = "fedacg"
    citation: ClassVar[str] = (
        "Kim et al., Communication-efficient federated learning with accelerated client gradient, CVPR 2024"
    )
    footprint: ClassVar[Footprint] = Footprint(server=1)

    lam: float = Field(default=0.85, ge=0, lt=1)
    beta: float = Field(default=0.001, ge=0)
    mean: Literal["data", "uniform"] = "data"

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"momentum": start.new_zeros(start.shape)}

    def start_weights(self, weights: Tensor, state: State, local: Local) -> Tensor:
        return weights if local.testing else weights + self.lam * state["momentum"]

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + pull(weights, local.start, 2 * self.beta)

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        shares = data_shares(updates) if self.mean == "data" else None
        moved = mean([update.displacement for update in updates], shares)
        momentum = self.lam * state["momentum"] + moved
        return Aggregate(before.weights + momentum, {"momentum": momentum})
