"""Settings of local training: SGD and learning-rate schedules. No torch here."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field

from fltrain.core.config import Settings
from fltrain.core.registry import Component, catalogue, choice
from fltrain.data.augmentation import Augmentation


class LearningRate(Component):
    """Local learning rate as a function of the round; it is constant within a round."""

    @abstractmethod
    def factor(self, round: int) -> float:
        """Return the factor of the initial rate in the given round (counted from 0)."""

    def check(self, rounds: int) -> None:
        """Refuse a number of rounds if the rate would be zero in some of them."""
        if self.factor(rounds - 1) <= 0:
            raise ValueError(
                f"training.lr_schedule: {self.name!r} is zero in the last of {rounds} rounds; stretch it"
            )


class Constant(LearningRate):
    """The same rate in every round."""

    name: Literal["constant"] = "constant"

    def factor(self, round: int) -> float:
        return 1.0


class Exponential(LearningRate):
    """Multiply the rate by ``decay`` after every round.

    Attributes:
        decay: factor of the rate.
    """

    name: Literal["exponential"] = "exponential"
    decay: float = Field(default=0.998, gt=0, le=1)

    def factor(self, round: int) -> float:
        return self.decay**round


class Steps(LearningRate):
    """Multiply the rate by ``decay`` at the start of every ``every``-th round.

    Rounds count from 1, as in ECGR's code: with ``every: 10`` the first nine have the initial rate.

    Attributes:
        every: number of rounds between changes of the rate.
        decay: factor of the rate.
    """

    name: Literal["step"] = "step"
    every: int = Field(default=10, ge=1)
    decay: float = Field(default=0.5, gt=0, le=1)

    def factor(self, round: int) -> float:
        return self.decay ** ((round + 1) // self.every)


class Cosine(LearningRate):
    """Lower the rate to zero along half a cosine; it stays zero afterwards.

    Attributes:
        rounds: length of the half cosine.
    """

    name: Literal["cosine"] = "cosine"
    rounds: int = Field(ge=1)

    def factor(self, round: int) -> float:
        return (1 + math.cos(math.pi * min(round / self.rounds, 1.0))) / 2


LEARNING_RATES = catalogue(LearningRate)  # type: ignore[type-abstract]


if TYPE_CHECKING:
    AnyLearningRate: TypeAlias = LearningRate
else:
    AnyLearningRate = choice(LEARNING_RATES, "learning-rate schedule")


class Training(Settings):
    """Local training: SGD as in PyTorch, with a new optimiser for every client and round.

    Attributes:
        epochs: local epochs of a client in a round.
        batch_size: images of a step.
        lr: learning rate of the first round.
        lr_schedule: learning rate over rounds.
        momentum: momentum of SGD, zero at the start of every round.
        weight_decay: weight of the L2 penalty on all parameters.
        augmentation: random changes of the training images.
        clip_norm: scales down a gradient whose global norm exceeds it.
        last_batch: ``keep`` a last batch that is not full, unless it holds one image and is not the only
            batch (BatchNorm cannot train on it); or ``drop`` it, unless it is the only batch.
    """

    epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(default=0.01, gt=0)
    lr_schedule: AnyLearningRate = Constant()
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-3, ge=0)
    augmentation: Augmentation = Augmentation()
    clip_norm: float | None = Field(default=None, gt=0)
    last_batch: Literal["keep", "drop"] = "keep"

    def batch_sizes(self, samples: int, batches: int = 1) -> list[int]:
        """Return the images of each step of an epoch over ``samples`` images; a step takes ``batches``."""
        size = self.batch_size * batches
        full, remainder = divmod(samples, size)
        keep_last = remainder >= 2 * batches if self.last_batch == "keep" else False
        return [size] * full + ([remainder] if remainder and (keep_last or not full) else [])
