"""MobileNetV2 for small images, in the variants found in federated-learning code."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from fltrain.models.network import Network
from fltrain.models.parts import NormLayer, mean_pool


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
        """Make the block; without ``expand`` (for expansion 1) its first convolution is left out."""
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


class Projected(nn.Module):
    """A block that changes nothing but the width; its input is added through a 1x1 convolution."""

    def __init__(self, block: nn.Module, inputs: int, outputs: int, norm: NormLayer) -> None:
        super().__init__()
        self.block = block
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), norm(outputs))

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.block(input) + self.shortcut(input)
        return output


@dataclass(frozen=True)
class Variant:
    """What the variants differ in.

    Attributes:
        stem: kernel size of the first convolution; its padding is 1.
        strides: stride of the first block of each stage.
        bias: whether convolutions have biases.
        always_expand: whether blocks have a 1x1 expansion even where it expands by 1.
        dropout: rate before the classifier.
    """

    stem: int
    strides: tuple[int, ...]
    bias: bool
    always_expand: bool
    dropout: float


STAGES = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
"""Expansion, output channels and number of blocks of the stages."""

VARIANTS = {
    "a": Variant(stem=1, strides=(1, 2, 2, 2, 1, 1, 1), bias=True, always_expand=True, dropout=0.0),
    "b": Variant(stem=3, strides=(1, 1, 2, 2, 1, 2, 1), bias=False, always_expand=True, dropout=0.0),
    "t": Variant(stem=3, strides=(1, 2, 2, 2, 1, 2, 1), bias=False, always_expand=False, dropout=0.2),
}


def mobilenetv2(
    channels: int, classes: int, variant: str, norm: NormLayer, stem_stride: int, shortcut_projection: bool
) -> Network:
    """Stem, seven stages of inverted residual blocks, 1x1 head (1280), mean pool, classifier."""
    form = VARIANTS[variant]

    def block(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
        expand = form.always_expand or expansion > 1
        made = InvertedResidual(inputs, outputs, expansion, stride, norm, form.bias, expand)
        if shortcut_projection and stride == 1 and inputs != outputs:
            return Projected(made, inputs, outputs, norm)
        return made

    def convolution(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> nn.Sequential:
        made = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=form.bias)
        return nn.Sequential(made, norm(outputs), nn.ReLU6())

    stem = convolution(channels, 32, form.stem, stem_stride, padding=1)
    stages = {}
    inputs = 32
    for number, ((expansion, outputs, count), stride) in enumerate(
        zip(STAGES, form.strides, strict=True), start=1
    ):
        first = block(inputs, outputs, expansion, stride)
        others = (block(outputs, outputs, expansion, stride=1) for _ in range(count - 1))
        stages[f"stage{number}"] = nn.Sequential(first, *others)
        inputs = outputs
    pool = mean_pool()
    if form.dropout:
        pool.append(nn.Dropout(form.dropout))
    return Network(
        stem=stem,
        **stages,
        head_conv1=convolution(inputs, 1280, kernel=1, stride=1, padding=0),
        pool=pool,
        classifier=nn.Linear(1280, classes),
    )
