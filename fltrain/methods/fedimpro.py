"""FedImpro: the upper part also trains on features sampled from distributions shared by all clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fltrain.core.errors import FltrainError
from fltrain.core.lazy import Tensor, functional, torch
from fltrain.methods.base import (
    Aggregate,
    Footprint,
    Local,
    Method,
    Network,
    Outputs,
    Server,
    State,
    Step,
    Task,
    Update,
    Workload,
)
from fltrain.methods.ops.counter_normal import standard_normal
from fltrain.runtime.devices import to_device

ESTIMATES = ("mean", "spread", "seen", "spread_seen")
"""Per class: ``mean`` and ``spread`` ``[C, *shape]``, and a flag ``[C]`` for each, 1 if it is known.

``shape`` is the shape of the maps, or ``[channels, 1, 1]`` for estimates per channel.
"""


class FedImpro(Method):
    """Features at a cut of the network are modelled by one Gaussian per class, as a plug-in on any base.

    Clients estimate mean and spread of their features in training, the server averages the estimates, and in
    the next round clients feed samples of them, with their labels, to the part above the cut.

    Attributes:
        split: the cut, as the number of the last convolution below it; null is the network's middle cut
            (after stage 2 of a ResNet).
        shape: Gaussians per feature map ``element`` or per ``channel``.
        labels: labels of the samples: ``balanced`` over the classes with an estimate; copied from the
            ``batch``; or ``tiled``, C (B // C + 1) samples of all classes in turn (the authors' code).
        n_hat: samples per step; null is the number of images in the batch, 0 is the base method.
        source: samples come from the received ``global`` estimates, or from the client's ``running`` ones
            (the authors' code).
        beta_client: weight of the old estimate when a batch's is added; ``count`` gives the batch the share
            of the client's images of the class that it holds.
        beta_server: weight of the old global estimate.
        aggregation: mean of the uploads over the cohort, in which clients without images of a class return
            the received estimate (``uniform_carry``); mean over the clients with images of the class
            (``holders_only``); or mean by number of images, with the pooled variance (``label_size``).
        moment: measure of spread, standard deviation ``std`` or variance ``var``.
        sigma_cap: upper limit of the spread, or null.
        initial: classes without an estimate yield no samples (``masked``), or start from a mean drawn from
            U(0, 1) and spread 0.1 (``uniform``, the authors' code).
        weight: w of the samples' loss in round r (from 0): ``ramp`` is min(1, r / ramp_rounds);
            ``ramp_unclipped`` r E / ramp_rounds; ``constant`` 1; ``half_half`` weighs real images by
            1 - w/2 and samples by w/2 with the ramp's w; ``mean_concat`` takes one mean over both.
        ramp_rounds: rounds until the ramp reaches 1; null is half of all rounds.
        noise: standard deviation of the noise that clients add to the estimates that they upload.
    """

    name: Literal["fedimpro"] = "fedimpro"
    plugin: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Tang et al., FedImpro: measuring and improving client update in federated learning, ICLR 2024"
    )
    neutral: ClassVar = {"n_hat": 0}
    footprint: ClassVar[Footprint] = Footprint(down=None, up=None, server=None)

    split: int | None = Field(default=None, ge=1)
    shape: Literal["element", "channel"] = "element"
    labels: Literal["balanced", "batch", "tiled"] = "balanced"
    n_hat: int | None = Field(default=None, ge=0)
    source: Literal["global", "running"] = "global"
    beta_client: Annotated[float, Field(ge=0, lt=1)] | Literal["count"] = 0.9
    beta_server: float = Field(default=0.0, ge=0, lt=1)
    aggregation: Literal["uniform_carry", "holders_only", "label_size"] = "uniform_carry"
    moment: Literal["std", "var"] = "std"
    sigma_cap: float | None = Field(default=0.1, gt=0)
    initial: Literal["masked", "uniform"] = "masked"
    weight: Literal["ramp", "ramp_unclipped", "constant", "half_half", "mean_concat"] = "ramp"
    ramp_rounds: int | None = Field(default=None, ge=1)
    noise: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _labels_say_how_many(self) -> Self:
        if self.labels != "balanced" and self.n_hat:
            raise ValueError(f"n_hat: labels {self.labels!r} decide how many samples there are; leave it out")
        return self

    # ---------------------------------------------------------------- estimates
    def server_init(self, task: Task, start: Tensor) -> State:
        try:
            maps = task.map_shape(task.network.cut(self.split))
        except FltrainError as error:
            raise FltrainError(f"plugins.fedimpro.split: {error}, or leave out fedimpro") from None
        shape = maps if self.shape == "element" else (maps[0], *[1] * (len(maps) - 1))
        seen = start.new_zeros(task.classes)
        if self.initial == "masked":
            mean, spread = (start.new_zeros((task.classes, *shape)) for _ in range(2))
        else:
            drawn = self.random(task, use="initial").uniform(0, 1, (task.classes, *shape))
            mean = torch.from_numpy(drawn).to(start)
            spread = torch.full_like(mean, 0.1 if self.moment == "std" else 0.01)
            seen = seen + 1
        return {"mean": mean, "spread": spread, "seen": seen, "spread_seen": seen}

    def payload(self, state: State) -> State:
        return state

    def client_init(self, local: Local) -> State:
        step_state = {**local.payload, "step": torch.zeros((), dtype=torch.int64, device=local.start.device)}
        complete = local.payload["seen"] * local.payload["spread_seen"]
        seen = complete.nonzero().flatten().cpu().numpy()
        if self.n_hat != 0 and len(seen):
            random = self.random(local.task, round=local.round, client=local.client)
            step_state["key"] = step_state["step"] + int(random.integers(2**63))
            drawn = self._draw_labels(seen, local, random)
            step_state["labels"] = to_device(drawn, local.start.device)
            for name, weight in zip(("real", "sampled"), self._weights(local), strict=True):
                step_state[name] = local.start.new_full((), weight)
        return step_state

    def _draw_labels(
        self, seen: NDArray[np.int64], local: Local, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the labels of the samples of every step ``[steps, n]``."""
        classes, batch = local.task.classes, local.task.training.batch_size
        if self.labels == "tiled":
            return np.tile(seen, (local.steps, batch // classes + 1))
        count = batch if self.n_hat is None else self.n_hat
        # Class after class in a new order each time: incomplete batches are balanced, too.
        turns = -(-count // len(seen))
        drawn = random.permuted(np.tile(seen, (local.steps * turns, 1)), axis=1)
        return drawn.reshape(local.steps, -1)[:, :count].copy()

    # ---------------------------------------------------------------- local steps
    def forward(self, network: Network, step: Step, local: Local, step_state: State) -> Outputs:
        """Run one joint pass of the upper part on real and sampled maps."""
        cut, count = network.cut(self.split), len(step.images)
        maps = network.lower(step.images, cut)
        extras: State = {"maps": maps.detach()}
        if "labels" in step_state:
            extras["labels"], sampled = self._sample(maps, step.labels, local, step_state)
            maps = torch.cat([maps, sampled])
        features = network.upper_features(maps, cut)
        logits = network.classifier(features)
        if "labels" in step_state:
            extras["logits"] = logits[count:]
        return Outputs(features[:count], logits[:count], extras)

    def _sample(self, maps: Tensor, labels: Tensor, local: Local, step_state: State) -> tuple[Tensor, Tensor]:
        """Return labels and maps of this step's samples."""
        source = local.payload if self.source == "global" else step_state
        chosen = step_state["labels"].index_select(0, step_state["step"].view(1))[0]
        if self.labels == "tiled":
            full = local.task.training.batch_size // local.task.classes + 1
            chosen = chosen[: len(chosen) // full * (len(labels) // local.task.classes + 1)]
        elif self.n_hat is None:
            chosen = chosen[: len(labels)]
        if self.labels == "batch":  # a class without an estimate is replaced by a drawn one
            complete = local.payload["seen"] * local.payload["spread_seen"]
            chosen = labels.where(complete.index_select(0, labels) > 0, chosen)
        mean, spread = (source[name].index_select(0, chosen) for name in ("mean", "spread"))
        deviation = spread if self.moment == "std" else spread.sqrt()
        noise = standard_normal((len(chosen), *maps.shape[1:]), step_state["key"], step_state["step"])
        return chosen, mean + deviation * noise

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        if "logits" not in outputs.extras:
            return loss
        logits, labels = outputs.extras["logits"], outputs.extras["labels"]
        real: float | Tensor = step_state["real"]
        sampled: float | Tensor = step_state["sampled"]
        if self.weight == "mean_concat":
            total = len(step.labels) + len(labels)
            real, sampled = len(step.labels) / total, len(labels) / total
        return real * loss + sampled * functional.cross_entropy(logits, labels)

    def training_work(self, size: Workload) -> float:
        """Return the work of the samples in the part above the cut, if all classes have an estimate."""
        samples: float = size.trained
        if self.labels == "tiled":
            samples = size.passes * sum(size.classes * (images // size.classes + 1) for images in size.sizes)
        elif self.n_hat is not None:
            samples = size.passes * len(size.sizes) * self.n_hat
        rounds = size.rounds - (self.initial == "masked")  # without estimates before the first round
        return 3 * samples * size.above(self.split) * rounds / size.rounds if self.n_hat != 0 else 0.0

    def _weights(self, local: Local) -> tuple[float, float]:
        """Return the weights of the mean losses on images and on samples."""
        if self.weight in ("constant", "mean_concat"):
            return 1.0, 1.0
        ramp = local.round / (self.ramp_rounds or max(1, local.task.rounds / 2))
        if self.weight == "ramp_unclipped":
            return 1.0, ramp * local.task.training.epochs
        ramp = min(1.0, ramp)
        return (1.0, ramp) if self.weight == "ramp" else (1 - ramp / 2, ramp / 2)

    def next_state(
        self, outputs: Outputs, step: Step, weights: Tensor, local: Local, step_state: State
    ) -> State:
        """Renew the estimates of the classes in the batch."""
        counts, mean, variance = class_moments(
            outputs.extras["maps"], step.labels, local.task.classes, step_state["mean"].shape[1:]
        )
        spread = variance.sqrt() if self.moment == "std" else variance
        if self.beta_client == "count":
            keep = 1 - (counts / local.class_counts.clamp(min=1)).clamp(max=1)
        else:
            keep = counts.new_full(counts.shape, self.beta_client)
        renewed = _mixed(step_state, keep, (mean, spread), (counts >= 1, counts >= 2))
        renewed["spread"] = self._capped(renewed["spread"])
        return {**step_state, "step": step_state["step"] + 1, **renewed}

    def _capped(self, spread: Tensor) -> Tensor:
        return spread.clamp(0, self.sigma_cap)

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        """Upload the estimates, with noise, and the classes of the client."""
        upload = {name: step_state[name] for name in ESTIMATES}
        if self.noise:
            random = self.random(local.task, round=local.round, client=local.client, use="noise")
            for name in ("mean", "spread"):
                noise = random.standard_normal(tuple(upload[name].shape), "float32")
                upload[name] = upload[name] + self.noise * torch.from_numpy(noise).to(upload[name])
        if self.aggregation == "holders_only":
            upload["counts"] = (local.class_counts > 0).to(local.class_counts)
        elif self.aggregation == "label_size":
            upload["counts"] = local.class_counts
        return update.sending(self.name, upload), local.state

    # ---------------------------------------------------------------- server
    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Average the estimates (equation 7); keep classes without uploads. Report the known classes."""
        sent = [update.extras[self.name] for update in updates]
        means, spreads, seen, spread_seen = (torch.stack([stats[key] for stats in sent]) for key in ESTIMATES)
        spreads = self._capped(spreads)
        weights = torch.stack([stats.get("counts", torch.ones_like(stats["seen"])) for stats in sent])
        mean = _mean(means, weights * seen)
        if self.aggregation == "label_size":
            variances = spreads**2 if self.moment == "std" else spreads
            spread = _mean(variances + (means - mean) ** 2, weights * spread_seen)
            spread = self._capped(spread.sqrt() if self.moment == "std" else spread)
        else:
            spread = _mean(spreads, weights * spread_seen)
        masks = ((weights * seen).sum(0) > 0, (weights * spread_seen).sum(0) > 0)
        row = {"known_classes": int(state["seen"].sum())}
        return Aggregate(state=_mixed(state, self.beta_server, (mean, spread), masks), row=row)


def _mixed(
    state: State, keep: Tensor | float, fresh: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor]
) -> State:
    """Return estimates, renewed for the classes in ``masks``; ``keep`` is the share of the old ones."""
    renewed: State = {}
    for name, flag, new, mask in zip(("mean", "spread"), ("seen", "spread_seen"), fresh, masks, strict=True):
        old = _per_class(keep * state[flag], new)
        renewed[name] = (old * state[name] + (1 - old) * new).where(_per_class(mask, new), state[name])
        renewed[flag] = state[flag].maximum(mask.to(state[flag]))
    return renewed


def class_moments(
    maps: Tensor, labels: Tensor, classes: int, shape: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images of each class ``[C]``, mean and unbiased variance of their maps ``[C, *shape]``.

    If ``shape`` is 1 and the maps are larger, pixels are pooled. Zero for classes with too few images.
    """
    one_hot = (labels[:, None] == torch.arange(classes, device=labels.device)).to(maps)  # [n, C]
    pooled = [dim for dim, size in enumerate(shape, start=1) if size != maps.shape[dim]]

    def total(values: Tensor) -> Tensor:
        reduced = values.sum(pooled, keepdim=True) if pooled else values
        return torch.unflatten(one_hot.T @ reduced.flatten(1), 1, tuple(shape))

    counts = one_hot.sum(0)
    values = _per_class(counts, maps) * (maps[0].numel() / torch.Size(shape).numel())
    mean = total(maps) / values.clamp(min=1)
    deviations = maps - mean.index_select(0, labels)
    return counts, mean, total(deviations**2) / (values - 1).clamp(min=1)


def _per_class(values: Tensor, like: Tensor) -> Tensor:
    """Return numbers ``[C]``, reshaped to multiply ``[C, ...]``."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _mean(stacked: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over clients of ``[m, C, ...]`` with weights ``[m, C]``; zero if all weights are."""
    weights = weights.view(*weights.shape, *[1] * (stacked.dim() - 2))
    return (stacked * weights).sum(0).div(weights.sum(0).clamp(min=1e-12))
