"""FedLC: calibrates logits by the client's number of images of each class."""

from __future__ import annotations

import logging
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fltrain.core.lazy import Tensor, functional
from fltrain.methods.base import Local, Method, Outputs, State, Step, Task

LOG = logging.getLogger("fltrain")


class FedLC(Method):
    """The training loss subtracts tau n_c^(-1/4) from the logit of each class c.

    Attributes:
        tau: size of the calibration; at 0 the loss is plain cross entropy.
        missing: a class without training images is left out of the softmax (``mask``), or n_c is replaced by
            1 (``clamp``) or 1e-8 (``eps``).
        denominator: the softmax runs over the ``full`` set of classes, or, as printed in the paper,
            ``exclusive`` of the image's own.
    """

    name: Literal["fedlc"] = "fedlc"
    citation: ClassVar[str] = (
        "Zhang et al., Federated learning with label distribution skew via logits calibration, ICML 2022"
    )
    neutral: ClassVar = {"tau": 0.0}

    tau: float = Field(default=1.0, ge=0)
    missing: Literal["mask", "clamp", "eps"] = "mask"
    denominator: Literal["full", "exclusive"] = "full"

    @model_validator(mode="after")
    def _something_is_left_to_compare_with(self) -> Self:
        if self.denominator == "exclusive" and self.missing == "mask":
            raise ValueError(
                "denominator 'exclusive' needs missing 'clamp' or 'eps': with 'mask', nothing would be left "
                "in the softmax of a client that has one class"
            )
        return self

    def server_init(self, task: Task, start: Tensor) -> State:
        """Warn if clients with images of one class learn nothing."""
        alone = int(((task.class_counts > 0).sum(1) == 1).sum())
        if self.tau and self.missing == "mask" and alone:
            LOG.warning(
                "fedlc: %d of %d clients have images of one class; with missing 'mask' their loss is 0 and "
                "they learn nothing; consider missing 'clamp'",
                *(alone, task.clients),
            )
        return {}

    def client_init(self, local: Local) -> State:
        if not self.tau:
            return {}
        least = {"mask": 0.0, "clamp": 1.0, "eps": 1e-8}[self.missing]
        # Under mask, 0^(-1/4) is infinite, and so is the offset.
        return {"offset": self.tau * local.class_counts.clamp(min=least).pow(-0.25)}

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        if not step_state:
            return loss
        logits = outputs.logits - step_state["offset"]
        if self.denominator == "full":
            return functional.cross_entropy(logits, step.labels)
        targets = step.labels[:, None]
        others = logits.scatter(1, targets, float("-inf")).logsumexp(1)
        return (others - logits.gather(1, targets).squeeze(1)).mean()
