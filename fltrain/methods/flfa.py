"""FLFA: local training with the received global weights as feedback weights of some layers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fltrain import models
from fltrain.core.config import ListOf, hint
from fltrain.core.errors import FltrainError
from fltrain.core.floats import average
from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import (
    Aggregate,
    Local,
    Method,
    Needs,
    Network,
    Outputs,
    Server,
    State,
    Step,
    Task,
    Update,
)
from fltrain.metrics.updates import layer_similarity, skewness


class Flfa(Method):
    """Feedback alignment with the global weights, as a plug-in on any base method.

    In the selected layers, B replaces the layer's weight W in the error that travels to the input. B is the
    received weight, rescaled after every local step to the norm of W.

    Attributes:
        strategy: selection of layers: with the least (``lowest``) or most (``highest``) similar client
            updates in the previous round; ``skew`` decides between the two once, by the skewness of the
            first round's similarities; ``random`` draws them in every round, a control; ``fixed`` takes
            ``layers`` in every round.
        n_fa: number of selected layers; 0 is the base method.
        layers: names of the layers for ``fixed``; ``all`` for every layer.
        feedback: B is the received ``global`` weight; or ``random``, drawn once per run; or ``local``, the
            current weight itself (ordinary backpropagation, a check); or ``direct``: the input error is a
            random projection of the logits' error (direct feedback alignment).
        scale: ``frobenius`` rescales B to the norm of W after every step; ``channel`` rescales the part of
            every output channel (or neuron) to the norm of W's part; ``none`` keeps B.
        candidates: ``all`` layers, even if they read only images and send no error back; or ``effective``
            ones only.
        target: replace the selected layer's ``own`` feedback, or the feedback of the ``next`` layers, which
            read its output.
        mean: similarity to the ``unweighted`` or data-``weighted`` mean update.
        skew_sign: +1 reads positive skewness as "most layers diverge" (``lowest``), -1 the other way round.
    """

    name: Literal["flfa"] = "flfa"
    plugin: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(uploads=True)
    citation: ClassVar[str] = (
        "Baek et al., Federated learning with feedback alignment, arXiv 2512.12762, 2025"
    )
    neutral: ClassVar = {"n_fa": 0}

    strategy: Literal["lowest", "highest", "skew", "random", "fixed"] = "lowest"
    n_fa: int = Field(default=1, ge=0)
    layers: ListOf[str] | Literal["all"] = ()
    feedback: Literal["global", "random", "local", "direct"] = "global"
    scale: Literal["frobenius", "channel", "none"] = "frobenius"
    candidates: Literal["all", "effective"] = "all"
    target: Literal["own", "next"] = "own"
    mean: Literal["unweighted", "weighted"] = "unweighted"
    skew_sign: Literal[1, -1] = 1

    @model_validator(mode="after")
    def _layers_go_with_fixed(self) -> Self:
        if (self.strategy == "fixed") != bool(self.layers):
            raise ValueError("'layers' must be given with strategy 'fixed', and only then")
        return self

    # ---------------------------------------------------------------- which layers
    def server_init(self, task: Task, start: Tensor) -> State:
        """Select no layers: updates to compare exist only after the first round."""
        names = [layer.name for layer in task.layout.layers]
        if self.strategy != "fixed" and self.n_fa > len(names):
            raise FltrainError(
                f"plugins.flfa.n_fa: {self.n_fa} layers, but the network has {len(names)}; use at most these"
            )
        chosen = names if self.layers == "all" else self.layers
        for name in chosen:
            if name not in names:
                raise FltrainError(f"plugins.flfa.layers: unknown layer {name!r}{hint(name, names)}")
        return {"selected": torch.tensor([names.index(name) for name in chosen], dtype=torch.int32)}

    def payload(self, state: State) -> State:
        return {"selected": state["selected"]}

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Select the layers of the next round, and report the layers of this one."""
        return Aggregate(state=self._selection(task, state, updates), row=self._row(task, state, updates))

    def _selection(self, task: Task, state: State, updates: Sequence[Update]) -> State:
        """Return the layers with the least, or most, similar updates of this round (section 4.3)."""
        if self.strategy == "fixed":
            return state
        shares = [update.samples for update in updates] if self.mean == "weighted" else None
        displacements = torch.stack([update.displacement for update in updates])
        similarity = layer_similarity(displacements, task.layout.weights, shares)
        asymmetry = skewness(similarity)
        skewed = self.strategy == "skew" and asymmetry * self.skew_sign <= -0.05
        highest = state.get("highest", torch.tensor(self.strategy == "highest" or skewed))
        eligible = [
            index
            for index, value in enumerate(similarity)
            if value == value and (self.candidates == "all" or self._takes_effect(task, [index]))
        ]
        ranked = sorted(eligible, key=lambda index: -similarity[index] if highest else similarity[index])
        selection = {"highest": highest, "skewness": torch.tensor(asymmetry, dtype=torch.float64)}
        if self.strategy == "random":
            draws = state.get("draws", torch.tensor(0))
            ranked = self.random(task, round=int(draws), use="layers").permutation(eligible).tolist()
            selection["draws"] = draws + 1
        return {"selected": torch.tensor(ranked[: self.n_fa], dtype=torch.int32), **selection}

    def _routed(self, task: Task, selected: list[int]) -> list[int]:
        """Return the indices of the layers whose feedback is replaced if ``selected`` are."""
        if self.target == "own":
            return selected
        return sorted({consumer for index in selected for consumer in task.layout.layers[index].consumers})

    def _takes_effect(self, task: Task, selected: list[int]) -> bool:
        """Return True if selecting the layers has an effect: an error passes through replaced weights."""
        return any(task.layout.layers[index].sends_error for index in self._routed(task, selected))

    # ---------------------------------------------------------------- local training
    # The step state holds, per rerouted layer i: "feedback.i" (B), and if B is rescaled "source.i" and
    # "norm.i" (the tensor that is rescaled, and its norm or norms).
    def client_init(self, local: Local) -> State:
        step_state: State = {}
        for index in self._routed(local.task, local.payload["selected"].tolist()):
            weight = local.task.layout.weights[index].of(local.start)
            if self.feedback in ("random", "direct"):
                key = (self.name, self.feedback, index)
                source = local.task.constant(key, partial(self._drawn, local, index))
            else:
                source = weight
            step_state[f"feedback.{index}"] = source
            if self.scale != "none" and self.feedback in ("global", "random"):
                step_state[f"source.{index}"] = source
                step_state[f"norm.{index}"] = self._norms(source)
        return self._rescaled(local.start, local, step_state)

    def next_state(
        self, outputs: Outputs, step: Step, weights: Tensor, local: Local, step_state: State
    ) -> State:
        return self._rescaled(weights, local, step_state)

    def _rescaled(self, weights: Tensor, local: Local, step_state: State) -> State:
        """Return the step state with each B rescaled to the norm or norms of W."""
        slots, renewed = local.task.layout.weights, dict(step_state)
        if self.feedback == "local":
            return {
                f"feedback.{index}": slots[index].of(weights) for index in _layers(step_state, "feedback")
            }
        for index, source in _layers(step_state, "source").items():
            # From the original source: repeated rescaling of B would accumulate rounding errors.
            norm = step_state[f"norm.{index}"]
            ratio = (self._norms(slots[index].of(weights)) / norm).where(norm > 0, 1.0)
            renewed[f"feedback.{index}"] = source * ratio
        return renewed

    def _norms(self, weight: Tensor) -> Tensor:
        """Return the norm of a weight, or one norm per output channel, ``[channels, 1, ...]``."""
        norms: Tensor = weight.norm()
        if self.scale == "channel":
            norms = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.dim())), keepdim=True)
        return norms

    def route(self, network: Network, local: Local, step_state: State) -> AbstractContextManager[None]:
        layers = local.task.layout.layers
        routed = {
            network.get_submodule(layers[index].name): tensor
            for index, tensor in _layers(step_state, "feedback").items()
        }
        if not routed:
            return nullcontext()
        if self.feedback == "direct":
            return models.feedback.direct_feedback(network, routed)
        return models.feedback.feedback(routed)

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        """Record the final scale and cosine of B against W per layer."""
        measured: State = {}
        for index, source in _layers(step_state, "source").items():
            weight = local.task.layout.weights[index].of(update.trained).flatten()
            measured[f"scale.{index}"] = weight.norm() / source.norm()
            measured[f"cosine.{index}"] = torch.cosine_similarity(weight, source.flatten(), dim=0)
        return replace(update, statistics={**update.statistics, self.name: measured}), local.state

    # ---------------------------------------------------------------- records and random tensors
    def _row(self, task: Task, state: State, updates: Sequence[Update]) -> dict[str, Any]:
        """Return selected layers, their effect, and mean final scale and cosine of B against W.

        ``skewness`` describes the previous round's similarities, from which the layers were selected.
        """
        selected: list[int] = state["selected"].tolist()
        row: dict[str, Any] = {
            "selected": [task.layout.layers[index].name for index in selected],
            "effective": self._takes_effect(task, selected),
        }
        if "skewness" in state:
            row["skewness"] = float(state["skewness"])
        for kind in ("scale", "cosine"):
            values = [
                value for update in updates for value in _layers(update.statistics[self.name], kind).values()
            ]
            if values:
                row[kind] = average(torch.stack(values).tolist())
        return row

    def _drawn(self, local: Local, index: int) -> Tensor:
        """Return the layer's fixed random feedback.

        It is uniform in +-1/sqrt(fan in), like a new layer, or for ``direct`` a projection
        ``[input channels, classes]`` with entries N(0, 1/classes).
        """
        random, classes = self.random(local.task, client=index), local.task.classes
        if self.feedback == "direct":
            inputs = local.task.layout.layers[index].inputs
            values = random.normal(0.0, classes**-0.5, (inputs, classes))
        else:
            shape = local.task.layout.weights[index].shape
            bound = shape[1:].numel() ** -0.5
            values = random.uniform(-bound, bound, tuple(shape))
        return torch.from_numpy(values).to(local.start)


def _layers(tensors: State, kind: str) -> dict[int, Tensor]:
    """Return the tensors of a kind (``feedback``, ``source`` ...) by index of their layer."""
    return {int(name.partition(".")[2]): tensors[name] for name in tensors if name.startswith(f"{kind}.")}
