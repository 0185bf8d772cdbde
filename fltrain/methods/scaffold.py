"""SCAFFOLD: control variates that cancel client drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from fltrain.core.lazy import Tensor
from fltrain.methods.base import Method
from fltrain.methods.ops.vectors import accumulated_steps, data_shares, mean
from fltrain.methods.types import Aggregate, Footprint, Local, Server, State, Task, Update

VARIANTS: dict[str, dict[str, str]] = {
    "paper": {},
    "ecgr": {"correction": "after_step", "normaliser": "plain", "weighting": "data"},
    "fedimpro": {"correction": "after_step", "normaliser": "plain", "weighting": "weights"},
}
"""Settings of the published algorithm, and of the code of ECGR and FedImpro."""


def _with_variant(schema: dict[str, Any]) -> None:
    """Add ``variant`` to the JSON schema of the settings."""
    schema["properties"]["variant"] = {"enum": list(VARIANTS), "default": "paper"}


class Scaffold(Method):
    """Corrects each local gradient by c - c_k, the server's control minus the client's.

    ``variant`` sets several options at once: ``paper`` (default), ``ecgr`` or ``fedimpro`` as in the code of
    these papers. A spec holds these options instead of the variant, so both spellings give the same run ID.

    Attributes:
        option: update of c_k: from the client's displacement (``II``), or as its mean gradient at the
            received weights (``I``), which costs an epoch.
        normaliser: number of steps that divides a displacement to give a mean gradient. ``plain`` is the
            number of steps; with momentum it overestimates the gradient and diverges. ``effective`` counts
            the steps that momentum adds, and equals ``plain`` at momentum 0.
        correction: added to the ``gradient``, before momentum; or, times the learning rate, to the weights
            ``after_step`` (code of ECGR and FedImpro). Displacements then contain each correction once for
            any momentum, which requires the plain normaliser; with momentum it is stable but biased.
        displacement: input of option II: the ``raw`` displacement, or the ``uploaded`` one after plug-ins
            have changed it.
        weighting: weights of the clients. ``uniform``: equal, as published. ``weights`` (code of
            FedImpro): the server's weights are a mean by data size, controls as published. ``scaled`` (code
            of FedDyn): controls are those of objectives scaled by the clients' relative sizes, which targets
            the objective weighted by data. ``data`` (code of ECGR): weights and server control are means by
            data size over the cohort, so that c forgets clients that were not sampled.
        server_lr: factor of the mean displacement.
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

    model_config = ConfigDict(json_schema_extra=_with_variant)

    @model_validator(mode="wrap")
    @classmethod
    def _options_of_the_variant(cls, settings: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(settings, Mapping) or "variant" not in settings:
            return handler(settings)
        variant, options = settings["variant"], {**settings}
        del options["variant"]
        if not isinstance(variant, str) or variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}; write {', '.join(VARIANTS)}, or leave it out")
        for name in VARIANTS[variant].keys() & options.keys():
            raise ValueError(f"variant {variant!r} sets {name!r}; leave one of the two out")
        return handler({**options, **VARIANTS[variant]})

    @model_validator(mode="after")
    def _the_normaliser_fits(self) -> Self:
        if self.option == "II" and self.correction == "after_step" and self.normaliser != "plain":
            raise ValueError(
                f"correction 'after_step' goes with normaliser 'plain', not {self.normaliser!r}; change one"
            )
        return self

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"control": start.new_zeros(start.shape)}

    def payload(self, state: State) -> State:
        return state

    def _weight(self, local: Local) -> float:
        """Return omega_k, the scale of the client's objective."""
        return local.relative_size if self.weighting == "scaled" else 1.0

    def _control(self, local: Local) -> Tensor:
        """Return the client's control c_k ``[P]``; zero before its first participation."""
        return local.state["control"] if local.state else local.start.new_zeros(local.start.shape)

    def client_init(self, local: Local) -> State:
        control = self._control(local)
        step_state = {"correction": local.payload["control"] / self._weight(local) - control}
        if self.option == "I":
            step_state["gradient"] = local.examples.mean_gradient(local.start)
        return step_state

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + step_state["correction"] if self.correction == "gradient" else gradient

    def post_step(self, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return weights - local.lr * step_state["correction"] if self.correction == "after_step" else weights

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        if self.option == "I":
            change = step_state["gradient"] - self._control(local)
        else:
            change = self._mean_gradient(update, local) - local.payload["control"] / self._weight(local)
        control = self._control(local) + change
        if self.weighting == "data":
            change = control - local.payload["control"]
        extras = {**update.extras, self.name: {"change": change * self._weight(local)}}
        return replace(update, extras=extras), {"control": control}

    def _mean_gradient(self, update: Update, local: Local) -> Tensor:
        """Return the mean corrected gradient ``[P]`` that the client's displacement implies."""
        ended = update.trained if self.displacement == "raw" else update.weights
        momentum = local.task.training.momentum if self.normaliser == "effective" else 0.0
        return (local.start - ended) / (local.lr * accumulated_steps(local.steps, momentum))

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
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
        control = state["control"] + change
        return Aggregate(before.weights + self.server_lr * moved, {"control": control})
