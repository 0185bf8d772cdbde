"""ResNet-18 and ResNet-50 of torchvision's blocks, with a stem for small or for large images."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain import models
from fltrain.core.lazy import nn
from fltrain.models.base import NormedModel


class ResNet(NormedModel):
    """A ResNet; stride on the 3x3 convolution of bottlenecks, 1x1 shortcuts where the shape changes.

    Attributes:
        stem: ``cifar`` is a 3x3 convolution of stride 1, ``imagenet`` torchvision's 7x7 of stride 2 with
            max-pooling.
        initialisation: of PyTorch's layers (``pytorch``), of torchvision's ResNets (``he``), or of FLFA's
            authors (``he_fan_in``, also of the linear layer).
    """

    citation: ClassVar[str] = "He et al., Deep residual learning for image recognition, CVPR 2016"
    channels_last: ClassVar[bool] = False
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 64
    bottleneck: ClassVar[bool]
    counts: ClassVar[tuple[int, ...]]
    """Number of blocks in each stage."""

    norm: Literal["bn", "gn"] = "bn"
    stem: Literal["cifar", "imagenet"] = "cifar"
    initialisation: Literal["pytorch", "he", "he_fan_in"] = "pytorch"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        stages: dict[str, nn.Module] = {}
        inputs = 64
        for number, count in enumerate(self.counts):
            width, stride = 64 * 2**number, min(number, 1) + 1
            stages[f"stage{number + 1}"], inputs = self._stage(inputs, width, count, stride)
        # The stages draw their weights before the stem: recorded runs depend on the order.
        pool, stem = models.parts.mean_pool(), self._stem(channels)
        return {"stem": stem, **stages, "pool": pool, "classifier": nn.Linear(inputs, classes)}

    def _stem(self, channels: int) -> nn.Module:
        if self.stem == "cifar":
            layer = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            return nn.Sequential(layer, self.norm_layer(64), nn.ReLU())
        layer = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        return nn.Sequential(layer, self.norm_layer(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))

    def _stage(self, inputs: int, width: int, count: int, stride: int) -> tuple[nn.Module, int]:
        """Blocks of one width, and their output channels.

        The first has the stride, and a 1x1 shortcut if it changes the shape.
        """
        # In the function, because this import takes almost as long as PyTorch's.
        from torchvision.models.resnet import BasicBlock, Bottleneck

        norm, block = self.norm_layer, Bottleneck if self.bottleneck else BasicBlock
        outputs = width * block.expansion
        shortcut = None
        if stride > 1 or inputs != outputs:
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
        first = block(inputs, width, stride, shortcut, norm_layer=norm)
        others = (block(outputs, width, norm_layer=norm) for _ in range(count - 1))
        return nn.Sequential(first, *others), outputs


class ResNet18(ResNet):
    """ResNet-18: 21 layers, 11,173,962 parameters for 3 channels and 10 classes (FedImpro).

    With the ``imagenet`` stem it is torchvision's: 11,227,812 parameters for 100 classes (FedFCD),
    11,179,077 for 5 (ECGR on LC25000); both authors' code keeps torchvision's initialisation, ``he``.
    """

    name: Literal["resnet18"] = "resnet18"
    bottleneck: ClassVar[bool] = False
    counts: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)


class ResNet50(ResNet):
    """ResNet-50: 54 layers, 23,520,842 parameters for 3 channels and 10 classes (FLFA).

    23,705,252 parameters for 100 classes (FedImpro).
    """

    name: Literal["resnet50"] = "resnet50"
    bottleneck: ClassVar[bool] = True
    counts: ClassVar[tuple[int, ...]] = (3, 4, 6, 3)
