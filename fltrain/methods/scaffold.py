"""SCAFFOLD: control variates that cancel client drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fltrain.methods.base import Method
from fltrain.methods.types import Footprint, Local, Server, State, Task, Update

if TYPE_CHECKING:
    from torch import Tensor


class Scaffold(Method):
    """Each local gradient is corrected by c - c_k, the server's control minus the client's.

    Attributes:
        option: how c_k is renewed: from the client's displacement (``II``), or as its mean gradient at the
            received weights (``I``), which costs an epoch.
        normaliser: the step count by which a displacement is divided to get a mean gradient. ``plain`` is
            the number of steps; with momentum it overestimates the gradient and diverges. ``effective``
            counts the steps that momentum adds, and agrees with it at momentum 0.
        correction: added to the ``gradient``, before momentum; or, times the learning rate, to the weights
            ``after_step`` (code of ECGR and FedImpro). Displacements then hold each correction once whatever
            the momentum, which calls for the plain normaliser; with momentum it is stable but biased.
        displacement: from which option II renews c_k: the ``raw`` one, or the one that is ``uploaded`` after
            plug-ins have changed it.
        weighting: who counts how much. ``uniform``: all clients alike, as published. ``weights`` (code of
            FedImpro): the server's weights are a mean by data size, controls as published. ``scaled`` (code
            of FedDyn): controls are those of objectives scaled by the clients' relative sizes, which targets
            the objective weighted by data. ``data`` (code of ECGR): weights and server control are means by
            data size over the clients of the round, so that c forgets those not sampled.
        server_lr: what the mean displacement is multiplied by.
    """

    name: Literal["scaffold"] = "scaffold"
    citation: ClassVar[str] = "Karimireddy et al., SCAFFOLD: stochastic controlled averaging, ICML 2020"
    footprint: ClassVar[Footprint] = Footprint(down=1, up=1, client=1, server=1)

    option: Literal["I", "II"] = "II"
    normaliser: Literal["effective", "plain"] = "effective"
    correction: Literal["gradient", "after_step"] = "gradient"
    displacement: Literal["raw", "uploaded"] = "raw"
    weighting: Literal["uniform", "weights", "scaled", "data"] = "uniform"
    server_lr: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _the_normaliser_fits(self) -> Self:
        if self.option == "II" and self.correction == "after_step" and self.normaliser != "plain":
            raise ValueError(
                f"correction 'after_step' goes with normaliser 'plain', not {self.normaliser!r}; change one"
            )
        return self

    def init_server(self, task: Task, start: Tensor) -> State:
        return {"control": start.new_zeros(start.shape)}

    def init_client(self, task: Task, start: Tensor) -> State:
        return {"control": start.new_zeros(start.shape)}

    def payload(self, state: State) -> State:
        return state

    def _weight(self, local: Local) -> float:
        """omega_k, the scale of the client's objective."""
        return local.relative_size if self.weighting == "scaled" else 1.0

    def begin(self, local: Local) -> State:
        carry = {"correction": local.payload["control"] / self._weight(local) - local.state["control"]}
        if self.option == "I":
            carry["gradient"] = local.examples.mean_gradient(local.start)
        return carry

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, carry: State) -> Tensor:
        return gradient + carry["correction"] if self.correction == "gradient" else gradient

    def settle(self, weights: Tensor, local: Local, carry: State) -> Tensor:
        return weights - local.lr * carry["correction"] if self.correction == "after_step" else weights

    def finish(self, update: Update, local: Local, carry: State) -> tuple[Update, State]:
        if self.option == "I":
            change = carry["gradient"] - local.state["control"]
        else:
            change = self._mean_gradient(update, local) - local.payload["control"] / self._weight(local)
        control = local.state["control"] + change
        if self.weighting == "data":
            change = control - local.payload["control"]
        extras = {**update.extras, self.name: {"change": change * self._weight(local)}}
        return replace(update, extras=extras), {"control": control}

    def _mean_gradient(self, update: Update, local: Local) -> Tensor:
        """What the client's displacement says its mean corrected gradient was ``[P]``."""
        from fltrain.methods.ops.vectors import accumulated_steps

        ended = update.trained if self.displacement == "raw" else update.weights
        momentum = local.task.training.momentum if self.normaliser == "effective" else 0.0
        return (local.start - ended) / (local.lr * accumulated_steps(local.steps, momentum))

    def aggregate(
        self, task: Task, state: State, before: Server, updates: Sequence[Update]
    ) -> tuple[Tensor, State]:
        from fltrain.methods.ops.vectors import data_shares, mean

        sizes = data_shares(updates)
        moved = mean(
            [update.displacement for update in updates],
            sizes if self.weighting in ("weights", "data") else None,
        )
        changes = [update.extras[self.name]["change"] for update in updates]
        if self.weighting == "data":
            change = mean(changes, sizes)
        else:
            change = mean(changes) * (len(updates) / task.clients)
        return before.weights + self.server_lr * moved, {"control": state["control"] + change}
