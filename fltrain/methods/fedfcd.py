"""FedFCD: feature alignment, fused decisions, and hierarchical optimisation of personal models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import (
    Aggregate,
    Footprint,
    Local,
    Method,
    Needs,
    Network,
    Outputs,
    Phase,
    Schedule,
    Server,
    State,
    Step,
    Task,
    Update,
    Workload,
)
from fltrain.methods.ops import classifier_head, prototypes


class FedFcd(Method):
    """Clients upload class means of features; the server averages them and trains a classifier on them.

    Extractor and classifier stay with the client. Feature alignment (FA): features are drawn to the global
    mean of their class. Fusion of decisions (FD): the logits of the client's and the global classifier are
    added. Hierarchical optimisation (HO): extractor and classifier train in turn, each while the other is
    fixed.

    Attributes:
        weight: lambda of the alignment; the paper has 1 on Fashion-MNIST and 5 on CIFAR.
        distance: squared distance from the mean of a class, averaged over the dimensions (``mse``), or summed
            (``sum``), which is d times as strong.
        server_lr: learning rate of the global classifier.
        server_epochs: epochs of SGD over the class means received in a round.
        server_batch: class means per step of the server: the clients' batch size, or ``all``.
        head_lr: initial learning rate of the clients' classifiers; ``training.lr`` if None.
        alternate: extractor and classifier take turns after every ``epoch`` or every ``batch``.
        extractor_loss: loss of the extractor: of the ``fused`` logits, or of the ``local`` classifier's.
        averaging: mean of the class means; see ``fltrain.methods.ops.prototypes``.
        cache: the server uses the last class means of all clients, not only the ones received in this round.
        without_fa, without_fd, without_ho: omit this part.
    """

    name: Literal["fedfcd"] = "fedfcd"
    citation: ClassVar[str] = (
        "Li, Wang and Wang, Hierarchical optimization method for federated learning with feature alignment "
        "and decision fusion, CMC 81(1), 2024"
    )
    footprint: ClassVar[Footprint] = Footprint(down=None, up=None, client=1, server=None)

    weight: float = Field(default=5.0, ge=0)
    distance: Literal["mse", "sum"] = "mse"
    server_lr: float = Field(default=0.01, ge=0)
    server_epochs: int = Field(default=1, ge=1)
    server_batch: Literal["local", "all"] = "local"
    head_lr: float | None = Field(default=None, gt=0)
    alternate: Literal["epoch", "batch"] = "epoch"
    extractor_loss: Literal["fused", "local"] = "fused"
    averaging: Literal["weighted", "plain", "fedproto"] = "weighted"
    cache: bool = False
    without_fa: bool = False
    without_fd: bool = False
    without_ho: bool = False

    @property
    def needs(self) -> Needs:
        phases = (Phase("body"), Phase("head", self.head_lr))
        schedule = Schedule(initial_upload=True)
        if not self.without_ho:
            schedule = replace(schedule, phases=phases, alternate=self.alternate)
        return Needs(private="all", schedule=schedule)

    # ---------------------------------------------------------------- client
    def client_init(self, local: Local) -> State:
        """Return the parameters of the global classifier."""
        return classifier_head.parameters(local.task.layout, local.payload["head"])

    def forward(self, network: Network, step: Step, local: Local, step_state: State) -> Outputs:
        features = network.features(step.images)
        if step.part == "body" and self.extractor_loss == "local":
            return Outputs(features, network.classifier(features))
        return Outputs(features, self._decide(network, features, step_state))

    def _decide(self, network: Network, features: Tensor, head: State) -> Tensor:
        """Return the fused logits, given the global classifier."""
        base: Tensor = network.classifier(features)
        return base if self.without_fd else base + classifier_head.logits(network.classifier, head, features)

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        if self.without_fa or not self.weight or step.part == "head":
            return loss
        means, has_mean = local.payload["means"], local.payload["known"]
        distance = prototypes.distance_to_means(outputs.features, step.labels, means, has_mean).mean()
        dimensions = outputs.features.shape[1] if self.distance == "mse" else 1
        return loss + self.weight * distance / dimensions

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        """Upload the mean features of every class of the client (LFR), also before the first round."""
        return update.sending(self.name, prototypes.of_client(local)), {}

    # ---------------------------------------------------------------- server
    def server_init(self, task: Task, start: Tensor) -> State:
        return classifier_head.on_server(task, start)

    def payload(self, state: State) -> State:
        """Return the global classifier and the global class means (GFR), once they exist."""
        return {name: state[name] for name in ("head", "means", "known") if name in state}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Train the global classifier on the received class means, and average the means."""
        counts, means = prototypes.table([update.extras[self.name] for update in updates], task.classes)
        if self.cache:
            clients = [update.client for update in updates]
            state = dict(state)
            for name, new in (("counts_of", counts), ("means_of", means)):
                rows = state.get(name, new.new_zeros(task.clients, *new.shape[1:])).clone()
                rows[clients] = new
                state[name] = rows
            counts, means = state["counts_of"], state["means_of"]
        held = (counts > 0).nonzero(as_tuple=True)
        batch = task.training.batch_size if self.server_batch == "local" else None
        state = classifier_head.train(
            self, task, state, means[held], held[1], lr=self.server_lr, epochs=self.server_epochs, batch=batch
        )
        return Aggregate(state=prototypes.renewed(state, *prototypes.combine(counts, means, self.averaging)))

    # ---------------------------------------------------------------- tests and plans
    def predict(self, network: Network, images: Tensor, local: Local) -> Tensor:
        return self._decide(network, network.features(images), self.client_init(local))

    def training_work(self, size: Workload) -> float:
        """Return the work of the global classifier, and of the features for the uploads."""
        visits = size.clients / (size.cohort * size.rounds)  # the initial uploads
        fused = (2 if self.extractor_loss == "fused" or self.without_ho else 0) + (not self.without_ho)
        steps = 0 if self.without_fd else fused * size.head * size.trained
        return steps + (1 + visits) * size.images * size.features

    def testing_work(self, size: Workload) -> float:
        return 0.0 if self.without_fd else size.tests * size.head
