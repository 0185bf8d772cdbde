"""VGG networks for small images: 9, 11 and 16 layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fltrain.models.network import Network
from fltrain.models.parts import NormLayer


def _convolutions(
    channels: int, stages: Sequence[Sequence[int]], norm: NormLayer
) -> dict[str, nn.Sequential]:
    """Blocks conv1, conv2, ... of a 3x3 convolution, norm and ReLU; the last of a stage has a max-pooling."""
    blocks: dict[str, nn.Sequential] = {}
    for widths in stages:
        for width in widths:
            block = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU())
            blocks[f"conv{len(blocks) + 1}"] = block
            channels = width
        block.append(nn.MaxPool2d(2))
    return blocks


def vgg9(channels: int, side: int, classes: int, norm: NormLayer) -> Network:
    """Six convolutions (32 to 256), then 512, 512, classes."""
    convolutions = _convolutions(channels, ((32, 64), (128, 128), (256, 256)), norm)
    convolutions["conv4"].append(nn.Dropout2d(0.05))
    return Network(
        **convolutions,
        flatten=nn.Flatten(),
        fc1=nn.Sequential(nn.Dropout(0.1), nn.Linear(256 * (side // 8) ** 2, 512), nn.ReLU()),
        fc2=nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1)),
        classifier=nn.Linear(512, classes),
    )


def vgg11(channels: int, side: int, classes: int, norm: NormLayer) -> Network:
    """Eight convolutions (64 to 512), then 512, 512, classes with dropout before the first two."""
    return Network(
        **_convolutions(channels, ((64,), (128,), (256, 256), (512, 512), (512, 512)), norm),
        flatten=nn.Flatten(),
        fc1=nn.Sequential(nn.Dropout(0.5), nn.Linear(512 * (side // 32) ** 2, 512), nn.ReLU()),
        fc2=nn.Sequential(nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU()),
        classifier=nn.Linear(512, classes),
    )


def vgg16(channels: int, side: int, classes: int, norm: NormLayer, fc_layers: int) -> Network:
    """Thirteen convolutions (64 to 512), then 512, 512, classes, or with one ``fc_layers`` classes only."""
    widths = (512 * (side // 32) ** 2, *[512] * (fc_layers - 1))
    hidden = {
        f"fc{number}": nn.Sequential(nn.Linear(inputs, 512), nn.ReLU())
        for number, inputs in enumerate(widths[:-1], start=1)
    }
    return Network(
        **_convolutions(channels, ((64, 64), (128, 128), *[(width,) * 3 for width in (256, 512, 512)]), norm),
        flatten=nn.Flatten(),
        **hidden,
        classifier=nn.Linear(widths[-1], classes),
    )
