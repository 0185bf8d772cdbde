"""GPFL: global and personalised features through a conditional valve."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain import models
from fltrain.core.lazy import Tensor, functional
from fltrain.methods.base import (
    Footprint,
    Local,
    Method,
    Needs,
    Network,
    Outputs,
    State,
    Step,
    Update,
    Workload,
)

VALVE, EMBEDDINGS = "valve.", "embeddings."
"""Prefixes of the additional parameters' names."""


class Gpfl(Method):
    """A valve modulates features by two conditions: a global one, and one for the client's classes.

    The private classifier reads the personal features. The cross entropy of cosines draws the global ones to
    trainable embeddings of the classes; their distance draws them to the received embeddings.

    Attributes:
        weight: lambda of that distance, the Frobenius norm over the batch; the authors have 0.01 for small
            networks and 1e-4 for ResNet-18.
        decay: mu, weight decay of valve and embeddings alone; 0.1 and 0 likewise.
        conditions: made from the received embeddings (``global``), or from the embeddings that the client
            trained before (``trained``, the authors' code).
    """

    name: Literal["gpfl"] = "gpfl"
    citation: ClassVar[str] = "Zhang et al., GPFL, ICCV 2023"
    needs: ClassVar[Needs] = Needs(private="head")
    footprint: ClassVar[Footprint] = Footprint(down=None, up=None, client=None)

    weight: float = Field(default=0.01, ge=0)
    decay: float = Field(default=0.1, ge=0)
    conditions: Literal["global", "trained"] = "global"

    def adapt(self, network: Network, classes: int) -> Network:
        return models.valve.ValveNetwork.around(network, classes)

    # ---------------------------------------------------------------- client
    def client_init(self, local: Local) -> State:
        """Return the conditions ``[d]``: the mean of the class embeddings, plain and by the class counts.

        Before there are embeddings, both are 0.
        """
        embeddings = self._embeddings(local, local.start)
        if self.conditions == "trained":
            embeddings = local.state.get("embeddings", embeddings * 0)
        elif local.round == 0:
            embeddings = embeddings * 0
        personal = local.class_counts @ embeddings / local.samples
        return {"general": embeddings.mean(0), "personal": personal}

    def _embeddings(self, local: Local, weights: Tensor) -> Tensor:
        return next(
            slot.of(weights) for slot in local.task.layout.parameters if slot.name.startswith(EMBEDDINGS)
        )

    def forward(self, network: Network, step: Step, local: Local, step_state: State) -> Outputs:
        assert isinstance(network, models.valve.ValveNetwork)  # adapt has made it
        features = network.features(step.images)
        general = network.valve(features, step_state["general"])
        personal = network.valve(features, step_state["personal"])
        cosines = functional.normalize(general) @ functional.normalize(network.embeddings.weight).T
        return Outputs(features, network.classifier(personal), {"general": general, "cosines": cosines})

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        received = self._embeddings(local, local.start).index_select(0, step.labels)
        distance: Tensor = (outputs.extras["general"] - received).norm()
        return (
            loss + functional.cross_entropy(outputs.extras["cosines"], step.labels) + self.weight * distance
        )

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        """Add weight decay to valve and embeddings only."""
        if not self.decay:
            return gradient
        layout = local.task.layout
        start = next(slot.start for slot in layout.parameters if slot.name.startswith(VALVE))
        additions = slice(start, layout.head)
        gradient = gradient.clone()
        gradient[additions].add_(weights[additions], alpha=self.decay)
        return gradient

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        if self.conditions == "global":
            return update, {}
        return update, {"embeddings": self._embeddings(local, update.trained).clone()}

    # ---------------------------------------------------------------- tests
    def predict(self, network: Network, images: Tensor, local: Local) -> Tensor:
        assert isinstance(network, models.valve.ValveNetwork)
        personal = network.valve(network.features(images), self.client_init(local)["personal"])
        logits: Tensor = network.classifier(personal)
        return logits

    def training_work(self, size: Workload) -> float:
        """Return the work of the valve's four linear maps of a condition per step, and of the embeddings."""
        embeddings = size.classes * size.width
        steps = size.passes * len(size.sizes)
        return 8 * size.width**2 * steps + embeddings * (3 * size.trained + 1)

    def testing_work(self, size: Workload) -> float:
        return size.width * (2 * size.width + size.classes)
