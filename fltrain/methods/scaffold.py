"""SCAFFOLD: control variates that cancel client drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import Aggregate, Footprint, Local, Method, Server, State, Task, Update, Workload
from fltrain.methods.ops.vectors import accumulated_steps, data_shares, mean

VARIANTS: dict[str, dict[str, str]] = {
    "paper": {},
    "ecgr": {"correction": "after_step", "normaliser": "plain", "weighting": "data"},
    "fedimpro": {"correction": "after_step", "normaliser": "plain", "weighting": "weights"},
}
"""Settings of the published algorithm, and of the code of ECGR and FedImpro."""


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
            of FedDyn): controls belong to objectives scaled by the clients' relative sizes, which targets
            the objective weighted by data. ``data`` (code of ECGR): weights and server control are means by
            data size over the cohort, so that c forgets clients that were not sampled.
        server_lr: factor of the mean displacement.
        variant: sets several options at once, as above.
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

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema["properties"].update(
            variant={"enum": list(VARIANTS), "default": "paper"}
        )
    )

    @model_validator(mode="wrap")
    @classmethod
    def _options_of_the_variant(cls, settings: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(settings, Mapping) or "variant" not in settings:
            return handler(settings)
        variant, options = settings["variant"], {key: settings[key] for key in settings if key != "variant"}
        if str(variant) not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}; write {', '.join(VARIANTS)}, or leave it out")
        for name in VARIANTS[variant].keys() & options.keys():
            raise ValueError(f"variant {variant!r} sets {name!r}; leave one of the two out")
        return handler({**options, **VARIANTS[variant]})

    @model_validator(mode="after")
    def _the_normaliser_fits(self) -> Self:
        if self.option == "II" and self.correction == "after_step" and self.normaliser != "plain":
            raise ValueError("correction 'after_step' goes with normaliser 'plain', not 'effective'")
        return self

    def server_init(self, task: Task, start: Tensor) -> State:
        return {"control": start.new_zeros(start.shape)}

    def payload(self, state: State) -> State:
        return state

    def _controls(self, local: Local) -> tuple[Tensor, Tensor, float]:
        """Return c / omega_k and c_k ``[P]``, and omega_k, the scale of the client's objective."""
        omega = local.relative_size if self.weighting == "scaled" else 1.0
        control = local.state.get("control", torch.zeros_like(local.start))
        return local.payload["control"] / omega, control, omega

    def client_init(self, local: Local) -> State:
        common, control, _ = self._controls(local)
        gradient = {"gradient": local.examples.mean_gradient(local.start)} if self.option == "I" else {}
        return {"correction": common - control, **gradient}

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient + step_state["correction"] if self.correction == "gradient" else gradient

    def post_step(self, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return weights - local.lr * step_state["correction"] if self.correction == "after_step" else weights

    def training_work(self, size: Workload) -> float:
        return size.images * size.gradient() if self.option == "I" else 0.0

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        common, control, omega = self._controls(local)
        if self.option == "I":
            change = step_state["gradient"] - control
        else:
            # The displacement implies the mean corrected gradient.
            ended = update.trained if self.displacement == "raw" else update.weights
            momentum = local.task.training.momentum if self.normaliser == "effective" else 0.0
            change = (local.start - ended) / (local.lr * accumulated_steps(local.steps, momentum)) - common
        control = control + change
        if self.weighting == "data":
            change = control - local.payload["control"]
        return update.sending(self.name, {"change": change * omega}), {"control": control}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        sizes = data_shares(updates)
        by_size = self.weighting in ("weights", "data")
        moved = mean([update.displacement for update in updates], sizes if by_size else None)
        changes = [update.extras[self.name]["change"] for update in updates]
        share = len(updates) / task.clients
        change = mean(changes, sizes) if self.weighting == "data" else mean(changes) * share
        return Aggregate(before.weights + self.server_lr * moved, {"control": state["control"] + change})
