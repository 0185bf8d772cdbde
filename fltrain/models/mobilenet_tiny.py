"""A nine-layer MobileNetV2 with BatchNorm for demonstrations and tests."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fltrain.models.network import Network


class InvertedResidual(nn.Sequential):
    """1x1 expansion, 3x3 depthwise, 1x1 linear projection; identity path if the shape does not change."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        hidden = inputs * expansion
        super().__init__(
            OrderedDict(
                expand=nn.Conv2d(inputs, hidden, 1, bias=False),
                expand_norm=nn.BatchNorm2d(hidden),
                expand_relu=nn.ReLU6(),
                depthwise=nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=False),
                depthwise_norm=nn.BatchNorm2d(hidden),
                depthwise_relu=nn.ReLU6(),
                project=nn.Conv2d(hidden, outputs, 1, bias=False),
                project_norm=nn.BatchNorm2d(outputs),
            )
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return input + output if self.residual else output


def mobilenet_tiny(channels: int, classes: int) -> Network:
    """Stem 3x3 (16), residual block (16), strided block (24), head 1x1 (64), mean pool, classifier."""
    return Network(
        stem=nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
        stage1=InvertedResidual(16, 16, expansion=2, stride=1),
        stage2=InvertedResidual(16, 24, expansion=2, stride=2),
        head_conv1=nn.Sequential(nn.Conv2d(24, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()),
        pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        classifier=nn.Linear(64, classes),
    )
