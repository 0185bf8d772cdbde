"""MOON: model-contrastive learning."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain import models
from fltrain.core.lazy import Tensor, functional, nn, torch
from fltrain.methods.base import Footprint, Local, Method, Network, Outputs, State, Step, Update, Workload

PROJECTED = 256
"""Width of the projection head's output."""


class Moon(Method):
    """Representations are drawn to the received model's and away from the client's previous model's.

    Attributes:
        mu: weight of the contrastive loss.
        tau: temperature.
        first: replacement for the previous local model of a client without one: nothing (``skip``, the loss
            is constant when it is the received model), the run's ``initial`` model, or a ``random`` model
            per client from the second round on (the authors' code).
        head: ``mlp`` inserts a projection head before the classifier, as the authors do; the network then
            differs from the other methods'.
    """

    name: Literal["moon"] = "moon"
    citation: ClassVar[str] = "Li et al., Model-contrastive federated learning, CVPR 2021"
    neutral: ClassVar = {"mu": 0.0}
    footprint: ClassVar[Footprint] = Footprint(client=1)

    mu: float = Field(default=1.0, ge=0)
    tau: float = Field(default=0.5, gt=0)
    first: Literal["skip", "initial", "random"] = "skip"
    head: Literal["none", "mlp"] = "none"

    def adapt(self, network: Network, classes: int) -> Network:
        if self.head == "none":
            return network

        blocks = dict(network.named_children())
        width = next(blocks.pop("classifier").parameters()).shape[1]
        blocks["projection"] = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, PROJECTED)
        )
        return models.network.Network(**blocks, classifier=nn.Linear(PROJECTED, classes))

    def client_init(self, local: Local) -> State:
        """Return the previous local model; an empty state without one, or without contrastive loss."""
        if not self.mu:
            return {}
        if local.state:
            return local.state
        if self.first == "skip" or (self.first == "random" and local.round == 0):
            return {}
        drawn = local.task.initialise(local.client if self.first == "random" else None)
        return dict(zip(("weights", "buffers"), drawn, strict=True))

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        if not step_state:
            return loss
        others = (local.start, local.buffers), (step_state["weights"], step_state["buffers"])
        similarities = [
            functional.cosine_similarity(outputs.features, step.frozen(*model).features) for model in others
        ]
        # Of the two models, the received one is the correct class.
        logits = torch.stack(similarities, dim=1) / self.tau
        return loss + self.mu * functional.cross_entropy(logits, torch.zeros_like(step.labels))

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        return update, {"weights": update.trained, "buffers": update.buffers} if self.mu else {}

    def training_work(self, size: Workload) -> float:
        """Return the work of the received and the previous model, for clients that have a previous one."""
        visits = size.cohort * size.rounds
        without = size.clients * (1 - (1 - size.cohort / size.clients) ** size.rounds)
        if self.first == "random":
            without = size.cohort  # in the first round
        share = 1 - (0 if self.first == "initial" else without / visits)
        return 2 * share * size.trained * size.forward if self.mu else 0.0
