"""FedSOL: takes the local gradient at weights perturbed along the gradient of a proximal loss."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor, functional, torch
from fltrain.methods.base import Local, Method, Outputs, State, Step, Workload
from fltrain.models.base import Part

NEGLIGIBLE = 1e-5
"""Norm below which a proximal gradient is rounding noise; it is not scaled up."""


class FedSOL(Method):
    """Weights move up the gradient of a proximal loss; the step uses the local gradient at that point.

    Attributes:
        rho: length of the move.
        perturbation: ``adaptive`` scales the move of each parameter by its distance from the received one,
            normalised over the output channels of its tensor; ``fixed`` does not.
        part: parameters that are moved.
        proximal: the divergence ``kl`` of the model's softened predictions from the received model's, or half
            the squared distance ``l2`` of the weights.
        temperature: of the softened predictions.
        teacher: mode in which the received model predicts.
        feedback: plug-ins that reroute errors act in ``both`` gradients, or only in the gradient of the local
            ``loss``.
    """

    name: Literal["fedsol"] = "fedsol"
    citation: ClassVar[str] = (
        "Lee et al., FedSOL: stabilized orthogonal learning with proximal restrictions, CVPR 2024"
    )
    neutral: ClassVar = {"rho": 0.0}

    rho: float = Field(default=1.0, ge=0)
    perturbation: Literal["adaptive", "fixed"] = "adaptive"
    part: Part = "all"
    proximal: Literal["kl", "l2"] = "kl"
    temperature: float = Field(default=3.0, gt=0)
    teacher: Literal["eval", "train"] = "eval"
    feedback: Literal["both", "loss"] = "both"

    def training_work(self, size: Workload) -> float:
        """Return the work of the divergence from the received model."""
        if self.proximal == "l2":
            return 0.0
        return size.trained * (size.forward + size.gradient(self.part))

    def gradient(self, step: Step, weights: Tensor, local: Local, step_state: State) -> tuple[Tensor, Tensor]:
        uphill = self._uphill(step, weights, local)
        norm = uphill.norm()
        move = self.rho * uphill / (norm + 1e-12)
        if self.perturbation == "adaptive":
            move = self._scale(weights, local) * move
        else:
            move = move * (norm >= NEGLIGIBLE)
        # The pass behind the divergence has already updated the running statistics with this batch.
        return step.differentiate(at=weights + move, track=self.proximal == "l2")

    def _uphill(self, step: Step, weights: Tensor, local: Local) -> Tensor:
        """Return the gradient of the proximal loss ``[P]``."""
        if self.proximal == "l2":
            distance, head = weights - local.start, local.task.layout.head
            if self.part != "all":
                (distance[:head] if self.part == "head" else distance[head:]).zero_()
            return distance
        taught = step.frozen(local.start, local.buffers, training=self.teacher == "train")
        target = functional.log_softmax(taught.logits / self.temperature, dim=1)

        def divergence(outputs: Outputs) -> Tensor:
            log_probabilities = functional.log_softmax(outputs.logits / self.temperature, dim=1)
            return functional.kl_div(log_probabilities, target, reduction="batchmean", log_target=True)

        return step.differentiate(divergence, part=self.part, route=self.feedback == "both")[0]

    def _scale(self, weights: Tensor, local: Local) -> Tensor:
        """Return |w - r| ``[P]``; each tensor has unit norm along its first dimension, or is zero."""
        distance = (weights - local.start).abs()
        scales = []
        for slot in local.task.layout.parameters:
            part = slot.of(distance)
            norms = part.norm(dim=0, keepdim=True)
            scales.append((part / norms.where(norms > 0, 1.0)).flatten())
        return torch.cat(scales)
