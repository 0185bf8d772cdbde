"""What several networks are made of: norm layers by name, mean pooling, He's initialisation."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fltrain.models.network import Network

NormLayer = Callable[[int], nn.Module]
"""Makes the norm layer for a number of channels."""


def norm_layer(norm: str, groups: int | None = None) -> NormLayer:
    """Return what makes BatchNorm (``bn``), GroupNorm (``gn``) or identity (``none``) layers.

    Args:
        norm: one of the three.
        groups: number of groups of every GroupNorm; without it they hold about 16 channels each.
    """
    if norm == "bn":
        return nn.BatchNorm2d
    if norm == "gn":
        return lambda channels: nn.GroupNorm(groups or _groups_of_16(channels), channels)
    return lambda channels: nn.Identity()


def _groups_of_16(channels: int) -> int:
    """Largest divisor of the number of channels that is at most a sixteenth of it, and at least 1."""
    return next(groups for groups in range(max(channels // 16, 1), 0, -1) if channels % groups == 0)


def mean_pool() -> nn.Sequential:
    """Mean over all pixels: maps ``[n, c, h, w]`` to features ``[n, c]``."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def initialised(network: Network, how: str) -> Network:
    """Return the network as PyTorch's layers initialised themselves (``pytorch``), or after He (``he``).

    The latter draws convolution weights from N(0, 2 / (kernel area x output channels)) and sets their biases
    to zero, as torchvision's ResNets and the common CIFAR VGGs do (He et al., Delving deep into rectifiers,
    ICCV 2015).
    """
    if how == "he":
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
    return network
