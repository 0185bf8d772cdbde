"""FedRS: the logits of classes that a client lacks are restricted in its softmax."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor, functional
from fltrain.methods.base import Local, Method, Outputs, State, Step


class FedRS(Method):
    """The training loss multiplies the whole logit of a class (bias included) by a factor.

    Attributes:
        alpha: factor of the classes without training images on the client.
        mode: ``binary``: the others have factor 1, as published; ``frequency`` (the authors' code): they have
            alpha + (1 - alpha) n_c / max n, which also restricts rare classes.
    """

    name: Literal["fedrs"] = "fedrs"
    citation: ClassVar[str] = (
        "Li and Zhan, FedRS: federated learning with restricted softmax for label distribution non-IID data, "
        "KDD 2021"
    )
    neutral: ClassVar = {"alpha": 1.0}

    alpha: float = Field(default=0.5, ge=0, le=1)
    mode: Literal["binary", "frequency"] = "binary"

    def client_init(self, local: Local) -> State:
        counts = local.class_counts
        share = counts / counts.max() if self.mode == "frequency" else (counts > 0).to(counts)
        # This form gives exactly 1 for the factor of a class at share 1.
        return {"factor": share + self.alpha * (1 - share)}

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        return functional.cross_entropy(outputs.logits * step_state["factor"], step.labels)
