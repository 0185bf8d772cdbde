"""FedGH: the server trains one classifier on the clients' class means."""

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
    Server,
    State,
    Task,
    Update,
    Workload,
)
from fltrain.methods.ops import classifier_head, prototypes


class FedGh(Method):
    """Clients train their own feature extractor with a classifier that the server overwrites.

    Attributes:
        server_lr: learning rate of the server's SGD.
        server_epochs: epochs over the class means received in a round, in batches of the clients' size.
    """

    name: Literal["fedgh"] = "fedgh"
    citation: ClassVar[str] = "Yi et al., FedGH, ACM MM 2023"
    needs: ClassVar[Needs] = Needs(private="all")
    footprint: ClassVar[Footprint] = Footprint(down=None, up=None, client=1, server=None)

    server_lr: float = Field(default=0.01, ge=0)
    server_epochs: int = Field(default=1, ge=1)

    def server_init(self, task: Task, start: Tensor) -> State:
        return classifier_head.on_server(task, start)

    def payload(self, state: State) -> State:
        return {"head": state["head"]}

    def start_weights(self, weights: Tensor, state: State, local: Local) -> Tensor:
        """Return the client's feature extractor with the server's classifier."""
        weights = weights.clone()
        weights[local.task.layout.head :] = local.payload["head"]
        return weights

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        description = prototypes.of_client(local)
        upload = {name: description[name] for name in ("classes", "means")}
        return update.sending(self.name, upload), {}

    def training_work(self, size: Workload) -> float:
        return size.images * size.features

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        uploads = [update.extras[self.name] for update in updates]
        means, classes = (torch.cat([upload[name] for upload in uploads]) for name in ("means", "classes"))
        batch = task.training.batch_size
        state = classifier_head.train(
            self, task, state, means, classes, lr=self.server_lr, epochs=self.server_epochs, batch=batch
        )
        return Aggregate(state=state)
