"""Base classes of the networks in ``fltrain/models/networks``: options and blocks; parts of a network."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from fltrain import models
from fltrain.core.errors import FltrainError
from fltrain.core.lazy import nn
from fltrain.core.registry import Component
from fltrain.core.rng import Purpose, seeded_torch

Part = Literal["all", "head", "body"]
"""Parameters of a network: all, the classifier's (``head``), or the ones before it (``body``)."""

Private = Literal[Part, "batchnorm"]
"""Parameters that can stay with their client: a part, or the scales and shifts of BatchNorm."""


class Model(Component):
    """A network architecture and its options.

    A subclass defines ``min_side``, and ``blocks`` or ``network``.
    """

    channels_last: ClassVar[bool] = True
    """True if images on a CPU are stored channels-last, which is faster.

    PyTorch's BatchNorm then sums in single precision, otherwise in double precision. Deep networks magnify
    the difference, so they set this to False.
    """

    @property
    @abstractmethod
    def min_side(self) -> int:
        """Smallest image height and width, in pixels, that the network accepts."""

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        """Return new modules by name, in the order in which they run; the last one is ``classifier``.

        Images are ``[n, channels, side, side]``; the blocks before the classifier return ``[n, d]``.
        """
        raise FltrainError(f"model {self.name!r}: its class has to define blocks or network")

    def network(self, channels: int, side: int, classes: int) -> models.network.Network:
        """Return the network with new weights, for images ``[n, channels, side, side]``.

        The option ``initialisation`` of a subclass redraws the weights of the blocks.
        """
        blocks = self.blocks(channels, side, classes)
        if not isinstance(blocks, dict) or [*blocks][-1:] != ["classifier"]:
            names = ", ".join(map(repr, blocks)) if isinstance(blocks, dict) else type(blocks).__name__
            raise FltrainError(
                f"model {self.name!r}: its method blocks should return a dictionary of modules, the last of "
                f"which is called 'classifier'; found {names or 'none'}"
            )
        network = models.network.Network(**blocks)
        return models.parts.initialised(network, getattr(self, "initialisation", "pytorch"))


class NormedModel(Model):
    """A network whose convolutions are followed by norm layers.

    Attributes:
        norm: ``bn`` BatchNorm, ``gn`` GroupNorm; some networks also have ``none``.
        norm_groups: number of groups of each GroupNorm (default: the largest divisor of the width that is at
            most a sixteenth of it, so a group has about 16 channels).
    """

    norm: Literal["bn", "gn", "none"]
    norm_groups: int | None = Field(default=None, ge=1)

    width_step: ClassVar[int]
    """Greatest common divisor of the widths of the norm layers."""

    @field_validator("norm_groups")
    @classmethod
    def _groups_divide_widths(cls, groups: int | None) -> int | None:
        if groups is not None and cls.width_step % groups:
            raise ValueError(
                f"must divide {cls.width_step}, the common divisor of the layers' widths, got {groups}"
            )
        return groups

    def norm_layer(self, width: int) -> nn.Module:
        """Return a new norm layer for a number of channels."""
        return models.parts.norm_layer(self.norm, self.norm_groups)(width)


def build(
    model: Model, channels: int, side: int, classes: int, seed: int, client: int | None = None
) -> models.network.Network:
    """Return the network with the framework's default initialisation, drawn from the seed's own stream.

    Without ``client`` it is the initial network of the run; with ``client``, the initial one of that client.
    """
    with seeded_torch(seed, Purpose.INITIALISATION, client=0 if client is None else client + 1):
        return model.network(channels, side, classes)
