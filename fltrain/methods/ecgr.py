"""ECGR: divergent local steps of a client are damped before the upload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fltrain.core.config import added
from fltrain.core.floats import average
from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Aggregate, Local, Method, Needs, Recording, Server, State, Task, Update
from fltrain.methods.ops.vectors import gram

Vector = NDArray[np.float64]


class Ecgr(Method):
    """Gradient re-aggregation, as a plug-in on any base method that uploads weights.

    A share of the T local displacements m_t (weights before minus after a step) is selected as convergent.
    The client uploads alpha (sum of the selected + beta times the sum of the others); alpha restores the norm
    of the whole displacement. BatchNorm buffers do not change, unless ``buffers`` is ``reaggregated``.

    Attributes:
        kappa: share of the steps that are selected (rounded down, at least one).
        beta: weight of the other steps; 1 is the base method.
        rule: selection of the steps. ``herd``: greedily, so that their running sum stays shortest (order of
            ties: earlier first). ``closest``: to the mean displacement in distance; ``aligned``: in cosine.
            ``smallest``: with the smallest norms. ``last``: the last ones. ``random``: drawn without
            replacement.
        centred: whether herding subtracts the mean displacement first, as GraB and BHerd do.
        vector: representation of a step: its ``displacement``, with learning rate, momentum and corrections;
            or the raw ``gradient`` that the base method hands to the optimiser.
        storage: precision of the recorded steps; ``bfloat16`` halves the memory.
        buffers: BatchNorm statistics of the upload: as ``trained``; or ``reaggregated``, damped and scaled
            like the weights, as in the authors' code for FedNova (variances can become negative).
    """

    name: Literal["ecgr"] = "ecgr"
    revision: ClassVar[int] = 2
    plugin: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Local gradient regulation stabilizes federated learning under client heterogeneity, "
        "arXiv 2601.03584, 2026"
    )
    neutral: ClassVar = {"beta": 1.0}

    kappa: float = Field(default=0.5, gt=0, le=1)
    beta: float = Field(default=0.2, ge=0, le=1)
    rule: Literal["herd", "closest", "aligned", "smallest", "last", "random"] = "herd"
    centred: bool = False
    vector: Literal["displacement", "gradient"] = "displacement"
    storage: Literal["float32", "bfloat16"] = "float32"
    buffers: Literal["trained", "reaggregated"] = added("trained")

    @model_validator(mode="after")
    def _buffers_move(self) -> Self:
        if self.buffers == "reaggregated" and self.vector == "gradient":
            raise ValueError(
                "buffers: 'reaggregated' needs displacements, as statistics have no gradient; set vector to "
                "'displacement', or buffers to 'trained'"
            )
        return self

    @property
    def needs(self) -> Needs:
        recording = Recording(self.vector, self.storage, buffers=self.buffers == "reaggregated")
        return Needs(recording=recording, uploads=True)

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        """Upload the received weights minus the re-aggregated displacement."""
        assert update.trajectory is not None  # the engine records it
        steps, statistic_steps = update.trajectory.tensor_split([len(update.start)], dim=1)
        count = max(1, math.floor(self.kappa * local.steps + 1e-9))  # 0.29 of 100 steps are 29
        picked = self._select(steps, count, local)
        statistics = {"selected": torch.tensor(sorted(picked), dtype=torch.int32)}
        update = replace(update, statistics={**update.statistics, self.name: statistics})
        if self.beta < 1 and count < local.steps:
            moved, scale = self._reaggregated(steps, picked, update, local)
            update = replace(update, weights=update.start - moved)
            if self.buffers == "reaggregated":
                displacement = local.buffers - update.buffers
                damped = self._damped(displacement, _total(statistic_steps, picked, displacement))
                buffers = (local.buffers - scale * damped).where(scale.isfinite(), update.buffers)
                update = replace(update, buffers=buffers)
        return update, local.state

    def _select(self, steps: Tensor, count: int, local: Local) -> list[int]:
        """Return the indices of the selected steps, in the order of selection."""
        total = len(steps)
        if self.rule == "last":
            return list(range(total - count, total))
        if self.rule == "random":
            random = self.random(local.task, round=local.round, client=local.client)
            return list(map(int, random.choice(total, count, replace=False)))

        products: Vector = gram(steps).cpu().numpy()
        if self.rule == "herd":
            return herd(centre(products) if self.centred else products, count)
        lengths = products.diagonal()
        if self.rule == "smallest":
            values = lengths
        elif self.rule == "closest":  # the squared distance from the mean, up to a constant
            values = lengths - 2 * products.mean(0)
        else:  # the negative cosine with the mean, up to a factor; 0 for steps of length 0
            values = -products.mean(0) / np.sqrt(np.where(lengths > 0, lengths, np.inf))
        # Stable: of equal values the first ones.
        smallest: list[int] = np.argsort(values, kind="stable")[:count].tolist()
        return smallest

    def _damped(self, total: Tensor, selected: Tensor) -> Tensor:
        """Return selected steps plus beta times the others, from the sums of all and of the selected."""
        return self.beta * total + (1 - self.beta) * selected

    def _reaggregated(
        self, steps: Tensor, picked: list[int], update: Update, local: Local
    ) -> tuple[Tensor, Tensor]:
        """Return picked steps plus beta times the others ``[P]``, scaled to the norm of all; the scale.

        The scale is infinite if the steps cancel out.
        """
        displacement = update.start - update.weights
        if self.vector == "gradient":
            base = local.lr * _total(steps, range(len(steps)), displacement)
            selected = local.lr * _total(steps, picked, displacement)
        else:
            base, selected = displacement, _total(steps, picked, displacement)
        combined = self._damped(base, selected)
        length = combined.norm()
        # Steps that cancel out have no direction: keep the base method's displacement.
        scale = (base.norm() / length).where(length >= 1e-12, torch.inf)
        return (scale * combined).where(scale.isfinite(), base), scale

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Report selected steps (counted from 0), number of steps and lateness of the selection.

        ``lateness`` is the mean position of a client's selected steps, from -1/2 for the first step to 1/2
        for the last, averaged over the clients with several steps: 0 on average under random selection.
        """
        picks = {str(update.client): update.statistics[self.name]["selected"].tolist() for update in updates}
        steps = {str(update.client): update.steps for update in updates}
        lateness = [
            sum(picked) / len(picked) / (steps[client] - 1) - 0.5
            for client, picked in picks.items()
            if steps[client] > 1
        ]
        mean = average(lateness) if lateness else None
        return Aggregate(row={"selected": picks, "steps": steps, "lateness": mean})


def _total(steps: Tensor, chosen: Sequence[int], like: Tensor) -> Tensor:
    """Return the sum of the chosen rows ``[P]``, in single precision."""
    total = like.new_zeros(like.shape)
    for step in sorted(chosen):
        total += steps[step].to(like)
    return total


def centre(products: Vector) -> Vector:
    """Return the inner products of the steps minus their mean."""
    means = products.mean(0, keepdims=True)
    centred: Vector = products - means - means.T + products.mean()
    return centred


def herd(products: Vector, count: int) -> list[int]:
    """Pick steps one by one from inner products; each minimises the norm of the sum so far.

    ||s + x_j||^2 = ||s||^2 + 2 <s, x_j> + ||x_j||^2, where the first term is the same for all j.
    """
    picked: list[int] = []
    cost = products.diagonal().copy()
    for _ in range(count):
        step = int(np.argmin(cost))
        picked.append(step)
        cost += 2 * products[step]
        cost[step] = np.inf
    return picked
