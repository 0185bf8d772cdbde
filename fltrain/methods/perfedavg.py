"""Per-FedAvg: a global model for fast adaptation in one step."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Local, Method, Needs, Schedule, State, Step, Workload


class PerFedAvg(Method):
    """A local step adapts w' = w - a grad F(w; D1) and moves w by v = grad F(w'; D2), like MAML.

    D1 and D2 are consecutive batches; ``hf`` takes a third batch for the Hessian: v - a H v.

    Attributes:
        version: ``fo`` omits the Hessian, ``hf`` approximates H v by a difference of gradients.
        inner_lr: a, the learning rate of the adaptation; if None, the rate of local training.
        delta: width of the difference (``hf``).
        passes: passes over the images per epoch; 2, as in PFLlib, gives the number of steps of FedAvg.
        eval_steps: steps of adaptation before a client is tested, each on a random batch of its images.
    """

    name: Literal["perfedavg"] = "perfedavg"
    citation: ClassVar[str] = "Fallah et al., Personalized federated learning with MAML, NeurIPS 2020"

    version: Literal["fo", "hf"] = "fo"
    inner_lr: float | None = Field(default=None, ge=0)
    delta: float = Field(default=1e-3, gt=0)
    passes: int = Field(default=2, ge=1)
    eval_steps: int = Field(default=1, ge=0)

    @property
    def needs(self) -> Needs:
        return Needs(schedule=Schedule(batches=self._batches, passes=self.passes))

    @property
    def _batches(self) -> int:
        return 2 if self.version == "fo" else 3

    def gradient(self, step: Step, weights: Tensor, local: Local, step_state: State) -> tuple[Tensor, Tensor]:
        adapting, judging, *curving = _parts(step, self._batches)
        adapted = weights - self._inner_lr(local) * adapting.differentiate(track=False, observe=False)[0]
        gradient, loss = judging.differentiate(at=adapted)
        if not curving:
            return gradient, loss
        ahead, behind = (
            curving[0].differentiate(at=weights + shift, track=False, observe=False)[0]
            for shift in (self.delta * gradient, -self.delta * gradient)
        )
        return gradient - self._inner_lr(local) * (ahead - behind) / (2 * self.delta), loss

    def _inner_lr(self, local: Local) -> float:
        return local.lr if self.inner_lr is None else self.inner_lr

    def test_weights(self, weights: Tensor, local: Local) -> Tensor:
        random = self.random(local.task, round=local.round, client=local.client, use="adaptation")
        count = min(local.task.training.batch_size, local.samples)
        for _ in range(self.eval_steps):
            chosen = random.choice(local.samples, count, replace=False)
            weights = weights - self._inner_lr(local) * local.examples.mean_gradient(weights, chosen)
        return weights

    def training_work(self, size: Workload) -> float:
        """Return the work of two gradients for the Hessian, and of small batches, which are not divided."""
        visited = 0
        for images in size.sizes:
            too_small = images < 2 * self._batches
            parts = (
                [images] * self._batches
                if too_small
                else [len(range(k, images, self._batches)) for k in range(self._batches)]
            )
            visited += sum(parts) + (parts[2] if self.version == "hf" else 0) - images
        return size.passes * visited * size.gradient()

    def testing_work(self, size: Workload) -> float:
        """Return the work of the adaptation."""
        return self.eval_steps * min(size.batch_size, size.images) * size.gradient()


def _parts(step: Step, count: int) -> list[Step]:
    """Return steps on ``count`` parts of the batch; each on the whole batch if it is too small."""
    if len(step.labels) < 2 * count:  # BatchNorm could not train on the parts
        return [step] * count
    parts = zip(step.images.tensor_split(count), step.labels.tensor_split(count), strict=True)
    return [replace(step, images=images, labels=labels) for images, labels in parts]
