"""ResNet-18 and ResNet-50 of torchvision's blocks, with a stem for small or for large images."""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from fltrain.models.network import Network
from fltrain.models.parts import NormLayer, mean_pool

Block = type[BasicBlock] | type[Bottleneck]

DEPTHS: dict[int, tuple[Block, tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}
"""Kind of block, and number of blocks in each stage."""


def _stem(channels: int, kind: str, norm: NormLayer) -> nn.Sequential:
    """3x3 convolution (``cifar``), or 7x7 of stride 2 and max-pooling (``imagenet``)."""
    if kind == "cifar":
        return nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1, bias=False), norm(64), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _stage(block: Block, inputs: int, width: int, count: int, stride: int, norm: NormLayer) -> nn.Sequential:
    """Blocks of one width; the first has the stride, and a 1x1 shortcut if it changes the shape."""
    outputs = width * block.expansion
    shortcut = None
    if stride > 1 or inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
    first = block(inputs, width, stride, shortcut, norm_layer=norm)
    return nn.Sequential(first, *(block(outputs, width, norm_layer=norm) for _ in range(count - 1)))


def resnet(depth: int, channels: int, classes: int, stem: str, norm: NormLayer) -> Network:
    """Stem, four stages of residual blocks with strides 1, 2, 2, 2, mean pool, classifier."""
    block, counts = DEPTHS[depth]
    stages = {}
    inputs = 64
    for number, count in enumerate(counts):
        width, stride = 64 * 2**number, min(number, 1) + 1
        stages[f"stage{number + 1}"] = _stage(block, inputs, width, count, stride, norm)
        inputs = width * block.expansion
    return Network(
        stem=_stem(channels, stem, norm),
        **stages,
        pool=mean_pool(),
        classifier=nn.Linear(inputs, classes),
    )
