"""FedAMP: attentive message passing between personal models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Aggregate, Footprint, Local, Method, Needs, Server, State, Task, Update
from fltrain.methods.ops.vectors import gram, mean, pull


class FedAmp(Method):
    """The server mixes a cloud model u_i for each client, with larger shares of similar weights.

    The client trains from the cloud model, pulled towards it by (lambda / alpha) (w - u_i).

    Attributes:
        variant: ``heuristic`` mixes by a softmax over cosines (HeurFedAMP), ``kernel`` by
            alpha exp(-||w_i - w_j||^2 / sigma) / sigma. ``pfllib`` reproduces the effect of PFLlib's code:
            models start from their own weights without a pull, which is local-only training.
        scale: s, factor of the cosines (``heuristic``).
        self_weight: share of a client's own weights (``heuristic``); one over the size of the cohort if None.
        sigma: width (``kernel``).
        alpha: step size of the cloud model; 1e4 (``heuristic``) or 1 (``kernel``) if None.
        alpha_decay, decay_every: alpha is multiplied by ``alpha_decay`` after every ``decay_every`` rounds
            (``heuristic``).
        weight: lambda.
    """

    name: Literal["fedamp"] = "fedamp"
    citation: ClassVar[str] = "Huang et al., Personalized cross-silo federated learning, AAAI 2021"
    needs: ClassVar[Needs] = Needs(global_model=False)
    footprint: ClassVar[Footprint] = Footprint(client=1, server=None)

    variant: Literal["heuristic", "kernel", "pfllib"] = "heuristic"
    scale: float = Field(default=25.0, ge=0)
    self_weight: float | None = Field(default=None, gt=0, le=1)
    sigma: float = Field(default=1.0, gt=0)
    alpha: float | None = Field(default=None, gt=0)
    alpha_decay: float = Field(default=0.1, gt=0, le=1)
    decay_every: int = Field(default=30, ge=1)
    weight: float = Field(default=1.0, ge=0)

    # ---------------------------------------------------------------- client
    def start_weights(self, weights: Tensor, state: State, local: Local) -> Tensor:
        """Return the client's cloud model; before its first participation, the initial weights."""
        if self.variant == "pfllib":
            return local.state.get("weights", weights)
        return state.get(str(local.client), weights)

    def client_init(self, local: Local) -> State:
        """Return the weight of the pull towards the cloud model."""
        if self.variant == "pfllib":
            return {}
        if self.variant == "kernel":
            alpha = self.alpha or 1.0
        else:
            alpha = (self.alpha or 1e4) * self.alpha_decay ** (local.round // self.decay_every)
        # A pull of more than one over the learning rate would overshoot.
        return {"pull": local.start.new_full((), min(self.weight / alpha, 1 / local.lr))}

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + pull(weights, local.start, step_state["pull"]) if step_state else gradient

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        return update, {"weights": update.trained}

    def test_weights(self, weights: Tensor, local: Local) -> Tensor:
        """Return the client's own weights after its last training."""
        return local.state.get("weights", weights)

    # ---------------------------------------------------------------- server
    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Mix a cloud model for each client of the cohort; global weights stay the initial ones."""
        if self.variant == "pfllib":
            return Aggregate(before.weights, state)
        weights = [update.weights for update in updates]
        shares = self.shares(weights).tolist()
        clients = [str(update.client) for update in updates]
        clouds = {client: mean(weights, row) for client, row in zip(clients, shares, strict=True)}
        return Aggregate(before.weights, {**state, **clouds})

    def shares(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the share of every client's weights in each cloud model, xi ``[m, m]``: rows sum to one."""
        # Distances are far shorter than the weights: subtract a client's weights first to avoid rounding.
        kernel = self.variant == "kernel"
        products = gram([vector - weights[0] for vector in weights] if kernel else weights)
        lengths = products.diagonal()
        alone = torch.eye(len(weights), dtype=torch.bool, device=products.device)
        if len(weights) == 1:
            return alone.to(products)
        if self.variant == "kernel":
            distances = (lengths[:, None] + lengths - 2 * products).clamp(min=0)
            alpha = self.alpha or 1.0
            others = (alpha * torch.exp(-distances / self.sigma) / self.sigma).masked_fill(alone, 0)
            # Limit the others' shares to one in total, else the client's own share would be negative.
            others = others / others.sum(1, keepdim=True).clamp(min=1)
            return others + torch.diag(1 - others.sum(1))
        self_share = 1 / len(weights) if self.self_weight is None else self.self_weight
        cosines = products / (lengths[:, None] * lengths).sqrt().clamp(min=1e-12)
        others = (self.scale * cosines).masked_fill(alone, -torch.inf).softmax(1)
        return (1 - self_share) * others + self_share * alone.to(products)
