"""Parts of several networks: blocks, norm layers by name, mean pooling, He's initialisation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from fltrain.models.network import Network

NormLayer = Callable[[int], nn.Module]
"""Returns the norm layer for a number of channels."""


def norm_layer(norm: str, groups: int | None = None) -> NormLayer:
    """Return a function that makes BatchNorm (``bn``), GroupNorm (``gn``) or identity (``none``) layers.

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
    """Return the largest divisor of ``channels`` that is at most a sixteenth of it, and at least 1."""
    return next(groups for groups in range(max(channels // 16, 1), 0, -1) if channels % groups == 0)


def mean_pool() -> nn.Sequential:
    """Return the mean over all pixels: maps ``[n, c, h, w]`` to features ``[n, c]``."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def initialised(network: Network, scheme: str) -> Network:
    """Return the network with weights as PyTorch's layers draw them (``pytorch``), or redrawn.

    ``he`` draws convolution weights from N(0, 2 / (kernel area x output channels)) and sets their biases to
    zero, as torchvision's ResNets and the common CIFAR VGGs do (He et al., Delving deep into rectifiers, ICCV
    2015). ``he_fan_in`` draws convolution and linear weights from N(0, 2 / fan in), with zero biases, as
    FLFA's authors do. ``glorot`` draws all weights uniformly within sqrt(6 / (fan in + fan out)) of zero,
    with zero biases (Glorot and Bengio, AISTATS 2010; the default of TensorFlow's layers). ``normal`` draws
    them from N(0, 0.01), cut at two deviations, with biases of 0.1, as TensorFlow's tutorial on MNIST did.
    """
    for module in network.modules():
        if scheme == "he" and isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif scheme in ("he_fan_in", "glorot", "normal") and isinstance(module, nn.Conv2d | nn.Linear):
            if scheme == "he_fan_in":
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            elif scheme == "glorot":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.trunc_normal_(module.weight, std=0.1, a=-0.2, b=0.2)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.1 if scheme == "normal" else 0.0)
    return network


class InvertedResidual(nn.Sequential):
    """1x1 expansion, 3x3 depthwise, 1x1 linear projection; identity path if the shape does not change."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        expansion: int,
        stride: int,
        norm: NormLayer = nn.BatchNorm2d,
        bias: bool = False,
        expand: bool = True,
    ) -> None:
        """Make the block; without ``expand`` (for expansion 1) it has no first convolution."""
        hidden = inputs * expansion
        expanding = OrderedDict[str, nn.Module](
            expand=nn.Conv2d(inputs, hidden, 1, bias=bias),
            expand_norm=norm(hidden),
            expand_relu=nn.ReLU6(),
        )
        super().__init__(
            OrderedDict(
                **(expanding if expand else {}),
                depthwise=nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=bias),
                depthwise_norm=norm(hidden),
                depthwise_relu=nn.ReLU6(),
                project=nn.Conv2d(hidden, outputs, 1, bias=bias),
                project_norm=norm(outputs),
            )
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return input + output if self.residual else output
