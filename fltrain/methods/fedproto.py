"""FedProto: clients share only the class means of their features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import (
    Aggregate,
    Footprint,
    Local,
    Method,
    Needs,
    Network,
    Outputs,
    Server,
    State,
    Step,
    Task,
    Update,
    Workload,
)
from fltrain.methods.ops import prototypes


class FedProto(Method):
    """Features are drawn to the global mean of their class; clients keep their models.

    Attributes:
        weight: lambda, weight of the mean squared distance (over images and dimensions) from these means.
        averaging: mean of the clients' means; see ``fltrain.methods.ops.prototypes``.
        source: features for a client's means: from the trained model (``post``), or collected during local
            training (``running``) or its last epoch (``last_epoch``).
        inference: by the ``nearest`` global mean, or by the client's classifier (``head``).
    """

    name: Literal["fedproto"] = "fedproto"
    citation: ClassVar[str] = "Tan et al., FedProto, AAAI 2022"
    needs: ClassVar[Needs] = Needs(private="all")
    footprint: ClassVar[Footprint] = Footprint(down=None, up=None, client=1, server=None)

    weight: float = Field(default=1.0, ge=0)
    averaging: Literal["plain", "weighted", "fedproto"] = "plain"
    source: Literal["post", "running", "last_epoch"] = "post"
    inference: Literal["nearest", "head"] = "nearest"

    def payload(self, state: State) -> State:
        return state

    # ---------------------------------------------------------------- client
    def client_init(self, local: Local) -> State:
        if self.source == "post":
            return {}
        counts = torch.zeros_like(local.class_counts)
        width = local.task.layout.classifier[0].shape[1]
        step = torch.zeros((), dtype=torch.int64, device=counts.device)
        return {"step": step, "counts": counts, "sums": counts.new_zeros(len(counts), width)}

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        if not local.payload or not self.weight:
            return loss
        distances = prototypes.distance_to_means(
            outputs.features, step.labels, local.payload["means"], local.payload["known"]
        )
        return loss + self.weight * distances.mean() / outputs.features.shape[1]

    def next_state(
        self, outputs: Outputs, step: Step, weights: Tensor, local: Local, step_state: State
    ) -> State:
        """Add up the features of each class."""
        if self.source == "post":
            return step_state
        counts, sums = prototypes.class_sums(outputs.features.detach(), step.labels, local.task.classes)
        first = 0
        if self.source == "last_epoch":
            first = local.steps - local.steps // local.task.training.epochs
        counted = (step_state["step"] >= first).to(sums)
        return {
            "step": step_state["step"] + 1,
            "counts": step_state["counts"] + counted * counts,
            "sums": step_state["sums"] + counted * sums,
        }

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        if self.source == "post":
            upload = prototypes.of_client(local)
        else:
            upload = prototypes.describe(step_state["counts"], step_state["sums"])
        return update.sending(self.name, upload), {}

    def training_work(self, size: Workload) -> float:
        return size.images * size.features if self.source == "post" else 0.0

    # ---------------------------------------------------------------- server
    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        table = prototypes.table([update.extras[self.name] for update in updates], task.classes)
        return Aggregate(state=prototypes.renewed(state, *prototypes.combine(*table, self.averaging)))

    # ---------------------------------------------------------------- tests
    def predict(self, network: Network, images: Tensor, local: Local) -> Tensor:
        """Return negative distances to the global means; before they exist, the classifier's logits."""
        features = network.features(images)
        if self.inference == "head" or not local.payload:
            logits: Tensor = network.classifier(features)
            return logits
        # Subtract first: products would cancel if features lie far from the origin.
        mode = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(features, local.payload["means"], compute_mode=mode)
        # An unknown class gets a larger distance than all others, but a finite one: losses stay finite.
        farthest = distances.amax(1, keepdim=True) + 1
        return -distances.where(local.payload["known"], farthest)

    def testing_work(self, size: Workload) -> float:
        return -size.tests * size.head if self.inference == "nearest" else 0.0
