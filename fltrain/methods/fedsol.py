"""FedSOL: the gradient is taken where the proximal loss, not the local one, is worse."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor, functional, torch
from fltrain.methods.base import Method
from fltrain.methods.types import Footprint, Local, Needs, Outputs, State, Step
from fltrain.models.part import Part

NEGLIGIBLE = 1e-5
"""Norm below which a proximal gradient is rounding noise, which must not be scaled up."""


class FedSOL(Method):
    """Weights are moved up the gradient of a proximal loss; the step uses the local gradient found there.

    Attributes:
        rho: length of the move.
        perturbation: ``adaptive`` scales the move of each parameter by how far it is from the received one,
            normalised over the output channels of its tensor; ``fixed`` does not.
        part: parameters that are moved.
        proximal: the divergence ``kl`` of the model's softened predictions from the received model's, or half
            the squared distance ``l2`` of the weights.
        temperature: of the softened predictions.
        teacher: mode in which the received model predicts.
        feedback: whether plug-ins that change how errors travel act in ``both`` gradients or in that of the
            local ``loss`` alone.
    """

    name: Literal["fedsol"] = "fedsol"
    citation: ClassVar[str] = (
        "Lee et al., FedSOL: stabilized orthogonal learning with proximal restrictions, CVPR 2024"
    )
    neutral: ClassVar = {"rho": 0.0}
    needs: ClassVar[Needs] = Needs(frozen_models=1)
    footprint: ClassVar[Footprint] = Footprint(step=7.0)

    rho: float = Field(default=1.0, ge=0)
    perturbation: Literal["adaptive", "fixed"] = "adaptive"
    part: Part = "all"
    proximal: Literal["kl", "l2"] = "kl"
    temperature: float = Field(default=3.0, gt=0)
    teacher: Literal["eval", "train"] = "eval"
    feedback: Literal["both", "loss"] = "both"

    def gradient(self, step: Step, weights: Tensor, local: Local, step_state: State) -> tuple[Tensor, Tensor]:
        uphill = self._uphill(step, weights, local)
        norm = uphill.norm()
        move = self.rho * uphill / (norm + 1e-12)
        if self.perturbation == "adaptive":
            move = self._scale(weights, local) * move
        else:
            move = move * (norm >= NEGLIGIBLE)
        # The pass behind the divergence has already shown this batch to the running statistics.
        return step.differentiate(at=weights + move, track=self.proximal == "l2")

    def _uphill(self, step: Step, weights: Tensor, local: Local) -> Tensor:
        """The gradient of the proximal loss ``[P]``."""
        if self.proximal == "l2":
            distance, head = weights - local.start, local.task.layout.head
            if self.part != "all":
                (distance[:head] if self.part == "head" else distance[head:]).zero_()
            return distance
        taught = step.frozen(local.start, local.buffers, training=self.teacher == "train")
        target = functional.log_softmax(taught.logits / self.temperature, dim=1)

        def divergence(outputs: Outputs) -> Tensor:
            own = functional.log_softmax(outputs.logits / self.temperature, dim=1)
            return functional.kl_div(own, target, reduction="batchmean", log_target=True)

        return step.differentiate(divergence, part=self.part, route=self.feedback == "both")[0]

    def _scale(self, weights: Tensor, local: Local) -> Tensor:
        """|w - r| ``[P]``, each tensor with unit norm along its first dimension; what is zero stays zero."""
        distance = (weights - local.start).abs()
        scales = []
        for slot in local.task.layout.parameters:
            part = slot.of(distance)
            norms = part.norm(dim=0, keepdim=True)
            scales.append((part / norms.where(norms > 0, 1.0)).flatten())
        return torch.cat(scales)
